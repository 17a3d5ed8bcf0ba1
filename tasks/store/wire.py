"""One pipelined connection to Redis: commands go out as they come, replies come back in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from hiredis import Reader
from redis._parsers.base import BaseParser
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, TimeoutError

_Reply = asyncio.Future[Any]
_NOT_YET: Final = False
"""What hiredis says of a reply that is not whole; in RESP2 no reply is that."""


class Wire(asyncio.Protocol):
    """A connection that redis-py has opened, read and written without its streams and locks: they
    took a third of a POST's time in this process (measured).

    `answer_s` bounds the silence while a reply is awaited. `answered` hears of each change: replies
    have come, or none will.
    """

    def __init__(
        self, connection: AbstractConnection, answer_s: float, answered: Callable[[], None]
    ) -> None:
        self.lost = False
        self._connection = connection
        self._answer_s = answer_s
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(replyError=BaseParser.parse_error)
        self._awaited: deque[_Reply] = deque()
        self._heard_s = 0.0
        self._watch: asyncio.TimerHandle | None = None
        writer: asyncio.StreamWriter = connection._writer  # type: ignore[assignment]
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.set_protocol(self)

    @classmethod
    async def open(cls, redis: Redis, answered: Callable[[], None]) -> Wire:
        """A connection of its own with the address, password and patience of a client's pool.

        Raises what redis-py raises.
        """
        connection = own_connection(redis)
        await connection.connect()  # type: ignore[no-untyped-call]
        answer_s = redis.connection_pool.connection_kwargs["socket_timeout"]
        return cls(connection, answer_s, answered)

    @property
    def awaited(self) -> int:
        """How many replies are to come."""
        return len(self._awaited)

    def send(self, packed: bytes, replies: Iterable[_Reply]) -> None:
        """Send packed commands; `replies` get what Redis answers, or a redis-py error."""
        if not self._awaited:
            self._heard_s = self._loop.time()
        self._awaited.extend(replies)
        try:
            self._transport.write(packed)
        except RuntimeError as error:  # uvloop's word for a connection that is lost
            self._fail(ConnectionError(str(error)))
            return
        if self._watch is None:
            self._watch = self._loop.call_later(self._answer_s, self._look)

    def data_received(self, data: bytes) -> None:
        """Some replies, or a part of one."""
        self._heard_s = self._loop.time()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_YET:
            asked = self._awaited.popleft()
            if asked.done():
                continue
            if isinstance(reply, Exception):
                asked.set_exception(reply)
            else:
                asked.set_result(reply)
        self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever is awaited will not come."""
        self._fail(ConnectionError(f"the connection is lost: {exc or 'closed by the server'}"))

    async def close(self) -> None:
        """Hang up."""
        self._fail(ConnectionError("the connection was closed"))
        await self._connection.disconnect(nowait=True)

    def _look(self) -> None:
        self._watch = None
        if not self._awaited:
            return
        silent_s = self._loop.time() - self._heard_s
        if silent_s < self._answer_s:
            self._watch = self._loop.call_later(self._answer_s - silent_s, self._look)
            return
        self._fail(TimeoutError(f"no answer within {self._answer_s:g} s"))
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self.lost = True
        if self._watch is not None:
            self._watch.cancel()
        fail(self._awaited, error)
        self._awaited.clear()
        self._answered()


def fail(replies: Iterable[_Reply], error: BaseException) -> None:
    """Tell all who still wait that no reply comes."""
    for reply in replies:
        if not reply.done():
            reply.set_exception(error)


def own_connection(redis: Redis, **options: Any) -> AbstractConnection:
    """A connection like those of a client's pool, but none of them; it is not open yet."""
    pool = redis.connection_pool
    return pool.connection_class(**{**pool.connection_kwargs, "protocol": 2, **options})
