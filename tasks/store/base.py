"""What both halves of the store stand on: the client, the scripts, the answer to an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tasks.errors import StoreUnavailable
from tasks.store.scripts import AWAY, Scripts, raise_damage

PAUSE_S = 0.2


class StoreBase:
    """A Redis client with our scripts; see `Store.connect`."""

    def __init__(self, redis: Redis, scripts: Scripts, *, patient: bool) -> None:
        self.redis = redis
        self.scripts = scripts
        self._patient = patient

    async def aclose(self) -> None:
        """Close all connections."""
        await self.scripts.batches.aclose()
        await self.redis.aclose()

    async def ask(self, command: Callable[[], Any]) -> Any:
        """Await a plain command. Raises StoreUnavailable, or waits for the store when patient."""
        while True:
            try:
                return await command()
            except AWAY as error:
                if not self._patient:
                    raise StoreUnavailable(f"Redis does not answer: {error}") from error
            except ResponseError as error:
                raise_damage(error)
                raise
            await asyncio.sleep(PAUSE_S)
