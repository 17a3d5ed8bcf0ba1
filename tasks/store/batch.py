"""Send the commands that are asked for in one turn of the event loop together, over one wire."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from tasks.store.wire import Replies, Wire, fail

_CLOSED: Final = ConnectionError("the store was closed")
_CROWD: Final = 8
"""Commands that do not wait for the end of a turn: Redis would idle while more gather."""
_LARGE: Final = 262_144
"""Bytes of a command from which on it takes a connection of its own: nobody waits behind it."""


class Batches:
    """Commands that travel together where many jobs move at once.

    A caller that gives up leaves its command on the way; it could not know either, from a
    connection of its own, how far it came.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._wire: Wire | None = None
        self._asked: list[bytes] = []
        self._replies: Replies = deque()
        self._at_work: set[asyncio.Task[None]] = set()

    def ask(self, *command: Any) -> asyncio.Future[Any]:
        """The reply to a command, or what redis-py raises for it."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        packed = pack_command(command)
        if len(packed) >= _LARGE:
            self._begin(self._send_alone(packed, reply), reply)
            return reply
        if not self._asked:
            loop.call_soon(self._flush)
        self._asked.append(packed)
        self._replies.append(reply)
        if len(self._asked) == _CROWD and self._wire is not None:
            self._flush()
        return reply

    async def aclose(self) -> None:
        """Hang up; what is still awaited fails."""
        for task in list(self._at_work):
            task.cancel()
            await asyncio.wait([task])
        if self._wire is not None:
            await self._wire.close()

    def _flush(self) -> None:
        if not self._asked:
            return
        if self._wire is None or self._wire.lost:
            self._begin(self._dial())
        else:
            self._send(self._wire)

    def _send(self, wire: Wire) -> None:
        asked, self._asked = self._asked, []
        replies, self._replies = self._replies, deque()
        wire.send(b"".join(asked), replies)

    async def _dial(self) -> None:
        """Open the wire; what is asked for meanwhile waits for it, and fails with it."""
        old, self._wire = self._wire, None
        if old is not None:
            await old.close()
        try:
            self._wire = await Wire.open(self._redis)
        except Exception as error:
            self._give_up(error)
        else:
            self._send(self._wire)

    def _give_up(self, error: Exception) -> None:
        replies, self._asked, self._replies = self._replies, [], deque()
        fail(replies, error)

    async def _send_alone(self, packed: bytes, reply: asyncio.Future[Any]) -> None:
        try:
            wire = await Wire.open(self._redis)
        except Exception as error:
            fail([reply], error)
            return
        try:
            wire.send(packed, deque([reply]))
            await asyncio.wait([reply])
        finally:
            await wire.close()

    def _begin(
        self, work: Coroutine[Any, Any, None], reply: asyncio.Future[Any] | None = None
    ) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._at_work.discard(task)
            if task.cancelled() and reply is not None:
                fail([reply], _CLOSED)
            elif task.cancelled():
                self._give_up(_CLOSED)

        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(ended)
