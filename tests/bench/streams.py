"""Watchers: what a stream costs in memory, CPU and delay; also the copied recipe and the floor."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import orjson
import uvloop
from pydantic import SecretStr

from tasks.settings import Settings
from tasks.store import NewJob, Run, Store
from tasks.store.records import Progress
from tests.bench.nchan import module, nchan
from tests.bench.parts import Place, place
from tests.bench.table import OURS, Table, quantile
from tests.bench.web import OURS_APP, PEERS_APP, Web, web
from tests.bench.wire import listen, raise_file_limit, repeat, request

CHANNEL: Final = "bench:events"
BURSTS: Final = 10
COUNTED: Final = 50_000
"""Events one after another whose CPU is counted: in fewer the clock's ticks show."""
NCHAN: Final = "nchan"
EVENTS: Final = (b"event: progress", b"event: delta")

Tell = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of stream: its app, its path (None: that of a job), most streams that it can hold."""

    app: str
    path: str | None = None
    most: int = 10_000


SUBJECTS: Final = {
    OURS: Subject(OURS_APP),
    "bare ASGI app (the floor)": Subject(PEERS_APP, "/floor"),
    "sse-starlette, a subscription each": Subject(PEERS_APP, "/recipe", most=5_000),
    "nginx with nchan (C)": Subject(NCHAN, "/watch"),
}


def bench(runs: int, quick: bool) -> list[Table]:
    """A table of watchers and one of a slow reader among them."""
    raise_file_limit()
    counts = (100,) if quick else (1_000, 5_000, 10_000)
    crowds = {
        count: Table(
            f"{count:,} watchers of one server process",
            f"A burst is one event to every stream at once. p99: over {BURSTS} with a pause; "
            f"CPU: over {COUNTED:,} events without.",
        )
        for count in counts
    }
    slow = Table("One slow reader among 100 watchers, 300 events of 20 KB")
    for _ in range(runs):
        for count, crowd in crowds.items():
            for name, subject in SUBJECTS.items():
                if count <= subject.most and (subject.app != NCHAN or module()):
                    _watched(crowd, name, subject, count)
        for stuck in (0, 1):
            _with_slow_reader(slow, stuck, 30 if quick else 300)
    return [*crowds.values(), slow]


class Ear:
    """Hears all streams of a burst: when each of them got the event."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._missing = 0
        self._all = asyncio.Event()
        self._delays_ms: list[float] = []

    def hear(self, data: bytes) -> None:
        """Bytes of any stream."""
        found = sum(data.count(event) for event in EVENTS)
        self._delays_ms += [1000 * (time.perf_counter() - self._began_s)] * found
        self._missing -= found
        if self._missing <= 0:
            self._all.set()

    async def burst(self, tell: Tell, number: int, count: int) -> list[float]:
        """One event to all; the delays (ms) of `count` streams."""
        self._delays_ms, self._missing = [], count
        self._all.clear()
        self._began_s = time.perf_counter()
        await tell(number)
        async with asyncio.timeout(30):
            await self._all.wait()
        return self._delays_ms


def _watched(table: Table, name: str, subject: Subject, count: int) -> None:
    with place() as here:
        serve = nchan(here) if subject.app == NCHAN else web(here, subject.app)
        with serve as server:
            uvloop.run(_measure(table, name, here, server, subject, count))


async def _measure(
    table: Table, name: str, here: Place, server: Web, subject: Subject, count: int
) -> None:
    ear = Ear()
    async with _teller(here, server.port, subject) as (path, tell):
        message = request("GET", path, server.port)
        (await listen(server.port, message, 1, ear.hear))[0].close()
        before_kib, began_s = server.memory_kib, time.perf_counter()
        listeners = await listen(server.port, message, count, ear.hear)
        opened_s = time.perf_counter() - began_s
        await asyncio.sleep(0.5)
        memory_kib = (server.memory_kib - before_kib) / count
        gc.freeze()
        await ear.burst(tell, 1, count)
        delays_ms = list[float]()
        for number in range(BURSTS):
            delays_ms += await ear.burst(tell, number + 2, count)
            await asyncio.sleep(0.1)
        cpu_s, rounds = server.cpu_s, COUNTED // count
        for number in range(rounds):
            await ear.burst(tell, number + BURSTS + 2, count)
        spent_s = server.cpu_s - cpu_s
    for listener in listeners:
        listener.close()
    table.add(name, "KiB each", memory_kib)
    table.add(name, "opened in s", opened_s)
    table.add(name, "burst p99 ms", quantile(delays_ms, 0.99))
    table.add(name, "CPU s for 10,000 events", 10_000 * spent_s / (rounds * count))


@asynccontextmanager
async def _teller(here: Place, port: int, subject: Subject) -> AsyncIterator[tuple[str, Tell]]:
    """The path of a stream, and how to send an event to all that watch it."""
    store = Store.connect(Settings(REDIS_URL=SecretStr(here.url)))
    run = await _running(store)

    async def tell(number: int) -> None:
        note = f"page {number} of 100"
        if subject.path is None:
            await store.tell_progress(run, Progress(number, 100, note))
            return
        progress = {"done": number, "total": 100, "note": note}
        event = orjson.dumps({"job_id": run.job_id, "progress": progress})
        if subject.app == NCHAN:
            await repeat(port, request("POST", "/tell", port, b"event: progress " + event), 1)
        else:
            await store.redis.publish(CHANNEL, event)

    try:
        yield subject.path or f"/jobs/{run.job_id}/stream", tell
    finally:
        await store.aclose()


async def _running(store: Store) -> Run:
    """A job that runs for ever, as far as the store knows."""
    await store.submit(NewJob("chat", "hello", "local", 3, 600))
    claimed, _ = await store.claim("bench", ["chat"], 1, 3600)
    run = claimed[0].run
    assert run is not None
    return run


def _with_slow_reader(table: Table, stuck: int, events: int) -> None:
    with place() as here, web(here, OURS_APP) as server:
        uvloop.run(_measure_slow(table, here, server, stuck, events))


async def _measure_slow(table: Table, here: Place, server: Web, stuck: int, events: int) -> None:
    ear, store = Ear(), Store.connect(Settings(REDIS_URL=SecretStr(here.url)))
    run = await _running(store)
    message = request("GET", f"/jobs/{run.job_id}/stream", server.port)
    listeners = await listen(server.port, message, 100, ear.hear)
    await asyncio.sleep(0.5)
    before_kib, delays_ms, text = server.memory_kib, list[float](), "x" * 20_000
    for listener in listeners[:stuck]:
        listener.stop_reading()
    for number in range(1, events + 1):

        async def tell(number: int) -> None:
            await store.tell_delta(run, number, "answer", text)

        delays_ms += await ear.burst(tell, number, 100 - stuck)
    name = "one reads nothing" if stuck else "all read"
    table.add(name, "p99 ms of the others", quantile(delays_ms, 0.99))
    table.add(name, "more memory in all, KiB", server.memory_kib - before_kib)
    for listener in listeners:
        listener.close()
    await store.aclose()
