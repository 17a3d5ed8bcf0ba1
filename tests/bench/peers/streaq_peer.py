"""streaq."""

from __future__ import annotations

import asyncio
import os
import sys

from streaq import Worker

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all

worker: Worker = Worker(redis_url=URL, concurrency=int(os.environ.get("BENCH_AT_ONCE", "100")))


@worker.task
async def job(sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        await asyncio.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    async with worker:
        await send_all(lambda sent_s: job.enqueue(sleep_s, sent_s), pause_s)


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    if verb == "submit":
        asyncio.run(submit(*map(float, numbers)))
    else:
        worker.run_sync()
