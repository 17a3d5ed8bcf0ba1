"""Streamed text: in slices, in order, complete, and no burden to the call it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tasks.deltas import DeltaLog, Deltas
from tasks.errors import RunLost
from tasks.settings import Settings
from tasks.store import Run, Store
from tests.rig import a_job, data
from tests.serving import until


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """The store."""
    store = Store.connect(settings)
    yield store
    await store.aclose()


@pytest.fixture
async def run(store: Store) -> Run:
    """A run."""
    await store.submit(a_job("chat"))
    (claimed,), _ = await store.claim("one", ["chat"], 1, 60)
    run = claimed.run
    assert run is not None
    return run


async def told(store: Store, run: Run, step: str) -> list[str]:
    """The pieces of a step's text as they were published."""
    events = [data(entry.block) for entry in await store.log(run.job_id) if entry.name == "delta"]
    return [event["text"] for event in events if event["step"] == step]


@pytest.mark.parametrize(
    ("streamed", "whole"),
    [
        (["Hello", ", ", "world"], "Hello, world"),
        ([], "came at once"),
        (["all ", "but"], "all but the end"),
        (["é", "日", "🎈"], "é日🎈"),
        ([], ""),
    ],
)
async def test_the_pieces_are_the_text(
    store: Store, run: Run, streamed: list[str], whole: str
) -> None:
    deltas = Deltas(DeltaLog(store, run), "answer")
    async with deltas:
        for text in streamed:
            deltas.add(text)
            await asyncio.sleep(0)
    await deltas.complete(whole)
    assert "".join(await told(store, run, "answer")) == whole


async def test_text_is_told_while_it_comes(store: Store, run: Run) -> None:
    deltas = Deltas(DeltaLog(store, run), "answer")
    async with deltas:
        for text in ("one ", "two ", "three "):
            before = len(await told(store, run, "answer"))
            deltas.add(text)

            async def came(before: int = before) -> bool:
                return len(await told(store, run, "answer")) > before

            await until(came, f"{text!r} is told")
    await deltas.complete("one two three ")
    assert await told(store, run, "answer") == ["one ", "two ", "three "]


async def test_two_steps_side_by_side_keep_their_own_text(store: Store, run: Run) -> None:
    log = DeltaLog(store, run)

    async def stream(step: str) -> None:
        deltas = Deltas(log, step)
        async with deltas:
            for nth in range(50):
                deltas.add(f"{step}{nth} ")
                await asyncio.sleep(0.001)
        await deltas.complete("".join(f"{step}{nth} " for nth in range(50)))

    await asyncio.gather(stream("a"), stream("b"))
    for step in ("a", "b"):
        whole = "".join(f"{step}{nth} " for nth in range(50))
        assert "".join(await told(store, run, step)) == whole


async def test_a_run_that_is_over_does_not_break_its_call(store: Store, run: Run) -> None:
    """The call goes on, for its answer is paid; only who wants to tell more hears of it."""
    deltas = Deltas(DeltaLog(store, run), "answer")
    async with deltas:
        await store.cancel(run.job_id)
        deltas.add("nobody hears this")
        await asyncio.sleep(0.01)
    with pytest.raises(RunLost):
        await deltas.complete("nobody hears this")
    assert await told(store, run, "answer") == []


async def test_a_failure_leaves_no_teller_behind(store: Store, run: Run) -> None:
    deltas = Deltas(DeltaLog(store, run), "answer")
    before = asyncio.all_tasks()

    async def cut_off() -> None:
        async with deltas:
            deltas.add("some")
            raise ValueError("cut off")

    with pytest.raises(ValueError, match="cut off"):
        await cut_off()
    assert asyncio.all_tasks() == before
