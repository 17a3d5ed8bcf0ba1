"""Server-Sent Events of one job and of all of a user's: replay the log, go on live, end cleanly."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, Protocol

from sse_starlette import EventSourceResponse
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from server.parts import caller_of, job_of, parts_of
from server.protocol import Port
from server.watch import Deliver, Message, Watch
from tasks import keys
from tasks.errors import JobNotFound, StoreUnavailable
from tasks.lifecycle import FINAL
from tasks.store import Store
from tasks.store.records import JobView

RECONNECT: Final = b"retry: 2000\n\n"
ALIVE: Final = b":\n\n"
PAGE: Final = 500
"""Events of a log read at once."""
SNAPSHOT: Final = 50
"""Jobs that a client is shown whose place in the feed is gone."""
SEND_S: Final = 30.0
"""A client that takes nothing for so long is let go; its EventSource comes back by itself."""

_SEQUENCE: Final = re.compile(r"[0-9]{1,15}")
_FEED_ID: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")


class Tail(Protocol):
    """What a stream follows: a log that is read from a place, and live messages behind it."""

    behind: bool
    """Whether the log has, or may have, what was not sent: live messages do not count then."""
    ended: bool

    async def catch_up(self) -> bytes:
        """What the log has next, up to a page. Raises StoreUnavailable."""

    def accept(self, message: Message) -> bytes:
        """The frame of a live message; empty where it was sent already, or does not follow."""


class JobTail:
    """The log of one job behind a sequence number; None is a cursor that nobody can follow.

    `view` is the job as it was just before its channel was listened to.
    """

    def __init__(self, store: Store, view: JobView, after: int | None) -> None:
        self._store, self._job_id = store, view.job_id
        self._view: JobView | None = view
        self._sent = -1 if after is None else after
        self.behind = True
        self.ended = False

    async def catch_up(self) -> bytes:
        """The next page of the log; a `snapshot` where the log does not continue what was sent.

        The record is read before the log, so that a log that lacks what the record counts is known
        to be trimmed, and not just older.
        """
        try:
            view = self._view or await self._store.read(self._job_id)
        except JobNotFound:
            self.ended = True
            return b""
        self._view = None
        if not 0 <= self._sent <= view.seq:
            return self._snapshot(view)
        entries = await self._store.log(self._job_id, after=self._sent, limit=PAGE)
        first = entries[0].seq if entries else view.seq + 1
        if first != self._sent + 1:
            return self._snapshot(view)
        self._sent = entries[-1].seq if entries else view.seq
        self.behind = len(entries) == PAGE
        self.ended = not self.behind and (entries[-1].name in FINAL if entries else view.final)
        return b"".join(b"id: %d\n%b" % (entry.seq, entry.block) for entry in entries)

    def _snapshot(self, view: JobView) -> bytes:
        self._sent, self.behind = view.seq, True
        return b"id: %d\nevent: snapshot\ndata: %b\n\n" % (view.seq, view.body)

    def accept(self, message: Message) -> bytes:
        """A gap is read from the log; so is what may lie behind a final event: a new life."""
        sequence = int(message.mark)
        if sequence <= self._sent:
            return b""
        if sequence > self._sent + 1:
            self.behind = True
            return b""
        self._sent = sequence
        self.behind = message.final
        return message.frame


class FeedTail:
    """The feed of one user (None: of all) behind an id; without an id it begins now."""

    def __init__(self, store: Store, user_id: str | None, after: str | None) -> None:
        self._store, self._user_id = store, user_id
        self._sent = after
        self.behind = True
        self.ended = False

    async def catch_up(self) -> bytes:
        """The next page of the feed; a `snapshot` of the newest jobs where the place is gone."""
        if self._sent is None:
            return await self._begin()
        entries = await self._store.feed(self._user_id, self._sent, PAGE)
        if entries is None:
            return await self._snapshot()
        self.behind = len(entries) == PAGE
        if entries:
            self._sent = entries[-1].feed_id
        there = (entry for entry in entries if entry.block)
        return b"".join(b"id: %b\n%b" % (entry.feed_id.encode(), entry.block) for entry in there)

    def accept(self, message: Message) -> bytes:
        """Ids of a feed have gaps by nature: what may be missing is known by `behind` alone."""
        if self.behind or self._sent is None or _place(message.mark) <= _place(self._sent):
            return b""
        self._sent = message.mark
        return message.frame

    async def _begin(self) -> bytes:
        """A lone id is no event for a client, but the place it resumes from."""
        self._sent = await self._store.feed_position(self._user_id)
        self.behind = False
        return b"id: %b\n\n" % self._sent.encode()

    async def _snapshot(self) -> bytes:
        self._sent = position = await self._store.feed_position(self._user_id)
        views, _ = await self._store.list_jobs(
            user_id=self._user_id, status=None, kind=None, limit=SNAPSHOT, cursor=None
        )
        self.behind = False
        jobs = [b"event: snapshot\ndata: %b\n\n" % view.body for view in reversed(views)]
        return b"id: %b\n%b" % (position.encode(), b"".join(jobs) or b"\n")


def _place(feed_id: str) -> tuple[int, int]:
    milliseconds, _, number = feed_id.partition("-")
    return int(milliseconds), int(number)


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
        tail = FeedTail(parts_of(request.scope).store, user_id, cursor or None)
        return keys.name("feed_channel", scope), tail


def _cursor(request: HTTPConnection) -> str:
    """What the client has seen; a reconnecting EventSource repeats its address, so the header
    comes first."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")
