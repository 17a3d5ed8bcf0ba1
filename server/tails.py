"""What a stream follows: a log or a feed that is read from a place, and live messages behind it."""

from __future__ import annotations

from typing import Final, Protocol

from server.watch import Message
from tasks.errors import JobNotFound
from tasks.lifecycle import FINAL
from tasks.store import Store
from tasks.store.records import JobView

PAGE: Final = 500
"""Events of a log read at once."""
SNAPSHOT: Final = 50
"""Jobs that a client is shown whose place in the feed is gone."""


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

    __slots__ = ("_store", "_job_id", "_view", "_sent", "behind", "ended")

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
    """The feed of one user (None: of all) behind an id; `known`: the client has it already.

    A client that has none begins at the newest one of before its answer's head: what is caused
    once that is there comes in the stream.
    """

    __slots__ = ("_store", "_user_id", "_sent", "_opening", "behind", "ended")

    def __init__(self, store: Store, user_id: str | None, after: str, *, known: bool) -> None:
        self._store, self._user_id = store, user_id
        self._sent = after
        # A lone id is no event for a client, but the place it resumes from.
        self._opening = b"" if known else b"id: %b\n\n" % after.encode()
        self.behind = True
        self.ended = False

    async def catch_up(self) -> bytes:
        """The next page of the feed; a `snapshot` of the newest jobs where the place is gone."""
        entries = await self._store.feed(self._user_id, self._sent, PAGE)
        opening, self._opening = self._opening, b""
        if entries is None:
            return await self._snapshot()
        self.behind = len(entries) == PAGE
        if entries:
            self._sent = entries[-1].feed_id
        there = [b"id: %b\n%b" % (one.feed_id.encode(), one.block) for one in entries if one.block]
        return b"".join([opening, *there])

    def accept(self, message: Message) -> bytes:
        """Ids of a feed have gaps by nature: what may be missing is known by `behind` alone."""
        if self.behind or _place(message.mark) <= _place(self._sent):
            return b""
        self._sent = message.mark
        return message.frame

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
