"""rq without its fork for each job: one job after the other in the worker's own process."""

from __future__ import annotations

import asyncio
import sys
import time

from redis import Redis
from rq import Queue, SimpleWorker

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all


def job(sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        time.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    queue = Queue(connection=Redis.from_url(URL))

    async def send(sent_s: float) -> None:
        queue.enqueue("tests.bench.peers.rq_peer.job", sleep_s, sent_s)

    await send_all(send, pause_s)


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    if verb == "submit":
        asyncio.run(submit(*map(float, numbers)))
    else:
        SimpleWorker(["default"], connection=Redis.from_url(URL)).work(logging_level="ERROR")
