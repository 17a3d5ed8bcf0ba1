"""Queue position and ETA: by evidence, never by guess."""

from __future__ import annotations

from typing import Any

from tasks.keys import name
from tasks.lifecycle import DEFER, FAIL, FINISH, RETRY
from tasks.settings import Settings
from tasks.store import Progress, Run, Store
from tests.crew import job
from tests.rig import Clock, a_job, data, store_at
from tests.serving import served


async def submit(store: Store, user: str, model: str | None = None, kind: str = "chat") -> str:
    given: Any = {"messages": [], "model": model} if model else "hello"
    return (await store.submit(a_job(kind, given, user_id=user))).job.job_id


async def start(store: Store, room: int = 1) -> list[Run]:
    claimed, _ = await store.claim("w", ["chat"], room, 600)
    return [entry.run for entry in claimed if entry.run is not None]


async def take(store: Store, clock: Clock, seconds: float, model: str | None = None) -> None:
    """A job that takes so long."""
    await submit(store, "someone", model)
    (run,) = await start(store)
    clock.forward(seconds)
    await store.conclude(run, FINISH, result={"text": "x", "source": "model"})


async def eta_s(store: Store, job_id: str) -> float | None:
    found: float | None = (await job(store, job_id))["eta_s"]
    return found


async def test_without_evidence_there_is_none(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        waits = await submit(store, "ann")
        assert await eta_s(store, waits) is None
        (run,) = await start(store)
        assert await eta_s(store, waits) is None
        clock.forward(5)
        await store.conclude(run, FAIL, problem=("permanent", "no", None))
        other = await submit(store, "ann")
        assert await eta_s(store, other) is None, "a failure says nothing of the pace"


async def test_the_pace_of_its_like(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        await take(store, clock, 10)
        job_id = await submit(store, "ann")
        assert await eta_s(store, job_id) == 10
        (run,) = await start(store)
        clock.forward(4)
        assert await eta_s(store, job_id) == 6
        clock.forward(40)
        assert await eta_s(store, job_id) == 0, "late, but never negative"
        await store.conclude(run, FINISH, result={"text": "x", "source": "model"})
        assert await eta_s(store, job_id) is None, "a final job has none"
        assert await eta_s(store, await submit(store, "bob")) == 0.8 * 10 + 0.2 * 44
        assert await eta_s(store, await submit(store, "cem", kind="other")) is None


async def test_the_pace_of_its_model_comes_first(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        await take(store, clock, 100, "slow")
        await take(store, clock, 10, "quick")
        await store.cancel(slow := await submit(store, "ann", "slow"))
        await store.cancel(quick := await submit(store, "ann", "quick"))
        for job_id, expected in ((slow, 100), (quick, 10)):
            await store.revive(job_id)
            assert await eta_s(store, job_id) == expected
            await store.cancel(job_id)
        assert await eta_s(store, await submit(store, "ann", "new")) == 0.8 * 100 + 0.2 * 10


async def test_position_and_what_is_before(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        await take(store, clock, 10)
        jobs = []
        for user in ("ann", "bob", "cem", "dan"):
            clock.forward(0.001)
            jobs.append(await submit(store, user))
        await start(store, 2)
        told = [await job(store, job_id) for job_id in jobs]
        assert [view["queue_position"] for view in told] == [None, None, 1, 2]
        assert [view["eta_s"] for view in told[2:]] == [10, 15], "two run at once"
        queued = data((await store.log(jobs[3]))[0].block)
        assert (queued["queue_position"], queued["eta_s"]) == (4, 40), "the stream says it too"


async def test_own_progress_is_the_best_evidence(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        job_id = await submit(store, "ann")
        (run,) = await start(store)
        clock.forward(6)
        await store.tell_progress(run, Progress(2, 10, "page 2 of 10"))
        assert await eta_s(store, job_id) == 24


async def test_a_wait_is_a_part_of_it(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        await take(store, clock, 10)
        job_id = await submit(store, "ann")
        for move in (RETRY, DEFER):
            (run,) = await start(store)
            await store.requeue(run, move, wait_s=50, reason="transient")
            assert await eta_s(store, job_id) == 60
            clock.forward(50)


async def test_when_to_ask_again_follows_it(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        for pace_s, expected in ((30, 30), (0.2, 1), (4000, 60)):
            await store.redis.set(name("pace", "chat", ""), pace_s * 1000, px=60_000)
            posted = await client.post("/jobs", json={"input": "x"})
            assert posted.json()["eta_s"] == pace_s
            job_id = posted.json()["job_id"]
            answer = await client.get(f"/jobs/{job_id}")
            assert answer.headers["retry-after"] == str(expected)
            await store.cancel(job_id)
