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
from itertools import count
from typing import Any, Final, TypeVar
from uuid import UUID

import hypothesis
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tasks.errors import (
    Drained,
    JobNotFound,
    KeyReused,
    QuotaExceeded,
    Refusal,
    RunLost,
    SlowcallError,
    Stopped,
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
    Status,
    Transition,
)
from tasks.settings import Settings
from tasks.store import Begun, Claimed, Progress, Run, Settlement, Store, client_verbs
from tasks.store.scripts import Scripts
from tests.invariants import Books, faults, runs, status_of
from tests.rig import Clock, a_job

T = TypeVar("T")

LEASE_S: Final = 10.0
KEEP_S: Final = 1e6
KINDS: Final = ("a", "b")
WORKERS: Final = ("one", "two")
USERS: Final = ("ann", "b:{}=* %1 é")
STEPS: Final = ("plan", "page 1", "page 2")
QUOTA: Final = 3
MAY_REPEAT: Final = {"sweep"}
"""Scripts that find more to do when they are sent again."""

aims = st.integers(0, 7)
"""Whom a move is for: up to 4 one of the newest that it fits, above that any, also a stale one."""
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

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch, *, twice: bool) -> None:
        super().__init__()
        # Ids decide between equal scores: with random ones a story could not be told again.
        ids = map(UUID, (f"{nth:032x}" for nth in count(1)))
        monkeypatch.setattr(client_verbs, "uuid4", partial(next, ids))
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
        self.runs: list[tuple[str, Run]] = []
        self.broken: dict[str, list[str]] = {}
        self.calls: list[tuple[Run, Settlement]] = []
        self.kept: dict[tuple[str, str], str] = {}
        self.counter = 0

    def look(self) -> Books:
        return Books.read(self.client)

    def do(self, action: Awaitable[T]) -> T | SlowcallError:
        """One move: what it answers or how it is refused. A refused one changes nothing."""

        async def move() -> T | SlowcallError:
            try:
                return await action
            except (Refusal, Stopped) as error:
                return error

        before = self.books
        answer = self.loop.run(move())
        self.books = self.look()
        if isinstance(answer, Refusal):
            assert_same(before, self.books, f"{answer!r} changes nothing")
        return answer

    def has_room(self, kind: str) -> bool:
        """Whether one more job of a kind may run."""
        return True

    def holds(self, run: Run) -> bool:
        """Whether a run is its job's present one."""
        job = self.books.jobs.get(run.job_id)
        return job is not None and job["run"] == str(run.run) and runs(job)

    def stands(self, run: Run, end: Transition) -> bool:
        """Whether the job has ended so, and no other run began: said again, an end is heard."""
        job = self.books.jobs.get(run.job_id, {})
        return job.get("run") == str(run.run) and status_of(job) is end.target

    def fenced(
        self, run: Run, action: Coroutine[Any, Any, T], *, again: bool = False
    ) -> T | SlowcallError:
        """A write of a run: it is refused when the run is over, and then changes nothing; what is
        said `again` is not refused either."""
        before, present = self.books, self.holds(run)
        answer = self.do(action)
        heard = present or again
        assert isinstance(answer, RunLost) is not heard, f"{answer!r}; present: {present}"
        if not present:
            assert_same(before, self.books, "a run that is over changes nothing")
        return answer

    def closed(self, run: Run, end: Settlement) -> bool:
        """Whether a call's outcome is known."""
        outcomes = {line["call"]: line["outcome"] for line in self.books.lines(run.job_id)}
        return outcomes.get(end.call) not in ("open", "unknown")

    def pick_run(self, aim: int) -> Run:
        """A run, preferably one that holds its job."""
        return pick(self.runs, aim, lambda known: self.holds(known[1]))[1]

    def pick_job(self, aim: int, origins: frozenset[Status]) -> tuple[str, type[Refusal] | None]:
        """A job, preferably in one of `origins`, and how a client's verb for these is refused."""
        jobs = self.books.jobs
        fitting = {job_id for job_id, job in jobs.items() if status_of(job) in origins}
        job_id = pick(self.jobs, aim, fitting.__contains__)
        if job_id not in jobs:
            return job_id, JobNotFound
        return job_id, None if job_id in fitting else WrongStatus

    # clients

    @initialize()
    def begin_with_a_line(self) -> None:
        """Three jobs of one user: one is in the queue, two wait for their turn."""
        for _ in range(3):
            answer = self.do(self.store.submit(a_job("a", user_id=USERS[0], max_attempts=2)))
            assert not isinstance(answer, SlowcallError)
            self.jobs.append(answer.job.job_id)

    @rule(
        user=st.sampled_from([*USERS, USERS[0]]),
        kind=st.sampled_from(["a", "a", "b"]),
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
    @rule(aim=aims)
    def cancel(self, aim: int) -> None:
        job_id, expected = self.pick_job(aim, CANCEL.origins)
        assert_answer(self.do(self.store.cancel(job_id)), expected)

    @precondition(lambda self: self.jobs)
    @rule(aim=aims, quota=st.sampled_from([0, QUOTA]), edited=st.booleans())
    def revive(self, aim: int, quota: int, edited: bool) -> None:
        job_id, expected = self.pick_job(aim, REVIVE.origins)
        if expected is None and quota:
            user = self.books.jobs[job_id]["user"]
            in_flight = self.books.get("inflight", user, default=())
            expected = QuotaExceeded if len(in_flight) >= quota else None
        input = "z" if edited else None
        assert_answer(self.do(self.store.revive(job_id, quota=quota, input=input)), expected)

    @precondition(lambda self: self.jobs)
    @rule(aim=aims)
    def delete(self, aim: int) -> None:
        job_id, expected = self.pick_job(aim, FINAL)
        assert_answer(self.do(self.store.delete(job_id)), expected)
        if expected is None:
            left = [key for key in self.books.values if job_id in key]
            assert not left, f"deleted, and {left} is left"
            self.kept = {known: step for known, step in self.kept.items() if known[0] != job_id}

    # time

    @rule(
        seconds=st.sampled_from([0.1, LEASE_S / 2, LEASE_S * 1.1, LEASE_S * 3]), sweep=st.booleans()
    )
    def wait(self, seconds: float, sweep: bool) -> None:
        self.clock.forward(seconds)
        if sweep:
            self.do(self.store.sweep())
            for job in self.books.jobs.values():
                if status_of(job) in WAITING and job.get("deadline"):
                    assert float(job["deadline"]) > self.clock(), "what is overdue has failed"

    # workers

    @rule(
        worker=workers,
        kinds=st.sampled_from([("a",), ("b",), KINDS]),
        room=st.integers(1, 3),
        heard=st.sampled_from([True, True, True, False]),
    )
    def claim(self, worker: str, kinds: tuple[str, ...], room: int, heard: bool) -> None:
        """Claim; where the answer is not heard, nobody runs what was claimed."""
        before = self.books
        broken = self.broken.pop(worker, ())
        answer = self.do(self.store.claim(worker, kinds, room, LEASE_S, broken=broken))
        assert isinstance(answer, tuple)
        claimed, _ = answer
        assert len(claimed) <= room
        due = {entry: at for kind in kinds for entry, at in before.get("queue", kind, default=[])}
        for entry in claimed:
            # What was behind a head that was claimed in the same script is due at once.
            at = 0 if entry.entry in broken else due.get(entry.entry, 0)
            assert at <= self.clock() + 1, "a lease that holds is left alone"
        if len(claimed) < room:
            open_ = [kind for kind in kinds if self.has_room(kind)]
            left = [at for kind in open_ for _, at in self.books.get("queue", kind, default=[])]
            assert all(at > self.clock() for at in left), "no entry stays due"
        if heard:
            self.broken[worker] = [entry.entry for entry in claimed if entry.ours]
        for entry in claimed:
            self.began(before, worker, entry, heard)

    @rule(worker=workers)
    def work(self, worker: str) -> None:
        """Claim one job, as a worker does that is awake."""
        self.claim(worker, KINDS, 1, heard=True)

    @precondition(lambda self: self.runs)
    @rule()
    def lapse(self) -> None:
        """A lease lapses, and the other worker takes over."""
        self.clock.forward(LEASE_S * 1.1)
        owner, _ = self.runs[-1]
        self.do(self.store.renew(owner, [], LEASE_S, {"kinds": list(KINDS)}))
        self.work(next(worker for worker in WORKERS if worker != owner))

    def began(self, before: Books, worker: str, claimed: Claimed, heard: bool) -> None:
        run = claimed.run
        was, job = before.jobs[claimed.job_id], self.books.jobs[claimed.job_id]
        if claimed.ours:
            assert was == job
            assert was["worker"] == worker
        elif run is None:
            assert status_of(job) in FINAL, "it failed instead"
        if run is None:
            return
        assert int(was["run"]) + 1 == run.run
        assert int(was["attempts"]) + 1 == run.attempt
        if heard:
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
    @rule(aim=aims, step=st.sampled_from(STEPS))
    def begin(self, aim: int, step: str) -> None:
        run = self.pick_run(aim)
        stored = step in self.books.get("steps", run.job_id, default={})
        call = f"call-{len(self.calls)}"
        answer = self.fenced(run, self.store.begin(run, call=call, step=step, model="m", hash="h"))
        if not isinstance(answer, SlowcallError):
            assert isinstance(answer, Begun) is not stored, "nothing is bought twice"
        if isinstance(answer, Begun):
            self.calls.append((run, Settlement(call, step, "h", "unknown")))

    @precondition(lambda self: self.calls)
    @rule(
        aim=aims,
        outcome=st.sampled_from(
            ["answered", "answered", "paid", "rejected", "not_sent", "unknown"]
        ),
        told=st.none() | progress,
    )
    def settle(self, aim: int, outcome: Any, told: Progress | None) -> None:
        run, end = pick(self.calls, aim, lambda call: not self.closed(*call))
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
        present, known, before = self.holds(run), self.closed(run, end), self.books
        answer = self.do(self.store.settle(run, end))
        kept = self.books.get("steps", run.job_id, default={}).get(end.step)
        taken = answered and kept not in (None, f'h\n{{"text":"answer of {end.call}"}}')
        expected = (Drained if taken else type(None)) if present else RunLost
        assert type(answer) is expected, f"{answer!r}; {kept!r} is kept"
        if run.job_id not in before.jobs:
            assert_same(before, self.books, "what comes after the record is gone leaves nothing")
        elif answered and not known:
            assert end.step in self.books.get("steps", run.job_id), "a paid answer is kept"
        if not present and run.job_id in before.jobs:
            was, now = before.events(run.job_id), self.books.events(run.job_id)
            assert was == now, "a late settlement books quietly"

    @precondition(lambda self: self.runs)
    @rule(aim=aims, step=st.sampled_from(STEPS), told=st.none() | progress)
    def store_step(self, aim: int, step: str, told: Progress | None) -> None:
        run = self.pick_run(aim)
        self.counter += 1
        value = f"made as number {self.counter}"
        self.fenced(run, self.store.store_step(run, step, "h", value, told))

    @precondition(lambda self: self.runs)
    @rule(aim=aims, told=st.none() | progress, reused=st.integers(0, 2))
    def tell(self, aim: int, told: Progress | None, reused: int) -> None:
        """Progress, else a piece of text."""
        run = self.pick_run(aim)
        was = int(self.books.jobs.get(run.job_id, {}).get("reused", 0))
        if told is None:
            self.counter += 1
            self.fenced(run, self.store.tell_delta(run, self.counter, "answer", "some text"))
        elif self.fenced(run, self.store.tell_progress(run, told, reused=reused)) is None:
            assert int(self.books.jobs[run.job_id]["reused"]) == was + reused

    @precondition(lambda self: self.runs)
    @rule(aim=aims, wait_s=st.sampled_from([0.0, 5.0]))
    def retry(self, aim: int, wait_s: float) -> None:
        """What may pass is tried again, as long as the budget lasts."""
        run = self.pick_run(aim)
        problem: Any = ("transient", "No.", 503)
        if run.attempt < run.max_attempts:
            move = self.store.requeue(
                run, RETRY, wait_s=wait_s, reason="transient", problem=problem
            )
        else:
            move = self.store.conclude(run, FAIL, problem=problem)
        again = run.attempt >= run.max_attempts and self.stands(run, FAIL)
        self.fenced(run, move, again=again)

    @precondition(lambda self: self.runs)
    @rule(aim=aims, transition=st.sampled_from([DEFER, RELEASE]))
    def give_back(self, aim: int, transition: Any) -> None:
        """Defer or release: the attempt is not counted."""
        run = self.pick_run(aim)
        was = int(self.books.jobs.get(run.job_id, {}).get("attempts", 0))
        wait_s = 3.0 if transition is DEFER else 0.0
        reason = "rate_limited" if transition is DEFER else None
        move = self.store.requeue(run, transition, wait_s=wait_s, reason=reason, counted=False)  # type: ignore[arg-type]
        if self.fenced(run, move) is None:
            assert int(self.books.jobs[run.job_id]["attempts"]) == was - 1

    @precondition(lambda self: self.runs)
    @rule(aim=aims, well=st.booleans())
    def end(self, aim: int, well: bool) -> None:
        """Finish or fail."""
        run = self.pick_run(aim)
        if well:
            move = self.store.conclude(run, FINISH, result={"text": "x", "source": "model"})
        else:
            move = self.store.conclude(run, FAIL, problem=("permanent", "No.", None))
        self.fenced(run, move, again=self.stands(run, FINISH if well else FAIL))

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
            self.client.close()  # type: ignore[no-untyped-call]

    async def finish_all(self) -> None:
        next_s: float | None = 0.0
        while next_s is not None:
            self.clock.forward(next_s)
            claimed, next_s = await self.store.claim("last", KINDS, 10, LEASE_S)
            for entry in claimed:
                if entry.run is not None:
                    await self.store.conclude(
                        entry.run, FINISH, result={"text": "", "source": "model"}
                    )

    def books_are_true_at_the_end(self) -> None:
        self.books = self.look()
        self.books_are_true()
        statuses = {job_id: status_of(job) for job_id, job in self.books.jobs.items()}
        stuck = {job_id: status for job_id, status in statuses.items() if status not in FINAL}
        assert not stuck, f"nobody moves these on: {stuck}"
        left = {key for key in ("queue", "turns", "heads", "inflight") if self.books.all(key)}
        assert not left, f"{left} still hold something"


def pick(of: list[T], aim: int, fits: Callable[[T], bool]) -> T:
    """One of the newest that fit, where the aim is low and there is one; else any."""
    fitting = [one for one in of if fits(one)] if aim < 5 else []
    among = fitting or of
    return among[-1 - aim % len(among)]


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
def test_any_interleaving(settings: Settings, monkeypatch: pytest.MonkeyPatch, twice: bool) -> None:
    settings = settings.model_copy(update={"keep_s": KEEP_S})
    machine: Any = partial(Lifecycle, settings, monkeypatch, twice=twice)
    run_state_machine_as_test(machine, settings=size())
