"""PURE: read a plan out of what a model wrote, and say in which order its steps can go."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

MOST_STEPS: Final = 50

_TASK_NAMES: Final = ("task", "step", "description", "title", "instruction", "action", "name")
_PLAN_NAMES: Final = ("steps", "plan", "tasks", "todo")
_LOOKS: Final = 100
_FENCE: Final = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What to do, and the numbers (from 1) of the earlier steps whose findings it needs."""

    number: int
    task: str
    after: tuple[int, ...]

    @property
    def name(self) -> str:
        """The step's name in the job."""
        return f"step {self.number}"


def read_plan(text: str, most: int) -> list[PlanStep]:
    """The plan in `text`: JSON alone, in a code fence, or among other words.

    Steps are strings, or objects with a `task` and `after`: the numbers of the steps that it needs,
    without which it is the step before. More than `most` steps are put together into the last.
    Raises ValueError with the reason where there is no plan.
    """
    for value in _values(text):
        if listed := _listed(value):
            tasks = [(_task(item), item) for item in listed]
            if all(task for task, _ in tasks):
                return _bounded([_step(n, *task) for n, task in enumerate(tasks, 1)], most)
    raise ValueError("there is no JSON object with a list `steps` of tasks in it")


def waves(plan: list[PlanStep]) -> list[list[PlanStep]]:
    """The steps in groups: those of one group can go side by side, after all groups before it."""
    levels: dict[int, int] = {}
    grouped: list[list[PlanStep]] = []
    for step in plan:
        level = levels[step.number] = 1 + max((levels[n] for n in step.after), default=-1)
        if level == len(grouped):
            grouped.append([])
        grouped[level].append(step)
    return grouped


def _values(text: str) -> Iterator[Any]:
    """The JSON objects in `text`, and a list with which its JSON begins; the likeliest first."""
    for candidate in (text, *_FENCE.findall(text)):
        try:
            yield json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    for place, match in enumerate(islice(re.finditer(r"[{\[]", text), _LOOKS)):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) or place == 0:
            yield value


def _listed(value: Any) -> list[Any]:
    if isinstance(value, dict):
        named = (value.get(name) for name in _PLAN_NAMES)
        value = next((found for found in named if found), None)
        if isinstance(value, dict):
            return _listed(value) or list(value.values())
    return value if isinstance(value, list) else []


def _task(item: Any) -> str:
    if isinstance(item, dict):
        item = next((item[name] for name in _TASK_NAMES if isinstance(item.get(name), str)), "")
    return " ".join(item.split()) if isinstance(item, str) else ""


def _step(number: int, task: str, item: Any) -> PlanStep:
    after = item.get("after") if isinstance(item, dict) else None
    before = (number - 1,) if number > 1 else ()
    if not isinstance(after, list):
        return PlanStep(number, task, before)
    known = sorted({n for n in after if type(n) is int and 1 <= n < number})
    return PlanStep(number, task, tuple(known) if known or not after else before)


def _bounded(plan: list[PlanStep], most: int) -> list[PlanStep]:
    if len(plan) <= most:
        return plan
    rest = plan[most - 1 :]
    task = "; then ".join(step.task for step in rest)
    after = sorted({n for step in rest for n in step.after if n < most})
    return [*plan[: most - 1], PlanStep(most, task, tuple(after))]
