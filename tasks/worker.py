"""A worker put together: its parts started, told to leave by a signal, ended in the right order."""

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
from typing import Any, Final
from uuid import uuid4

from tasks.alerts import Alerter
from tasks.arq_worker import LAST_WORDS_S, Worker
from tasks.errors import RecordDamaged, RunLost, SettingsError, StoreUnavailable
from tasks.keys import name
from tasks.kinds import Kind, load_kinds
from tasks.lease import Leases
from tasks.logs import log_moved
from tasks.memory import settled_memory
from tasks.model import ModelClient
from tasks.runner import Runner
from tasks.settings import Settings
from tasks.settle import Settler
from tasks.store import Store
from tasks.store.listen import listen
from tasks.webhooks import Webhooks

log = logging.getLogger("slowcall.worker")

_INSIST_S: Final = 0.2
_SWEEP_S: Final = 1.0


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
        stack.enter_context(settled_memory())
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
    await prompt.scripts.load()
    assert settings.ai_url is not None
    model = ModelClient(settings, base_url=settings.ai_url.get_secret_value())
    stack.push_async_callback(model.aclose)
    settler = Settler(patient, settings.data_dir / "spool")
    stack.push_async_callback(settler.close, LAST_WORDS_S)
    leases = Leases(prompt, worker_id, settings.lease_s, _about(kinds))
    runner = Runner(
        settings,
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
    couriers = _couriers(settings, prompt, stack)
    for routine in (
        leases.keep(),
        _sweep(prompt),
        _hear(prompt, worker, leases),
        *(courier.keep_delivering() for courier in couriers),
    ):
        task = asyncio.create_task(routine)
        task.add_done_callback(worker.part_ended)
        stack.push_async_callback(_end, task)
    if burst:  # nobody may come after it
        for courier in couriers:
            stack.push_async_callback(courier.deliver_due)
    return worker


def _couriers(settings: Settings, store: Store, stack: AsyncExitStack) -> list[Alerter | Webhooks]:
    """Who brings letters out of the house, as far as there is somebody to bring them to."""
    couriers: list[Alerter | Webhooks] = []
    if settings.alert_urls:
        alerter = Alerter(settings, store)
        stack.push_async_callback(alerter.close, LAST_WORDS_S)
        couriers.append(alerter)
    if settings.webhook_secret:
        couriers.append(Webhooks(settings, store))
    return couriers


async def _hear(store: Store, worker: Worker, leases: Leases) -> None:
    """Wake for new work; stop what a person ended or an earlier run answered."""

    def control(data: bytes) -> None:
        job_id, _, step = data.decode(errors="replace").partition("\n")
        held = leases.find(job_id)
        if held is not None and step:
            held.answer_elsewhere(step)
        elif held is not None:
            held.stop(RunLost("A person ended the job."))

    heard = {
        name("wake_channel").encode(): worker.ring,
        name("control_channel").encode(): control,
    }

    def hear(what: bytes, channel: bytes, data: bytes) -> None:
        if what == b"message":
            heard[channel](data)

    await listen(store.redis, lambda subscription: subscription.subscribe(*heard), hear)


async def _sweep(store: Store) -> None:
    """Fail what is overdue and prune what has expired, a little every second."""
    while True:
        try:
            for moved in await store.sweep():
                log_moved(moved)
        except StoreUnavailable:
            pass  # in a second, perhaps
        except RecordDamaged as error:
            log.error("the sweep met what is not ours", exc_info=error)
        await asyncio.sleep(_SWEEP_S)


async def _say_goodbye(store: Store, worker_id: str) -> None:
    with suppress(StoreUnavailable):
        await store.leave(worker_id)


async def _end(task: asyncio.Task[None]) -> None:
    # More than once: redis-py can swallow a cancel that comes while it connects (seen at a SIGTERM
    # right after the start, which then never ended).
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_INSIST_S)


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
