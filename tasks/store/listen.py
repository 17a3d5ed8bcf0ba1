"""Listen on fixed channels for ever, through lost connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

log = logging.getLogger("slowcall.listen")

_LOOK_S = 5.0
_PAUSE_S = 0.2


async def listen(redis: Redis, channels: dict[str, Callable[[bytes], None]]) -> None:
    """Hand each message to its channel's function until cancelled.

    What is said while the connection is down is not heard: nothing may depend on hearing it.
    """
    while True:
        try:
            async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(*channels)
                while True:
                    message = await pubsub.get_message(timeout=_LOOK_S)
                    if message is None:
                        await pubsub.ping()
                    elif message["type"] == "message":
                        channels[message["channel"].decode()](message["data"])
        except (RedisError, OSError) as error:
            log.debug("the channels are away: %s", error)
            await asyncio.sleep(_PAUSE_S)
