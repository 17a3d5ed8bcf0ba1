"""slowcall: the same job as a kind of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import cycle
from typing import Any

import uvloop
from pydantic import BaseModel, SecretStr

from tasks.context import Context
from tasks.kinds import kind
from tasks.settings import Settings
from tasks.store import NewJob, Store
from tasks.worker import run_worker
from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all


class Job(BaseModel):
    """How long it takes (s), and when it was sent (s of the epoch)."""

    sleep_s: float
    sent_s: float


@kind("bench", input=Job, description="The measured job.")
async def job(context: Context, given: Job) -> dict[str, Any]:
    """Wait as long as told."""
    METER.begin(given.sent_s)
    if given.sleep_s:
        await asyncio.sleep(given.sleep_s)
    METER.end()
    return {"text": "x"}


def settings(at_once: int = 100) -> Settings:
    """On the bench's store; no model is asked."""
    return Settings(
        REDIS_URL=SecretStr(URL),
        AI_URL=SecretStr("http://127.0.0.1:9"),
        concurrency=at_once,
        lease_s=float(os.environ.get("BENCH_LEASE_S", "10")),
        data_dir=os.environ["BENCH_FOLDER"],
        kinds=("tests.bench.peers.slowcall_peer",) if __name__ != "__main__" else (),
    )


async def submit(sleep_s: float, pause_s: float) -> None:
    """Submit all jobs, as twenty users would."""
    store = Store.connect(settings())
    users = cycle(f"user-{number}" for number in range(20))

    async def send(sent_s: float) -> None:
        given = {"sleep_s": sleep_s, "sent_s": sent_s}
        await store.submit(NewJob("bench", given, next(users), 3, 600))

    await send_all(send, pause_s)
    await store.aclose()


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    if verb == "submit":
        uvloop.run(submit(*map(float, numbers)))
    else:
        uvloop.run(run_worker(settings(int(numbers[0]))))
