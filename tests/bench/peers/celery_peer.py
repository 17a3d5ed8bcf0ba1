"""celery with a pool of threads, on its Redis broker and result backend."""

from __future__ import annotations

import asyncio
import sys
import time

from celery import Celery

from tests.bench.peers.meter import METER, URL
from tests.bench.peers.sender import send_all

app = Celery("tests.bench.peers.celery_peer", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 4


@app.task(name="job")
def job(sleep_s: float, sent_s: float) -> str:
    """The measured job."""
    METER.begin(sent_s)
    if sleep_s:
        time.sleep(sleep_s)
    METER.end()
    return "x"


async def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""

    async def send(sent_s: float) -> None:
        job.delay(sleep_s, sent_s)

    await send_all(send, pause_s)


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    if verb == "submit":
        asyncio.run(submit(*map(float, numbers)))
    else:
        app.worker_main(["worker", "-P", "threads", "-c", numbers[0], "-l", "ERROR"])
