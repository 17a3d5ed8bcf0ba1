"""saq, on its Redis queue."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from saq import Queue, Worker

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all


async def job(ctx: object, *, sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        await asyncio.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    queue = Queue.from_url(URL)
    await queue.connect()
    await send_all(
        lambda sent_s: queue.enqueue("job", sleep_s=sleep_s, sent_s=sent_s, timeout=600), pause_s
    )
    await queue.disconnect()


async def work(at_once: int) -> None:
    """Run a worker until it is ended."""
    # redis-py refuses more than a hundred connections unless it is told of them; a job takes one.
    queue = Queue.from_url(f"{URL}?max_connections={at_once + 100}")
    worker = Worker(queue, functions=[job], concurrency=at_once)
    await worker.queue.connect()
    await worker.start()


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    uvloop.run(submit(*map(float, numbers)) if verb == "submit" else work(int(numbers[0])))
