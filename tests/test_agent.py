"""Agents: plan, execute, synthesise; every step bought once, and the plan followed to the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tasks.documents import CALL_TOKENS
from tasks.errors import InvalidInput
from tasks.kinds import load_kinds
from tasks.plans import MOST_STEPS, read_plan, waves
from tasks.settings import Settings
from tasks.tools import ROUNDS, tool
from tests.conftest import LabModel
from tests.endpoint import (
    DONE,
    FIN,
    HJ,
    HOLD,
    HS,
    Pause,
    Request,
    Script,
    answered,
    completion,
    delta,
)
from tests.rig import rigged
from tests.scripted import asked, finish, scripted
from tests.serving import until

GOAL = {"goal": "Open a bakery"}
PLANNER, WRITER = "You plan work", "Write the answer"
BROKEN = HJ({"error": {"message": "broken"}}, status=500)
SIDE_BY_SIDE = [
    {"task": "rent", "after": []},
    {"task": "flour", "after": []},
    {"task": "sum up", "after": [1, 2]},
]


def planned(*steps: Any) -> Script:
    return answered(json.dumps({"steps": steps}))


def playing(plan: Script, **answers: Script) -> Callable[[Request], Script]:
    """An endpoint's part: a plan, an answer by task (else one that names it), the end."""

    def play(request: Request) -> Script:
        task, text = asked(request)
        if PLANNER in task:
            return plan
        return answered("The end.") if WRITER in task else answers.get(text, answered(f"<{text}>"))

    return play


# Plans.


@pytest.mark.parametrize(
    "text",
    [
        '{"steps": ["a", "b"]}',
        '["a", "b"]',
        '{"plan": [{"title": "a"}, {"description": "b"}]}',
        '{"plan": {"steps": [{"step": "a"}, {"step": "b"}]}}',
        '{"steps": {"1": "a", "2": "b"}}',
        'Here:\n```json\n{"steps": [{"task": "a", "after": []}, {"task": " b "}]}\n```\nFine?',
        'I thought [hard] of {this}: {"steps": ["a", "b"]}. Good luck!',
        '{"steps": [{"task": "a", "after": [2, 9, "x"]}, {"task": "b", "after": "x"}]}',
    ],
)
def test_a_plan_is_read_however_it_is_wrapped(text: str) -> None:
    assert [(step.task, step.after) for step in read_plan(text, 5)] == [("a", ()), ("b", (1,))]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1. a\n2. b",
        '{"steps": []}',
        '{"steps": ["a", ""]}',
        '{"steps": ["a", "b',
        '{"steps": [{"task": "a", "uses": ["x", "y"]}, {"ta',
        "[" * 100_000,
    ],
)
def test_what_is_no_plan_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="list `steps`"):
        read_plan(text, 5)


def test_a_plan_that_is_too_long_is_put_together_at_its_end() -> None:
    plan = read_plan('{"steps": ["a", "b", "c", "d"]}', 2)
    assert [(step.task, step.after) for step in plan] == [("a", ()), ("b; then c; then d", (1,))]


def test_steps_that_need_nothing_of_each_other_go_side_by_side() -> None:
    plan = read_plan(json.dumps({"steps": [*SIDE_BY_SIDE, "write"]}), MOST_STEPS)
    assert [[step.number for step in wave] for wave in waves(plan)] == [[1, 2], [3], [4]]


async def test_a_plan_is_asked_for_as_json(settings: Settings) -> None:
    async with scripted(settings, playing(planned("think"))) as (rig, endpoint):
        job = await finish(rig, "agent", GOAL)
        formats = [request.json.get("response_format") for request in endpoint.requests]
    assert job["status"] == "done"
    assert formats == [{"type": "json_object"}, None, None]


async def test_an_endpoint_that_takes_no_format_is_asked_without(settings: Settings) -> None:
    def play(request: Request) -> Script:
        if "response_format" in request.json:
            return HJ({"error": {"message": "unknown field response_format"}}, status=422)
        return playing(planned("think"))(request)

    async with scripted(settings, play) as (rig, _):
        job = await finish(rig, "agent", GOAL)
    assert (job["status"], job["attempts"]) == ("done", 1)
    assert (job["ledger"]["paid"], job["ledger"]["rejected"]) == (3, 1)


async def test_what_is_no_plan_is_asked_for_once_more(settings: Settings) -> None:
    plans = iter([answered("First, we think."), planned("think")])

    def play(request: Request) -> Script:
        said = [message["content"] for message in request.json["messages"]]
        if PLANNER in said[0]:
            assert len(said) in (2, 4)
            return next(plans)
        return playing([])(request)

    async with scripted(settings, play) as (rig, _):
        job = await finish(rig, "agent", GOAL)
    assert (job["status"], job["ledger"]["paid"]) == ("done", 4)


async def test_no_plan_at_all_is_a_clear_failure(settings: Settings) -> None:
    async with scripted(settings, answered("I would rather not.")) as (rig, _):
        job = await finish(rig, "agent", GOAL)
    assert (job["status"], job["attempts"], job["ledger"]["paid"]) == ("failed", 1, 2)
    assert job["error"]["type"] == "permanent"
    assert "Asked twice, the model gave no plan" in job["error"]["message"]


async def test_the_stored_plan_is_followed_whatever_the_model_would_plan_now(
    settings: Settings,
) -> None:
    """Case C24."""
    plans = iter([planned("rent", "flour"), planned("something else")])
    flour = iter([BROKEN, answered("a ton")])

    def play(request: Request) -> Script:
        task, text = asked(request)
        if PLANNER in task:
            return next(plans)
        return playing([], **({"flour": next(flour)} if text == "flour" else {}))(request)

    async with scripted(settings, play) as (rig, endpoint):
        job = await finish(rig, "agent", GOAL)
        tasks = [asked(request)[1] for request in endpoint.requests]
    assert tasks[:4] == ["Open a bakery", "rent", "flour", "flour"]
    assert [step["text"] for step in job["result"]["steps"]] == ["<rent>", "a ton"]
    assert (job["attempts"], job["ledger"]["reused"]) == (2, 2)


# Steps.


async def test_later_steps_see_what_earlier_ones_found(settings: Settings) -> None:
    async with scripted(settings, playing(planned(*SIDE_BY_SIDE))) as (rig, endpoint):
        job = await finish(rig, "agent", GOAL)
        told = {text: task for task, text in map(asked, endpoint.requests)}
    assert "<rent>" not in told["flour"] + told["rent"]
    assert "1. rent\n<rent>" in told["sum up"]
    assert "2. flour\n<flour>" in told["sum up"]
    (last,) = [text for text in told if text.startswith("The goal: Open a bakery")]
    assert "3. sum up\n<sum up>" in last
    assert job["result"]["text"] == "The end."
    assert [step["title"] for step in job["result"]["steps"]] == ["rent", "flour", "sum up"]


async def test_steps_go_side_by_side_as_the_plan_says(settings: Settings) -> None:
    slow = [*answered("ok")]
    slow.insert(1, Pause(0.4))
    play = playing(planned(*SIDE_BY_SIDE), rent=slow, flour=slow)
    async with scripted(settings, play) as (rig, endpoint):
        job_id = await rig.submit("agent", GOAL)
        work = asyncio.create_task(rig.work(asyncio.sleep))

        async def both_asked() -> bool:
            return len(endpoint.requests) == 3

        await until(both_asked, "the second step is asked while the first is answered")
        assert (await rig.read(job_id))["progress"]["done"] == 0
        await work


async def test_what_the_steps_found_keeps_within_a_budget(settings: Settings) -> None:
    long = answered("word " * 4 * CALL_TOKENS)
    async with scripted(settings, playing(planned("a", "b", "c"), a=long)) as (rig, endpoint):
        await finish(rig, "agent", GOAL)
        sizes = {text: len(task) for task, text in map(asked, endpoint.requests)}
        assert "2. b\n<b>" in asked(endpoint.requests[3])[0]
    assert 4 * CALL_TOKENS * 0.9 < sizes["c"] < 4 * CALL_TOKENS + 1000


async def test_the_plan_is_ticked_off_in_the_progress(settings: Settings, lab: LabModel) -> None:
    async with rigged(settings, load_kinds(), model_url=lab.url) as rig:
        job_id = await rig.submit("agent", GOAL)
        await rig.work(asyncio.sleep)
        told = [data["progress"] for name, data in await rig.events(job_id) if name == "progress"]
        job = await rig.read(job_id)
    ticks = [[step["done"] for step in progress["plan"]] for progress in told if "plan" in progress]
    assert [sum(tick) for tick in ticks] == [0, 1, 2, 3, 3]
    assert job["progress"]["plan"][0]["title"] == "Collect what is known: Open a bakery"
    assert (job["progress"]["done"], job["progress"]["total"]) == (3, 3)
    assert (job["result"]["source"], lab.ledger()["sold"]) == ("lab", 5)


@pytest.mark.parametrize(
    ("limits", "plan", "words"),
    [
        ({"plan_timeout_s": 0.2}, [HOLD], "0.2 s"),
        ({"execute_timeout_s": 0.2}, planned("wait"), "0.2 s"),
    ],
)
async def test_plan_and_steps_have_limits_of_their_own(
    settings: Settings, limits: dict[str, float], plan: Script, words: str
) -> None:
    async with scripted(settings, playing(plan, wait=[HOLD])) as (rig, _):
        by_job = await finish(rig, "agent", GOAL | limits, max_attempts=1)
    async with scripted(settings.model_copy(update=limits), playing(plan, wait=[HOLD])) as (rig, _):
        by_settings = await finish(rig, "agent", GOAL, max_attempts=1)
    for job in (by_job, by_settings):
        assert (job["status"], job["error"]["type"]) == ("failed", "timeout")
        assert words in job["error"]["message"]


async def test_a_step_that_only_thinks_feeds_no_other(settings: Settings) -> None:
    """Case A21."""
    thought = HS(delta({"reasoning_content": "hm"}), FIN("stop"), DONE)
    async with scripted(settings, playing(planned("think", "write"), think=thought)) as (
        rig,
        endpoint,
    ):
        job = await finish(rig, "agent", GOAL)
        assert "write" not in [asked(request)[1] for request in endpoint.requests]
    assert (job["status"], job["attempts"]) == ("failed", 3)


# Tools.


class City(BaseModel):
    """Where."""

    city: str


USED: list[str] = []


@tool("weather", input=City, timeout_s=5)
async def weather(given: City) -> dict[str, str]:
    """The weather in a city."""
    USED.append(given.city)
    if given.city == "Nowhere":
        raise LookupError("no such city")
    return {"sky": f"blue over {given.city}"}


@pytest.fixture(autouse=True)
def nothing_used() -> None:
    USED.clear()


def wants(name: str, arguments: str) -> Script:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return HJ(completion(None, finish="tool_calls", tool_calls=[call]))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        pytest.param(wants("weather", '{"city": "Rome"}'), '{"sky":"blue over Rome"}', id="used"),
        pytest.param(wants("weather", '{"town": 1}'), "The arguments are wrong", id="arguments"),
        pytest.param(
            wants("weather", '{"city": "Nowhere"}'), "The tool failed: LookupError", id="failed"
        ),
        pytest.param(wants("rockets", "{}"), "There is no tool 'rockets'", id="unknown"),
    ],
)
async def test_a_tool_is_used_and_its_result_told(
    settings: Settings, call: Script, told: str
) -> None:
    def play(request: Request) -> Script:
        _, text = asked(request)
        if text != "look":
            return playing(planned("look"))(request) if told not in text else answered("Seen.")
        assert [offer["function"]["name"] for offer in request.json["tools"]] == ["weather"]
        return call

    async with scripted(settings, play) as (rig, endpoint):
        job = await finish(rig, "agent", GOAL | {"tools": ["weather"]})
        answer = endpoint.requests[2].json["messages"][-1]
    assert (answer["role"], answer["tool_call_id"], told in answer["content"]) == (
        "tool",
        "c1",
        True,
    )
    assert job["result"]["steps"][0]["text"] == "Seen."


async def test_a_tool_is_not_used_again_by_a_later_attempt(settings: Settings) -> None:
    after = iter([BROKEN, answered("Seen.")])

    def play(request: Request) -> Script:
        _, text = asked(request)
        if text == "look":
            return wants("weather", '{"city": "Rome"}')
        return next(after) if "blue" in text else playing(planned("look"))(request)

    async with scripted(settings, play) as (rig, _):
        job = await finish(rig, "agent", GOAL | {"tools": ["weather"]})
    assert (job["status"], job["attempts"], USED) == ("done", 2, ["Rome"])


async def test_a_model_that_only_wants_tools_is_stopped(settings: Settings) -> None:
    def play(request: Request) -> Script:
        task, _ = asked(request)
        return planned("look") if PLANNER in task else wants("weather", '{"city": "Rome"}')

    async with scripted(settings, play) as (rig, _):
        job = await finish(rig, "agent", GOAL | {"tools": ["weather"]})
    assert (job["status"], job["ledger"]["paid"]) == ("failed", 1 + ROUNDS)
    assert f"asked for tools {ROUNDS} times" in job["error"]["message"]


async def test_tools_that_nobody_offered_are_a_clear_failure(settings: Settings) -> None:
    """Case A23."""
    play = playing(planned("look"), look=wants("weather", "{}"))
    async with scripted(settings, play) as (rig, _):
        job = await finish(rig, "agent", GOAL)
    assert (job["status"], job["error"]["type"], USED) == ("failed", "permanent", [])
    assert "asked for a tool" in job["error"]["message"]
    assert job["ledger"]["output_tokens"] > 0


def test_a_tool_that_is_not_there_is_refused_at_once() -> None:
    kinds = load_kinds()
    kinds["agent"].parse(GOAL | {"tools": ["weather"]})
    with pytest.raises(InvalidInput) as refused:
        kinds["agent"].parse(GOAL | {"tools": ["shell"]})
    assert "there is no tool 'shell'" in refused.value.faults[0]["message"]
