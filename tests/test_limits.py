"""Limits: the quota and who gives it back, turns between users, times that are up, what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

import httpx
import pytest

from tasks.errors import JobNotFound, QuotaExceeded, RunLost, WrongStatus
from tasks.keys import name
from tasks.lifecycle import FAIL, FINISH, RETRY
from tasks.settings import Settings
from tasks.store import Run, Store
from tests.crew import crew, ended, job
from tests.endpoint import HOLD, HS, C, Endpoint, answered, reply
from tests.rig import Clock, a_job, store_at
from tests.serving import served, submit, until

LEASE_S: Final = 10.0
QUOTA: Final = 2
RESULT: Final = {"text": "x", "source": "model"}


class Ward:
    """One user's jobs, moved by hand by the test's clock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    async def post(self, **more: Any) -> str:
        return (await self.store.submit(a_job("chat", **more), quota=QUOTA)).job.job_id

    async def start(self, job_id: str, worker: str = "w") -> Run:
        claimed, _ = await self.store.claim(worker, ["chat"], 100, LEASE_S)
        entry = next(entry for entry in claimed if entry.job_id == job_id)
        run = entry.run
        assert run is not None
        return run

    async def pass_time(self, seconds: float) -> None:
        """Let time pass; there are workers, but none of these jobs is theirs."""
        while seconds > 0:
            self.clock.forward(min(seconds, LEASE_S / 3))
            seconds -= LEASE_S / 3
            await self.store.renew("idle", [], LEASE_S, {"lease_s": LEASE_S})
        await self.store.sweep()

    async def assert_room(self, expected: int) -> None:
        """So many more are taken, and not one more."""
        for _ in range(expected):
            await self.post()
        with pytest.raises(QuotaExceeded):
            await self.post()


End = Callable[[Ward], Awaitable[None]]


async def done(ward: Ward) -> None:
    await ward.store.conclude(await ward.start(await ward.post()), FINISH, result=RESULT)


async def failed(ward: Ward) -> None:
    run = await ward.start(await ward.post())
    await ward.store.conclude(run, FAIL, problem=("permanent", "no", None))


async def cancelled_in_the_queue(ward: Ward) -> None:
    await ward.store.cancel(await ward.post())


async def cancelled_while_it_ran(ward: Ward) -> None:
    job_id = await ward.post()
    run = await ward.start(job_id)
    await ward.store.cancel(job_id)
    with pytest.raises(RunLost):
        await ward.store.conclude(run, FINISH, result=RESULT)
    with pytest.raises(WrongStatus):
        await ward.store.cancel(job_id)


async def expired(ward: Ward) -> None:
    await ward.post(expires_s=5)
    await ward.pass_time(6)


async def past_its_deadline(ward: Ward) -> None:
    run = await ward.start(await ward.post(deadline_s=20))
    await ward.store.conclude(run, FAIL, problem=("timeout", "late", None))


async def lost_with_its_worker(ward: Ward) -> None:
    run = await ward.start(await ward.post(max_attempts=1), "dies")
    await ward.pass_time(1.1 * LEASE_S)
    claimed, _ = await ward.store.claim("heir", ["chat"], 9, LEASE_S)
    assert [entry.run for entry in claimed] == [None]
    with pytest.raises(RunLost):
        await ward.store.conclude(run, FINISH, result=RESULT)


async def discarded(ward: Ward) -> None:
    job_id = await ward.post()
    await ward.store.cancel(job_id)
    await ward.store.delete(job_id)


ENDS: Final[list[End]] = [
    *(done, failed, cancelled_in_the_queue, cancelled_while_it_ran, expired),
    *(past_its_deadline, lost_with_its_worker, discarded),
]


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_gives_its_place_back_once(settings: Settings, end: End) -> None:
    """Cases D6, D7, D13."""
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        await end(ward)
        await end(ward)
        await ward.assert_room(QUOTA)


async def test_a_new_life_takes_a_place(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        first, second = [await ward.post() for _ in range(2)]
        await store.cancel(first)
        await ward.post()
        with pytest.raises(QuotaExceeded):
            await store.revive(first, quota=QUOTA)
        await store.cancel(second)
        await store.revive(first, quota=QUOTA)
        await ward.assert_room(0)


@pytest.mark.writes_by_hand
async def test_a_place_whose_job_is_gone_heals(settings: Settings) -> None:
    """A record that Redis evicted gives no place back; a full set looks for such members."""
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        for _ in range(QUOTA):
            await store.redis.delete(name("job", await ward.post()))
        await ward.assert_room(QUOTA)


@pytest.mark.writes_by_hand
async def test_a_set_that_is_gone_never_counts_below_nothing(settings: Settings) -> None:
    """Case D7."""
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        runs = [await ward.start(await ward.post()) for _ in range(QUOTA)]
        await store.redis.delete(name("inflight", "local"))
        for run in runs:
            await store.conclude(run, FINISH, result=RESULT)
        await ward.assert_room(QUOTA)


async def test_a_hundred_at_once_over_two_servers(settings: Settings) -> None:
    own = settings.model_copy(update={"quota": 10})
    async with served(own) as one, served(own) as two:
        posts = [
            client.post("/jobs", json={"input": f"{n}"}) for client in (one, two) for n in range(50)
        ]
        answers = await asyncio.gather(*posts)
        taken = [answer for answer in answers if answer.status_code == 202]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert (len(taken), len(refused)) == (10, 90)
        left = sorted(int(answer.headers["ratelimit"].rpartition("=")[2]) for answer in taken)
        assert left == list(range(10))
        for answer in refused:
            assert answer.headers["ratelimit"] == '"inflight";r=0'
            assert answer.headers["content-type"] == "application/problem+json"


async def test_replays_and_refusals_cost_nothing(settings: Settings) -> None:
    """Case D8."""
    own = settings.model_copy(update={"quota": 3})
    async with served(own) as client:
        key = {"Idempotency-Key": "k"}
        for _ in range(5):
            assert (await client.post("/jobs", json={"input": ""})).status_code == 422
            assert (await client.post("/jobs", content=b"{")).status_code in (400, 415)
            assert (await client.post("/jobs", json={"input": "x"}, headers=key)).is_success
            changed = await client.post("/jobs", json={"input": "y"}, headers=key)
            assert changed.status_code == 422
        for expected in (202, 202, 429, 429):
            assert (await client.post("/jobs", json={"input": "x"})).status_code == expected
        again = await client.post("/jobs", json={"input": "x"}, headers=key)
        assert again.headers["idempotent-replayed"] == "true", "a replay is answered when full, too"


async def test_a_key_lives_as_long_as_its_job(settings: Settings) -> None:
    """Cases D4, D10: a repeat says which state it returns; of what is gone it makes a new job."""
    key = {"Idempotency-Key": "k"}
    clock = Clock()
    async with served(settings) as client, store_at(settings) as store:
        ward = Ward(store, clock)

        async def again() -> httpx.Response:
            return await client.post("/jobs", json={"input": "x"}, headers=key)

        job_id = (await again()).json()["job_id"]
        run = await ward.start(job_id)
        assert ((await again()).status_code, (await again()).json()["status"]) == (202, "running")
        await store.conclude(run, FAIL, problem=("permanent", "no", None))
        answer = await again()
        assert (answer.status_code, answer.json()["status"]) == (200, "failed")
        await store.revive(job_id)
        answer = await again()
        assert (answer.status_code, answer.json()["job_id"]) == (202, job_id)
        assert await store.redis.ttl(name("idem", "5:local:k")) == -1, "it waits as long as its job"
        await store.cancel(job_id)
        await store.delete(job_id)
        assert (await again()).json()["job_id"] != job_id


async def test_a_retry_really_runs(settings: Settings) -> None:
    """Case C15: what ended under an id runs again under it, each time."""
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        job_id = await ward.post()
        for _ in range(3):
            run = await ward.start(job_id)
            await store.conclude(run, FAIL, problem=("permanent", "no", None))
            await store.revive(job_id)
        await store.conclude(await ward.start(job_id), FINISH, result=RESULT)
        assert (await job(store, job_id))["status"] == "done"


async def test_users_take_turns(settings: Settings) -> None:
    """A user with 500 waiting jobs does not hold back another's first one."""
    clock = Clock()
    async with store_at(settings, clock) as store:
        for n in range(500):
            await store.submit(a_job("chat", f"{n}", user_id="ann"))
        clock.forward(1)
        late = (await store.submit(a_job("chat", user_id="bob"))).job.job_id
        order = []
        for _ in range(4):
            (entry,), _ = await store.claim("w", ["chat"], 1, LEASE_S)
            run = entry.run
            assert run is not None
            order.append(run)
            await store.conclude(run, FINISH, result=RESULT)
        assert late in [run.job_id for run in order[:2]]
        assert [run.user_id for run in order].count("ann") == 3


# times that are up


async def test_an_expired_job_never_starts(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        started = await ward.post(expires_s=30, user_id="ann")
        run = await ward.start(started)
        waits = await ward.post(expires_s=30, user_id="bob")
        clock.forward(31)
        claimed, _ = await store.claim("x", ["chat"], 9, LEASE_S)
        runs = [entry.run for entry in claimed if entry.job_id == waits]
        assert runs == [None], "also where a worker is quicker than the sweep"
        told = await job(store, waits)
        assert (told["status"], told["error"]["type"], told["attempts"]) == ("failed", "timeout", 0)
        assert await store.ledger(waits) == [], "nothing was bought"
        assert (await job(store, run.job_id))["status"] == "running", "only the wait was bounded"


async def test_a_deadline_ends_a_wait_too(settings: Settings) -> None:
    clock = Clock()
    async with store_at(settings, clock) as store:
        ward = Ward(store, clock)
        job_id = await ward.post(deadline_s=60)
        run = await ward.start(job_id)
        assert run.deadline_left_s == 60
        await store.requeue(run, RETRY, wait_s=100, reason="transient")
        await ward.pass_time(59)
        assert (await job(store, job_id))["status"] == "retrying"
        await ward.pass_time(1.1)
        told = await job(store, job_id)
        assert (told["status"], told["error"]["type"]) == ("failed", "timeout")
        await store.revive(job_id)
        assert (await ward.start(job_id)).deadline_left_s == 60, "a new life has its whole time"


@pytest.mark.parametrize("options", [{"deadline_s": 0.4}, {"timeout_s": 0.4, "max_attempts": 1}])
async def test_a_call_is_closed_when_time_is_up(
    settings: Settings, options: dict[str, Any]
) -> None:
    own = settings.model_copy(update={"ai_model": "m"})
    with Endpoint(HS(C("a"), HOLD)) as endpoint:
        async with store_at(own) as store, crew(own, endpoint.url):
            job_id = (await store.submit(a_job("chat", **options))).job.job_id
            (told,) = await ended(store, [job_id], 5)
            assert (told["status"], told["error"]["type"]) == ("failed", "timeout")
            took_s = seconds(told["finished_at"]) - seconds(told["created_at"])
            assert 0.39 < took_s < 2.4
            (line,) = await store.ledger(job_id)
            assert line["outcome"] == "unknown"

            async def left() -> bool:
                return endpoint.left == 1

            await until(left, "the connection to the model is closed", 2)


def seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


# cancel


async def test_cancel_ends_the_call_and_says_what_was_spent(settings: Settings) -> None:
    own = settings.model_copy(update={"ai_model": "m"})
    with Endpoint(HS(C("a"), HOLD)) as endpoint:
        async with (
            served(own) as client,
            store_at(own) as store,
            crew(own, endpoint.url),
        ):
            job_id = await submit(client)

            async def streams() -> bool:
                return any(entry.name == "delta" for entry in await store.log(job_id))

            await until(streams, "the model answers")
            answer = await client.post(f"/jobs/{job_id}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
            assert answer.json()["ledger"]["unknown"] == 1, "what was spent nobody knows"

            async def left() -> bool:
                return endpoint.left == 1

            await until(left, "the call is closed within two seconds", 2)
            assert (await client.post(f"/jobs/{job_id}/cancel")).status_code == 409
            assert (await job(store, job_id))["status"] == "cancelled"


# what the model asks for

WAITS: Final = [
    ("Retry-After: 2", 2),
    ("Retry-After: 1.5", 1.5),
    ("Retry-After: 0", 0),
    ("Retry-After: 198300", 300),
    ("Retry-After: 1e309", 5),
    ("Retry-After: nan", 5),
    ("Retry-After: -1", 5),
    ("Retry-After: abc", 5),
    ("retry-after-ms: 1500", 1.5),
    ("x-ratelimit-reset-requests: 6m0s", 300),
    ("x-ratelimit-reset-tokens: 12s", 12),
    ("X-Nothing: 1", 5),
]


@pytest.mark.parametrize(("header", "expected_s"), WAITS)
async def test_the_wait_that_a_429_names(
    settings: Settings, header: str, expected_s: float
) -> None:
    """Cases A15, A16: kept up to BACKOFF_MAX_S and shown; junk is the usual wait."""
    own = settings.model_copy(update={"ai_model": "m", "backoff_s": 5, "backoff_max_s": 300})
    with Endpoint(reply(429, b"{}", header), answered("x")) as endpoint:
        async with store_at(own) as store, crew(own, endpoint.url):
            job_id = (await store.submit(a_job("chat"))).job.job_id

            async def refused() -> bool:
                return bool(await store.ledger(job_id)) and (
                    (await job(store, job_id))["status"] != "running"
                )

            await until(refused, "the call is refused")
            if expected_s:
                told = await job(store, job_id)
                assert (told["status"], told["attempts"]) == ("retrying", 0)
                (line,) = await store.ledger(job_id)
                wait_s = seconds(told["retry_at"]) - line["ended"] / 1000
                assert expected_s - 0.01 <= wait_s < expected_s + 1
                await store.cancel(job_id)
            else:
                assert (await ended(store, [job_id]))[0]["status"] == "done"


async def test_a_model_that_loads_for_long(settings: Settings) -> None:
    """Case A31: no attempt is spent on a model that is not there yet."""
    loading = reply(503, b'{"error": {"message": "Loading model", "code": 503}}')
    own = settings.model_copy(update={"ai_model": "m"})
    with Endpoint(*[loading] * 8, answered("here")) as endpoint:
        async with store_at(own) as store, crew(own, endpoint.url):
            job_id = (await store.submit(a_job("chat"))).job.job_id
            (told,) = await ended(store, [job_id])
            assert (told["status"], told["attempts"]) == ("done", 1)
            assert told["ledger"]["rejected"] == 8


# what is gone


async def test_everything_of_a_job_goes_together(settings: Settings) -> None:
    """KEEP_S after it is final; the indexes are pruned; what is not final stays."""
    own = settings.model_copy(update={"keep_s": 0.4, "ai_model": "m"})
    with Endpoint(answered("x")) as endpoint:
        async with store_at(own) as store:
            waits = (await store.submit(a_job("other", user_id="ann"))).job.job_id
            async with crew(own, endpoint.url):
                new = a_job("chat", user_id="ann", idempotency_key="k", blob=b"document")
                job_id = (await store.submit(new)).job.job_id

                async def gone() -> bool:
                    keys = [key.decode() for key in await store.redis.keys("*")]
                    named = [key for key in keys if job_id in key or "idem" in key]
                    indexed = await store.redis.zscore(name("index", "*", "*", "*"), job_id)
                    return not named and indexed is None and bool(endpoint.requests)

                await until(gone, "nothing of it is left", 10)
            assert (await job(store, waits))["status"] == "queued"


@pytest.mark.parametrize("keep_s", [0.001, 1e9])
async def test_the_shortest_and_the_longest_keep_end_no_worker(
    settings: Settings, keep_s: float
) -> None:
    """Case C13: what may be set can be stored, also as an expiry."""
    own = settings.model_copy(update={"keep_s": keep_s, "ai_model": "m"})
    with Endpoint(reply(400, b"{}"), answered("x")) as endpoint:
        async with store_at(own) as store, crew(own, endpoint.url) as (worker,):

            async def over(job_id: str) -> bool:
                try:
                    return (await store.read(job_id)).final
                except JobNotFound:
                    return True

            for count in (1, 2):
                job_id = (await store.submit(a_job("chat", f"{count}"))).job.job_id
                await until(partial(over, job_id), "it ends")
                assert len(endpoint.requests) == count
            assert worker.allow_pick_jobs
