"""Real workers in the test's own process, and what they did, told by the ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic import SecretStr

from tasks.arq_worker import Worker
from tasks.kinds import Kind, load_kinds
from tasks.settings import Settings
from tasks.store import Store
from tasks.worker import build_worker
from tests.rig import seen
from tests.serving import until


@asynccontextmanager
async def crew(
    settings: Settings,
    model_url: str,
    *,
    workers: int = 1,
    kinds: dict[str, Kind] | None = None,
) -> AsyncIterator[list[Worker]]:
    """Some workers on the store of `settings`; they leave in good order at the end."""
    settings = settings.model_copy(update={"ai_url": SecretStr(model_url)})
    async with AsyncExitStack() as stack:
        staff = [await build_worker(settings, kinds or load_kinds(), stack) for _ in range(workers)]
        shifts = [asyncio.create_task(worker.async_run()) for worker in staff]
        try:
            yield staff
        finally:
            for worker in staff:
                worker.leave()
            await asyncio.gather(*shifts)


async def job(store: Store, job_id: str) -> dict[str, Any]:
    """The job as a client sees it."""
    return seen(await store.read(job_id))


async def ended(store: Store, jobs: Iterable[str], within_s: float = 20) -> list[dict[str, Any]]:
    """The jobs, once all of them are final."""

    async def all_final() -> bool:
        return all([(await store.read(job_id)).final for job_id in jobs])

    await until(all_final, "all jobs are final", within_s)
    return [await job(store, job_id) for job_id in jobs]


async def calls(store: Store, jobs: Iterable[str]) -> list[dict[str, Any]]:
    """The lines of all these ledgers, in the order of their beginning."""
    lines = [line for job_id in jobs for line in await store.ledger(job_id)]
    return sorted(lines, key=lambda line: line["started"])


def most_at_once(lines: Iterable[dict[str, Any]]) -> int:
    """How many calls were open side by side at most; an end comes before a start of that ms."""
    moves = [(line["started"], 1) for line in lines] + [(line["ended"], -1) for line in lines]
    most = now = 0
    for _, move in sorted(moves):
        now += move
        most = max(most, now)
    return most
