"""A stream that waits gets its events past ASGI, or, where that cannot be, the same bytes by it."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from server.app import create_app
from server.protocol import Port
from tasks.settings import Settings
from tests.conftest import serving
from tests.rig import store_at
from tests.serving import Frames, Hand, served, stream, submit


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The chunks that went out by a port."""
    chunks: list[bytes] = []
    write = Port.write

    def noted(self: Port, chunk: bytes) -> None:
        chunks.append(chunk)
        write(self, chunk)

    monkeypatch.setattr(Port, "write", noted)
    return chunks


async def told_one_by_one(hand: Hand, job_id: str, frames: Frames) -> list[int]:
    """A run of some events, each seen before the next one is told; their numbers."""
    seen = [int(event.id) for event in await frames.events(1)]
    run = await hand.start(job_id)
    seen += [int(event.id) for event in await frames.events(1)]
    for _ in range(5):
        await hand.say(run, "word ")
        seen += [int(event.id) for event in await frames.events(1)]
    await hand.finish(run)
    return seen + [int(event.id) for event in await frames.events()]


async def test_a_stream_that_waits_is_written_to_at_once(
    settings: Settings, written: list[bytes]
) -> None:
    async with served(settings) as client, store_at(settings) as store:
        job_id = await submit(client)
        async with stream(client, f"/jobs/{job_id}/stream") as frames:
            assert await told_one_by_one(Hand(store), job_id, frames) == list(range(1, 9))
    # `running` may come while the stream still begins.
    assert len(written) in (5, 6), "what a stream begins and ends with is its task's business"


async def test_what_is_around_the_app_sees_every_byte(
    settings: Settings, written: list[bytes]
) -> None:
    """Case B12: a compressing middleware would be passed by."""
    app, sent = create_app(settings), b""

    async def around(scope: Scope, receive: Receive, send: Send) -> None:
        async def note(message: Message) -> None:
            nonlocal sent
            sent += message.get("body", b"") if scope["path"].endswith("/stream") else b""
            await send(message)

        await app(scope, receive, note if scope["type"] == "http" else send)

    with serving(around) as url:
        async with httpx.AsyncClient(base_url=url) as client, store_at(settings) as store:
            job_id = await submit(client)
            async with stream(client, f"/jobs/{job_id}/stream") as frames:
                assert await told_one_by_one(Hand(store), job_id, frames) == list(range(1, 9))
    assert sent.count(b"event: ") == 8
    assert not written


@pytest.mark.parametrize("together", [True, False])
async def test_an_answer_that_others_wait_behind(
    settings: Settings, written: list[bytes], together: bool
) -> None:
    """Pipelined requests (RFC 9112, 9.3.2): the connection's newest request is not the stream."""
    async with served(settings) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        host, port = client.base_url.host, client.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        watch, ask = (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
            for path in (f"/jobs/{job_id}/stream", "/healthz")
        )
        async with asyncio.timeout(10):
            writer.write(watch + ask if together else watch)
            await reader.readuntil(b"event: queued")
            writer.write(b"" if together else ask)
            run = await hand.start(job_id)
            await reader.readuntil(b"event: running")
            await hand.say(run, "word")
            await reader.readuntil(b"event: delta")
            await hand.finish(run)
            await reader.readuntil(b"event: done")
            await reader.readuntil(b"\r\n0\r\n\r\nHTTP/1.1 200 OK")
            await reader.readuntil(b'{"status":"alive"}')
        writer.close()
    assert bool(written) is not together
