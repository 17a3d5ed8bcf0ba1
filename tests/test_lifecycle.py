"""Every transition from every status: allowed or refused, by the pure table and by the scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tasks.errors import RunLost, WrongStatus
from tasks.lifecycle import (
    CANCEL,
    DEFER,
    EXPIRE,
    FAIL,
    FINAL,
    FINISH,
    IN_FLIGHT,
    RELEASE,
    RETRY,
    REVIVE,
    START,
    SUBMIT,
    TAKE_OVER,
    TRANSITIONS,
    WAITING,
    Status,
    Transition,
    allowed,
)
from tasks.settings import Settings
from tasks.store import Run, Store
from tests.rig import Clock, a_job

LEASE_S = 10.0

TABLE: dict[Transition, tuple[frozenset[Status], Status]] = {
    SUBMIT: (frozenset(), Status.QUEUED),
    START: (frozenset({Status.QUEUED, Status.RETRYING}), Status.RUNNING),
    TAKE_OVER: (frozenset({Status.RUNNING}), Status.RUNNING),
    RETRY: (frozenset({Status.RUNNING}), Status.RETRYING),
    DEFER: (frozenset({Status.RUNNING}), Status.RETRYING),
    RELEASE: (frozenset({Status.RUNNING}), Status.QUEUED),
    EXPIRE: (frozenset({Status.QUEUED, Status.RETRYING}), Status.FAILED),
    FINISH: (frozenset({Status.RUNNING}), Status.DONE),
    FAIL: (frozenset({Status.RUNNING}), Status.FAILED),
    CANCEL: (frozenset({Status.QUEUED, Status.RUNNING, Status.RETRYING}), Status.CANCELLED),
    REVIVE: (frozenset({Status.FAILED, Status.CANCELLED}), Status.QUEUED),
}
"""The design's table, written down a second time: origins and target of each transition."""


def test_the_table_is_the_design() -> None:
    assert set(TRANSITIONS) == set(TABLE)
    for transition, (origins, target) in TABLE.items():
        assert (transition.origins, transition.target) == (origins, target), transition.name


def test_the_sets_of_statuses() -> None:
    assert set(Status) == FINAL | IN_FLIGHT
    assert not FINAL & IN_FLIGHT
    assert WAITING | {Status.RUNNING} == IN_FLIGHT


def test_only_a_submit_needs_no_job() -> None:
    assert [move.name for move in TRANSITIONS if allowed(move, None)] == ["submit"]


@pytest.mark.parametrize("status", Status)
def test_somebody_moves_on_whoever_is_not_final(status: Status) -> None:
    """From a final status only a person moves a job; from any other a worker or the sweep does."""
    by_themselves = {move for move in TRANSITIONS if allowed(move, status)} - {CANCEL, REVIVE}
    assert bool(by_themselves) == (status not in FINAL)


class Moves:
    """One job, brought into any status, and every transition as somebody would ask for it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.job_id = ""
        self.run: Run | None = None

    async def submit(self) -> None:
        """Submit the job; it has a deadline, so that it can expire."""
        new = a_job("chat", deadline_s=1000.0)
        self.job_id = (await self.store.submit(new)).job.job_id

    async def start(self, worker: str = "one") -> bool:
        """Claim and start, as a worker that has just looked; whether a new run began."""
        claimed, _ = await self.store.claim(worker, ["chat"], 10, LEASE_S)
        runs = [entry.run for entry in claimed]
        self.run = next((run for run in runs if run is not None), self.run)
        return any(runs)

    async def take_over(self) -> bool:
        """The lease lapses and another worker claims; whether it runs the job."""
        for _ in range(3):
            await self.store.renew("two", [], LEASE_S, {})
            self.clock.forward(LEASE_S / 2)
        if (await self.store.read(self.job_id)).status in WAITING:
            return False  # a claim would start it, as START does
        return await self.start("two")

    async def by_run(self, act: Callable[[Run], Awaitable[None]]) -> bool:
        """A write of the job's newest run; whether it moved the job: an end that is told again is
        heard, and changes nothing."""
        if self.run is None:
            return False
        before = (await self.store.read(self.job_id)).seq
        with suppress(RunLost):
            await act(self.run)
        return (await self.store.read(self.job_id)).seq > before

    async def by_person(self, act: Callable[[str], Awaitable[object]]) -> bool:
        """A client's verb; whether it was taken."""
        try:
            await act(self.job_id)
        except WrongStatus:
            return False
        return True

    async def expire(self) -> bool:
        """The deadline passes and a sweep looks; whether the job failed of it."""
        before = (await self.store.read(self.job_id)).seq
        self.clock.forward(2000)
        await self.store.sweep()
        return (await self.store.read(self.job_id)).seq > before

    async def move(self, transition: Transition) -> bool:
        """Ask for a transition; whether it happened."""
        store = self.store
        asked: dict[Transition, Callable[[], Awaitable[bool]]] = {
            START: self.start,
            TAKE_OVER: self.take_over,
            EXPIRE: self.expire,
            CANCEL: lambda: self.by_person(store.cancel),
            REVIVE: lambda: self.by_person(store.revive),
            RETRY: lambda: self.by_run(lambda run: store.requeue(run, RETRY)),
            DEFER: lambda: self.by_run(lambda run: store.requeue(run, DEFER)),
            RELEASE: lambda: self.by_run(lambda run: store.requeue(run, RELEASE)),
            FINISH: lambda: self.by_run(
                lambda run: store.conclude(run, FINISH, result={"text": "", "source": "model"})
            ),
            FAIL: lambda: self.by_run(
                lambda run: store.conclude(run, FAIL, problem=("permanent", "No.", None))
            ),
        }
        return await asked[transition]()


WAYS: dict[Status, tuple[Transition, ...]] = {
    Status.QUEUED: (),
    Status.RUNNING: (START,),
    Status.RETRYING: (START, RETRY),
    Status.DONE: (START, FINISH),
    Status.FAILED: (START, FAIL),
    Status.CANCELLED: (START, RELEASE, CANCEL),
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize(
    "transition", [move for move in TRANSITIONS if move is not SUBMIT], ids=lambda move: move.name
)
async def test_every_transition_from_every_status(
    settings: Settings, transition: Transition, status: Status
) -> None:
    """A transition that the table allows leads to its target; any other changes nothing."""
    clock = Clock()
    store = Store.connect(settings, clock=clock)
    try:
        moves = Moves(store, clock)
        await moves.submit()
        for step in WAYS[status]:
            assert await moves.move(step), f"{step.name} leads to {status}"
        before = await store.read(moves.job_id)
        assert before.status == status

        moved = await moves.move(transition)
        after = await store.read(moves.job_id)
        assert moved == (status in TABLE[transition][0]), f"{transition.name} from {status}"
        if moved:
            assert after.status == TABLE[transition][1]
            assert after.seq > before.seq
        else:
            assert (after.status, after.seq) == (before.status, before.seq)
    finally:
        await store.aclose()
