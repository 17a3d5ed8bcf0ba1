"""The leases of one worker: held while its jobs run, renewed together, lost with a word why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from tasks.errors import Drained, RunLost, SlowcallError, StoreUnavailable
from tasks.store import Run, Store

log = logging.getLogger("slowcall.lease")

_READ_OUT_S: Final = 0.2
"""As long as the calls of a lost run may read what has come in already."""


class Held:
    """A run and its lease. `stop` ends the run's task with a reason; `stopped` is that reason."""

    def __init__(self, run: Run, leases: Leases) -> None:
        self.run = run
        self.stopped: SlowcallError | None = None
        self.calls: dict[str, asyncio.Task[Any]] = {}
        self.answered: set[str] = set()
        self._leases = leases
        self._task: asyncio.Task[Any] | None = None

    def go_on(self) -> None:
        """Raises Drained where nothing new may begin: the worker leaves, or this run makes way."""
        if self._leases.draining or self.answered:
            raise Drained("This run makes way.")

    def attend(self, task: asyncio.Task[Any]) -> None:
        """The task that `stop` ends."""
        self._task = task
        if self.stopped is not None:
            task.cancel()

    def stop(self, reason: SlowcallError) -> None:
        """End the run; the first reason stands."""
        if self.stopped is None:
            self.stopped = reason
            if self._task is not None:
                self._task.cancel()

    def answer_elsewhere(self, step: str) -> None:
        """An earlier run's paid answer to `step` has come: our call for it is of no use.

        The other calls of the run settle, then it makes way for one that takes the answer.
        """
        if step in self.calls:
            self.answered.add(step)
            self.calls[step].cancel()


class Leases:
    """All the leases of a worker.

    `store` must not be patient: an outage must be seen. `lease_s` is the length of a lease.
    """

    def __init__(self, store: Store, worker: str, lease_s: float, about: Mapping[str, Any]) -> None:
        self.draining = False
        self._store = store
        self._worker = worker
        self._lease_s = lease_s
        self._about = about
        self._held: dict[str, Held] = {}
        self._renewed = float("-inf")
        self._store_errors = 0

    @property
    def fresh(self) -> bool:
        """Whether all leases were renewed within the last one: only then may more be claimed.

        After an outage, or a sleep of this process, its own jobs come first: else every
        call in flight would be taken over, and bought twice.
        """
        return monotonic() - self._renewed < self._lease_s

    def doubt(self) -> None:
        """The store did not answer: nothing is claimed until the leases are renewed."""
        self._store_errors += 1
        self._renewed = float("-inf")

    @contextmanager
    def hold(self, run: Run) -> Iterator[Held]:
        """Keep the lease of a run for the length of the block."""
        held = self._held[run.job_id] = Held(run, self)
        try:
            yield held
        finally:
            if self._held.get(run.job_id) is held:
                del self._held[run.job_id]

    def find(self, job_id: str) -> Held | None:
        """The lease of a job that runs here."""
        return self._held.get(job_id)

    def __len__(self) -> int:
        return len(self._held)

    def stop_all(self, reason: SlowcallError) -> None:
        """End every run."""
        for held in list(self._held.values()):
            held.stop(reason)

    async def keep(self) -> None:
        """Renew all leases three times a lease, for ever."""
        pause_s = self._lease_s / 3
        while True:
            try:
                await self.renew()
            except StoreUnavailable as error:
                self.doubt()
                log.warning("the leases wait for the store: %s", error)
                await asyncio.sleep(min(pause_s, 0.5))
            else:
                await asyncio.sleep(pause_s)

    async def renew(self) -> None:
        """Renew all leases now; what is lost is stopped. Raises StoreUnavailable."""
        before = monotonic()
        runs = [held.run for held in self._held.values()]
        about = {
            **self._about,
            "running": len(runs),
            "lease_s": self._lease_s,
            "store_errors": self._store_errors,
        }
        lost = await self._store.renew(self._worker, runs, self._lease_s, about)
        self._renewed = before
        for run in runs:
            held = self._held.get(run.job_id)
            if run.job_id in lost and held is not None and held.run is run:
                # Not at once: a worker that slept may hold an answer, paid and not read yet.
                reason = RunLost("The job was taken over, or a person ended it.")
                asyncio.get_running_loop().call_later(_READ_OUT_S, held.stop, reason)
