"""The arq worker: claim due entries, run them, keep their leases, leave in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final, NoReturn
from uuid import uuid4

import arq
import orjson
from arq.connections import ArqRedis
from arq.worker import Retry

from tasks.errors import Drained, RunLost, SettingsError, StoreUnavailable
from tasks.keys import name
from tasks.kinds import Kind, load_kinds
from tasks.lease import Leases
from tasks.model import ModelClient
from tasks.runner import Runner
from tasks.settings import Settings
from tasks.settle import Settler
from tasks.store import Claimed, Store
from tasks.store.listen import listen

log = logging.getLogger("slowcall.worker")

_LONGEST_SLEEP_S: Final = 1.0
_LAST_WORDS_S: Final = 3.0
_FOR_EVER: Final = 2**31


class Worker(arq.Worker):
    """arq's worker with its queue read our way: DESIGN section 5 says why for each change.

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
        pool = ArqRedis(
            store.redis.connection_pool,
            job_serializer=orjson.dumps,
            job_deserializer=orjson.loads,
        )
        super().__init__(
            functions=[arq.func(self._run_claimed, name="run_job", max_tries=_FOR_EVER)],
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
        return ending and not self.tasks

    async def _poll_iteration(self) -> None:
        self._bell.clear()
        self._reap()
        room = self.max_jobs - len(self.tasks)
        if not self.allow_pick_jobs or room <= 0 or not self._leases.fresh:
            await self._sleep(_LONGEST_SLEEP_S if self._leases.fresh else 0.05)
            return
        try:
            claimed, due_s = await self._store.claim(
                self._worker, self._kinds, room, self._settings.lease_s
            )
        except StoreUnavailable as error:
            self._leases.doubt()
            log.warning("the store does not answer: %s", error)
            return
        for entry in claimed:
            self._launch(entry)
        self._idle = due_s is None and not claimed
        if not claimed and not self._may_leave():
            await self._sleep(_LONGEST_SLEEP_S if due_s is None else due_s)

    async def _sleep(self, seconds: float) -> None:
        """Until something may be due: the wake channel, the end of a task, or the time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._bell.wait(), min(max(seconds, 0.001), _LONGEST_SLEEP_S))

    def _launch(self, claimed: Claimed) -> None:
        entry = claimed.entry
        task = self.loop.create_task(self._run_after(self.tasks.get(entry), entry))
        task.add_done_callback(self.ring)
        self.tasks[entry] = task

    async def _run_after(self, before: asyncio.Task[Any] | None, entry: str) -> None:
        # arq keeps its jobs by id: a second one of that id would break the first, which is over
        # in the store and only has a few lines left to go.
        if before is not None:
            await asyncio.wait([before])
        await self.run_job(entry, 0)

    def _reap(self) -> None:
        for entry, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[entry]
                if not task.cancelled() and task.exception() is not None:
                    log.error("entry %s goes back by its lease", entry, exc_info=task.exception())

    async def _run_claimed(self, ctx: dict[str, Any]) -> NoReturn:
        await self._runner.run(Claimed(ctx["job_id"]))
        raise Retry

    async def finish_job(self, *_: Any) -> None:
        """Nothing: the record says how the run ended."""

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        """Run it: arq could not read the entry's definition, but no truth is in that."""
        await self._runner.run(Claimed(job_id))

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
        self.loop.call_later(wait_s + _LAST_WORDS_S, self._give_up)
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


async def run_worker(
    settings: Settings,
    *,
    burst: bool = False,
    max_jobs: int | None = None,
    kinds: Sequence[str] | None = None,
) -> None:
    """Run one worker until it is told to leave (SIGTERM, SIGINT), or, in a burst, until it is idle.

    Needs a store and an endpoint in `settings`. Raises SettingsError for a kind that is not there.
    """
    if settings.ai_url is None:
        raise SettingsError("AI_URL: not set, and no lab model was found")
    if max_jobs is not None:
        settings = settings.model_copy(update={"concurrency": max_jobs})
    registry = _chosen(load_kinds(settings.kinds), kinds)
    async with AsyncExitStack() as stack:
        worker = await build_worker(settings, registry, stack, burst=burst)
        for signum in (signal.SIGTERM, signal.SIGINT):
            worker.loop.add_signal_handler(signum, worker.leave)
            stack.callback(worker.loop.remove_signal_handler, signum)
        log.info("worker ready: %s", ", ".join(registry))
        await worker.async_run()


async def build_worker(
    settings: Settings, kinds: dict[str, Kind], stack: AsyncExitStack, *, burst: bool = False
) -> Worker:
    """A worker with all it needs started; `stack` ends that in the right order."""
    worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
    patient = Store.connect(settings, patient=True)
    stack.push_async_callback(patient.aclose)
    prompt = Store.connect(settings)
    stack.push_async_callback(prompt.aclose)
    assert settings.ai_url is not None
    model = ModelClient(settings, base_url=settings.ai_url.get_secret_value())
    stack.push_async_callback(model.aclose)
    settler = Settler(patient, settings.data_dir / "spool")
    stack.push_async_callback(settler.close, _LAST_WORDS_S)
    leases = Leases(prompt, worker_id, settings.lease_s, _about(kinds))
    runner = Runner(
        settings,
        worker=worker_id,
        kinds=kinds,
        store=patient,
        model=model,
        leases=leases,
        settler=settler,
    )
    await settler.offer_spooled()
    worker = Worker(
        settings,
        worker=worker_id,
        kinds=list(kinds),
        store=prompt,
        runner=runner,
        leases=leases,
        burst=burst,
    )
    stack.push_async_callback(_say_goodbye, prompt, worker_id)
    for routine in (leases.keep(), _sweep(prompt, settings.lease_s), _hear(prompt, worker, leases)):
        task = asyncio.create_task(routine)
        task.add_done_callback(worker.part_ended)
        stack.push_async_callback(_end, task)
    return worker


async def _hear(store: Store, worker: Worker, leases: Leases) -> None:
    """Wake for new work; stop what a person ended or an earlier run answered."""

    def control(data: bytes) -> None:
        job_id, _, step = data.decode().partition("\n")
        held = leases.find(job_id)
        if held is not None and step:
            held.answer_elsewhere(step)
        elif held is not None:
            held.stop(RunLost("A person ended the job."))

    await listen(store.redis, {name("wake_channel"): worker.ring, name("control_channel"): control})


async def _sweep(store: Store, lease_s: float) -> None:
    """Fail what is overdue and prune what has expired, a little every second."""
    while True:
        with suppress(StoreUnavailable):
            await store.sweep(lease_s)
        await asyncio.sleep(_LONGEST_SLEEP_S)


async def _say_goodbye(store: Store, worker_id: str) -> None:
    with suppress(StoreUnavailable):
        await store.leave(worker_id)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _chosen(kinds: dict[str, Kind], names: Sequence[str] | None) -> dict[str, Kind]:
    missing = set(names or ()) - kinds.keys()
    if missing:
        raise SettingsError(f"--kinds: there is no kind {', '.join(sorted(missing))}")
    return {kind: kinds[kind] for kind in names or kinds}


def _about(kinds: dict[str, Kind]) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": metadata.version("slowcall"),
        "since": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "kinds": list(kinds),
    }
