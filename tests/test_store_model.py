"""The lifecycle as a model: any interleaving of moves, by any hands, keeps the books true.

The real scripts run in a real store. Hypothesis chooses who does what next: clients, two workers,
runs that are over and do not know it, leases that lapse, replies that are lost. After each move
the store is read whole and asked everything in `invariants`; a move that is refused must not have
changed a thing. At the end of each story one worker must be able to bring every job to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import hypothesis
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tasks.errors import (
    JobNotFound,
    KeyReused,
    QuotaExceeded,
    Refusal,
    RunLost,
    SlowcallError,
    WrongStatus,
)
from tasks.keys import idempotency_part, name
from tasks.lifecycle import (
    CANCEL,
    DEFER,
    FAIL,
    FINAL,
    FINISH,
    RELEASE,
    RETRY,
    REVIVE,
    WAITING,
    allowed,
)
from tasks.settings import Settings
from tasks.store import Begun, Claimed, Progress, Run, Settlement, Store
from tasks.store.scripts import Scripts
from tests.invariants import Books, faults, status_of
from tests.rig import Clock, a_job

T = TypeVar("T")

LEASE_S: Final = 10.0
KEEP_S: Final = 1e6
KINDS: Final = ("a", "b")
WORKERS: Final = ("one", "two")
USERS: Final = ("ann", "b:{}=*", "%1 é")
STEPS: Final = ("plan", "page 1", "page 2")
QUOTA: Final = 3
MAY_REPEAT: Final = {"claim", "sweep"}
"""Scripts that find more to do when they are sent again."""

recent = st.integers(0, 4)
"""How far back a move reaches: 0 is the newest claim, run or call; the older ones are stale."""
workers = st.sampled_from(WORKERS)
progress = st.builds(Progress, st.integers(0, 9), st.none() | st.just(9), st.just("so far"))


class SentTwice(Scripts):
    """Scripts whose first reply is always lost, so that the client library sends them again."""

    def __init__(self, scripts: Scripts, look: Callable[[], Books]) -> None:
        vars(self).update(vars(scripts))
        self.look = look

    async def _evaluate(self, name: str, argv: list[Any]) -> list[Any]:
        first = await super()._evaluate(name, argv)
        if name in MAY_REPEAT:
            return first
        before = self.look()
        second = await super()._evaluate(name, argv)
        assert second == first, f"{name} answers a repeat as it did the first time"
        assert_same(before, self.look(), f"{name}, sent again, changes nothing")
        return second


class Lifecycle(RuleBasedStateMachine):
    """Everybody who moves jobs, and what they believe."""

    def __init__(self, settings: Settings, *, twice: bool) -> None:
        super().__init__()
        assert settings.redis_url is not None
        self.client = redis.Redis.from_url(settings.redis_url.get_secret_value())
        self.client.flushall()
        self.clock = Clock()
        self.loop = asyncio.Runner()
        self.store = Store.connect(settings, clock=self.clock)
        if twice:
            self.store.scripts = SentTwice(self.store.scripts, self.look)
        self.books = self.look()
        self.proven: Books | None = None
        self.jobs: list[str] = []
        self.claims: list[tuple[str, Claimed]] = []
        self.runs: list[tuple[str, Run]] = []
        self.calls: list[tuple[Run, Settlement]] = []
        self.kept: dict[tuple[str, str], str] = {}
        self.owner: dict[tuple[str, int], str] = {}
        self.deltas = 0

    def look(self) -> Books:
        return Books.read(self.client)

    def do(self, action: Awaitable[T]) -> T | SlowcallError:
        """One move: what it answers or how it is refused. A refused one changes nothing."""

        async def move() -> T | SlowcallError:
            try:
                return await action
            except (Refusal, RunLost) as error:
                return error

        before = self.books
        answer = self.loop.run(move())
        self.books = self.look()
        if isinstance(answer, Refusal):
            assert_same(before, self.books, f"{answer!r} changes nothing")
        return answer

    def holds(self, run: Run) -> bool:
        """Whether a run is its job's present one."""
        job = self.books.jobs.get(run.job_id, {})
        return job.get("run") == str(run.run) and "worker" in job

    def fenced(self, run: Run, action: Coroutine[Any, Any, T]) -> T | SlowcallError:
        """A write of a run: it is refused when the run is over, and then changes nothing."""
        before, present = self.books, self.holds(run)
        answer = self.do(action)
        assert isinstance(answer, RunLost) is not present, f"{answer!r}; present: {present}"
        if not present:
            assert_same(before, self.books, "a run that is over changes nothing")
        return answer

    # clients

    @rule(
        user=st.sampled_from(USERS),
        kind=st.sampled_from(KINDS),
        key=st.sampled_from([None, None, "k", "c:k"]),
        body=st.sampled_from(["x", "y"]),
        quota=st.sampled_from([0, 0, QUOTA]),
        max_attempts=st.integers(1, 3),
        on_unknown=st.sampled_from(["retry", "park"]),
        deadline_s=st.sampled_from([None, None, 25.0]),
        expires_s=st.sampled_from([None, None, 15.0]),
    )
    def submit(self, user: str, kind: str, key: str | None, quota: int, **more: Any) -> None:
        more["input"] = more.pop("body")
        new = a_job(kind, user_id=user, idempotency_key=key, **more)
        known = self.books.get("idem", idempotency_part(user, key)) if key else None
        print_ = self.books.jobs[known]["fingerprint"] if known else None
        in_flight = len(self.books.get("inflight", user, default=()))
        answer = self.do(self.store.submit(new, quota=quota))
        if print_ is not None and print_ != new.fingerprint:
            assert isinstance(answer, KeyReused)
        elif known is None and quota and in_flight >= quota:
            assert isinstance(answer, QuotaExceeded)
        else:
            assert not isinstance(answer, SlowcallError)
            assert answer.replayed is (known is not None)
            if known is not None:
                assert answer.job.job_id == known
            else:
                assert answer.in_flight == in_flight + 1
                self.jobs.append(answer.job.job_id)

    @precondition(lambda self: self.jobs)
    @rule(nth=recent)
    def cancel(self, nth: int) -> None:
        job_id = pick(self.jobs, nth)
        job = self.books.jobs.get(job_id)
        expected = refusal_of(job, lambda job: allowed(CANCEL, status_of(job)))
        assert_answer(self.do(self.store.cancel(job_id)), expected)

    @precondition(lambda self: self.jobs)
    @rule(nth=recent, quota=st.sampled_from([0, QUOTA]), edited=st.booleans())
    def revive(self, nth: int, quota: int, edited: bool) -> None:
        job_id = pick(self.jobs, nth)
        job = self.books.jobs.get(job_id)
        expected = refusal_of(job, lambda job: allowed(REVIVE, status_of(job)))
        if job and expected is None and quota:
            in_flight = self.books.get("inflight", job["user"], default=())
            expected = QuotaExceeded if len(in_flight) >= quota else None
        input = "z" if edited else None
        assert_answer(self.do(self.store.revive(job_id, quota=quota, input=input)), expected)

    @precondition(lambda self: self.jobs)
    @rule(nth=recent)
    def delete(self, nth: int) -> None:
        job_id = pick(self.jobs, nth)
        job = self.books.jobs.get(job_id)
        expected = refusal_of(job, lambda job: status_of(job) in FINAL)
        assert_answer(self.do(self.store.delete(job_id)), expected)
        if expected is None:
            left = [key for key in self.books.values if job_id in key]
            assert not left, f"deleted, and {left} is left"
            self.kept = {known: step for known, step in self.kept.items() if known[0] != job_id}

    # time

    @rule(seconds=st.sampled_from([0.1, 4.0, LEASE_S / 2, LEASE_S * 1.1, LEASE_S * 3]))
    def wait(self, seconds: float) -> None:
        self.clock.forward(seconds)

    @rule()
    def sweep(self) -> None:
        self.do(self.store.sweep(LEASE_S))
        for job in self.books.jobs.values():
            if status_of(job) in WAITING and job["deadline"]:
                assert float(job["deadline"]) > self.clock(), "what is overdue has failed"

    # workers

    @rule(
        worker=workers,
        kinds=st.sampled_from([("a",), ("b",), KINDS]),
        room=st.integers(1, 3),
        heard=st.sampled_from([True, True, True, False]),
    )
    def claim(self, worker: str, kinds: tuple[str, ...], room: int, heard: bool) -> None:
        """Claim; where the answer is not heard, nobody starts what was claimed."""
        before = self.books
        answer = self.do(self.store.claim(worker, kinds, room, LEASE_S))
        assert isinstance(answer, tuple)
        claimed, _ = answer
        assert len(claimed) <= room
        due = {entry: at for kind in kinds for entry, at in before.get("queue", kind, default=[])}
        for entry in claimed:
            # What was behind a head that was claimed in the same script is due at once.
            assert due.get(entry.entry, 0) <= self.clock() + 1, "a lease that holds is left alone"
        if len(claimed) < room:
            left = [at for kind in kinds for _, at in self.books.get("queue", kind, default=[])]
            assert all(at > self.clock() for at in left), "no entry stays due"
        if heard:
            self.claims += [(worker, entry) for entry in claimed]

    @precondition(lambda self: self.claims)
    @rule(nth=recent)
    def start(self, nth: int) -> None:
        worker, claimed = pick(self.claims, nth)
        self.begin_run(worker, claimed)

    @rule(worker=workers)
    def work(self, worker: str) -> None:
        """Claim and start at once, as a worker does that is awake."""
        answer = self.do(self.store.claim(worker, KINDS, 1, LEASE_S))
        assert isinstance(answer, tuple)
        for claimed in answer[0]:
            self.begin_run(worker, claimed)

    def begin_run(self, worker: str, claimed: Claimed) -> None:
        before = self.books
        run = self.do(self.store.start(claimed, worker))
        assert not isinstance(run, SlowcallError)
        if run is None:
            return
        assert self.owner.setdefault((run.job_id, run.run), worker) == worker, "a run has one owner"
        was = before.jobs[run.job_id]
        if was["run"] != str(run.run):
            assert int(was["run"]) + 1 == run.run
            assert int(was["attempts"]) + 1 == run.attempt
            self.runs.append((worker, run))

    @precondition(lambda self: self.runs)
    @rule(worker=workers, most=st.integers(0, 3))
    def renew(self, worker: str, most: int) -> None:
        """Renew what the worker believes to hold: it is told what it has lost."""
        mine = list({run.job_id: run for by, run in self.runs if by == worker}.values())
        mine = mine[len(mine) - min(most, len(mine)) :]
        lost = self.do(self.store.renew(worker, mine, LEASE_S, {"kinds": list(KINDS)}))
        assert lost == {run.job_id for run in mine if not self.holds(run)}

    @precondition(lambda self: self.runs)
    @rule(nth=recent, step=st.sampled_from(STEPS))
    def begin(self, nth: int, step: str) -> None:
        _, run = pick(self.runs, nth)
        stored = step in self.books.get("steps", run.job_id, default={})
        call = f"call-{len(self.calls)}"
        answer = self.fenced(run, self.store.begin(run, call=call, step=step, model="m", hash="h"))
        if not isinstance(answer, SlowcallError):
            assert isinstance(answer, Begun) is not stored, "nothing is bought twice"
        if isinstance(answer, Begun):
            self.calls.append((run, Settlement(call, step, "h", "unknown")))

    @precondition(lambda self: self.calls)
    @rule(
        nth=recent,
        outcome=st.sampled_from(
            ["answered", "answered", "paid", "rejected", "not_sent", "unknown"]
        ),
        told=st.none() | progress,
    )
    def settle(self, nth: int, outcome: Any, told: Progress | None) -> None:
        run, end = pick(self.calls, nth)
        answered = outcome == "answered"
        end = replace(
            end,
            outcome="paid" if answered else outcome,
            status=200,
            input_tokens=3 if answered else 0,
            output_tokens=2 if answered else 0,
            value={"text": f"answer of {end.call}"} if answered else None,
            progress=told,
        )
        present, before = self.holds(run), self.books
        answer = self.do(self.store.settle(run, end))
        assert isinstance(answer, RunLost) is not present
        if run.job_id not in before.jobs:
            assert_same(before, self.books, "what comes after the record is gone leaves nothing")
        elif answered and not closed(before, run.job_id, end.call):
            assert end.step in self.books.get("steps", run.job_id), "a paid answer is kept"
        if not present and run.job_id in before.jobs:
            was, now = before.events(run.job_id), self.books.events(run.job_id)
            assert was == now, "a late settlement books quietly"

    @precondition(lambda self: self.runs)
    @rule(nth=recent, step=st.sampled_from(STEPS), told=st.none() | progress)
    def store_step(self, nth: int, step: str, told: Progress | None) -> None:
        _, run = pick(self.runs, nth)
        value = f"made by run {run.run}"
        self.fenced(run, self.store.store_step(run, step, "h", value, told))

    @precondition(lambda self: self.runs)
    @rule(nth=recent, told=progress, reused=st.integers(0, 2))
    def tell_progress(self, nth: int, told: Progress, reused: int) -> None:
        _, run = pick(self.runs, nth)
        was = int(self.books.jobs.get(run.job_id, {}).get("reused", 0))
        answer = self.fenced(run, self.store.tell_progress(run, told, reused=reused))
        if answer is None:
            assert int(self.books.jobs[run.job_id]["reused"]) == was + reused

    @precondition(lambda self: self.runs)
    @rule(nth=recent)
    def tell_delta(self, nth: int) -> None:
        _, run = pick(self.runs, nth)
        self.deltas += 1
        self.fenced(run, self.store.tell_delta(run, self.deltas, "answer", "some text"))

    @precondition(lambda self: self.runs)
    @rule(nth=recent, wait_s=st.sampled_from([0.0, 5.0]))
    def retry(self, nth: int, wait_s: float) -> None:
        """What may pass is tried again, as long as the budget lasts."""
        _, run = pick(self.runs, nth)
        problem: Any = ("transient", "No.", 503)
        if run.attempt < run.max_attempts:
            move = self.store.requeue(
                run, RETRY, wait_s=wait_s, reason="transient", problem=problem
            )
        else:
            move = self.store.conclude(run, FAIL, problem=problem)
        self.fenced(run, move)

    @precondition(lambda self: self.runs)
    @rule(nth=recent, transition=st.sampled_from([DEFER, RELEASE]))
    def give_back(self, nth: int, transition: Any) -> None:
        """Defer or release: the attempt is not counted."""
        _, run = pick(self.runs, nth)
        was = int(self.books.jobs.get(run.job_id, {}).get("attempts", 0))
        wait_s = 3.0 if transition is DEFER else 0.0
        reason = "rate_limited" if transition is DEFER else None
        move = self.store.requeue(run, transition, wait_s=wait_s, reason=reason, counted=False)  # type: ignore[arg-type]
        if self.fenced(run, move) is None:
            assert int(self.books.jobs[run.job_id]["attempts"]) == was - 1

    @precondition(lambda self: self.runs)
    @rule(nth=recent)
    def finish(self, nth: int) -> None:
        _, run = pick(self.runs, nth)
        self.fenced(run, self.store.conclude(run, FINISH, result={"text": "x", "source": "model"}))

    @precondition(lambda self: self.runs)
    @rule(nth=recent)
    def fail(self, nth: int) -> None:
        _, run = pick(self.runs, nth)
        self.fenced(run, self.store.conclude(run, FAIL, problem=("permanent", "No.", None)))

    # what holds after every move

    @invariant()
    def books_are_true(self) -> None:
        if self.proven is not self.books:
            assert not faults(self.books), "\n".join(faults(self.books))
            self.proven = self.books

    @invariant()
    def a_stored_step_never_changes(self) -> None:
        for job_id in self.books.jobs:
            for step, value in self.books.get("steps", job_id, default={}).items():
                assert self.kept.setdefault((job_id, step), value) == value, f"{job_id} {step}"
        stored = {(job_id, step) for job_id in self.books.jobs for step in STEPS}
        assert all(
            step in self.books.get("steps", job_id, default={})
            for job_id, step in self.kept.keys() & stored
        ), "a stored step is never lost"

    def teardown(self) -> None:
        """One worker that only listens to `claim` brings every job to its end."""
        try:
            self.loop.run(self.finish_all())
            self.books_are_true_at_the_end()
        finally:
            self.loop.run(self.store.aclose())
            self.loop.close()
            self.client.close()

    async def finish_all(self) -> None:
        next_s: float | None = 0.0
        while next_s is not None:
            self.clock.forward(next_s)
            claimed, next_s = await self.store.claim("last", KINDS, 10, LEASE_S)
            for entry in claimed:
                run = await self.store.start(entry, "last")
                if run is not None:
                    await self.store.conclude(run, FINISH, result={"text": "", "source": "model"})

    def books_are_true_at_the_end(self) -> None:
        self.books = self.look()
        self.books_are_true()
        statuses = {job_id: status_of(job) for job_id, job in self.books.jobs.items()}
        stuck = {job_id: status for job_id, status in statuses.items() if status not in FINAL}
        assert not stuck, f"nobody moves these on: {stuck}"
        left = {key for key in ("queue", "turns", "heads", "inflight") if self.books.all(key)}
        assert not left, f"{left} still hold something"


def pick(of: list[T], nth: int) -> T:
    """The `nth` from the end, as far as there are so many."""
    return of[-1 - nth % len(of)]


def closed(books: Books, job_id: str, call: str) -> bool:
    """Whether a call's outcome is known."""
    outcomes = {line["call"]: line["outcome"] for line in books.lines(job_id)}
    return outcomes.get(call) not in ("open", "unknown")


def refusal_of(
    job: dict[str, str] | None, fits: Callable[[dict[str, str]], bool]
) -> type[Refusal] | None:
    """How a client's verb is refused, if it is."""
    if job is None:
        return JobNotFound
    return None if fits(job) else WrongStatus


def assert_answer(answer: object, expected: type[Refusal] | None) -> None:
    """The answer is the expected refusal, or none."""
    assert (type(answer) if isinstance(answer, Refusal) else None) is expected, repr(answer)


def assert_same(before: Books, after: Books, what: str) -> None:
    """Two books hold the same, but for the memory of what was asked."""
    asked = name("op", "")
    changed = {
        key: (before.values.get(key), after.values.get(key))
        for key in before.values.keys() | after.values.keys()
        if not key.startswith(asked) and before.values.get(key) != after.values.get(key)
    }
    assert not changed, f"{what}: {changed}"


def size() -> hypothesis.settings:
    """How many stories are told: some dozens, the same ones each time; thousands in a long run
    (`pytest --hypothesis-profile=long`), which also looks for the shortest story that fails."""
    if hypothesis.settings.get_current_profile_name() == "long":
        return hypothesis.settings(stateful_step_count=60, deadline=None)
    return hypothesis.settings(
        max_examples=30,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
    )


@pytest.mark.timeout(0)
@pytest.mark.parametrize("twice", [False, True], ids=["sent once", "sent twice"])
def test_any_interleaving(settings: Settings, twice: bool) -> None:
    settings = settings.model_copy(update={"keep_s": KEEP_S})
    machine: Any = partial(Lifecycle, settings, twice=twice)
    run_state_machine_as_test(machine, settings=size())
