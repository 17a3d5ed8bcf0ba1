"""Listen to channels of Redis for ever, through lost connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from tasks.store.link import Link, dial

log = logging.getLogger("slowcall.listen")

HEARTBEAT_S: Final = 5.0
"""How often the connection is asked for a sign of life; two unanswered ones end it."""
DIAL_S: Final = 5.0
PAUSE_S: Final = (0.05, 1.0)
"""The first and the longest pause before a lost connection is dialled again."""

Hear = Callable[[bytes, bytes, Any], None]
"""Takes what was said (`message`, `subscribe` …), the channel, the message."""


class Subscription(Link):
    """A connection that hears what is published, and hands it on as it comes."""

    def __init__(self, connection: AbstractConnection, hear: Hear) -> None:
        super().__init__(connection)
        self.heard_s = self.loop.time()
        self._hear = hear
        self._end: asyncio.Future[NoReturn] = self.loop.create_future()

    def subscribe(self, *channels: str | bytes) -> None:
        """Hear these, too."""
        self._send("SUBSCRIBE", *channels)

    def unsubscribe(self, channel: bytes) -> None:
        """Hear this one no more."""
        self._send("UNSUBSCRIBE", channel)

    async def keep(self) -> NoReturn:
        """Look after the connection until it is lost. Raises redis-py's ConnectionError, or
        TimeoutError where it gives no sign of life."""
        while True:
            await asyncio.wait([self._end], timeout=HEARTBEAT_S)
            if self._end.done():
                self._end.result()
            if self.loop.time() - self.heard_s > 2 * HEARTBEAT_S:
                raise TimeoutError("no sign of life")
            self._send("PING")

    def receive(self, reply: Any) -> None:
        """What was published, or Redis' word for a command."""
        if isinstance(reply, list) and len(reply) == 3:
            self._hear(*reply)

    def lose(self, error: Exception) -> None:
        """Let `keep` raise it."""
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # one that nobody keeps yet is no news

    def _send(self, *command: str | bytes) -> None:
        self.write(pack_command(command))  # type: ignore[arg-type]


async def listen(redis: Redis, begin: Callable[[Subscription], None], hear: Hear) -> NoReturn:
    """Keep a subscription for ever: dial, `begin` it, `hear` until it is lost, dial again.

    What is said while the connection is down is not heard: nothing may depend on hearing it.
    """
    pause_s, longest_s = PAUSE_S
    while True:
        begun = False
        try:
            async with asyncio.timeout(DIAL_S):
                subscription = Subscription(await dial(redis), hear)
            begun = True
            try:
                begin(subscription)
                await subscription.keep()
            finally:
                await subscription.close()
        except Exception as error:
            if begun or pause_s == PAUSE_S[0]:
                log.warning("no subscription: %r", error)
        pause_s = PAUSE_S[0] if begun else min(2 * pause_s, longest_s)
        await asyncio.sleep(pause_s)
