"""Server-Sent Events of one job and of all of a user's: replay the log, go on live, end cleanly."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from sse_starlette import EventSourceResponse
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from server.parts import caller_of, job_of, parts_of
from server.protocol import Port
from server.tails import FeedTail, JobTail, Tail
from server.watch import Deliver, Message, Watch
from tasks import keys
from tasks.errors import StoreUnavailable

RECONNECT: Final = b"retry: 2000\n\n"
ALIVE: Final = b":\n\n"
SEND_S: Final = 30.0
"""A client that takes nothing for so long is let go; its EventSource comes back by itself."""

_SEQUENCE: Final = re.compile(r"[0-9]{1,15}")
_FEED_ID: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")


def deliver_by(port: Port | None, tail: Tail) -> Deliver | None:
    """How a live message that follows goes to the client while its stream waits."""
    if port is None:
        return None

    def deliver(message: Message) -> bool:
        if message.final or tail.behind or not port.is_free():
            return False
        if tail.accept(message):
            port.write(message.chunk)
        return not tail.behind

    return deliver


async def frames(tail: Tail, watch: Watch, deliver: Deliver | None = None) -> AsyncIterator[bytes]:
    """All that a stream sends, several events at once where several are there; but for what
    `deliver` sends in between.

    A store that is away is asked again when the hub or a ping says so; the stream stays open.
    """
    yield RECONNECT
    while not (tail.ended or watch.closed):
        messages, reread, pinged = watch.take()
        tail.behind = tail.behind or reread
        chunk = b"".join([tail.accept(message) for message in messages])
        if pinged:
            chunk += ALIVE
        if pinged or tail.behind:
            with suppress(StoreUnavailable):
                chunk += await tail.catch_up()
        if chunk:
            yield chunk
        elif not tail.ended:
            await watch.wait(deliver)


_HEADERS: Final = EventSourceResponse(iter(())).raw_headers
"""Those of sse-starlette, once for all streams."""


class EventStream(EventSourceResponse):
    """An SSE response that sends from the request's own task, with one watch for the disconnect.

    Keep-alives come from the hub's shared pinger and the end of the process from the hub's end,
    instead of tasks of each stream's own; the bytes of an event were made once, for all streams,
    and go out past it by `port` where there is one.
    """

    def __init__(self, tail: Tail, watch: Watch, port: Port | None) -> None:
        super().__init__(frames(tail, watch, deliver_by(port, tail)), ping=0)
        self.raw_headers = _HEADERS
        self._watch = watch
        self._stuck = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(self._until_gone(receive))
        try:
            await self._stream_response(send)
        except asyncio.CancelledError:
            if not self._stuck:
                raise
            # It does not read: the server closes the connection of an unfinished response.
        finally:
            gone.cancel()

    async def _send_with_timeout(self, send: Send, message: AsgiMessage) -> None:
        """In place of a cancel scope for each send, which costs as much as an event's bytes do."""
        late = asyncio.get_running_loop().call_later(SEND_S, self._let_go, asyncio.current_task())
        try:
            await send(message)
        finally:
            late.cancel()

    def _let_go(self, sender: asyncio.Task[Any] | None) -> None:
        self._stuck = True
        if sender:
            sender.cancel()

    async def _until_gone(self, receive: Receive) -> None:
        await self._listen_for_disconnect(receive)
        self._watch.close()


def later(reason: str) -> Response:
    """An EventSource gives up for good on anything but a 200, so: come back later, and why."""
    return EventResponse(f"retry: 10000\n: {reason}\n\n")


class EventResponse(Response):
    """A stream that has ended before it began."""

    media_type = "text/event-stream"


class _StreamEndpoint(ABC):
    """An ASGI app: no request function in between, and the stream in the request's own task."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            channel, tail = await self.open(HTTPConnection(scope))
        except StoreUnavailable:
            app: ASGIApp = later("the store is away")
        else:
            app = _Follow(channel, tail) if tail else Response(status_code=204)
        await app(scope, receive, send)

    @abstractmethod
    async def open(self, request: HTTPConnection) -> tuple[str, Tail | None]:
        """The channel and the tail to follow; no tail where nothing will ever come."""


class _Follow:
    """An ASGI app: follow a tail, if there is a seat."""

    __slots__ = ("_channel", "_tail")

    def __init__(self, channel: str, tail: Tail) -> None:
        self._channel, self._tail = channel, tail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = parts_of(scope)
        with parts.seats.take(caller_of(scope).name) as full:
            if full or scope["method"] == "HEAD":
                await later(full or "")(scope, receive, send)
                return
            with parts.hub.watch(self._channel) as watch:
                await EventStream(self._tail, watch, Port.of(scope))(scope, receive, send)


class JobStream(_StreamEndpoint):
    """`GET /jobs/{job_id}/stream`."""

    async def open(self, request: HTTPConnection) -> tuple[str, Tail | None]:
        """204 for a client that has seen the end already. Raises JobNotFound."""
        view = await job_of(request)
        cursor = _cursor(request)
        after = int(cursor or "0") if _SEQUENCE.fullmatch(cursor or "0") else None
        channel = keys.name("job_channel", view.job_id)
        if view.final and after == view.seq:
            return channel, None
        return channel, JobTail(parts_of(request.scope).store, view, after)


class FeedStream(_StreamEndpoint):
    """`GET /jobs/stream`."""

    async def open(self, request: HTTPConnection) -> tuple[str, Tail | None]:
        """The caller's own, or without keys the one of `user_id`. Raises Forbidden."""
        user_id = caller_of(request.scope).scope(request.query_params.get("user_id"))
        cursor = _cursor(request)
        if cursor and not _FEED_ID.fullmatch(cursor):
            cursor = "junk"
        scope = keys.ALL if user_id is None else keys.user_scope(user_id)
        store = parts_of(request.scope).store
        place = cursor or await store.feed_position(user_id)
        tail = FeedTail(store, user_id, place, known=bool(cursor))
        return keys.name("feed_channel", scope), tail


def _cursor(request: HTTPConnection) -> str:
    """What the client has seen; a reconnecting EventSource repeats its address, so the header
    comes first."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")
