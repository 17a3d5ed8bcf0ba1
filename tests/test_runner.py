"""One run of one job: whatever a kind answers or raises, whoever stops it, the record says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tasks.errors import (
    DeadlinePassed,
    Drained,
    PermanentError,
    StoreUnavailable,
    TransientError,
)
from tasks.kinds import Kind
from tasks.settings import Settings
from tests.rig import Clock, Rig, a_kind, rigged
from tests.serving import until


class Broken(BaseException):
    """An exception that no `except Exception` sees."""


def raises(error: Callable[[], BaseException]) -> Kind:
    """A kind that raises."""

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        raise error()

    return a_kind("work", perform)


def answers(result: Any) -> Kind:
    """A kind that answers."""

    async def perform(context: Any, given: Any) -> Any:
        return result

    return a_kind("work", perform)


async def run_once(settings: Settings, kind: Kind, **more: Any) -> dict[str, Any]:
    """Submit a job of this kind, run what is due, and answer how it stands."""
    async with rigged(settings, {"work": kind}, clock=Clock()) as rig:
        job_id = await rig.submit("work", **more)
        await rig.run_due()
        return await rig.read(job_id)


@pytest.mark.parametrize(
    ("error", "status", "type", "message"),
    [
        (lambda: TransientError("Later."), "retrying", "transient", "Later."),
        (lambda: PermanentError("Never."), "failed", "permanent", "Never."),
        (lambda: DeadlinePassed("Late."), "failed", "timeout", "Late."),
        (lambda: TransientError("Slow.", type="timeout"), "retrying", "timeout", "Slow."),
        (lambda: StoreUnavailable("Redis is away."), "retrying", "transient", "Redis is away."),
        (lambda: KeyError("secret"), "failed", "permanent", "The kind raised KeyError."),
        (lambda: ValueError("no JSON"), "failed", "permanent", "The kind raised ValueError."),
        (MemoryError, "failed", "permanent", "The kind raised MemoryError."),
        (RecursionError, "failed", "permanent", "The kind raised RecursionError."),
        (KeyboardInterrupt, "failed", "permanent", "The kind raised KeyboardInterrupt."),
        (lambda: SystemExit(1), "failed", "permanent", "The kind raised SystemExit."),
        (Broken, "failed", "permanent", "The kind raised Broken."),
        (GeneratorExit, "failed", "permanent", "The kind raised GeneratorExit."),
        (
            lambda: ExceptionGroup("several", [TransientError("Later."), PermanentError("Never.")]),
            *("failed", "permanent", "Never."),
        ),
        (lambda: PermanentError("half \ud800 a character"), "failed", "permanent", None),
    ],
)
async def test_nothing_a_kind_raises_escapes(
    settings: Settings,
    error: Callable[[], BaseException],
    status: str,
    type: str,
    message: str | None,
) -> None:
    """Each layer may raise what it likes: the job ends in a retry or as a dead letter."""
    job = await run_once(settings, raises(error))
    assert (job["status"], job["error"]["type"]) == (status, type)
    assert message in (None, job["error"]["message"])


async def test_asyncio_s_own_words_do_not_escape(settings: Settings) -> None:
    """A kind that cancels itself was stopped by nobody: that is its own mistake."""

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        raise asyncio.CancelledError

    job = await run_once(settings, a_kind("work", perform))
    assert (job["status"], job["error"]["type"]) == ("failed", "permanent")


@pytest.mark.parametrize(
    "result",
    [None, "text", [], {}, {"text": 5}, {"text": "x", "more": object()}, {"text": "\ud800"}],
)
async def test_a_result_that_cannot_be_kept(settings: Settings, result: Any) -> None:
    job = await run_once(settings, answers(result))
    assert (job["status"], job["error"]["type"]) == ("failed", "permanent")


async def test_an_input_that_the_code_no_longer_reads(settings: Settings) -> None:
    job = await run_once(settings, answers({"text": "x"}), input={"not": "a text"})
    assert (job["status"], job["error"]["type"]) == ("failed", "permanent")
    assert "cannot be read" in job["error"]["message"]


async def test_a_stored_step_that_the_code_no_longer_knows(settings: Settings) -> None:
    clock = Clock()
    steps = iter(["old", "new"])

    async def make() -> int:
        return 1

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        name = next(steps)
        await context.step(name, make)
        if name == "old":
            raise TransientError("Later.")
        return {"text": "x"}

    async with rigged(settings, {"work": a_kind("work", perform)}, clock=clock) as rig:
        job_id = await rig.submit("work")
        await rig.run_due()
        clock.forward(60)
        await rig.run_due()
        job = await rig.read(job_id)
        assert (job["status"], job["error"]["type"]) == ("failed", "permanent")
        assert "old" in job["error"]["message"]


class Slow:
    """A kind that works until it is stopped, and then says what stopped it."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = False

    async def __call__(self, context: Any, given: Any) -> dict[str, Any]:
        """Work for ever."""
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError("it waits for ever")


async def stopped(
    settings: Settings, stop: Callable[[Rig, str], Any], **more: Any
) -> dict[str, Any]:
    """Run a slow job, stop it, and answer how it stands."""
    work = Slow()
    async with rigged(settings, {"work": a_kind("work", work)}) as rig:
        job_id = await rig.submit("work", **more)
        running = asyncio.create_task(rig.run_due())
        async with asyncio.timeout(5):
            await work.began.wait()
        await stop(rig, job_id)
        async with asyncio.timeout(5):
            await asyncio.wait([running])
        assert work.cancelled
        running.cancel()
        return await rig.read(job_id)


async def test_a_run_that_is_drained_gives_its_attempt_back(settings: Settings) -> None:
    async def drain(rig: Rig, job_id: str) -> None:
        rig.kinds.clear()  # it claims no more
        rig.leases.stop_all(Drained("This worker leaves."))

    job = await stopped(settings, drain)
    assert (job["status"], job["attempts"], job["error"]) == ("queued", 0, None)


async def test_a_deadline_ends_the_run(settings: Settings) -> None:
    async def wait(rig: Rig, job_id: str) -> None:
        """The deadline comes by itself."""

    job = await stopped(settings, wait, deadline_s=0.2)
    assert (job["status"], job["error"]["type"]) == ("failed", "timeout")


async def test_a_lost_lease_ends_the_run_and_writes_nothing(settings: Settings) -> None:
    async def cancel(rig: Rig, job_id: str) -> None:
        await rig.store.cancel(job_id)
        await rig.leases.renew()

    job = await stopped(settings, cancel)
    assert (job["status"], job["error"]) == ("cancelled", None)


async def test_the_worker_s_own_end_is_not_the_job_s(settings: Settings) -> None:
    """A run whose task is cancelled by nobody's word leaves its job to the lease."""
    work = Slow()
    async with rigged(settings, {"work": a_kind("work", work)}) as rig:
        job_id = await rig.submit("work")
        running = asyncio.create_task(rig.run_due())
        await asyncio.wait_for(work.began.wait(), 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        async def ended() -> bool:
            return work.cancelled

        await until(ended, "the kind is cancelled, too")
        assert (await rig.read(job_id))["status"] == "running"
