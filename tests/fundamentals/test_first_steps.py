"""The promises of slowcall, one short story each."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import KeyReused, PermanentError, TransientError, WrongStatus
from tasks.kinds import load_kinds
from tasks.settings import Settings
from tests.rig import Clock, a_job, a_kind, rigged


@pytest.fixture
def patient(settings: Settings) -> Settings:
    """The product's own waits between attempts, without jitter."""
    return settings.model_copy(update={"backoff_s": 5.0, "jitter": 0.0})


async def shout(context: Any, given: Any) -> dict[str, Any]:
    """A kind that needs no model."""
    return {"text": given.root.upper()}


class Stubborn:
    """A kind that fails `failures` times before it works, and counts its attempts."""

    def __init__(self, clock: Clock, failures: int) -> None:
        self.clock = clock
        self.failures = failures
        self.tried_at: list[float] = []

    async def __call__(self, context: Any, given: Any) -> dict[str, Any]:
        """One attempt."""
        self.tried_at.append(self.clock.passed_s)
        if len(self.tried_at) <= self.failures:
            raise TransientError("Not today.")
        return {"text": "at last"}

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.forward(seconds)


async def test_the_id_comes_at_once(settings: Settings) -> None:
    """A submission is answered before any work is done: the job can be read though none works."""
    async with rigged(settings, {"shout": a_kind("shout", shout)}) as rig:
        job_id = await rig.submit("shout", "hello")
        job = await rig.read(job_id)
        assert (job["status"], job["attempts"], job["result"]) == ("queued", 0, None)
        assert job["queue_position"] == 1

        assert (await rig.run_due())[0] == 1
        job = await rig.read(job_id)
        assert (job["status"], job["result"]["text"]) == ("done", "HELLO")
        assert job["queue_position"] is None


async def test_a_key_makes_a_repeat_harmless(settings: Settings) -> None:
    """The same key with the same body is the job that is there, whatever has become of it."""
    async with rigged(settings, {"shout": a_kind("shout", shout)}) as rig:
        new = a_job("shout", "hello", idempotency_key="order 7")
        first = await rig.store.submit(new)
        assert not first.replayed
        await rig.run_due()

        second = await rig.store.submit(new)
        assert second.replayed
        assert second.job.job_id == first.job.job_id
        assert second.job.status == "done"
        assert (await rig.run_due())[0] == 0, "the repeat runs nothing"


async def test_a_key_stands_for_one_body(settings: Settings) -> None:
    """The same key with another body is a mistake of the caller, and is told so."""
    async with rigged(settings, {"shout": a_kind("shout", shout)}) as rig:
        await rig.submit("shout", "hello", idempotency_key="order 7")
        with pytest.raises(KeyReused):
            await rig.submit("shout", "good bye", idempotency_key="order 7")
        await rig.submit("shout", "good bye", idempotency_key="order 7", user_id="another")


async def test_a_failure_that_may_pass_is_tried_again(patient: Settings) -> None:
    """After the first failure 5 seconds pass, after the second 10."""
    work = Stubborn(Clock(), failures=2)
    async with rigged(patient, {"work": a_kind("work", work)}, clock=work.clock) as rig:
        job_id = await rig.submit("work")
        assert await rig.work(work.wait) == 3
        assert work.tried_at == [0, 5, 15]
        job = await rig.read(job_id)
        assert (job["status"], job["attempts"], job["error"]) == ("done", 3, None)


async def test_after_three_attempts_a_person_decides(patient: Settings) -> None:
    """The third failure is the last: the job waits, failed, until a person retries it."""
    work = Stubborn(Clock(), failures=3)
    async with rigged(patient, {"work": a_kind("work", work)}, clock=work.clock) as rig:
        job_id = await rig.submit("work")
        assert await rig.work(work.wait) == 3
        job = await rig.read(job_id)
        assert (job["status"], job["attempts"]) == ("failed", 3)
        assert job["error"] == {
            "type": "transient",
            "message": "Not today.",
            "attempt": 3,
            "upstream_status": None,
        }
        assert await rig.work(work.wait) == 0, "nobody moves a failed job on by himself"

        await rig.store.revive(job_id)
        assert (await rig.read(job_id))["attempts"] == 0, "a fresh budget"
        assert await rig.work(work.wait) == 1
        assert (await rig.read(job_id))["status"] == "done"


async def test_a_failure_that_would_not_pass_is_not_tried_again(settings: Settings) -> None:
    """Trying again what cannot work would only cost more."""

    async def refuse(context: Any, given: Any) -> dict[str, Any]:
        raise PermanentError("This can never work.")

    async with rigged(settings, {"work": a_kind("work", refuse)}) as rig:
        job_id = await rig.submit("work")
        assert (await rig.run_due())[0] == 1
        job = await rig.read(job_id)
        assert (job["status"], job["attempts"], job["error"]["type"]) == ("failed", 1, "permanent")


async def test_done_never_runs_again(settings: Settings) -> None:
    """A done job is neither run nor cancelled nor revived."""
    async with rigged(settings, {"shout": a_kind("shout", shout)}) as rig:
        job_id = await rig.submit("shout", "hello")
        await rig.run_due()
        assert (await rig.run_due())[0] == 0
        for verb in (rig.store.cancel, rig.store.revive):
            with pytest.raises(WrongStatus):
                await verb(job_id)
        assert (await rig.read(job_id))["status"] == "done"


async def test_a_finished_step_is_not_computed_again(patient: Settings) -> None:
    """A second attempt goes on from where the first one failed."""
    clock = Clock()
    made: list[str] = []

    async def travel(context: Any, given: Any) -> dict[str, Any]:
        async def make(place: str) -> str:
            made.append(place)
            if made == ["Rome", "Paris"]:
                raise TransientError("The train is late.")
            return place

        stops = [
            await context.step(place, lambda place=place: make(place))
            for place in ("Rome", "Paris", "Oslo")
        ]
        return {"text": ", ".join(stops)}

    async def wait(seconds: float) -> None:
        clock.forward(seconds)

    async with rigged(patient, {"travel": a_kind("travel", travel)}, clock=clock) as rig:
        job_id = await rig.submit("travel")
        assert await rig.work(wait) == 2
        job = await rig.read(job_id)
        assert job["result"]["text"] == "Rome, Paris, Oslo"
        assert made == ["Rome", "Paris", "Paris", "Oslo"], "Rome was kept"
        assert job["ledger"]["reused"] == 1


async def test_a_sample_says_that_it_is_one(patient: Settings) -> None:
    """Where no model answers, a recorded answer may stand in, and says so."""
    clock = Clock()

    async def wait(seconds: float) -> None:
        clock.forward(seconds)

    async with rigged(patient, load_kinds(), clock=clock) as rig:
        given = {
            "model": "any",
            "messages": [{"role": "user", "content": "What is a queue?"}],
            "sample": "A queue is a line of things that wait.",
        }
        job_id = await rig.submit("chat", given)
        await rig.work(wait)
        job = await rig.read(job_id)
        assert job["status"] == "done"
        assert job["result"] == {
            "text": "A queue is a line of things that wait.",
            "source": "sample",
        }
        assert job["ledger"]["not_sent"] == 3, "it was tried, and nothing was bought"
        assert job["ledger"]["paid"] == 0
