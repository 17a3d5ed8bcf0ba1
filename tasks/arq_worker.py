"""arq's worker with its queue read our way: claim by lease, wake by publish, leave in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, cast
from uuid import uuid4

import arq
import orjson
from arq.connections import ArqRedis
from arq.worker import Retry
from redis.asyncio.client import Pipeline

from tasks.errors import Drained, StoreUnavailable
from tasks.keys import name
from tasks.lease import Leases
from tasks.logs import log_moved
from tasks.runner import Runner
from tasks.settings import Settings
from tasks.store import Claimed, Store

log = logging.getLogger("slowcall.worker")

LAST_WORDS_S: Final = 3.0
"""As long as a worker that leaves waits for the store to take its last words."""

_LONGEST_SLEEP_S: Final = 1.0
_CROWD: Final = 32
"""Jobs of one claim: Redis serves nobody else for the 2 to 3 ms that so many take."""
_FOR_EVER: Final = 2**31
_FUNCTION: Final = "run_job"
_DEFINITION: Final = orjson.dumps({"f": _FUNCTION, "a": [], "k": {}, "t": None, "et": 0})
"""What arq would have written to Redis for each entry."""


class Worker(arq.Worker):
    """arq's worker with its queue read our way.

    The queue's score is the lease: a claim moves it on and begins the run, a renewal moves it
    further, and when it lapses the entry is due for another worker. arq itself reads running jobs
    again at each look, sleeps between looks, claims on while it leaves, and sees a killed worker
    only after the longest time-out of all.

    arq deletes a queue entry and its definition whenever a job function returns or raises, and does
    not look whether they are still its own. So ours always leaves by `Retry`, and arq's own endings
    have no effect: only the store's scripts touch entries and definitions.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        worker: str,
        kinds: Sequence[str],
        store: Store,
        runner: Runner,
        leases: Leases,
        burst: bool = False,
    ) -> None:
        pool = _Pool(
            store.redis.connection_pool,
            job_serializer=orjson.dumps,
            job_deserializer=orjson.loads,
        )
        super().__init__(
            functions=[arq.func(self._run_claimed, name=_FUNCTION, max_tries=_FOR_EVER)],
            redis_pool=pool,
            queue_name=name("queue", ""),
            max_jobs=settings.concurrency,
            job_timeout=None,  # type: ignore[arg-type]
            keep_result=0,
            handle_signals=False,
            burst=burst,
            job_serializer=orjson.dumps,
            job_deserializer=orjson.loads,
        )
        self._settings = settings
        self._worker = worker
        self._kinds = kinds
        self._store = store
        self._runner = runner
        self._leases = leases
        # The claim that is on its way: if its answer is lost, its runs have begun all the same.
        self._unheard: str | None = None
        # Entries that run here by their record and in no task: the next claim takes them over.
        self._broken: set[str] = set()
        self._given: dict[str, Claimed] = {}
        self._at_work: set[str] = set()
        self._bell = asyncio.Event()
        self._idle = False
        self._gone = False

    async def main(self) -> None:
        """Claim and run until it may leave. In place of arq's loop, which sleeps between looks."""
        while not self._may_leave():
            await self._poll_iteration()

    def _may_leave(self) -> bool:
        if self._gone:
            return True
        ending = not self.allow_pick_jobs or (self.burst and self._idle)
        return ending and not self.tasks and self._unheard is None

    async def _poll_iteration(self) -> None:
        self._bell.clear()
        room = self._room()
        if not self._leases.fresh or not (room or self._unheard):
            await self._sleep(_LONGEST_SLEEP_S if self._leases.fresh else 0.05)
            return
        self._unheard = self._unheard or uuid4().hex
        try:
            claimed, due_s = await self._store.claim(
                self._worker,
                self._kinds,
                room,
                self._settings.lease_s,
                claim_id=self._unheard,
                broken=self._broken,
            )
        except StoreUnavailable as error:
            self._leases.doubt()
            log.warning("the store does not answer: %s", error)
            return
        self._unheard = None
        self._broken = {one.entry for one in claimed if one.ours and one.entry not in self.tasks}
        for one in claimed:
            self._launch(one)
        self._idle = due_s is None and not claimed
        if due_s != 0 and not (self._broken or self._may_leave()):
            await self._sleep(_LONGEST_SLEEP_S if due_s is None else due_s)

    def _room(self) -> int:
        """How many to claim now.

        A job that only has its end to be recorded makes room: else a crowd that ends at once would
        wait for all its records before the next one is claimed.
        """
        if not self.allow_pick_jobs:
            return 0
        room = min(self.max_jobs - len(self._at_work), 2 * self.max_jobs - len(self.tasks))
        return max(0, min(room, _CROWD))

    async def _sleep(self, seconds: float) -> None:
        """Until something may be due: the wake channel, the end of a task, or the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(seconds, 0.001), _LONGEST_SLEEP_S)):
                await self._bell.wait()

    def _launch(self, claimed: Claimed) -> None:
        if claimed.moved is not None:
            log_moved(claimed.moved)
        if claimed.moved is not None or claimed.ours:
            return
        entry = claimed.entry
        self._at_work.add(entry)
        task = self.loop.create_task(self._run_after(self.tasks.get(entry), claimed))
        task.add_done_callback(partial(self._ended, entry))
        self.tasks[entry] = task

    async def _run_after(self, before: asyncio.Task[Any] | None, claimed: Claimed) -> None:
        entry = claimed.entry
        # arq keeps its jobs by id: a second one of that id would break the first, which is over
        # in the store and only has a few lines left to go.
        if before is not None:
            await asyncio.wait([before])
            self._at_work.add(entry)
        self._given[entry] = claimed
        try:
            await self.run_job(entry, 0)
        finally:
            self._at_work.discard(entry)

    def _ended(self, entry: str, task: asyncio.Task[Any]) -> None:
        if self.tasks.get(entry) is task:
            del self.tasks[entry]
        if not task.cancelled() and task.exception() is not None:
            log.error("entry %s goes back by its lease", entry, exc_info=task.exception())
        self.ring()

    async def _run_claimed(self, ctx: dict[str, Any]) -> NoReturn:
        entry = ctx["job_id"]
        await self._runner.run(self._given.pop(entry), performed=partial(self._performed, entry))
        raise Retry

    def _performed(self, entry: str) -> None:
        self._at_work.discard(entry)
        self.ring()

    async def finish_job(self, *_: Any) -> None:
        """Nothing: the record says how the run ended."""

    async def finish_failed_job(self, *_: Any) -> None:
        """Nothing, either: the entry goes back by its lease."""

    def ring(self, *_: Any) -> None:
        """Something may be due: look at once."""
        self._bell.set()

    def leave(self) -> None:
        """Claim nothing more and begin no more calls; at the second word wait for none either."""
        if self.allow_pick_jobs:
            self.allow_pick_jobs = False
            self._leases.draining = True
            wait_s = self._settings.drain_s
            log.info(
                "leaving: %d jobs end their calls, up to %g s; a second signal does not wait",
                len(self._leases),
                wait_s,
            )
        else:
            wait_s = 0
        self.loop.call_later(wait_s, self._leases.stop_all, Drained("This worker leaves."))
        self.loop.call_later(wait_s + LAST_WORDS_S, self._give_up)
        self.ring()

    def part_ended(self, part: asyncio.Task[None]) -> None:
        """A routine that runs for ever has ended: no lease is safe, so the worker leaves."""
        if not part.cancelled():
            log.critical("a part of the worker broke", exc_info=part.exception())
            self.leave()

    def _give_up(self) -> None:
        """The store is away and takes nothing: what is paid lies in the spool."""
        self._gone = True
        self.ring()


class _Pool(ArqRedis):
    """A client for arq that answers what arq asks of an entry: each is for the same function, and
    the record counts the attempts. A definition in Redis cost a round trip for each job."""

    def pipeline(self, *_: Any, **__: Any) -> Pipeline:
        """The question of `run_job`, and its answer."""
        return cast(Pipeline, _Question())


class _Question:
    async def __aenter__(self) -> _Question:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def get(self, key: str) -> None:
        """The entry's definition."""

    def incr(self, key: str) -> None:
        """Which try of it this is."""

    def expire(self, key: str, seconds: int) -> None:
        """And for how long that is kept."""

    async def execute(self) -> list[Any]:
        """The answers."""
        return [_DEFINITION, 1, True]
