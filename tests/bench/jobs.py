"""Jobs through one worker, ours and peers': no-op ones, slow ones at once, the wait for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final, cast

import redis

from tasks import keys
from tests.bench.parts import PEERS, Place, has, place, running, until
from tests.bench.peers import ANSWERED, DONE
from tests.bench.table import OURS, Table, quantile

ROUNDS: Final = 5
"""How often the places of a worker are filled anew with slow jobs: a rate needs some time."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue: its module below `peers`, the package it needs, most jobs at once (0: any)."""

    module: str
    package: str
    most: int = 0
    tuned: bool = False

    def words(self, *more: object) -> list[str]:
        """The command line of its module."""
        python = sys.executable if self.package in ("tasks", "arq") else str(PEERS)
        return [python, "-m", f"tests.bench.peers.{self.module}", *map(str, more)]


QUEUES: Final = {
    OURS: Peer("slowcall_peer", "tasks"),
    "arq, defaults": Peer("arq_peer", "arq"),
    "arq, tuned": Peer("arq_peer", "arq", tuned=True),
    "saq": Peer("saq_peer", "saq"),
    "streaq": Peer("streaq_peer", "streaq"),
    "docket": Peer("docket_peer", "docket"),
    "taskiq": Peer("taskiq_peer", "taskiq_redis"),
    "celery, threads": Peer("celery_peer", "celery", most=500),
    "rq, in process": Peer("rq_peer", "rq", most=1),
}


@dataclass(frozen=True, slots=True)
class Load:
    """What one run is about: so many jobs of `sleep_s`, `at_once` in the worker.

    With a `pause_s` between the jobs the worker waits for them; else they wait for the worker.
    """

    jobs: int
    at_once: int
    sleep_s: float = 0
    pause_s: float = 0


def run(peer: Peer, load: Load) -> dict[str, Any]:
    """One run on an empty store: the figures of the peer's meter, and those of submitting."""
    with place() as here:
        environment = here.environment(
            BENCH_JOBS=str(load.jobs),
            BENCH_AT_ONCE=str(load.at_once),
            BENCH_TUNED=str(int(peer.tuned)),
        )
        submit = peer.words("submit", load.sleep_s, load.pause_s)
        work = peer.words("work", load.at_once)
        if not load.pause_s:
            subprocess.run(submit, env=environment, check=True, stdout=subprocess.DEVNULL)
        with running(*work, env=environment, cwd=here.folder):
            if load.pause_s:
                time.sleep(2)
                subprocess.run(submit, env=environment, check=True, stdout=subprocess.DEVNULL)
            return _figures(here, load)


def _figures(here: Place, load: Load) -> dict[str, Any]:
    with here.redis() as client:
        ideal_s = load.jobs / load.at_once * load.sleep_s
        until(lambda: client.exists(DONE), "all jobs are done", 15 + 4 * ideal_s)
        figures: dict[str, Any] = _told(client, DONE)
        if load.pause_s:
            figures["waits_ms"] = _waits_ms(client, dict(figures["begun"]))
        return figures


def _waits_ms(client: redis.Redis, begun_s: dict[float, float]) -> dict[str, list[float]]:
    """What was waited for each job, which is known by when it was sent."""
    until(lambda: client.exists(ANSWERED), "the submitter tells")
    answered_s = dict(_told(client, ANSWERED))
    running_s = _running_s(client) or begun_s
    return {
        "sent to running": [1000 * (running_s[sent] - sent) for sent in begun_s],
        "answered to running": [1000 * (running_s[sent] - answered_s[sent]) for sent in begun_s],
        "sent to first line": [1000 * (begun_s[sent] - sent) for sent in begun_s],
    }


def _running_s(client: redis.Redis) -> dict[float, float]:
    """When each job was `running` in our store; empty for peers."""
    found: dict[float, float] = {}
    for key in client.scan_iter(keys.name("job", "*"), count=1000):
        job_id = key.decode().removeprefix(keys.name("job", ""))
        begun_ms = float(cast(bytes, client.hget(key, "begun")))
        found[_told(client, keys.name("input", job_id))["sent_s"]] = begun_ms / 1000
    return found


def _told(client: redis.Redis, key: str) -> Any:
    return json.loads(cast(bytes, client.get(key)))


def bench(runs: int, quick: bool) -> list[Table]:
    """The three tables of this section."""
    noop = Table("No-op jobs through one worker", "100 at once; CPU is the worker's own.")
    slow = Table(
        "Slow jobs at once in one worker",
        f"Per cent of the rate that is possible, over {ROUNDS} times as many jobs.",
    )
    wait = Table(
        "The wait for a worker",
        "One job every 20 ms. It runs when it is `running` in the store; where there is no such "
        "status, at its first line.",
    )
    scale = 10 if quick else 1
    for _ in range(runs):
        for name, peer in QUEUES.items():
            if has(peer.package):
                _noop(noop, name, peer, 3000 // scale)
                _wait(wait, name, peer, 400 // scale)
                _slow(slow, name, peer, quick)
    return [noop, slow, wait]


def _noop(table: Table, name: str, peer: Peer, jobs: int) -> None:
    jobs = jobs // 5 if peer.most == 1 else jobs
    found = run(peer, Load(jobs, 100))
    table.add(name, "jobs/s", jobs / found["wall_s"])
    table.add(name, "CPU ms each", 1000 * found["cpu_s"] / jobs)


def _wait(table: Table, name: str, peer: Peer, jobs: int) -> None:
    for what, waits_ms in run(peer, Load(jobs, 10, pause_s=0.02))["waits_ms"].items():
        table.add(name, f"{what}, p50 ms", quantile(waits_ms, 0.5))
        table.add(name, f"{what}, p99 ms", quantile(waits_ms, 0.99))


def _slow(table: Table, name: str, peer: Peer, quick: bool) -> None:
    for at_once, sleep_s in ((50, 0.2),) if quick else ((500, 0.2), (500, 1), (2000, 2)):
        if peer.most and at_once > peer.most:
            continue
        label = f"{at_once} × {sleep_s:g} s"
        try:
            found = run(peer, Load(ROUNDS * at_once, at_once, sleep_s))
        except TimeoutError:
            print(f"{name} did not end {label}")
            continue
        table.add(name, f"{label}, % of ideal", 100 * ROUNDS * sleep_s / found["wall_s"])
        table.add(name, f"{label}, CPU ms each", 1000 * found["cpu_s"] / (ROUNDS * at_once))
