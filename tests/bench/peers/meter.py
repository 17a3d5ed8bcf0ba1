"""What every peer's job does: wait as long as it is told, and be counted in the same way."""

from __future__ import annotations

import json
import os
import resource
import threading
import time

import redis

from tests.bench.peers import BEGUN, DONE

URL = os.environ["BENCH_REDIS"]
TOTAL = int(os.environ["BENCH_JOBS"])


class Meter:
    """Counts the jobs of this process; after the last one it writes what they took to Redis."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = 0
        self._began_s = 0.0
        self._began_cpu_s = 0.0
        self._begun: list[tuple[float, float]] = []

    def begin(self, sent_s: float) -> None:
        """A job begins that was sent at `sent_s` (epoch)."""
        with self._lock:
            if not self._begun:
                self._began_s, self._began_cpu_s = time.time(), _cpu_s()
            self._begun.append((sent_s, time.time()))
        if TOTAL == 1:
            with redis.Redis.from_url(URL) as client:
                client.rpush(BEGUN, f"{os.getpid()} {time.time()}")

    def end(self) -> None:
        """A job ends."""
        with self._lock:
            self._seen += 1
            last = self._seen == TOTAL
        if last:
            figures = {
                "wall_s": time.time() - self._began_s,
                "cpu_s": _cpu_s() - self._began_cpu_s,
                "begun": self._begun,
            }
            with redis.Redis.from_url(URL) as client:
                client.set(DONE, json.dumps(figures))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


METER = Meter()
