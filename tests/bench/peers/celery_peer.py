"""celery with a pool of threads, on its Redis broker and result backend."""

from __future__ import annotations

import sys
import time

from celery import Celery

from tests.bench.peers.meter import METER, TOTAL, URL

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


def submit(sleep_s: float, pause_s: float) -> None:
    """Enqueue all jobs."""
    for _ in range(TOTAL):
        job.delay(sleep_s, time.time())
        if pause_s:
            time.sleep(pause_s)


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:]
    if verb == "submit":
        submit(*map(float, numbers))
    else:
        app.worker_main(["worker", "-P", "threads", "-c", numbers[0], "-l", "ERROR"])
