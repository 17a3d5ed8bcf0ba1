"""The lifecycle again, in a narrow place: few places in the lane, few jobs of a kind, rules.

The moves of the lifecycle model, with one model that takes two calls at once and closes its lane
now and then, and one kind of which two jobs run at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tasks.errors import RunLost, SlowcallError
from tasks.lifecycle import DEFER, WAITING
from tasks.settings import Concurrency, RetryRule, Settings
from tasks.store import Begun, NoPlace, Run, Settlement
from tests.invariants import status_of
from tests.test_store_model import KEEP_S, LEASE_S, STEPS, Lifecycle, aims, pick, size

PLACES: Final = 2
JOBS: Final = 2
MODEL: Final = "m"


class Narrow(Lifecycle):
    """Everybody who moves jobs, where there is little room."""

    paused = False

    @precondition(lambda self: self.runs)
    @rule(aim=aims, step=st.sampled_from(STEPS))
    def begin(self, aim: int, step: str) -> None:
        """Begin a call; a run that finds no place and has none makes its job stand in line."""
        run = self.pick_run(aim)
        stored = step in self.books.get("steps", run.job_id, default={})
        call = f"call-{len(self.calls)}"
        answer = self.fenced(
            run, self.store.begin(run, call=call, step=step, model=MODEL, hash="h")
        )
        if isinstance(answer, Begun):
            assert not stored, "nothing is bought twice"
            self.calls.append((run, Settlement(call, step, "h", "unknown")))
        elif isinstance(answer, NoPlace) and not self.open_calls(run):
            self.stand_in_line(run)

    def stand_in_line(self, run: Run) -> None:
        move = self.store.requeue(
            run, DEFER, wait_s=1, reason="rate_limited", counted=False, lane=MODEL
        )
        assert not isinstance(self.fenced(run, move), SlowcallError)
        job = self.books.jobs[run.job_id]
        assert status_of(job) in WAITING
        assert job["lane"] == MODEL

    def has_room(self, kind: str) -> bool:
        return kind != "a" or len(self.books.get("busy", "a", default=[])) < JOBS

    def open_calls(self, run: Run) -> int:
        return sum(line["outcome"] == "open" for line in self.books.lines(run.job_id))

    @precondition(lambda self: self.calls)
    @rule(aim=aims, closed_s=st.sampled_from([1.0, 30.0]))
    def close_lane(self, aim: int, closed_s: float) -> None:
        """The model asks for no call for a while."""
        run, end = pick(self.calls, aim, lambda call: not self.closed(*call))
        refused = Settlement(end.call, end.step, "h", "rejected", 429, closed_s=closed_s)
        self.paused = True
        answer = self.do(self.store.settle(run, refused))
        assert answer is None or isinstance(answer, RunLost)

    @invariant()
    def there_is_no_more_room_than_there_is(self) -> None:
        assert len(self.books.get("lane", MODEL, default=[])) <= PLACES
        assert len(self.books.get("busy", "a", default=[])) <= JOBS

    @invariant()
    def who_waits_for_a_free_place_is_woken(self) -> None:
        lane = self.books.get("lane", MODEL, default=[])
        closed = float(self.books.get("cooldown", default={}).get(MODEL, 0)) > self.clock()
        lapsed = [place for place, until in lane if until <= self.clock()]
        if not closed and not lapsed and len(lane) < PLACES:
            line = [entry for line in self.books.all("lane_line").values() for entry, _ in line]
            # A pause ends by itself: then the next sweep, or whoever looks, passes the places on.
            assert not line or self.paused, f"{line} wait, and the lane has {lane}"

    @rule()
    def sweep_and_see(self) -> None:
        """After a sweep nobody stands in line before a free place."""
        self.do(self.store.sweep())
        lane = self.books.get("lane", MODEL, default=[])
        closed = float(self.books.get("cooldown", default={}).get(MODEL, 0)) > self.clock()
        if self.books.all("lane_line") and not closed:
            assert len(lane) == PLACES


@pytest.mark.timeout(0)
@pytest.mark.parametrize("twice", [False, True], ids=["sent once", "sent twice"])
def test_any_interleaving_in_a_narrow_place(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    narrow = settings.model_copy(
        update={
            "keep_s": KEEP_S,
            "lease_s": LEASE_S,
            "model_concurrency": Concurrency(PLACES),
            "kind_concurrency": Concurrency(0, (("a", JOBS),)),
            "auto_retry": (RetryRule("permanent", 20, 1), RetryRule("lost", 5, 2)),
        }
    )
    machine: Any = partial(Narrow, narrow, monkeypatch, twice=twice)
    run_state_machine_as_test(machine, settings=size())
