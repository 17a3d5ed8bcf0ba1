"""One pipelined connection to Redis: commands go out as they come, replies come back in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import TimeoutError

from tasks.store.link import Link, dial

_Reply = asyncio.Future[Any]


class Wire(Link):
    """Commands that do not wait for the replies to those before them.

    `answer_s` bounds the silence while a reply is awaited. `answered` hears of each change: replies
    have come, or none will.
    """

    def __init__(
        self, connection: AbstractConnection, answer_s: float, answered: Callable[[], None]
    ) -> None:
        super().__init__(connection)
        self._answer_s = answer_s
        self._answered = answered
        self._awaited: deque[_Reply] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, redis: Redis, answered: Callable[[], None]) -> Wire:
        """Dial, with the patience of a client's pool. Raises what redis-py raises."""
        answer_s = redis.connection_pool.connection_kwargs["socket_timeout"]
        return cls(await dial(redis), answer_s, answered)

    @property
    def awaited(self) -> int:
        """How many replies are to come."""
        return len(self._awaited)

    def send(self, packed: bytes, replies: Iterable[_Reply]) -> None:
        """Send packed commands; `replies` get what Redis answers, or a redis-py error."""
        if not self._awaited:
            self.heard_s = self.loop.time()
        self._awaited.extend(replies)
        self.write(packed)
        if self._watch is None and not self.lost:
            self._watch = self.loop.call_later(self._answer_s, self._look)

    def receive(self, reply: Any) -> None:
        """The reply to the oldest command."""
        asked = self._awaited.popleft()
        if asked.done():
            return
        if isinstance(reply, Exception):
            asked.set_exception(reply)
        else:
            asked.set_result(reply)

    def data_received(self, data: bytes) -> None:
        """Some replies, or a part of one."""
        super().data_received(data)
        self._answered()

    def lose(self, error: Exception) -> None:
        """Tell all who still wait that no reply comes."""
        if self._watch is not None:
            self._watch.cancel()
        fail(self._awaited, error)
        self._awaited.clear()
        self._answered()

    def _look(self) -> None:
        self._watch = None
        if not self._awaited:
            return
        silent_s = self.loop.time() - self.heard_s
        if silent_s < self._answer_s:
            self._watch = self.loop.call_later(self._answer_s - silent_s, self._look)
        else:
            self.abort(TimeoutError(f"no answer within {self._answer_s:g} s"))


def fail(replies: Iterable[_Reply], error: BaseException) -> None:
    """Tell all who still wait that no reply comes."""
    for reply in replies:
        if not reply.done():
            reply.set_exception(error)
