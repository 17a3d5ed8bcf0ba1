"""How many slow calls one process carries: httpx's own transport beside the one we use, and ours.

    python -m tests.bench.bench_http [100 500 2000]

Each answer takes half a second, plain or as 50 chunks. Shown are calls a second and the CPU
seconds for 1,000 calls of the client's process; a run that takes longer than LIMIT_S is given up.
The endpoint runs in a process of its own. Ratios are what counts: the machine is only one.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
from httpx_aiohttp import AiohttpTransport

from tasks.model import ModelClient
from tasks.settings import Settings
from tests.endpoint import DONE, FIN, C, completion, head

ANSWER_S = 0.5
CHUNKS = 50
LIMIT_S = 30
ROUNDS = 3

Call = Callable[[bool], Awaitable[None]]
Make = Callable[[str], AbstractAsyncContextManager[Call]]

_BODY = json.dumps(completion("word " * CHUNKS)).encode()
PLAIN = head(200, "application/json", f"Content-Length: {len(_BODY)}") + _BODY
HEAD = head(200, "text/event-stream", "Transfer-Encoding: chunked")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WORD = _chunk(C("word "))
END = _chunk(FIN() + DONE) + b"0\r\n\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            size = int(request.lower().partition(b"content-length:")[2].split(b"\r", 1)[0])
            streamed = b'"stream": true' in await reader.readexactly(size)
            if not streamed:
                await asyncio.sleep(ANSWER_S)
                writer.write(PLAIN)
                continue
            writer.write(HEAD)
            for _ in range(CHUNKS):
                await asyncio.sleep(ANSWER_S / CHUNKS)
                writer.write(WORD)
            writer.write(END)
    except (EOFError, ConnectionError):
        writer.close()


def _endpoint(port: multiprocessing.connection.Connection) -> None:
    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        server = await asyncio.start_server(_serve, sock=listener)
        port.send(listener.getsockname()[1])
        await server.serve_forever()

    _raise_file_limit()
    asyncio.run(run())


def _raise_file_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _httpx_call(client: httpx.AsyncClient, url: str) -> Call:
    async def call(streamed: bool) -> None:
        body = {"messages": [], "stream": streamed}
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_bytes():
                pass

    return call


@asynccontextmanager
async def httpx_defaults(url: str) -> AsyncIterator[Call]:
    async with httpx.AsyncClient(timeout=None) as client:
        yield _httpx_call(client, url)


@asynccontextmanager
async def httpx_over_aiohttp(url: str) -> AsyncIterator[Call]:
    transport = AiohttpTransport(limits=httpx.Limits(max_connections=0))
    async with httpx.AsyncClient(transport=transport, timeout=None) as client:
        yield _httpx_call(client, url)


@asynccontextmanager
async def model_client(url: str) -> AsyncIterator[Call]:
    client = ModelClient(Settings(), base_url=url)

    async def call(streamed: bool) -> None:
        body = {"messages": [], "stream": streamed}
        await client.chat(body, idempotency_key="k", timeout_s=600)

    yield call
    await client.aclose()


async def measure(make: Make, url: str, at_once: int, streamed: bool) -> str:
    """Calls a second and CPU seconds for 1,000, with `at_once` callers of ROUNDS calls each."""
    async with make(url) as call:

        async def caller() -> None:
            for _ in range(ROUNDS):
                await call(streamed)

        started, cpu = time.perf_counter(), time.process_time()
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*(caller() for _ in range(at_once)))
        except TimeoutError:
            return f"over {LIMIT_S} s"
        calls = at_once * ROUNDS
        rate = calls / (time.perf_counter() - started)
        return f"{rate:.0f}/s ({(time.process_time() - cpu) * 1000 / calls:.2f} s)"


def main(sizes: list[int]) -> None:
    """Print the table."""
    _raise_file_limit()
    ours, theirs = multiprocessing.Pipe()
    endpoint = multiprocessing.Process(target=_endpoint, args=(theirs,), daemon=True)
    endpoint.start()
    url = f"http://127.0.0.1:{ours.recv()}"
    print(f"{'at once':>16} {'possible':>9} {'httpx':>18} {'over aiohttp':>18} {'ModelClient':>18}")
    for streamed in (False, True):
        for at_once in sizes:
            found = [
                asyncio.run(measure(make, url, at_once, streamed))
                for make in (httpx_defaults, httpx_over_aiohttp, model_client)
            ]
            how = f"{at_once} {'streamed' if streamed else 'plain'}"
            cells = " ".join(f"{cell:>18}" for cell in found)
            print(f"{how:>16} {at_once / ANSWER_S:>7.0f}/s {cells}", flush=True)
    endpoint.terminate()
    endpoint.join()


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [100, 500, 2000])
