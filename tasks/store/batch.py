"""Send the commands that are asked for in one turn of the event loop in one pipeline."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

_MOST: Final = 128
"""Commands of one pipeline: a larger crowd parts, so that its first replies come soon."""

_Asked = tuple[bytes, "asyncio.Future[Any]"]


class Batches:
    """Commands that travel together where many jobs move at once.

    They are packed in C: redis-py's own way takes a quarter of what a POST costs (measured). A
    caller that gives up leaves its command on the way; it could not know either, from a connection
    of its own, how far it came.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._asked: list[_Asked] = []
        self._sending: set[asyncio.Task[None]] = set()

    def ask(self, *command: Any) -> asyncio.Future[Any]:
        """The reply to a command, or what redis-py raises for it."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._asked.append((pack_command(command), reply))
        if len(self._asked) == 1:
            loop.call_soon(self._flush)
        return reply

    def _flush(self) -> None:
        asked, self._asked = self._asked, []
        for start in range(0, len(asked), _MOST):
            task = asyncio.create_task(self._send(asked[start : start + _MOST]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[_Asked]) -> None:
        for (_, reply), answer in zip(batch, await self._answers(batch), strict=True):
            if reply.done():
                continue
            if isinstance(answer, Exception):
                reply.set_exception(answer)
            else:
                reply.set_result(answer)

    async def _answers(self, batch: list[_Asked]) -> list[Any]:
        try:
            connection = await self._pool.get_connection()
            try:
                await connection.send_packed_command(b"".join([packed for packed, _ in batch]))
                return [await _answer(connection) for _ in batch]
            finally:
                await self._pool.release(connection)
        except Exception as error:
            return [error] * len(batch)


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
