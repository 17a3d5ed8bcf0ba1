"""The web servers that ours is measured beside: endpoints that enqueue or do nothing, streams."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from arq import create_pool
from arq.connections import RedisSettings
from redis.asyncio import Redis
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

URL: Final = os.environ["BENCH_REDIS"]
CHANNEL: Final = "bench:events"
"""What the streams of this module tell on."""
_HEADERS: Final = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


async def do_nothing(request: Request) -> Response:
    """Read the body and answer."""
    await request.json()
    return JSONResponse({"job_id": "x", "status": "queued"}, 202)


async def enqueue(request: Request) -> Response:
    """Read the body and enqueue: no record, no event, no key."""
    job = await request.app.state.pool.enqueue_job("job", await request.json())
    return JSONResponse({"job_id": job.job_id, "status": "queued"}, 202)


async def recipe(request: Request) -> Response:
    """The recipe that people copy: a subscription and a JSON dump for each stream."""

    async def events() -> AsyncIterator[dict[str, str]]:
        async with Redis.from_url(URL) as client, client.pubsub() as subscription:
            await subscription.subscribe(CHANNEL)
            async for message in subscription.listen():
                if message["type"] == "message":
                    job = json.loads(message["data"])
                    yield {"event": "progress", "data": json.dumps(job)}

    return EventSourceResponse(events())


class Floor:
    """The least that a stream costs in Python: an ASGI app that writes bytes from a queue."""

    def __init__(self) -> None:
        self.queues: set[asyncio.Queue[bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queues.add(queue)
        gone = asyncio.create_task(self._until_gone(receive, queue))
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
        while block := await queue.get():
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await gone

    async def _until_gone(self, receive: Receive, queue: asyncio.Queue[bytes]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.queues.discard(queue)
        queue.put_nowait(b"")

    async def tell(self) -> None:
        """Hand every message on, for ever."""
        async with Redis.from_url(URL) as client, client.pubsub() as subscription:
            await subscription.subscribe(CHANNEL)
            async for message in subscription.listen():
                if message["type"] == "message":
                    block = b"event: progress\ndata: " + message["data"] + b"\n\n"
                    for queue in self.queues:
                        queue.put_nowait(block)


floor = Floor()


@asynccontextmanager
async def _run(app: Any) -> AsyncIterator[None]:
    app.state.pool = await create_pool(RedisSettings.from_dsn(URL))
    task = asyncio.create_task(floor.tell())
    yield
    task.cancel()
    await app.state.pool.aclose()


app = Starlette(
    routes=[
        Route("/nothing", do_nothing, methods=["POST"]),
        Route("/enqueue", enqueue, methods=["POST"]),
        Route("/recipe", recipe),
        Route("/floor", floor),
    ],
    lifespan=_run,
)
