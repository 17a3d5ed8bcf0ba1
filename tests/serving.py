"""What the tests of the serving wing share: a server, its client, streams, a worker by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from server.app import create_app
from tasks.lifecycle import FAIL, FINISH
from tasks.settings import Settings
from tasks.sse import Decoder
from tasks.store import Run, Store
from tests.conftest import serving

Json = dict[str, Any]


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server with these settings, which is stopped afterwards."""
    with serving(create_app(settings)) as url:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=15, limits=limits) as client:
            yield client


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream as a client sees it."""

    id: str
    name: str
    data: Any


class Frames:
    """Reads a stream: frames as they were sent, and the events among them."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._bytes = response.aiter_raw()
        self._buffer = b""

    async def frame(self, within_s: float = 5) -> bytes | None:
        """The next frame without its blank line; None at the end of the stream."""
        async with asyncio.timeout(within_s):
            while b"\n\n" not in self._buffer:
                try:
                    self._buffer += await anext(self._bytes)
                except StopAsyncIteration:
                    return None
        frame, _, self._buffer = self._buffer.partition(b"\n\n")
        return frame

    async def event(self, within_s: float = 5) -> Event | None:
        """The next event; what is no event (retry, keep-alives, lone ids) is passed over."""
        while (frame := await self.frame(within_s)) is not None:
            decoder = Decoder(max_line=1 << 24, max_event=1 << 24)
            for event in decoder.feed(frame + b"\n\n"):
                ids = [line[4:] for line in frame.split(b"\n") if line.startswith(b"id: ")]
                return Event(ids[0].decode() if ids else "", event.name, orjson.loads(event.data))
        return None

    async def events(self, count: int | None = None) -> list[Event]:
        """The next `count` events, or all until the stream ends."""
        found: list[Event] = []
        while count is None or len(found) < count:
            if (event := await self.event()) is None:
                break
            found.append(event)
        return found


@asynccontextmanager
async def stream(
    client: httpx.AsyncClient, path: str, after: str | None = None
) -> AsyncIterator[Frames]:
    """An open stream, resumed behind `after` as an EventSource does it."""
    headers = {} if after is None else {"Last-Event-ID": after}
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield Frames(response)


async def submit(client: httpx.AsyncClient, input: Any = "hello", **more: Any) -> str:
    """Submit a job; answers its id."""
    response = await client.post("/jobs", json={"input": input, **more})
    assert response.status_code == 202, response.text
    return str(response.json()["job_id"])


async def ask_plainly(client: httpx.AsyncClient, request: str, body: bytes = b"") -> bytes:
    """The whole body of an answer over a connection of its own: cheap enough for a thousand at
    once, which a client with a pool is not."""
    host, port = client.base_url.host, client.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    head = f"{request} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    headers, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return _joined(content) if b"transfer-encoding: chunked" in headers.lower() else content


def _joined(chunks: bytes) -> bytes:
    content = b""
    while True:
        size, _, chunks = chunks.partition(b"\r\n")
        if int(size, 16) == 0:
            return content
        content += chunks[: int(size, 16)]
        chunks = chunks[int(size, 16) + 2 :]


class Hand:
    """A worker played by hand, one move at a time."""

    def __init__(self, store: Store, name: str = "hand") -> None:
        self.store, self.name = store, name
        self._deltas = 0

    async def start(self, job_id: str) -> Run:
        """Claim until this job comes up, and start it."""
        claimed, _ = await self.store.claim(self.name, ["chat", "summarize"], 100, 60)
        mine = next(entry for entry in claimed if entry.job_id == job_id)
        run = mine.run
        assert run is not None
        return run

    async def say(self, run: Run, text: str) -> None:
        """Publish a delta."""
        self._deltas += 1
        await self.store.tell_delta(run, self._deltas, "answer", text)

    async def finish(self, run: Run, text: str = "done") -> None:
        """Finish the job with a result."""
        await self.store.conclude(run, FINISH, result={"text": text, "source": "model"})

    async def fail(self, run: Run) -> None:
        """Fail the job for good."""
        await self.store.conclude(run, FAIL, problem=("permanent", "no", None))


async def until(
    condition: Callable[[], Awaitable[object]], what: str, within_s: float = 10
) -> None:
    """Wait for a condition; fail with `what` was waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not await condition():
        assert loop.time() < deadline, f"waited {within_s:g} s in vain: {what}"
        await asyncio.sleep(0.01)
