"""POST /jobs: ours beside Starlette with arq's `enqueue_job` and an endpoint that does nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import uvloop

from tests.bench.parts import place
from tests.bench.table import OURS, Table, quantile
from tests.bench.web import OURS_APP, PEERS_APP, web
from tests.bench.wire import repeat, request

BODY: Final = b'{"kind": "chat", "input": "Why is the sky blue?", "metadata": {"order": 17}}'
SUBJECTS: Final = {
    OURS: (OURS_APP, "/jobs"),
    "Starlette + arq's enqueue_job": (PEERS_APP, "/enqueue"),
    "an endpoint that does nothing": (PEERS_APP, "/nothing"),
}


def bench(runs: int, quick: bool) -> list[Table]:
    """A table for 1 and one for 50 clients: rate, delay, CPU."""
    tables = {
        clients: Table(f"POST of a job, {clients} at once, one server process", "The server's CPU.")
        for clients in (1, 50)
    }
    posts = 200 if quick else 4000
    for _ in range(runs):
        for name, (app, path) in SUBJECTS.items():
            for clients, table in tables.items():
                _measure(table, name, app, path, clients, posts // (2 if clients == 1 else 1))
    return list(tables.values())


def _measure(table: Table, name: str, app: str, path: str, clients: int, posts: int) -> None:
    with place() as here, web(here, app) as server:
        message = request("POST", path, server.port, BODY)

        async def crowd(times: int) -> list[float]:
            took = await asyncio.gather(
                *(repeat(server.port, message, times // clients) for _ in range(clients))
            )
            return [one for some in took for one in some]

        uvloop.run(crowd(posts // 10 + clients))
        cpu_s, began_s = server.cpu_s, time.perf_counter()
        took_ms = uvloop.run(crowd(posts))
        wall_s = time.perf_counter() - began_s
        table.add(name, "posts/s", len(took_ms) / wall_s)
        table.add(name, "p50 ms", quantile(took_ms, 0.5))
        table.add(name, "p99 ms", quantile(took_ms, 0.99))
        table.add(name, "CPU ms each", 1000 * (server.cpu_s - cpu_s) / len(took_ms))
