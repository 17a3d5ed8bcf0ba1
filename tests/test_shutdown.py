"""A server that is told to leave while hundreds watch: in time, without a word, nothing cut."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from server.serving import HANG_UP_S
from tasks.settings import Settings
from tests.commands import Command
from tests.rig import store_at
from tests.serving import Hand, submit

STREAMS: Final = 500
CROWD: Final = 100
WITHIN_S: Final = 5.0
LIMIT: Final = 65_536
"""Bytes that a watcher holds unread; it takes twice that from its connection, and no more."""
LAST_CHUNK: Final = b"0\r\n\r\n"


@pytest.fixture
def server(store_url: str, tmp_path: Path) -> Iterator[Command]:
    """A server process."""
    with Command("serve", "--port", "0", data_dir=tmp_path, REDIS_URL=store_url) as command:
        yield command


class Watcher:
    """One open stream, over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: httpx.URL, path: str, until: bytes) -> Watcher:
        """Open the stream, and read until it has told this."""
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=LIMIT)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n\r\n".encode())
        watcher = cls(reader, writer)
        await watcher.read(until)
        return watcher

    async def read(self, until: bytes) -> bytes:
        """Read until it has told this."""
        return await self._reader.readuntil(until)

    async def end(self) -> bytes:
        """All that comes to its end."""
        rest = await self._reader.read()
        self._writer.close()
        return rest

    def leave(self) -> None:
        """Leave without a word."""
        self._writer.transport.abort()


async def crowd(url: httpx.URL, paths: list[str], until: bytes) -> list[Watcher]:
    """Open all these streams, some at once."""
    gate = asyncio.Semaphore(CROWD)

    async def one(path: str) -> Watcher:
        async with gate:
            return await Watcher.open(url, path, until)

    return await asyncio.gather(*(one(path) for path in paths))


async def test_five_hundred_streams_end_cleanly(settings: Settings, server: Command) -> None:
    """Case B6: on SIGTERM, in the middle of a text that is streamed to half of them."""
    async with httpx.AsyncClient(base_url=server.url()) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        run = await hand.start(job_id)
        url, half = client.base_url, STREAMS // 2
        watchers = await crowd(url, [f"/jobs/{job_id}/stream"] * half, b"event: running")
        watchers += await crowd(url, ["/jobs/stream"] * half, b"\nid: ")
        said = list(server.lines)

        async def talk() -> None:
            while True:
                await hand.say(run, "a slice of text ")

        talking = asyncio.create_task(talk())
        await watchers[half - 1].read(b"slice")
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        ends = await asyncio.gather(*(watcher.end() for watcher in watchers))
        await asyncio.to_thread(server.ends, WITHIN_S)
        took_s = time.monotonic() - begun
        talking.cancel()
    assert all(end.endswith(LAST_CHUNK) for end in ends)
    assert took_s < WITHIN_S
    assert server.lines == said


async def test_nobody_who_takes_nothing_holds_it_up(settings: Settings, server: Command) -> None:
    """Case B5: they are sent more than lies in any buffer, and stop reading."""
    async with httpx.AsyncClient(base_url=server.url()) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        run = await hand.start(job_id)
        for _ in range(80):
            await hand.say(run, "x" * 100_000)
        paths = [f"/jobs/{job_id}/stream"] * 20
        stuck = await crowd(client.base_url, paths, b"event: running")
        said = list(server.lines)
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        await asyncio.to_thread(server.ends, WITHIN_S)
        took_s = time.monotonic() - begun
        for watcher in stuck:
            watcher.leave()
    assert HANG_UP_S <= took_s < WITHIN_S, "they did hold it up, and not for long"
    assert server.lines == said
