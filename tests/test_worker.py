"""The worker as it runs: what it claims, when it does not, how it leaves. In one process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from importlib import metadata
from time import monotonic
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.arq_worker import Worker
from tasks.errors import TransientError
from tasks.keys import name
from tasks.kinds import Kind
from tasks.settings import Settings
from tasks.store import Store
from tasks.worker import build_worker
from tests.rig import NOWHERE, a_job, a_kind, data, seen
from tests.serving import until

LONGEST_SLEEP_S = 1.0
"""As long as an idle worker sleeps when nothing wakes it."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings of a worker: short leases, and a model that is never asked."""
    return settings.model_copy(
        update={"ai_url": SecretStr(NOWHERE), "lease_s": 0.6, "drain_s": 5.0}
    )


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """A client's store."""
    store = Store.connect(settings)
    yield store
    await store.aclose()


@asynccontextmanager
async def at_work(settings: Settings, *kinds: Kind) -> AsyncIterator[Worker]:
    """A worker that works until the block ends; then it leaves in good order."""
    async with AsyncExitStack() as stack:
        registry = {kind.name: kind for kind in kinds}
        worker = await build_worker(settings, registry, stack)
        running = asyncio.create_task(worker.async_run())
        yield worker
        if not running.done():
            worker.leave()
        await asyncio.wait_for(running, 10)


async def submit(store: Store, kind: str = "work", **more: Any) -> str:
    """Submit a job; answers its id."""
    return (await store.submit(a_job(kind, **more))).job.job_id


async def reaches(store: Store, job_id: str, status: str) -> dict[str, Any]:
    """Wait until the job is in that status; answers it."""

    async def there() -> bool:
        return (await store.read(job_id)).status == status

    await until(there, f"job {job_id} is {status}")
    return seen(await store.read(job_id))


async def shout(context: Any, given: Any) -> dict[str, Any]:
    """A kind that is quick."""
    return {"text": given.root.upper()}


class Gate:
    """A kind that waits until the test opens the gate, and counts how many are inside."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.entered = 0

    async def __call__(self, context: Any, given: Any) -> dict[str, Any]:
        """Wait inside."""
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        return {"text": "through"}

    async def entered_times(self, times: int) -> None:
        """Wait until so many came in."""

        async def came() -> bool:
            return self.entered >= times

        await until(came, f"{times} came in")


async def test_it_is_woken_and_does_not_wait_for_its_next_look(
    settings: Settings, store: Store
) -> None:
    async with at_work(settings, a_kind("work", shout)):
        await reaches(store, await submit(store), "done")
        started = monotonic()
        for _ in range(8):
            await reaches(store, await submit(store), "done")
        assert monotonic() - started < 8 * LONGEST_SLEEP_S / 2


async def test_a_burst_ends_when_nothing_is_left(settings: Settings, store: Store) -> None:
    tried = []

    async def twice(context: Any, given: Any) -> dict[str, Any]:
        tried.append(1)
        if len(tried) == 1:
            raise TransientError("Later.")
        return {"text": "x"}

    job_id = await submit(store)
    async with AsyncExitStack() as stack:
        kinds = {"work": a_kind("work", twice)}
        worker = await build_worker(settings, kinds, stack, burst=True)
        await asyncio.wait_for(worker.async_run(), 10)
    assert (await store.read(job_id)).status == "done", "it waits for what comes back"


async def test_one_bad_job_stops_nobody(settings: Settings, store: Store) -> None:
    async def bad(context: Any, given: Any) -> dict[str, Any]:
        raise SystemExit(given.root)

    async with at_work(settings, a_kind("bad", bad), a_kind("work", shout)):
        bad_ids = [await submit(store, "bad") for _ in range(3)]
        await reaches(store, await submit(store), "done")
        for job_id in bad_ids:
            await reaches(store, job_id, "failed")


async def test_it_never_runs_a_job_that_it_still_runs(settings: Settings, store: Store) -> None:
    """Its own renewal came late, so the running job is due: it is not begun a second time."""
    gate = Gate()
    async with at_work(settings, a_kind("work", gate)):
        job_id = await submit(store)
        await gate.entered_times(1)
        for _ in range(3):
            await store.redis.zadd(name("queue", "work"), {f"{job_id}:1": 0})
            await reaches(store, await submit(store, "work", user_id="b"), "running")
        assert gate.entered == 4
        gate.open.set()
        job = await reaches(store, job_id, "done")
        assert job["attempts"] == 1


async def test_a_run_that_broke_unrecorded_is_taken_up_again(
    settings: Settings, store: Store
) -> None:
    """Also by the same worker, which lives on: no job stays where nobody moves it."""
    gate = Gate()
    async with at_work(settings, a_kind("work", gate)) as worker:
        job_id = await submit(store)
        await gate.entered_times(1)
        worker.tasks[f"{job_id}:1"].cancel()
        await gate.entered_times(2)
        gate.open.set()
        job = await reaches(store, job_id, "done")
        assert job["attempts"] == 2
        reasons = [data(entry.block).get("reason") for entry in await store.log(job_id)]
        assert "lost" in reasons


async def test_it_claims_no_more_than_it_can_run(settings: Settings, store: Store) -> None:
    gate = Gate()
    settings = settings.model_copy(update={"concurrency": 3})
    async with at_work(settings, a_kind("work", gate)):
        submitted = [await submit(store) for _ in range(5)]
        await gate.entered_times(3)
        waiting = [(await store.read(job_id)).status for job_id in submitted]
        assert waiting == ["running"] * 3 + ["queued"] * 2
        gate.open.set()
        for job_id in submitted:
            await reaches(store, job_id, "done")
    assert gate.most == 3


async def test_an_end_that_is_being_recorded_makes_room(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job does not wait for the store; but no more of them than run at once."""
    conclude, recorded, gate = Store.conclude, asyncio.Event(), Gate()

    async def slowly(self: Store, *arguments: Any, **named: Any) -> None:
        await recorded.wait()
        await conclude(self, *arguments, **named)

    monkeypatch.setattr(Store, "conclude", slowly)
    gate.open.set()
    async with at_work(
        settings.model_copy(update={"concurrency": 2}), a_kind("work", gate)
    ) as worker:
        submitted = [await submit(store) for _ in range(6)]
        await gate.entered_times(4)
        assert len(worker.tasks) == 4, "four jobs wait for their record"
        await asyncio.sleep(settings.lease_s)  # it looks again: renewals go on
        assert gate.entered == 4
        recorded.set()
        for job_id in submitted:
            await reaches(store, job_id, "done")
    assert gate.most <= 2


async def test_nothing_is_claimed_while_it_leaves(settings: Settings, store: Store) -> None:
    gate = Gate()
    async with at_work(settings, a_kind("work", gate)) as worker:
        first = await submit(store)
        await gate.entered_times(1)
        worker.leave()
        second = await submit(store)
        # It looks at least once more: renewals go on while it leaves.
        await asyncio.sleep(settings.lease_s)
        assert (await store.read(second)).status == "queued"
        gate.open.set()
        await reaches(store, first, "done")
    assert (await store.read(second)).status == "queued"
    assert gate.entered == 1


async def test_what_does_not_end_in_time_is_released(settings: Settings, store: Store) -> None:
    """No attempt is counted, and the next worker has it at once."""
    settings = settings.model_copy(update={"drain_s": 0.1})
    gate = Gate()
    async with at_work(settings, a_kind("work", gate)):
        job_id = await submit(store)
        await gate.entered_times(1)
    released = seen(await store.read(job_id))
    assert (released["status"], released["attempts"]) == ("queued", 0)
    gate.open.set()
    async with at_work(settings, a_kind("work", gate)):
        assert (await reaches(store, job_id, "done"))["attempts"] == 1


async def test_a_cancel_stops_the_run(settings: Settings, store: Store) -> None:
    gate = Gate()
    async with at_work(settings, a_kind("work", gate)):
        job_id = await submit(store)
        await gate.entered_times(1)
        await store.cancel(job_id)

        async def left() -> bool:
            return gate.inside == 0

        await until(left, "the run has ended", within_s=2)
    assert (await store.read(job_id)).status == "cancelled"


async def test_a_revived_job_runs_though_its_old_run_still_ends(
    settings: Settings, store: Store
) -> None:
    """A stale word never hits the next life of the same id (case C8)."""
    began, may_end = asyncio.Event(), asyncio.Event()
    runs = []

    async def clings(context: Any, given: Any) -> dict[str, Any]:
        runs.append(context.run.run)
        if len(runs) > 1:
            return {"text": "second life"}
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
        raise AssertionError("it waits for ever")

    async with at_work(settings, a_kind("work", clings)):
        job_id = await submit(store)
        await asyncio.wait_for(began.wait(), 5)
        await store.cancel(job_id)
        await store.revive(job_id)
        assert (await reaches(store, job_id, "done"))["result"]["text"] == "second life"
        may_end.set()
    assert (await store.read(job_id)).status == "done"


async def test_nothing_is_claimed_in_doubt(settings: Settings, store: Store) -> None:
    """After a store error its own leases come first: nothing is claimed until they are renewed."""
    async with AsyncExitStack() as stack:
        worker = await build_worker(settings, {"work": a_kind("work", shout)}, stack)
        leases = worker._leases
        job_id = await submit(store)
        leases.doubt()
        await worker._poll_iteration()
        assert not worker.tasks
        await leases.renew()
        await worker._poll_iteration()
        assert len(worker.tasks) == 1
        await reaches(store, job_id, "done")


async def test_it_says_that_it_lives_and_that_it_left(settings: Settings, store: Store) -> None:
    async with at_work(settings, a_kind("work", shout)):

        async def one() -> bool:
            return [worker["kinds"] for worker in await store.workers()] == [["work"]]

        await until(one, "the worker is counted")
        (worker,) = (await store.stats())["workers"]
        assert (worker["host"], worker["pid"]) == (socket.gethostname(), os.getpid())
        assert (worker["version"], worker["running"]) == (metadata.version("slowcall"), 0)
        assert datetime.fromisoformat(worker["since"]).tzinfo is not None
    assert await store.workers() == []
