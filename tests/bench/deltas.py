"""200 streaming calls at once, 50 tokens a second each, all watched: how late a token is."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import orjson
import uvloop
from pydantic import SecretStr

from tasks.keys import name
from tasks.settings import Settings
from tasks.store import NewJob, Store
from tests.bench.parts import cpu_s, place, running, until
from tests.bench.table import OURS, Table, quantile
from tests.bench.web import OURS_APP, web
from tests.bench.wire import listen, raise_file_limit, request
from tests.endpoint import DONE, FIN, C, head

RATE: Final = 50
"""Tokens a second of each call; each token is the time at which it left the endpoint."""
_HEAD: Final = head(200, "text/event-stream", "Transfer-Encoding: chunked")
_TOKEN: Final = re.compile(rb"<(\d+\.\d+)>")


def bench(runs: int, quick: bool) -> list[Table]:
    """One table."""
    raise_file_limit()
    calls, seconds = (20, 2) if quick else (200, 6)
    table = Table(
        f"{calls} streaming calls at once, {RATE} tokens a second each, all watched",
        "From the endpoint to the watcher; tokens travel in slices of 50 ms.",
    )
    for _ in range(runs):
        _measure(table, calls, seconds)
    return [table]


def _measure(table: Table, calls: int, seconds: int) -> None:
    with _endpoint(seconds * RATE) as model, place() as here, web(here, OURS_APP) as server:
        environment = here.environment(
            REDIS_URL=here.url,
            AI_URL=model,
            AI_MODEL="clock",
            SLOWCALL_DATA_DIR=str(here.folder),
            SLOWCALL_CONCURRENCY=str(calls),
        )
        words = [sys.executable, "-m", "server", "worker"]
        with running(*words, env=environment, cwd=here.folder) as worker:
            with here.redis() as client:
                until(lambda: client.exists(name("workers")), "the worker lives")
            before_s = cpu_s(worker.pid), server.cpu_s
            delays_ms = uvloop.run(_watch(here.url, server.port, calls, seconds))
            tokens = len(delays_ms) / 1000
            spent_s = cpu_s(worker.pid) - before_s[0], server.cpu_s - before_s[1]
    table.add(OURS, "p50 ms", quantile(delays_ms, 0.5))
    table.add(OURS, "p99 ms", quantile(delays_ms, 0.99))
    table.add(OURS, "worker's CPU ms for 1,000 tokens", 1000 * spent_s[0] / tokens)
    table.add(OURS, "server's CPU ms for 1,000 tokens", 1000 * spent_s[1] / tokens)


async def _watch(url: str, port: int, calls: int, seconds: int) -> list[float]:
    """Submit the jobs, watch each on a stream of its own; the delay (ms) of every token."""
    store = Store.connect(Settings(REDIS_URL=SecretStr(url)))
    delays_ms: list[float] = []
    ended = asyncio.Semaphore(0)

    def ear() -> Callable[[bytes], None]:
        heard = b""

        def hear(data: bytes) -> None:
            nonlocal heard
            now_s = time.time()
            *events, heard = (heard + data).split(b"\n\n")
            for event in events:
                if b"event: delta" in event:  # the whole text comes again with the end
                    delays_ms.extend(1000 * (now_s - float(sent)) for sent in _TOKEN.findall(event))
                elif b"event: done" in event or b"event: failed" in event:
                    ended.release()

        return hear

    for number in range(calls):  # each is watched before the next: no token is there first
        one = await store.submit(NewJob("chat", "the time", f"user-{number}", 1, 600))
        await listen(port, request("GET", f"/jobs/{one.job.job_id}/stream", port), 1, ear())
    async with asyncio.timeout(60 + 2 * seconds):
        for _ in range(calls):
            await ended.acquire()
    await store.aclose()
    return delays_ms


@contextmanager
def _endpoint(tokens: int) -> Iterator[str]:
    """A model in a process of its own that answers every call with the time, again and again."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs, tokens), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def _serve(port: multiprocessing.connection.Connection, tokens: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        size = int(request.lower().partition(b"content-length:")[2].split(b"\r", 1)[0])
        orjson.loads(await reader.readexactly(size))
        writer.write(_HEAD)
        began = asyncio.get_running_loop().time()
        for number in range(tokens):
            await asyncio.sleep(max(0, began + number / RATE - asyncio.get_running_loop().time()))
            writer.write(_chunk(C(f"<{time.time():.6f}> ")))
        writer.write(_chunk(FIN() + DONE) + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        server = await asyncio.start_server(answer, sock=listener)
        port.send(listener.getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
