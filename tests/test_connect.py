"""Connections to Redis: a lost one is said to be lost, whatever the event loop calls it."""

from __future__ import annotations

import pytest
import uvloop
from redis.exceptions import ConnectionError

from tasks.settings import Settings
from tasks.store.connect import connect_redis


def test_a_closed_transport_is_a_lost_connection(settings: Settings) -> None:
    """uvloop raises a RuntimeError, which would pass for a fault of the job."""

    async def send_on_a_closed_one() -> None:
        redis = connect_redis(settings)
        connection = await redis.connection_pool.get_connection("PING")  # type: ignore[no-untyped-call]
        connection._writer.transport.abort()
        with pytest.raises(ConnectionError):
            await connection.send_command("PING", check_health=False)
        await redis.connection_pool.release(connection)
        await redis.aclose()

    uvloop.run(send_on_a_closed_one())
