"""A connection to Redis of one's own, without the streams and locks of redis-py."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any, Final, cast

from hiredis import Reader
from redis._parsers.base import BaseParser
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError

_NOT_YET: Final = False
"""What hiredis says of a reply that is not whole; in RESP2 no reply is that."""


async def dial(redis: Redis) -> AbstractConnection:
    """Open a connection with the address, password and patience of a pool, but none of its own.

    Raises what redis-py raises.
    """
    pool = redis.connection_pool
    connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        _raise_swallowed_cancel()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def _raise_swallowed_cancel() -> None:
    """redis-py swallows a cancel at many points of `connect` (seen: a server that was ended while
    its hub dialled never ended)."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Link(asyncio.Protocol):
    """A connection that redis-py has opened, from then on read and written without it: its streams
    and locks took a third of a POST's time in a server (measured)."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.lost = False
        self.heard_s = 0.0
        self.loop = asyncio.get_running_loop()
        self._connection = connection
        self._reader = Reader(replyError=BaseParser.parse_error)
        writer: asyncio.StreamWriter = connection._writer  # type: ignore[assignment]
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.set_protocol(self)

    @abstractmethod
    def receive(self, reply: Any) -> None:
        """A reply, or what was published."""

    @abstractmethod
    def lose(self, error: Exception) -> None:
        """Nothing comes any more."""

    def write(self, packed: bytes) -> None:
        """Send packed commands."""
        try:
            self._transport.write(packed)
        except RuntimeError as error:  # uvloop's word for a connection that is lost
            self._lose(ConnectionError(str(error)))

    def abort(self, error: Exception) -> None:
        """Hang up at once on who says nothing."""
        self._lose(error)
        self._transport.abort()

    async def close(self) -> None:
        """Hang up."""
        self._lose(ConnectionError("the connection was closed"))
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        """Some replies, or a part of one."""
        self.heard_s = self.loop.time()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_YET:
            self.receive(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever is awaited will not come."""
        self._lose(ConnectionError(f"the connection is lost: {exc or 'closed by the server'}"))

    def _lose(self, error: Exception) -> None:
        self.lost = True
        self.lose(error)
