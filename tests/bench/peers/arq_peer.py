"""Stock arq: with its defaults, or `tuned` as far as its options go."""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all

TUNED = os.environ.get("BENCH_TUNED") == "1"


async def job(ctx: dict[str, object], sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        await asyncio.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    pool = await create_pool(RedisSettings.from_dsn(URL))
    await send_all(lambda sent_s: pool.enqueue_job("job", sleep_s, sent_s), pause_s)
    await pool.aclose()


async def work(at_once: int) -> None:
    """Run a worker until it is ended."""
    worker = Worker(
        [func(job, name="job")],
        redis_settings=RedisSettings.from_dsn(URL),
        max_jobs=at_once,
        job_timeout=float(os.environ.get("BENCH_TIMEOUT_S", "300")),
        poll_delay=0.01 if TUNED else 0.5,
        queue_read_limit=at_once * 2 if TUNED else None,
    )
    await worker.async_run()


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    uvloop.run(submit(*map(float, numbers)) if verb == "submit" else work(int(numbers[0])))
