"""Tools: async functions that a model may ask for; each use is a durable step with limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from tasks.calls import Reply
from tasks.context import Context
from tasks.documents import fit
from tasks.errors import JobError, PermanentError, SettingsError

ROUNDS: Final = 8
"""As often as a model may ask for tools within one step."""
AT_ONCE: Final = 16
"""As many tools as it may ask for at once."""
RESULT_TOKENS: Final = 2_000
"""As much of a tool's result as the model is told."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may ask for: `run(input)` answers a text or a JSON-able value."""

    name: str
    description: str
    input_model: type[BaseModel]
    run: Callable[[Any], Awaitable[Any]]
    timeout_s: float

    def offer(self) -> dict[str, Any]:
        """The tool as OpenAI's API describes one."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.input_model.model_json_schema(),
            },
        }

    async def answer(self, arguments: str) -> str:
        """What the model is told. A fault of its arguments, or of the tool, is told, too.

        Raises JobError where the tool does: that ends the attempt.
        """
        try:
            given = self.input_model.model_validate_json(arguments or "{}")
            value = await self.run(given)
        except ValidationError as error:
            return f"The arguments are wrong: {error}"
        except JobError:
            raise
        except Exception as error:
            # Only the name: the text of an exception can hold anything, a password too.
            return f"The tool failed: {type(error).__name__}"
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        return fit([text], RESULT_TOKENS)[0]


_registry: dict[str, Tool] = {}
_Run = TypeVar("_Run", bound=Callable[..., Awaitable[Any]])


def tool(
    name: str, *, input: type[BaseModel], description: str = "", timeout_s: float = 60
) -> Callable[[_Run], _Run]:
    """Register an async function `(input) -> value` as a tool that an agent may be given.

    It is used by jobs that name it, and by no other. Its `description`, else the docstring's first
    line, is for the model. Raises SettingsError for a name that is taken.
    """

    def register(run: _Run) -> _Run:
        there = _registry.get(name)
        if there is not None and there.run.__module__ != run.__module__:
            raise SettingsError(f"Two modules register the tool {name!r}: {there.run.__module__}")
        text = description or (run.__doc__ or "").strip().partition("\n")[0]
        _registry[name] = Tool(name, text, input, run, timeout_s)
        return run

    return register


def find_tools(names: Sequence[str]) -> list[Tool]:
    """The registered tools of these names. Raises ValueError for one that is not there."""
    if missing := [name for name in names if name not in _registry]:
        known = ", ".join(sorted(_registry)) or "none"
        raise ValueError(f"there is no tool {missing[0]!r}; registered: {known}")
    return [_registry[name] for name in names]


async def ask_with_tools(
    context: Context,
    body: Mapping[str, Any],
    tools: Sequence[Tool],
    *,
    step: str,
    streamed: bool = False,
    timeout_s: float | None = None,
) -> Reply:
    """The model's answer, after it used as many of `tools` as it wanted.

    Every question is a call of its own (`{step}`, `{step} round 2`, …), every use of a tool a step
    (`{step} round 1 tool 1`): a later run buys and does none of them again. Raises PermanentError
    where the model goes on asking for tools.
    """
    if not tools:
        return await context.ask(body, step=step, streamed=streamed, timeout_s=timeout_s)
    messages = list(body["messages"])
    offered = {**body, "tools": [tool.offer() for tool in tools]}
    for number in range(1, ROUNDS + 1):
        name = step if number == 1 else f"{step} round {number}"
        asked = offered | {"messages": messages}
        reply = await context.ask(asked, step=name, streamed=streamed, timeout_s=timeout_s)
        if not reply.tool_calls:
            return reply
        messages = [*messages, _said(reply), *await _use(context, tools, reply, step, number)]
    raise PermanentError(f"The model asked for tools {ROUNDS} times and gave no answer.")


def _said(reply: Reply) -> dict[str, Any]:
    return {"role": "assistant", "content": reply.text or None, "tool_calls": reply.tool_calls}


async def _use(
    context: Context, tools: Sequence[Tool], reply: Reply, step: str, number: int
) -> list[dict[str, Any]]:
    """The messages that answer the tool calls of a reply, each made in a step."""
    if len(reply.tool_calls) > AT_ONCE:
        raise PermanentError(f"The model asked for more than {AT_ONCE} tools at once.")
    known = {tool.name: tool for tool in tools}
    answers = []
    for place, call in enumerate(reply.tool_calls, 1):
        function = call["function"]
        tool = known.get(function["name"])
        answer = f"There is no tool {function['name']!r}."
        if tool is not None:
            answer = await context.step(
                f"{step} round {number} tool {place}",
                partial(tool.answer, function["arguments"]),
                key=function,
                timeout_s=tool.timeout_s,
            )
        answers.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    return answers
