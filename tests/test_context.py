"""What a kind is given: steps bought once, calls booked as they ended, text that adds up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tasks.errors import TransientError
from tasks.kinds import Kind, load_kinds
from tasks.settings import Settings
from tests.endpoint import (
    DONE,
    FIN,
    HJ,
    HOLD,
    HS,
    RST,
    C,
    Endpoint,
    Pause,
    Request,
    Script,
    answered,
    usage,
)
from tests.rig import Clock, Rig, a_kind, rigged
from tests.serving import until

PAUSE_S = 60.0
"""Longer than any wait between attempts here."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A model that has a name, so that it is not asked for."""
    return settings.model_copy(update={"ai_model": "m"})


def body(text: str) -> dict[str, Any]:
    """A request with that prompt."""
    return {"messages": [{"role": "user", "content": text}]}


@contextmanager
def by_prompt(scripts: dict[str, list[Script]]) -> Iterator[Endpoint]:
    """An endpoint that plays, for each prompt, one script after the other."""

    def play(request: Any) -> Script:
        return scripts[request.json["messages"][-1]["content"]].pop(0)

    with Endpoint(play) as endpoint:
        yield endpoint


async def attempts(rig: Rig, clock: Clock, times: int) -> None:
    """Run what is due, let time pass, and so on."""
    for _ in range(times):
        await rig.run_due()
        clock.forward(PAUSE_S)


def text_after_the_last_start(events: list[tuple[str, dict[str, Any]]]) -> str:
    """What a client shows that drops its text at every `running`."""
    text = ""
    for name, data in events:
        if name == "running":
            text = ""
        if name == "delta":
            text += data["text"]
    return text


async def test_the_text_of_a_broken_attempt_is_void(settings: Settings) -> None:
    """Attempt 1 breaks off after some text; attempt 2 begins anew: nobody sees both in a row."""
    clock = Clock()
    whole = HS(C("Alpha beta "), C("gamma"), FIN("stop"), usage(3, 2), DONE)
    with Endpoint(HS(C("Alpha "), C("beta "), RST), whole) as endpoint:
        async with rigged(settings, load_kinds(), clock=clock, model_url=endpoint.url) as rig:
            job_id = await rig.submit("chat", "Say it.")
            await attempts(rig, clock, 2)
            job, events = await rig.read(job_id), await rig.events(job_id)
    assert job["result"]["text"] == text_after_the_last_start(events) == "Alpha beta gamma"
    assert (job["ledger"]["unknown"], job["ledger"]["paid"]) == (1, 1)
    first, second = (request.headers["idempotency-key"] for request in endpoint.requests)
    assert first == second, "the endpoint may hold the answer: it is asked under the same key"


async def test_waiting_for_the_model_is_told_apart(settings: Settings) -> None:
    """Case A31: not "running, 0 %" for as long as nothing comes."""
    slow = [Pause(0.3), *answered("Here.")]
    with Endpoint(slow) as endpoint:
        async with rigged(settings, load_kinds(), model_url=endpoint.url) as rig:
            job_id = await rig.submit("chat", "Are you there?")
            await rig.run_due()
            events = await rig.events(job_id)
    told = [data["progress"] for name, data in events if name == "progress"]
    assert [progress["note"] for progress in told[:2]] == [
        "waiting for the model", "the model answers",
    ]  # fmt: skip
    assert {progress["total"] for progress in told[:2]} == {None}, "no bar stands at 0 %"


async def test_an_option_that_is_refused_is_a_line_of_its_own_and_asked_once(
    settings: Settings,
) -> None:
    """Case A25: two requests are two lines, in one attempt; the next job's request is one."""

    def play(request: Request) -> Script:
        unknown = {"error": {"message": "unknown field: stream_options"}}
        return HJ(unknown, status=400) if "stream_options" in request.json else answered("Fine.")

    with Endpoint(play) as endpoint:
        async with rigged(settings, load_kinds(), model_url=endpoint.url) as rig:
            jobs = [await rig.submit("chat", "One."), await rig.submit("chat", "Two.")]
            await rig.run_due()
            ledgers = [await rig.store.ledger(job_id) for job_id in jobs]
            attempts = [(await rig.read(job_id))["attempts"] for job_id in jobs]
    outcomes = [[line["outcome"] for line in ledger] for ledger in ledgers]
    assert outcomes == [["rejected", "paid"], ["paid"]]
    assert attempts == [1, 1]
    assert len(endpoint.requests) == 3


async def test_a_known_refusal_is_asked_again_under_another_key(settings: Settings) -> None:
    clock = Clock()
    refusal = HJ({"error": {"message": "Down for a moment."}}, status=500)
    with Endpoint(refusal, answered("Here I am.")) as endpoint:
        async with rigged(settings, load_kinds(), clock=clock, model_url=endpoint.url) as rig:
            job_id = await rig.submit("chat", "Are you there?")
            await attempts(rig, clock, 2)
            job = await rig.read(job_id)
    assert (job["status"], job["ledger"]["rejected"], job["ledger"]["paid"]) == ("done", 1, 1)
    first, second = (request.headers["idempotency-key"] for request in endpoint.requests)
    assert first != second


async def test_a_reused_answer_comes_as_one_delta(settings: Settings) -> None:
    clock = Clock()
    runs = []

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        runs.append(1)
        reply = await context.ask(body("Hello."), step="answer", streamed=True)
        if len(runs) == 1:
            raise TransientError("After the answer.")
        return {"text": reply.text}

    kinds = {"work": a_kind("work", perform)}
    with Endpoint(answered("One answer.")) as endpoint:
        async with rigged(settings, kinds, clock=clock, model_url=endpoint.url) as rig:
            job_id = await rig.submit("work")
            await attempts(rig, clock, 2)
            job, events = await rig.read(job_id), await rig.events(job_id)
    assert len(endpoint.requests) == 1
    assert (job["result"]["text"], job["ledger"]["reused"]) == ("One answer.", 1)
    last = max(nth for nth, (name, _) in enumerate(events) if name == "running")
    deltas = [data["text"] for name, data in events[last:] if name == "delta"]
    assert deltas == ["One answer."]


async def test_a_thousand_tokens_are_a_few_events(settings: Settings) -> None:
    words = [f"word{n} " for n in range(1000)]
    script = HS(*(C(word) for word in words), FIN("stop"), DONE)
    with Endpoint(script) as endpoint:
        async with rigged(settings, load_kinds(), model_url=endpoint.url) as rig:
            job_id = await rig.submit("chat", "Talk.")
            await rig.run_due()
            events = await rig.events(job_id)
    assert text_after_the_last_start(events) == "".join(words)
    assert sum(name == "delta" for name, _ in events) < 200


def pages() -> Kind:
    """A kind that asks for three pages side by side."""

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        async def page(step: str, text: str) -> str:
            return str((await context.ask(body(text), step=step)).text)

        return {"text": " ".join(await context.map("page", page, ["a", "b", "c", "d"], at_once=3))}

    return a_kind("pages", perform)


async def test_when_one_branch_fails_the_others_are_let_end(settings: Settings) -> None:
    """What is under way is paid, so it is kept; nothing new is started; the next attempt buys
    what is missing and nothing else."""
    clock = Clock()
    scripts = {
        "a": [HJ({"error": {"message": "No."}}, status=500), answered("A")],
        "b": [[Pause(0.2), *answered("B")]],
        "c": [[Pause(0.2), *answered("C")]],
        "d": [answered("D")],
    }
    with by_prompt(scripts) as endpoint:
        async with rigged(settings, {"pages": pages()}, clock=clock, model_url=endpoint.url) as rig:
            job_id = await rig.submit("pages")
            await rig.run_due()
            first = await rig.read(job_id)
            assert len(endpoint.requests) == 3, "the fourth was not begun"
            clock.forward(PAUSE_S)
            await rig.run_due()
            job = await rig.read(job_id)
    assert first["status"] == "retrying"
    assert first["ledger"]["open"] == first["ledger"]["unknown"] == 0
    assert first["ledger"]["paid"] == 2
    assert job["result"]["text"] == "A B C D"
    assert job["ledger"]["paid"] == 4
    assert len(endpoint.requests) == 5


async def test_steps_are_compared_only_after_an_edit(settings: Settings) -> None:
    """The code of a kind may change its words between attempts: what is stored stays. Where a
    person changed the input, what depends on it is bought anew."""
    clock = Clock()
    version = ["old"]

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        reply = await context.ask(body(f"{version[0]} {given.root}"), step="answer")
        if version[0] == "old":
            raise TransientError("Later.")
        return {"text": reply.text}

    scripts = {"old hello": [answered("1")], "new edited": [answered("2")]}
    kinds = {"work": a_kind("work", perform)}
    with by_prompt(scripts) as endpoint:
        async with rigged(settings, kinds, clock=clock, model_url=endpoint.url) as rig:
            job_id = await rig.submit("work", max_attempts=2)
            await rig.run_due()
            version[0] = "new"
            clock.forward(PAUSE_S)
            await rig.run_due()
            assert (await rig.read(job_id))["result"]["text"] == "1"

            other = await rig.submit("work", "hello", user_id="b")
            version[0] = "old"
            scripts["old hello"].append(answered("1"))
            await rig.run_due()
            await rig.store.cancel(other)
            await rig.store.revive(other, input="edited")
            version[0] = "new"
            await rig.run_due()
            assert (await rig.read(other))["result"]["text"] == "2"
    assert len(endpoint.requests) == 3


async def test_a_cancel_closes_the_call(settings: Settings) -> None:
    """The endpoint sees the connection go, and the ledger says that nobody knows how it ended."""
    with Endpoint(HS(C("Once upon"), HOLD)) as endpoint:
        async with rigged(settings, load_kinds(), model_url=endpoint.url) as rig:
            job_id = await rig.submit("chat", "Tell me a story.")
            running = asyncio.create_task(rig.run_due())

            async def told() -> bool:
                return any(name == "delta" for name, _ in await rig.events(job_id))

            await until(told, "the first words have come")
            await rig.store.cancel(job_id)
            await rig.leases.renew()
            await asyncio.wait_for(running, 2)

            async def left() -> bool:
                return endpoint.left == 1

            await until(left, "the call is closed", within_s=2)
            job, lines = await rig.read(job_id), await rig.store.ledger(job_id)
    assert (job["status"], job["ledger"]["open"], job["ledger"]["unknown"]) == ("cancelled", 0, 1)
    assert [line["outcome"] for line in lines] == ["unknown"]
