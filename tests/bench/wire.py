"""The bench's own HTTP client: raw sockets, so that it costs little beside what it measures."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from typing import Final, cast

CROWD: Final = 100
"""Streams that are opened side by side: a listener's backlog is short."""


def raise_file_limit() -> None:
    """Let this process and its children have as many sockets as the machine allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def request(method: str, path: str, port: int, body: bytes = b"") -> bytes:
    """The bytes of a request over a connection that is kept."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    else:
        head += "Accept: text/event-stream\r\n"
    return f"{head}\r\n".encode() + body


async def repeat(port: int, message: bytes, times: int) -> list[float]:
    """Send a request so many times over one connection; the ms that each answer took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took_ms = []
    for _ in range(times):
        began = time.perf_counter()
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r", 1)[0]))
        took_ms.append(1000 * (time.perf_counter() - began))
        if b" 20" not in head[:12]:
            raise RuntimeError(f"the server refused: {head[:60]!r}")
    writer.close()
    return took_ms


class Listener(asyncio.Protocol):
    """One open stream; `heard` is told all its bytes as they come."""

    def __init__(self, message: bytes, heard: Callable[[bytes], None]) -> None:
        self._message = message
        self._heard = heard
        self._transport: asyncio.Transport | None = None
        self.open = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        """The first bytes are the answer's head."""
        self.open.set()
        self._heard(data)

    def stop_reading(self) -> None:
        """Be a slow reader from now on."""
        if self._transport:
            self._transport.pause_reading()

    def close(self) -> None:
        """Leave."""
        if self._transport:
            self._transport.abort()


async def listen(
    port: int, message: bytes, count: int, heard: Callable[[bytes], None]
) -> list[Listener]:
    """Open `count` streams, each once its head has come."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(CROWD)

    async def one() -> Listener:
        async with gate:
            _, listener = await loop.create_connection(
                lambda: Listener(message, heard), "127.0.0.1", port
            )
            await listener.open.wait()
        return listener

    return await asyncio.gather(*(one() for _ in range(count)))
