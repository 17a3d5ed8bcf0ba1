"""Connections to Redis: one way to make them, with their time-outs and retries."""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError

from tasks.errors import SettingsError
from tasks.settings import Settings

_POOL: Final = 64
_ANSWER_S: Final = 5.0


def connect_redis(settings: Settings, *, answer_s: float = _ANSWER_S) -> Redis:
    """A client for the store of `settings`; no request is made yet.

    `answer_s` bounds each reply. A lost connection is made anew twice within a moment, so that a
    dropped idle socket is never an error; outages and silence are left to the caller.
    Raises SettingsError without REDIS_URL (whoever starts a part joins the embedded store first).
    """
    if settings.redis_url is None:
        raise SettingsError("REDIS_URL: not set, and no embedded store was joined")
    pool = BlockingConnectionPool.from_url(
        settings.redis_url.get_secret_value(),
        max_connections=_POOL,
        timeout=_ANSWER_S,
        socket_connect_timeout=1.0,
        socket_timeout=answer_s,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 2, (ConnectionError,)),
    )
    pool.connection_class = type("Telling", (_Telling, pool.connection_class), {})
    return Redis.from_pool(pool)


class _Telling(AbstractConnection):
    """A connection that says that it is lost as redis-py does. uvloop raises a RuntimeError where
    asyncio raises an OSError; a job would fail for good by it when the store goes away."""

    async def on_connect(self) -> None:
        """Say hello. redis-py would ask for the health of a connection that it still opens, and,
        where that is closed at once (a proxy whose store is gone), open the next one for that, and
        so on without an end."""
        interval_s, self.health_check_interval = self.health_check_interval, 0
        try:
            await super().on_connect()
        finally:
            self.health_check_interval = interval_s

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send. Raises redis-py's ConnectionError."""
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error
