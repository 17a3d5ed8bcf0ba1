"""Whoever does not send a request's head, or sends one without an end, is let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server.protocol import MAX_HEAD, _Beginning
from tasks.settings import Settings
from tests.serving import served

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Pipe]:
    async with served(settings) as client:
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        yield reader, writer
        writer.close()


async def ends(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes the connection; it must do so soon."""
    async with asyncio.timeout(5):
        return await reader.read()


@pytest.mark.parametrize(
    "begun", [b"", WHOLE[:-2], b"GET", WHOLE + WHOLE[:-2]], ids=["silent", "head", "word", "second"]
)
async def test_a_head_that_does_not_come(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr("server.protocol.HEAD_S", 0.3)
    async with connected(settings) as (reader, writer):
        writer.write(begun)
        assert (await ends(reader)).count(b"HTTP/1.1 200") == begun.count(WHOLE)


async def test_a_slow_answer_is_no_slow_head(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.protocol.HEAD_S", 0.2)
    async with connected(settings) as (reader, writer):
        writer.write(WHOLE.replace(b"/healthz", b"/jobs/stream"))
        await reader.readuntil(b"retry: ")
        rest = asyncio.create_task(reader.read())
        assert not (await asyncio.wait([rest], timeout=0.5))[0], "the stream goes on"
        rest.cancel()


@pytest.mark.parametrize("line", [b"x" * 1000, b"X-Many: y\r\n" * 100], ids=["line", "lines"])
async def test_a_head_without_an_end(settings: Settings, line: bytes) -> None:
    async with connected(settings) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nX-Long: ")
        for _ in range(MAX_HEAD // len(line) + 1):
            writer.write(line)
        answer = await ends(reader)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"head of the request is too large" in answer


@pytest.mark.parametrize(
    ("method", "path", "alone"),
    [("GET", "/healthz", False), ("HEAD", "/", True), ("GET", "/jobs/stream", False)],
)
async def test_a_head_goes_out_with_the_body_if_there_is_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, method: str, path: str, alone: bool
) -> None:
    sent: list[tuple[bytes, bytes]] = []
    send = _Beginning._pass

    def noted(self: _Beginning, data: bytes) -> None:
        sent.append((self._head, data))
        send(self, data)

    monkeypatch.setattr(_Beginning, "_pass", noted)
    async with connected(settings) as (reader, writer):
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        ((head, body),) = sent
        assert head.endswith(b"\r\n\r\n")
        assert (body == b"") is alone
