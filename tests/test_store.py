"""The store's scripts one by one: what a client or a worker may hold on to, case by case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import orjson
import pytest
import redis

from tasks.errors import JobNotFound, KeyReused, MalformedRequest, QuotaExceeded, RunLost
from tasks.keys import name
from tasks.lifecycle import DEFER, FINISH, RELEASE, RETRY, Status
from tasks.settings import Settings
from tasks.store import Begun, Claimed, Progress, Run, Settlement, Store, StoredStep
from tests.invariants import Books
from tests.rig import Clock, a_job, data, seen
from tests.serving import until

LEASE_S = 10.0


@pytest.fixture
def clock() -> Clock:
    """The clock of the store."""
    return Clock()


@pytest.fixture
async def store(settings: Settings, clock: Clock) -> AsyncIterator[Store]:
    """A store that goes by the given clock."""
    store = Store.connect(settings, clock=clock)
    yield store
    await store.aclose()


@pytest.fixture
def client(store_url: str) -> Iterator[redis.Redis]:
    """A plain client of the same Redis, to look behind the scenes."""
    with redis.Redis.from_url(store_url) as client:
        yield client


async def submit(store: Store, user: str = "ann", quota: int = 0, **more: object) -> str:
    """Submit a chat; answers its id."""
    new = a_job("chat", user_id=user, **more)
    return (await store.submit(new, quota=quota)).job.job_id


async def claim(store: Store, worker: str = "one", room: int = 1) -> list[Claimed]:
    """What the worker may run now."""
    return (await store.claim(worker, ["chat"], room, LEASE_S))[0]


async def start(store: Store, worker: str = "one") -> Run:
    """Claim one job and start it."""
    (claimed,) = await claim(store, worker)
    run = claimed.run
    assert run is not None
    return run


async def finish(store: Store, run: Run) -> None:
    """Finish a run."""
    await store.conclude(run, FINISH, result={"text": "done", "source": "model"})


async def lapse(store: Store, clock: Clock) -> None:
    """Let all leases of worker one lapse while worker two lives."""
    for _ in range(3):
        await store.renew("two", [], LEASE_S, {})
        clock.forward(LEASE_S / 2)


class TestSubmit:
    """Idempotency and the quota: one script, so nothing comes between its parts."""

    async def test_a_hundred_at_once_with_one_key_are_one_job(self, store: Store) -> None:
        new = a_job("chat", user_id="ann", idempotency_key="k")
        answers = await asyncio.gather(*(store.submit(new, quota=5) for _ in range(100)))
        assert len({answer.job.job_id for answer in answers}) == 1
        assert [answer.replayed for answer in answers].count(False) == 1
        assert {answer.in_flight for answer in answers} == {1}

    @pytest.mark.parametrize("status", ["queued", "running", "done"])
    async def test_another_body_is_refused_at_any_time(self, store: Store, status: str) -> None:
        job_id = await submit(store, idempotency_key="k")
        if status != "queued":
            run = await start(store)
            if status == "done":
                await finish(store, run)
        with pytest.raises(KeyReused):
            await submit(store, input="other", idempotency_key="k")
        again = await store.submit(a_job("chat", user_id="ann", idempotency_key="k"))
        assert (again.job.job_id, again.job.status, again.replayed) == (job_id, status, True)

    async def test_a_key_is_its_users_own(self, store: Store) -> None:
        one = await submit(store, "a:b", idempotency_key="c")
        two = await submit(store, "a", idempotency_key="b:c")
        assert one != two

    async def test_a_job_can_be_read_at_once_by_anybody(
        self, store: Store, settings: Settings
    ) -> None:
        other = Store.connect(settings)
        job_id = await submit(store)
        assert (await other.read(job_id)).status is Status.QUEUED
        await other.aclose()

    async def test_a_full_quota_refuses_and_a_replay_does_not_count(self, store: Store) -> None:
        await submit(store, quota=2, idempotency_key="k")
        await submit(store, quota=2)
        for _ in range(3):
            with pytest.raises(QuotaExceeded):
                await submit(store, quota=2)
        replay = a_job("chat", user_id="ann", idempotency_key="k")
        assert (await store.submit(replay, quota=2)).replayed
        await submit(store, "bob", quota=2)

    @pytest.mark.parametrize("end", ["cancel", "finish", "cancel running", "expire"])
    async def test_every_end_frees_the_quota_once(
        self, store: Store, clock: Clock, end: str
    ) -> None:
        job_id = await submit(store, quota=1, deadline_s=5)
        if end in ("finish", "cancel running"):
            run = await start(store)
        if end == "finish":
            await finish(store, run)
        elif end == "expire":
            clock.forward(6)
            await store.sweep()
        else:
            await store.cancel(job_id)
        await submit(store, quota=1)
        with pytest.raises(QuotaExceeded):
            await submit(store, quota=1)

    async def test_a_repeat_after_the_reply_was_lost_finds_the_job(
        self, store: Store, client: redis.Redis
    ) -> None:
        """The script ran and the server died: the job will run, and the key finds it."""
        job_id = await submit(store, idempotency_key="k", quota=1)
        again = await store.submit(a_job("chat", user_id="ann", idempotency_key="k"), quota=1)
        assert again.job.job_id == job_id
        assert (await start(store)).job_id == job_id


class TestFairness:
    """Only the head of each user's line is in the queue; a claim brings the next one up."""

    async def test_many_of_one_user_do_not_hold_back_another(self, store: Store) -> None:
        for _ in range(500):
            await submit(store, "ann")
        bobs = await submit(store, "bob")
        first = [entry.job_id for entry in await claim(store, room=2)]
        assert bobs in first, "bob's only job is among the first two"

    async def test_users_take_turns(self, store: Store, clock: Clock) -> None:
        owners = {}
        for user in ("ann", "ann", "ann", "bob", "bob", "cy"):
            owners[await submit(store, user)] = user
            clock.forward(1)
        turns = []
        while claimed := await claim(store):
            turns += [owners[entry.job_id] for entry in claimed]
            clock.forward(0.1)
        assert turns == ["ann", "bob", "cy", "ann", "bob", "ann"]

    async def test_jobs_of_one_user_keep_their_order(self, store: Store, clock: Clock) -> None:
        submitted = []
        for _ in range(5):
            submitted.append(await submit(store))
            clock.forward(1)
        assert [entry.job_id for entry in await claim(store, room=5)] == submitted

    @pytest.mark.parametrize("cancelled", [0, 1, 2])
    async def test_a_cancel_in_the_line_lets_the_others_up(
        self, store: Store, clock: Clock, cancelled: int
    ) -> None:
        submitted = []
        for _ in range(3):
            submitted.append(await submit(store))
            clock.forward(1)
        await store.cancel(submitted.pop(cancelled))
        assert [entry.job_id for entry in await claim(store, room=5)] == submitted

    async def test_positions_count_from_one(self, store: Store, clock: Clock) -> None:
        submitted = []
        for _ in range(3):
            submitted.append(await submit(store))
            clock.forward(1)
        positions = [seen(await store.read(job_id))["queue_position"] for job_id in submitted]
        assert positions == [1, 2, 3]
        await start(store)
        positions = [seen(await store.read(job_id))["queue_position"] for job_id in submitted]
        assert positions == [None, 1, 2]


class TestLease:
    """A claim is a lease; when it lapses, and only then, another worker has the job."""

    async def test_a_lease_that_holds_is_left_alone(self, store: Store, clock: Clock) -> None:
        await submit(store)
        run = await start(store)
        for _ in range(5):
            clock.forward(LEASE_S / 2)
            assert await store.renew("one", [run], LEASE_S, {}) == set()
            assert await claim(store, "two") == []

    async def test_who_comes_up_behind_a_claimed_job_is_due_at_once(self, store: Store) -> None:
        """Not in a millisecond: a crowd of one user's jobs would be claimed with as many pauses."""
        for _ in range(3):
            await submit(store)
        waits = [(await store.claim("one", ["chat"], 1, LEASE_S))[1] for _ in range(2)]
        assert waits == [0, 0]

    async def test_many_leases_are_renewed_and_each_that_is_lost_is_told(
        self, store: Store, clock: Clock
    ) -> None:
        """More than one script takes at once."""
        ids = [await submit(store) for _ in range(250)]
        runs = [one.run for one in await claim(store, room=len(ids)) if one.run]
        lost = {ids[0], ids[120], ids[-1]}
        for job_id in lost:
            await store.cancel(job_id)
        clock.forward(LEASE_S / 2)
        assert await store.renew("one", runs, LEASE_S, {}) == lost
        clock.forward(LEASE_S * 0.9)
        assert await claim(store, "two", room=len(ids)) == []

    async def test_a_take_over_is_told_in_two_events(self, store: Store, clock: Clock) -> None:
        job_id = await submit(store)
        old = await start(store)
        await lapse(store, clock)
        new = await start(store, "two")
        assert (new.run, new.attempt) == (old.run + 1, 2)
        log = [(entry.name, data(entry.block).get("reason")) for entry in await store.log(job_id)]
        assert log[-2:] == [("retrying", "lost"), ("running", None)]
        assert await store.renew("one", [old], LEASE_S, {}) == {job_id}

    async def test_the_last_attempt_that_dies_fails_the_job(
        self, store: Store, clock: Clock
    ) -> None:
        job_id = await submit(store, max_attempts=1)
        await start(store)
        await lapse(store, clock)
        (claimed,) = await claim(store, "two")
        assert claimed.run is None
        job = seen(await store.read(job_id))
        assert (job["status"], job["error"]["type"]) == ("failed", "lost")

    async def test_a_gap_in_all_renewals_is_an_outage_not_a_death(
        self, store: Store, clock: Clock
    ) -> None:
        """Nobody renewed for longer than a lease: take-overs wait one more lease, so that all
        workers can renew first."""
        await submit(store)
        run = await start(store)
        await store.renew("one", [run], LEASE_S, {})
        clock.forward(LEASE_S * 6)
        assert await claim(store, "two") == []
        assert await store.renew("one", [run], LEASE_S, {}) == set(), "it renews in time"
        clock.forward(LEASE_S * 0.9)
        assert await claim(store, "two") == []

    async def test_after_the_grace_the_dead_are_taken_over(
        self, store: Store, clock: Clock
    ) -> None:
        await submit(store)
        run = await start(store)
        await store.renew("one", [run], LEASE_S, {})
        clock.forward(LEASE_S * 6)
        assert await claim(store, "two") == []
        await store.renew("two", [], LEASE_S, {})
        clock.forward(LEASE_S * 0.9)
        await store.renew("two", [], LEASE_S, {})
        clock.forward(LEASE_S * 0.2)
        assert (await start(store, "two")).run == run.run + 1

    async def test_a_sleeper_that_wakes_after_its_claim_comes_too_late(
        self, store: Store, clock: Clock
    ) -> None:
        """Another worker took over and gave the job back, to wait; the sleeper may not call a
        model before its time."""
        await submit(store)
        slept_on = await start(store, "one")
        await lapse(store, clock)
        run = await start(store, "two")
        await store.requeue(run, RETRY, wait_s=60, reason="transient")
        with pytest.raises(RunLost):
            await store.begin(slept_on, call="c", step="answer", model="m", hash="h")

    async def test_a_run_of_an_old_life_does_nothing(self, store: Store) -> None:
        job_id = await submit(store)
        old = await start(store)
        await store.cancel(job_id)
        await store.revive(job_id)
        with pytest.raises(RunLost):
            await store.begin(old, call="c", step="answer", model="m", hash="h")
        new = await start(store)
        assert (new.run, new.attempt) == (old.run + 1, 1)


class TestClaimAgain:
    """The answer to a claim was lost, and its runs have begun: it is made again."""

    async def again(self, store: Store, worker: str = "one") -> list[Claimed]:
        """The same claim, made by a worker that leaves and has room for nothing new."""
        return (await store.claim(worker, ["chat"], 0, LEASE_S, claim_id="c"))[0]

    async def lost(self, store: Store, clock: Clock, **more: float) -> list[Claimed]:
        """Two jobs, and the answer to their claim that was lost."""
        for user in ("ann", "bob"):
            await submit(store, user, 0, **more)
        clock.forward(1)
        return (await store.claim("one", ["chat"], 2, LEASE_S, claim_id="c"))[0]

    async def test_its_runs_are_answered_again_and_no_others(
        self, store: Store, clock: Clock
    ) -> None:
        lost = await self.lost(store, clock)
        await submit(store, "eve")
        assert len(lost) == 2
        assert await self.again(store) == lost
        assert [run.attempt for entry in lost if (run := entry.run)] == [1, 1]

    async def test_a_run_that_another_one_took_over_is_not(
        self, store: Store, clock: Clock
    ) -> None:
        one, other = await self.lost(store, clock)
        await store.cancel(other.job_id)
        await lapse(store, clock)
        assert (await start(store, "two")).job_id == one.job_id
        assert await self.again(store) == []

    async def test_its_lease_begins_anew(self, store: Store, clock: Clock) -> None:
        lost = await self.lost(store, clock)
        await lapse(store, clock)
        assert [entry.job_id for entry in await self.again(store)] == [
            entry.job_id for entry in lost
        ]
        assert await claim(store, "two") == []

    async def test_a_job_that_failed_instead_is_told_of_again(
        self, store: Store, clock: Clock
    ) -> None:
        lost = await self.lost(store, clock, expires_s=0.5)
        assert [entry.moved.reason for entry in lost if entry.moved] == ["timeout", "timeout"]
        assert await self.again(store) == lost


class TestRequeue:
    """Retry counts an attempt; defer and release give theirs back."""

    @pytest.mark.parametrize(
        ("transition", "counted", "attempts"),
        [(RETRY, True, 1), (DEFER, False, 0), (RELEASE, False, 0)],
    )
    async def test_attempts(
        self, store: Store, transition: object, counted: bool, attempts: int
    ) -> None:
        job_id = await submit(store)
        run = await start(store)
        await store.requeue(run, transition, counted=counted)  # type: ignore[arg-type]
        assert seen(await store.read(job_id))["attempts"] == attempts
        assert (await start(store)).run == run.run + 1, "the fence rises all the same"

    async def test_a_retry_is_due_at_its_time_and_not_before(
        self, store: Store, clock: Clock
    ) -> None:
        await submit(store)
        run = await start(store)
        await store.requeue(run, RETRY, wait_s=5, reason="transient")
        clock.forward(4.9)
        claimed, due_s = await store.claim("one", ["chat"], 1, LEASE_S)
        assert claimed == []
        assert due_s == pytest.approx(0.1, abs=0.01)
        clock.forward(0.1)
        assert len(await claim(store)) == 1

    async def test_a_release_is_due_at_once(self, store: Store) -> None:
        await submit(store)
        run = await start(store)
        await store.requeue(run, RELEASE, counted=False)
        assert (await start(store, "two")).attempt == 1

    async def test_a_new_run_hides_nothing_of_an_old_one(self, store: Store) -> None:
        """Attempt numbers repeat after a release; the fence does not, so a sleeper never passes
        for its successor."""
        await submit(store)
        old = await start(store)
        await store.requeue(old, RELEASE, counted=False)
        new = await start(store, "two")
        assert (old.attempt, new.attempt) == (1, 1)
        with pytest.raises(RunLost):
            await finish(store, old)
        await finish(store, new)


class TestCalls:
    """begin, settle, step: one line for each call, one result for each step."""

    async def test_a_paid_answer_of_an_old_run_is_kept(self, store: Store, clock: Clock) -> None:
        job_id = await submit(store)
        old = await start(store)
        assert await store.begin(old, call="c1", step="s", model="m", hash="h") == Begun(0)
        await lapse(store, clock)
        new = await start(store, "two")
        assert seen(await store.read(job_id))["ledger"]["unknown"] == 1
        with pytest.raises(RunLost):
            await store.settle(old, Settlement("c1", "s", "h", "paid", value={"text": "late"}))
        ledger = seen(await store.read(job_id))["ledger"]
        assert (ledger["unknown"], ledger["paid"]) == (0, 1)
        answer = await store.begin(new, call="c2", step="s", model="m", hash="h")
        assert answer == StoredStep("h", {"text": "late"}), "it is not bought again"

    @pytest.mark.parametrize(
        ("outcome", "number"), [("unknown", 0), ("not_sent", 0), ("rejected", 1), ("paid", 1)]
    )
    async def test_the_number_of_the_upstream_key(
        self, store: Store, outcome: str, number: int
    ) -> None:
        """The same while the endpoint may hold an answer for us; another after a known end."""
        await submit(store)
        run = await start(store)
        await store.begin(run, call="c1", step="s", model="m", hash="h")
        await store.settle(run, Settlement("c1", "s", "h", outcome))  # type: ignore[arg-type]
        answer = await store.begin(run, call="c2", step="s", model="m", hash="h")
        assert answer == Begun(number)

    async def test_the_first_result_of_a_step_stands(self, store: Store) -> None:
        await submit(store)
        run = await start(store)
        first = await store.store_step(run, "s", "h", "first")
        assert await store.store_step(run, "s", "h", "second") == first

    async def test_progress_never_goes_down(self, store: Store) -> None:
        job_id = await submit(store)
        run = await start(store)
        for done in (3, 1, 2):
            await store.tell_progress(run, Progress(done, 9, "so far"))
        told = [
            data(entry.block)["progress"]["done"]
            for entry in await store.log(job_id)
            if entry.name == "progress"
        ]
        assert told == [3, 3, 3]

    async def test_a_person_s_word_ends_every_write_of_a_run(self, store: Store) -> None:
        job_id = await submit(store)
        run = await start(store)
        await store.begin(run, call="c1", step="s", model="m", hash="h")
        await store.cancel(job_id)
        for write in (
            store.tell_delta(run, 1, "s", "text"),
            store.tell_progress(run, Progress(1, 2, "")),
            store.store_step(run, "t", "h", 1),
            store.begin(run, call="c2", step="s", model="m", hash="h"),
            store.requeue(run, RETRY),
            finish(store, run),
        ):
            with pytest.raises(RunLost):
                await write
        assert [entry.name for entry in await store.log(job_id)][-1] == "cancelled"


class TestEnds:
    """What is final expires together, comes back whole, or leaves nothing."""

    async def ended(self, store: Store) -> str:
        """A job that has one of everything, cancelled."""
        job_id = await submit(store, idempotency_key="k", blob=b"a document")
        run = await start(store)
        await store.begin(run, call="c1", step="s", model="m", hash="h")
        await store.settle(run, Settlement("c1", "s", "h", "paid", value={"text": "x"}))
        await store.cancel(job_id)
        return job_id

    async def test_all_of_a_final_job_expires_together(
        self, store: Store, client: redis.Redis, settings: Settings
    ) -> None:
        job_id = await self.ended(store)
        books = Books.read(client)
        kept = {key: ttl for key, ttl in books.ttl_ms.items() if job_id in key or ":idem:" in key}
        assert len(kept) == 7, "record, input, log, steps, ledger, document, key"
        assert max(kept.values()) - min(kept.values()) <= 1
        assert settings.keep_s * 1000 - min(kept.values()) < 5000

    async def test_a_revived_job_does_not_expire(self, store: Store, client: redis.Redis) -> None:
        job_id = await self.ended(store)
        await store.revive(job_id)
        books = Books.read(client)
        assert {books.ttl_ms[key] for key in books.values if job_id in key or ":idem:" in key} == {
            -1
        }
        again = await store.submit(a_job("chat", user_id="ann", idempotency_key="k"))
        assert again.job.job_id == job_id

    async def test_delete_leaves_nothing(self, store: Store, client: redis.Redis) -> None:
        job_id = await self.ended(store)
        await store.delete(job_id)
        books = Books.read(client)
        of_users = (":idem:", ":index:", ":feed:")
        left = [key for key in books.values if any(part in key for part in (job_id, *of_users))]
        assert left == []
        with pytest.raises(JobNotFound):
            await store.read(job_id)
        assert not (await store.submit(a_job("chat", user_id="ann", idempotency_key="k"))).replayed

    async def test_what_has_expired_is_pruned_from_the_lists(self, settings: Settings) -> None:
        settings = settings.model_copy(update={"keep_s": 0.02})
        store = Store.connect(settings)
        job_id = await submit(store)
        await store.cancel(job_id)

        async def expired() -> bool:
            return not (await store.list_jobs(user_id=None))[0]

        await until(expired, "the job has expired")
        await store.sweep()
        assert await store.redis.exists(name("index", "*", "*", "*")) == 0
        assert await store.redis.exists(name("expiry")) == 0
        await store.aclose()

    async def test_a_late_settlement_of_a_deleted_job_writes_nothing(
        self, store: Store, client: redis.Redis
    ) -> None:
        job_id = await submit(store)
        run = await start(store)
        await store.begin(run, call="c1", step="s", model="m", hash="h")
        await store.cancel(job_id)
        await store.delete(job_id)
        before = Books.read(client).values
        with pytest.raises(RunLost):
            await store.settle(run, Settlement("c1", "s", "h", "paid", value={"text": "x"}))
        assert Books.read(client).values == before

    async def test_a_feed_goes_with_the_last_job_of_its_user(
        self, store: Store, client: redis.Redis, clock: Clock, settings: Settings
    ) -> None:
        def feeds() -> list[str]:
            return sorted(
                key.rpartition(":")[2] for key in Books.read(client).values if ":feed:" in key
            )

        first, last = await submit(store, "ann"), await submit(store, "bob")
        await store.cancel(first)
        clock.forward(settings.keep_s / 2)
        await store.cancel(last)
        clock.forward(settings.keep_s / 2)
        assert feeds() == ["*", "=ann", "=bob"]
        client.delete(
            *(key for key in Books.read(client).values if first in key)
        )  # by its own clock
        await store.sweep()
        assert feeds() == ["*", "=bob"]
        await store.delete(last)
        assert feeds() == []

    async def test_a_finished_job_is_never_failed_later(self, store: Store, clock: Clock) -> None:
        """Its worker died between the result and whatever it wanted to do next (case C17)."""
        job_id = await submit(store, deadline_s=60)
        await finish(store, await start(store))
        await lapse(store, clock)
        clock.forward(3600)
        await store.sweep()
        assert await claim(store, "two") == []
        assert (await store.read(job_id)).status is Status.DONE


class TestLists:
    """Pages of jobs and the feeds."""

    async def test_pages_hold_each_job_once_newest_first(self, store: Store, clock: Clock) -> None:
        submitted = []
        for nth in range(7):
            submitted.append(await submit(store, "ann" if nth % 2 else "bob"))
            clock.forward(0.001 if nth % 3 else 0)
        found: list[str] = []
        cursor: str | None = None
        while True:
            page, cursor = await store.list_jobs(user_id=None, limit=3, cursor=cursor)
            found += [view.job_id for view in page]
            if cursor is None:
                break
        assert sorted(found) == sorted(submitted)
        created = [seen(await store.read(job_id))["created_at"] for job_id in found]
        assert created == sorted(created, reverse=True)

    @pytest.mark.parametrize("cursor", ["", "x", "1_2", "1_" + "g" * 32, "_" + "0" * 32])
    async def test_a_junk_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(MalformedRequest):
            await store.list_jobs(user_id=None, cursor=cursor)

    async def test_filters(self, store: Store) -> None:
        mine, other = await submit(store, "ann"), await submit(store, "bob")
        await store.cancel(mine)
        for user, status, expected in (
            ("ann", None, [mine]),
            ("ann", Status.QUEUED, []),
            (None, Status.CANCELLED, [mine]),
            (None, Status.QUEUED, [other]),
        ):
            page, _ = await store.list_jobs(user_id=user, status=status)
            assert [view.job_id for view in page] == expected, (user, status)

    @pytest.mark.parametrize("after", ["", "x", "5", "9999999999999-0", "1-1"])
    async def test_a_place_that_is_not_in_the_feed(self, store: Store, after: str) -> None:
        await submit(store)
        assert await store.feed("ann", after) is None

    async def test_a_feed_tells_what_the_logs_tell(self, store: Store) -> None:
        start_id = await store.feed_position("ann")
        one, _ = await submit(store, "ann"), await submit(store, "bob")
        await store.cancel(one)
        events = await store.feed("ann", start_id)
        assert events is not None
        log = await store.log(one)
        assert [entry.name for entry in log] == ["queued", "cancelled"]
        assert [event.block for event in events] == [entry.block for entry in log]

    async def test_a_deleted_job_s_events_are_empty_places_in_the_feed(self, store: Store) -> None:
        start_id = await store.feed_position("ann")
        gone, there = await submit(store, "ann"), await submit(store, "ann")
        await store.cancel(gone)
        await store.delete(gone)
        events = await store.feed("ann", start_id)
        assert events is not None
        blocks = [entry.block for entry in await store.log(there)]
        assert [event.block for event in events] == [b"", *blocks, b""]
        assert events[-1].feed_id == await store.feed_position("ann")

    async def test_an_event_s_body_is_the_job_as_it_stood(self, store: Store) -> None:
        job_id = await submit(store)
        (entry,) = await store.log(job_id)
        assert data(entry.block) == orjson.loads((await store.read(job_id)).body)
