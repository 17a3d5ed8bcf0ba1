"""taskiq on a Redis stream, the broker its documentation recommends."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all

broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL))


@broker.task(task_name="job")
async def job(sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        await asyncio.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    await broker.startup()
    await send_all(lambda sent_s: job.kiq(sleep_s, sent_s), pause_s)
    await broker.shutdown()


async def work(at_once: int) -> None:
    """Run a worker until it is ended."""
    broker.is_worker_process = True
    await broker.startup()
    await run_receiver_task(broker, max_async_tasks=at_once)


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    uvloop.run(submit(*map(float, numbers)) if verb == "submit" else work(int(numbers[0])))
