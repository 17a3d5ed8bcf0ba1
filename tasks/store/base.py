"""What both halves of the store stand on: the client, the scripts, the answer to an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from tasks.errors import RecordDamaged
from tasks.store.outage import FAILED, meaning_of
from tasks.store.scripts import Scripts

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
            except FAILED as error:
                meaning = meaning_of(error)
                if not self._patient or isinstance(meaning, RecordDamaged):
                    raise meaning from error
            await asyncio.sleep(PAUSE_S)
