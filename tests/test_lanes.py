"""Lanes: calls at once per model across all workers, pauses for all, lines by turn, kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tasks.errors import ErrorType, RunLost
from tasks.lifecycle import DEFER, FINISH
from tasks.settings import Concurrency, Settings
from tasks.store import Begun, NoPlace, Run, Settlement, Store
from tests.conftest import LabModel
from tests.crew import calls, crew, ended, job, most_at_once
from tests.endpoint import Endpoint, answered, reply
from tests.rig import Clock, a_job, data, store_at
from tests.serving import until

LEASE_S = 10.0
MODEL = "m"
Problem = tuple[ErrorType, str, int | None]


class Floor:
    """Workers played by hand on one store with the test's clock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    async def submit(self, user: str = "ann", kind: str = "chat") -> str:
        self.clock.forward(0.001)
        return (await self.store.submit(a_job(kind, user_id=user))).job.job_id

    async def due(self, worker: str = "w", kinds: tuple[str, ...] = ("chat",)) -> list[Run]:
        """Claim and start all that may start now."""
        claimed, _ = await self.store.claim(worker, kinds, 100, LEASE_S)
        return [entry.run for entry in claimed if entry.run is not None]

    async def pass_time(self, seconds: float, *alive: tuple[str, Run]) -> None:
        """Let time pass while some workers renew their leases, and one more that runs nothing."""
        while seconds > 0:
            self.clock.forward(min(seconds, LEASE_S / 3))
            seconds -= LEASE_S / 3
            await self.store.renew("idle", [], LEASE_S, {"lease_s": LEASE_S})
            for worker, run in alive:
                assert not await self.store.renew(worker, [run], LEASE_S, {"lease_s": LEASE_S})
        await self.store.sweep()

    async def begin(self, run: Run, model: str = MODEL, step: str = "answer") -> str | NoPlace:
        """Begin a call: its id, or that there is no place."""
        call = uuid4().hex
        begun = await self.store.begin(run, call=call, step=step, model=model, hash="h")
        assert isinstance(begun, Begun | NoPlace)
        return begun if isinstance(begun, NoPlace) else call

    async def call(self, run: Run, model: str = MODEL) -> str:
        call = await self.begin(run, model)
        assert isinstance(call, str), "there is a place"
        return call

    async def wait_in_line(self, run: Run, model: str = MODEL) -> None:
        """What the runner does with a job that finds no place."""
        assert isinstance(await self.begin(run, model), NoPlace)
        problem: Problem = ("rate_limited", "no place", None)
        await self.store.requeue(
            run, DEFER, wait_s=1, reason="rate_limited", problem=problem, counted=False, lane=model
        )

    async def end(self, run: Run, call: str, **more: Any) -> None:
        """Settle a call and finish its job."""
        value = {"text": "x"}
        await self.store.settle(run, Settlement(call, "answer", "h", "paid", value=value, **more))
        await self.store.conclude(run, FINISH, result={"text": "x", "source": "model"})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def limited(settings: Settings, default: int = 0, **single: int) -> Settings:
    limits = Concurrency(default, tuple(single.items()))
    return settings.model_copy(update={"model_concurrency": limits})


async def test_a_full_lane_is_waited_for_in_the_queue(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        first, second = await floor.submit("ann"), await floor.submit("bob")
        holder, waiter = await floor.due()
        call = await floor.call(holder)
        await floor.wait_in_line(waiter)
        told = await job(store, second)
        assert (told["status"], told["attempts"]) == ("retrying", 0), "it costs no attempt"
        assert told["error"]["type"] == "rate_limited"
        assert told["retry_at"] is not None
        assert data((await store.log(second))[-1].block)["reason"] == "rate_limited"
        assert await floor.due() == [], "it holds no worker's slot"

        await floor.end(holder, call)
        (run,) = await floor.due()
        assert run.job_id == second, "a freed place goes to who waits, at once"
        await floor.end(run, await floor.call(run))
        assert [(await job(store, job_id))["status"] for job_id in (first, second)] == ["done"] * 2


async def test_users_take_turns_and_of_each_the_oldest_job_is_first(
    settings: Settings, clock: Clock
) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("zoe")
        (holder,) = await floor.due()
        call = await floor.call(holder)
        names = {await floor.submit("ann"): f"ann {n}" for n in (1, 2, 3)}
        names[await floor.submit("bob")] = "bob 1"
        waiters = []
        while more := await floor.due():
            waiters += more
        for run in waiters:
            await floor.wait_in_line(run)
        order = []
        for _ in names:
            await floor.end(holder, call)
            clock.forward(1)
            (holder,) = await floor.due()
            call = await floor.call(holder)
            order.append(names[holder.job_id])
        assert order == ["ann 1", "bob 1", "ann 2", "ann 3"]
        await floor.end(holder, call)


async def test_a_newcomer_does_not_overtake_who_was_woken(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        waits = await floor.submit("bob")
        holder, waiter = await floor.due()
        call = await floor.call(holder)
        await floor.wait_in_line(waiter)
        await floor.submit("cem")
        (newcomer,) = await floor.due("other")
        await floor.end(holder, call)
        assert isinstance(await floor.begin(newcomer), NoPlace), "the place is kept"
        (woken,) = await floor.due()
        assert woken.job_id == waits
        await floor.call(woken)


async def test_a_place_that_nobody_comes_for_goes_on(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann", kind="rare")
        (rare,) = await floor.due(kinds=("rare",))
        await floor.submit("bob")
        (holder,) = await floor.due()
        call = await floor.call(holder)
        await floor.wait_in_line(rare)
        await floor.submit("cem")
        (last,) = await floor.due()
        await floor.wait_in_line(last)
        await floor.end(holder, call)
        assert await floor.due() == [], "the place is kept for the rare kind, which was first"
        clock.forward(6)
        await store.sweep()
        (run,) = await floor.due()
        assert run.job_id == last.job_id, "no worker of the rare kind came, so the next one has it"
        await floor.call(run)


async def test_a_dead_worker_gives_its_places_back(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann", kind="rare")
        (held,) = await floor.due("dies", ("rare",))
        await floor.call(held)
        await floor.submit("bob")
        (waiter,) = await floor.due()
        await floor.wait_in_line(waiter)
        await floor.pass_time(3 * LEASE_S, ("dies", held))
        assert await floor.due() == [], "a renewed lease holds its place"
        await floor.pass_time(1.1 * LEASE_S)
        (run,) = await floor.due()
        await floor.call(run)
        (again,) = await floor.due("takes over", ("rare",))
        assert again.job_id == held.job_id
        with pytest.raises(RunLost):
            await floor.begin(held)


@pytest.mark.parametrize("closed_s", [30, 0.5, 10_000])
async def test_a_pause_that_the_model_asks_for_is_kept_by_all(
    settings: Settings, clock: Clock, closed_s: float
) -> None:
    kept_s = min(closed_s, settings.backoff_max_s)
    async with store_at(settings, clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        second = await floor.submit("bob")
        refused, other = await floor.due()
        call = await floor.call(refused)
        await store.settle(
            refused, Settlement(call, "answer", "h", "rejected", 429, closed_s=closed_s)
        )
        place = await floor.begin(other)
        assert place == NoPlace(kept_s), "it is closed for all, up to BACKOFF_MAX_S"
        assert isinstance(await floor.begin(other, "another model", "b"), str), "and only its own"
        await floor.submit("cem")
        (late,) = await floor.due("another worker")
        await floor.wait_in_line(late)
        retry_at = (await job(store, late.job_id))["retry_at"]
        await floor.pass_time(kept_s, ("w", refused), ("w", other))
        (run,) = await floor.due()
        assert isinstance(await floor.begin(run), str), f"{retry_at} is when it opens"
        assert (await job(store, second))["status"] == "running"


async def test_the_longest_pause_counts(settings: Settings, clock: Clock) -> None:
    async with store_at(settings, clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        (run,) = await floor.due()
        first, second = [await floor.begin(run, step=step) for step in ("a", "b")]
        for call, closed_s in ((first, 60), (second, 5)):
            assert isinstance(call, str)
            end = Settlement(call, "a", "h", "rejected", 429, closed_s=closed_s)
            await store.settle(run, end)
        assert await floor.begin(run, step="c") == NoPlace(60)


async def test_a_job_in_line_looks_again_without_a_word(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        await floor.submit("bob")
        holder, waiter = await floor.due()
        await floor.call(holder)
        await floor.wait_in_line(waiter)
        before = await store.read(waiter.job_id)
        for _ in range(3):
            await floor.pass_time(70, ("w", holder))
            assert await floor.due() == []
        after = await job(store, waiter.job_id)
        assert (await store.read(waiter.job_id)).seq == before.seq, "no event, no run"
        assert after["retry_at"] > data(b"\ndata: " + before.body)["retry_at"]


async def test_waiting_ends(settings: Settings, clock: Clock) -> None:
    """SLOWCALL_MAX_WAIT_S bounds the waits of a job in all."""
    patient = limited(settings, 1).model_copy(update={"max_wait_s": 100})
    async with store_at(patient, clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        await floor.submit("bob")
        holder, waiter = await floor.due()
        call = await floor.call(holder)
        await floor.wait_in_line(waiter)
        await floor.pass_time(60, ("w", holder))
        await floor.end(holder, call)
        (waiter,) = await floor.due()
        assert waiter.waited_ms == pytest.approx(60_000, abs=2)
        problem: Problem = ("rate_limited", "the model asked for a pause", 429)
        await store.requeue(
            waiter, DEFER, wait_s=90, reason="rate_limited", problem=problem, counted=False
        )
        clock.forward(38.9)
        await store.sweep()
        assert (await job(store, waiter.job_id))["status"] == "retrying"
        clock.forward(1.2)
        await store.sweep()
        failed = await job(store, waiter.job_id)
        assert (failed["status"], failed["error"]["type"]) == ("failed", "rate_limited")
        assert "SLOWCALL_MAX_WAIT_S" in failed["error"]["message"]


async def test_who_leaves_the_line_holds_nobody_up(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        for user in ("ann", "bob", "cem"):
            await floor.submit(user)
        holder, bob, cem = await floor.due()
        call = await floor.call(holder)
        await floor.wait_in_line(bob)
        await floor.wait_in_line(cem)
        await store.cancel(bob.job_id)
        assert [lane["in_line"] for lane in await store.lanes()] == [1]
        await floor.end(holder, call)
        (run,) = await floor.due()
        assert run.job_id == cem.job_id
        await store.cancel(run.job_id)
        await floor.submit("dan")
        (last,) = await floor.due()
        await floor.call(last)


@pytest.mark.parametrize(
    ("model", "expected"), [("m", 2), ("small", 1), ("free", 5), ("odd '\"\\ \nname", 3)]
)
async def test_limits_are_per_model(
    settings: Settings, clock: Clock, model: str, expected: int
) -> None:
    limits = Concurrency(2, (("small", 1), ("free", 0), ("odd '\"\\ \nname", 3)))
    own = settings.model_copy(update={"model_concurrency": limits})
    async with store_at(own, clock) as store:
        floor = Floor(store, clock)
        await floor.submit()
        (run,) = await floor.due()
        places = [await floor.begin(run, model, f"step {n}") for n in range(5)]
        assert sum(isinstance(place, str) for place in places) == expected


async def test_limits_per_kind(settings: Settings, clock: Clock) -> None:
    limits = Concurrency(0, (("chat", 2),))
    own = settings.model_copy(update={"kind_concurrency": limits, "quota": 0})
    async with store_at(own, clock) as store:
        floor = Floor(store, clock)
        for user in ("ann", "bob", "cem", "dan"):
            await floor.submit(user)
        other = await floor.submit("eve", kind="other")
        runs = await floor.due()
        assert len(runs) == 2
        assert await floor.due("another worker") == [], "the limit holds across workers"
        (free,) = await floor.due(kinds=("chat", "other"))
        assert free.job_id == other, "a full kind holds back no other"
        await store.cancel(runs[0].job_id)
        assert len(await floor.due()) == 1
        await floor.pass_time(1.1 * LEASE_S)
        assert len(await floor.due("takes over")) == 2, "what the dead held is free again"


async def test_calls_at_once_over_two_workers(settings: Settings, lab: LabModel) -> None:
    lab.misbehave({"delay_s": 0.1})
    async with store_at(settings) as store, crew(limited(settings, 2), lab.url, workers=2):
        jobs = [
            (await store.submit(a_job("chat", f"prompt {n}", user_id=f"u{n % 3}"))).job.job_id
            for n in range(9)
        ]
        assert {told["status"] for told in await ended(store, jobs)} == {"done"}
        lines = await calls(store, jobs)
        assert len(lines) == 9
        assert most_at_once(lines) == 2
        assert {(await job(store, job_id))["attempts"] for job_id in jobs} == {1}


async def test_stats_show_the_lanes(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1, free=0), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        await floor.submit("bob")
        holder, waiter = await floor.due()
        await floor.call(holder)
        await floor.wait_in_line(waiter)
        paused = await floor.call(holder, "free")
        end = Settlement(paused, "answer", "h", "rejected", 429, closed_s=60)
        await store.settle(holder, end)
        lanes = {lane.pop("model"): lane for lane in (await store.stats())["lanes"]}
        assert lanes[MODEL] == {"open": 1, "limit": 1, "in_line": 1, "opens_at": None}
        assert lanes["free"].pop("opens_at") > (await job(store, holder.job_id))["started_at"]
        assert lanes["free"] == {"open": 0, "limit": 0, "in_line": 0}


async def test_nobody_is_woken_for_a_closed_lane(settings: Settings, clock: Clock) -> None:
    async with store_at(limited(settings, 1), clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        await floor.submit("bob")
        holder, waiter = await floor.due()
        call = await floor.call(holder)
        await floor.wait_in_line(waiter)
        await store.settle(holder, Settlement(call, "a", "h", "rejected", 429, closed_s=30))
        (lane,) = await store.lanes()
        assert (lane["open"], lane["in_line"]) == (0, 1)
        await floor.pass_time(30.1, ("w", holder))
        (run,) = await floor.due()
        assert run.job_id == waiter.job_id, "it is woken when the lane opens"
        await floor.call(run)


async def test_a_map_with_few_places_goes_on_with_few(settings: Settings, lab: LabModel) -> None:
    lab.misbehave({"delay_s": 0.03})
    async with store_at(settings) as store, crew(limited(settings, 2), lab.url):
        pages = {"pages": [f"page {n}" for n in range(8)]}
        job_id = (await store.submit(a_job("summarize", pages))).job.job_id
        (told,) = await ended(store, [job_id])
        assert (told["status"], told["attempts"]) == ("done", 1)
        assert most_at_once(await calls(store, [job_id])) == 2
        names = [entry.name for entry in await store.log(job_id)]
        assert "retrying" not in names, "its own calls gave their places to its own"


async def test_two_documents_and_one_place(settings: Settings, lab: LabModel) -> None:
    async with store_at(settings) as store, crew(limited(settings, 1), lab.url, workers=2):
        jobs = [
            (await store.submit(a_job("summarize", {"pages": list("abcd")}, user_id=user))).job
            for user in ("ann", "bob")
        ]
        told = await ended(store, [view.job_id for view in jobs])
        assert [(view["status"], view["attempts"]) for view in told] == [("done", 1)] * 2
        lines = await calls(store, [view.job_id for view in jobs])
        assert (len(lines), most_at_once(lines)) == (10, 1)


async def test_a_429_stops_all_workers_until_the_named_time(
    settings: Settings, serve_lab: Callable[[Settings], LabModel]
) -> None:
    refusal = reply(429, b'{"error": {"message": "slow down"}}', "Retry-After: 0.6")
    with Endpoint(refusal, answered("yes")) as endpoint:
        own = settings.model_copy(update={"ai_model": MODEL})
        async with store_at(own) as store, crew(own, endpoint.url, workers=2):
            first = (await store.submit(a_job("chat", user_id="ann"))).job.job_id

            async def refused() -> bool:
                return bool((await job(store, first))["status"] == "retrying")

            await until(refused, "the first job waits")
            rest = [
                (await store.submit(a_job("chat", f"{n}", user_id=f"u{n}"))).job.job_id
                for n in range(4)
            ]
            told = await ended(store, [first, *rest])
            assert [(view["status"], view["attempts"]) for view in told] == [("done", 1)] * 5
            lines = await calls(store, [first, *rest])
            assert [line["outcome"] for line in lines] == ["rejected"] + ["paid"] * 5
            assert lines[1]["started"] - lines[0]["ended"] >= 600, "nobody asked before"


async def test_waiting_for_a_lane_holds_no_slot(settings: Settings) -> None:
    """One worker with one slot: jobs of a closed model wait, those of another run meanwhile."""

    def script(request: Any) -> Any:
        if request.json["model"] == "closed":
            return reply(429, b"{}", "Retry-After: 200")
        return answered("yes")

    with Endpoint(script) as endpoint:
        own = settings.model_copy(update={"concurrency": 1})
        async with store_at(own) as store, crew(own, endpoint.url):

            async def post(model: str, user: str) -> str:
                given = {"messages": [{"role": "user", "content": "x"}], "model": model}
                return (await store.submit(a_job("chat", given, user_id=user))).job.job_id

            stuck = [await post("closed", f"u{n}") for n in range(5)]
            free = [await post("open", f"v{n}") for n in range(5)]
            assert {view["status"] for view in await ended(store, free)} == {"done"}
            told = [await job(store, job_id) for job_id in stuck]
            assert {view["status"] for view in told} == {"retrying"}
            assert {view["attempts"] for view in told} == {0}
            assert len([request for request in endpoint.requests if b"closed" in request.body]) == 1
            await asyncio.gather(*(store.cancel(job_id) for job_id in stuck))


async def test_an_outage_frees_no_place(settings: Settings, clock: Clock) -> None:
    """Longer than a lease, and nobody could renew: the calls go on, so their places hold."""
    own = limited(settings, 1).model_copy(update={"lease_s": LEASE_S})
    async with store_at(own, clock) as store:
        floor = Floor(store, clock)
        await floor.submit("ann")
        await floor.submit("bob")
        holder, other = await floor.due()
        await floor.pass_time(1, ("w", holder))
        await floor.call(holder)
        clock.forward(5 * LEASE_S)
        assert isinstance(await floor.begin(other), NoPlace)
