"""docket, on its Redis streams."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Final

import uvloop
from docket import Docket, Worker

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all

CHECKS_EVERY: Final = timedelta(milliseconds=10)
"""A worker whose places are taken looks no earlier whether one is free; by default 250 ms."""


async def job(sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        await asyncio.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    async with Docket(url=URL) as docket:
        await send_all(lambda sent_s: docket.add(job)(sleep_s, sent_s), pause_s)


async def work(at_once: int) -> None:
    """Run a worker until it is ended. Each job may use a connection; redis-py stops at 100."""
    async with Docket(url=f"{URL}?max_connections={at_once + 100}") as docket:
        docket.register(job)
        async with Worker(docket, concurrency=at_once, minimum_check_interval=CHECKS_EVERY) as one:
            await one.run_forever()


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    uvloop.run(submit(*map(float, numbers)) if verb == "submit" else work(int(numbers[0])))
