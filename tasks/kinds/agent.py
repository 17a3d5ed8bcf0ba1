"""The kind `agent`: plan, execute each step, synthesise; every step of it durable."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from tasks.calls import Reply
from tasks.context import Context
from tasks.documents import CALL_TOKENS, fit
from tasks.errors import ContentRefused, PermanentError, Rejected
from tasks.kinds import kind
from tasks.plans import MOST_STEPS, PlanStep, read_plan, waves
from tasks.tools import ask_with_tools, find_tools

_AT_ONCE: Final = 4
_TITLE: Final = 200
"""As much of a task as every progress event repeats, in characters."""
_PLAN: Final = (
    "You plan work that others carry out, one step at a time. Answer with a plan in JSON and "
    'nothing else: {{"steps": [{{"task": "…", "after": []}}]}}. Each task says in one sentence '
    "what to do and can be done by writing alone. `after` lists the numbers, from 1, of earlier "
    "steps whose findings a step needs; steps that need none of each other are done side by side. "
    "At most {most} steps. Write the tasks in the language of the goal."
)
_EXECUTE: Final = (
    "You carry out one step of a larger piece of work, and nothing beyond it. Answer with what you "
    "find, in the language of the goal."
)
_ANSWER: Final = (
    "Write the answer to the goal from what the steps found. Say what is open where they found too "
    "little. Answer in the language of the goal."
)


class AgentInput(BaseModel):
    """A goal, and the limits within which it is pursued; `_s` are seconds of one call."""

    model_config = ConfigDict(extra="forbid", title="Agent")

    goal: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    model: str | None = None
    max_steps: int = Field(8, ge=1, le=MOST_STEPS)
    plan_timeout_s: float | None = Field(None, gt=0, description="Bounds the planning.")
    execute_timeout_s: float | None = Field(None, gt=0, description="Bounds each step.")
    tools: list[str] = Field([], description="Names of registered tools that the steps may use.")

    @model_validator(mode="before")
    @classmethod
    def _plain_goal(cls, value: Any) -> Any:
        return {"goal": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_tools(self) -> AgentInput:
        find_tools(self.tools)
        return self

    def body(self, system: str, user: str) -> dict[str, Any]:
        """What the model is asked."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return {"messages": messages} | ({"model": self.model} if self.model else {})


@kind("agent", input=AgentInput, description="Plan, carry out each step, write the answer.")
async def agent(context: Context, given: AgentInput) -> dict[str, Any]:
    """The plan is bought once and followed on every later attempt."""
    plan = await _plan(context, given)
    titles = {step.name: step.task[:_TITLE] for step in plan}
    await context.expect(len(plan), "step", plan=titles)
    found: dict[int, str] = {}
    for wave in waves(plan):
        texts = await _execute(context, given, wave, plan, found)
        found |= {step.number: text for step, text in zip(wave, texts, strict=True)}
    await context.progress(context.done, note="writing the answer")
    user = f"The goal: {given.goal}\n\n{_told(plan, found)}"
    answer = await context.ask(given.body(_ANSWER, user), step="answer", streamed=True)
    steps = [{"step": s.name, "title": s.task, "text": found[s.number]} for s in plan]
    return answer.result() | {"steps": steps}


async def _plan(context: Context, given: AgentInput) -> list[PlanStep]:
    """Asked for once more where the first answer is no plan. Raises PermanentError after that."""
    body = given.body(_PLAN.format(most=given.max_steps), given.goal)
    reply = await _ask_plan(context, given, body, "plan")
    try:
        return read_plan(reply.text, given.max_steps)
    except ValueError as error:
        body["messages"] += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": f"That is no plan: {error}. Answer with the JSON alone."},
        ]
    again = await _ask_plan(context, given, body, "plan again")
    try:
        return read_plan(again.text, given.max_steps)
    except ValueError as error:
        raise PermanentError(f"Asked twice, the model gave no plan: {error}.") from error


async def _ask_plan(context: Context, given: AgentInput, body: dict[str, Any], step: str) -> Reply:
    """Asked for as JSON, and without that word where the endpoint does not take it."""
    timeout_s = given.plan_timeout_s or context.settings.plan_timeout_s
    as_json = body | {"response_format": {"type": "json_object"}}
    try:
        return await context.ask(as_json, step=step, timeout_s=timeout_s)
    except Rejected as error:
        if isinstance(error, ContentRefused) or error.upstream_status not in (400, 422):
            raise
    return await context.ask(body, step=step, timeout_s=timeout_s)


async def _execute(
    context: Context,
    given: AgentInput,
    wave: list[PlanStep],
    plan: list[PlanStep],
    found: dict[int, str],
) -> list[str]:
    """What each step of a wave finds; all of them see what the waves before it found."""
    system = f"{_EXECUTE}\n\nThe goal: {given.goal}"
    if found:
        system += f"\n\n{_told(plan, found)}"
    timeout_s = given.execute_timeout_s or context.settings.execute_timeout_s
    tools = find_tools(given.tools)

    async def execute(_: str, step: PlanStep) -> str:
        body = given.body(system, step.task)
        reply = await ask_with_tools(
            context, body, tools, step=step.name, streamed=True, timeout_s=timeout_s
        )
        await context.tick(step.name)
        return reply.text

    return await context.map("step", execute, wave, at_once=_AT_ONCE)


def _told(plan: list[PlanStep], found: dict[int, str]) -> str:
    """What the steps found so far, within the budget of a call: the longest are cut short."""
    done = [step for step in plan if step.number in found]
    texts = fit([found[step.number] for step in done], CALL_TOKENS)
    parts = [f"{step.number}. {step.task}\n{text}" for step, text in zip(done, texts, strict=True)]
    return "Found so far:\n\n" + "\n\n".join(parts)
