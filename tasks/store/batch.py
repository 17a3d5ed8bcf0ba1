"""Send the commands that are asked for in one turn of the event loop together, over one wire."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from tasks.store.wire import Wire, fail

_CLOSED: Final = ConnectionError("the store was closed")
_CROWD: Final = 8
"""Commands that do not wait for the end of a turn: Redis would idle while more gather."""
_WINDOW: Final = 32
"""Commands on the way at once: Redis never waits for one."""
_LATER_WINDOW: Final = 8
"""The same for what can be done later: all else waits for few of them."""
_LARGE: Final = 262_144
"""Bytes of a command from which on it takes a connection of its own: nobody waits behind it."""

_Asked = tuple[bytes, "asyncio.Future[Any]"]


def _nothing() -> None:
    pass


class Batches:
    """Commands that travel together where many jobs move at once.

    A caller that gives up leaves its command on the way; it could not know either, from a
    connection of its own, how far it came.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._wire: Wire | None = None
        self._dialling = False
        self._due = False
        self._asked: deque[_Asked] = deque()
        self._later: deque[_Asked] = deque()
        self._at_work: set[asyncio.Task[None]] = set()

    def ask(self, *command: Any, now: bool = False, later: bool = False) -> asyncio.Future[Any]:
        """The reply to a command, or what redis-py raises for it. One that is wanted `now` does not
        wait for the end of the turn; what can be done `later` makes way for all else."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        packed = pack_command(command)
        if len(packed) >= _LARGE:
            self._begin(self._send_alone(packed, reply), reply)
            return reply
        (self._later if later else self._asked).append((packed, reply))
        if now or len(self._asked) + len(self._later) >= _CROWD:
            self._flush()
        elif not self._due:
            self._due = True
            loop.call_soon(self._flush)
        return reply

    async def aclose(self) -> None:
        """Hang up; what is still awaited fails."""
        for task in list(self._at_work):
            task.cancel()
            await asyncio.wait([task])
        self._give_up(_CLOSED)
        if self._wire is not None:
            await self._wire.close()

    def _flush(self) -> None:
        self._due = False
        if self._dialling or not (self._asked or self._later):
            return
        if self._wire is None or self._wire.lost:
            self._dialling = True
            self._begin(self._dial())
            return
        taken: list[_Asked] = []
        for waiting, most in (self._asked, _WINDOW), (self._later, _LATER_WINDOW):
            while waiting and self._wire.awaited + len(taken) < most:
                taken.append(waiting.popleft())
        if taken:
            packed, replies = zip(*taken, strict=True)
            self._wire.send(b"".join(packed), replies)

    async def _dial(self) -> None:
        """Open the wire; what is asked for meanwhile waits for it, and fails with it."""
        try:
            if self._wire is not None:
                await self._wire.close()
            self._wire = await Wire.open(self._redis, self._flush)
        except Exception as error:
            self._give_up(error)
        finally:
            self._dialling = False
        self._flush()

    def _give_up(self, error: Exception) -> None:
        fail([reply for _, reply in (*self._asked, *self._later)], error)
        self._asked.clear()
        self._later.clear()

    async def _send_alone(self, packed: bytes, reply: asyncio.Future[Any]) -> None:
        try:
            wire = await Wire.open(self._redis, _nothing)
        except Exception as error:
            fail([reply], error)
            return
        try:
            wire.send(packed, [reply])
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
