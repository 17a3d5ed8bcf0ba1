"""What every peer's submitter does: send all jobs, and tell when each of them was answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import redis

from tests.bench.peers import ANSWERED
from tests.bench.peers.meter import TOTAL, URL


async def send_all(send: Callable[[float], Awaitable[object]], pause_s: float) -> None:
    """Send all jobs, `pause_s` after one another; `send` gets the time (s of the epoch), by which
    its job is known."""
    answered: list[tuple[float, float]] = []
    for _ in range(TOTAL):
        sent_s = time.time()
        await send(sent_s)
        answered.append((sent_s, time.time()))
        if pause_s:
            await asyncio.sleep(pause_s)
    with redis.Redis.from_url(URL) as client:
        client.set(ANSWERED, json.dumps(answered))
