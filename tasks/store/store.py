"""The store as one value: a connection, the scripts, the verbs of servers and of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.keys import name
from tasks.settings import Settings
from tasks.store.client_verbs import ClientVerbs
from tasks.store.connect import connect_redis
from tasks.store.fragments import loads
from tasks.store.scripts import Scripts
from tasks.store.worker_verbs import WorkerVerbs


class Store(ClientVerbs, WorkerVerbs):
    """Everything that is known of jobs, in Redis."""

    @classmethod
    def connect(
        cls,
        settings: Settings,
        *,
        patient: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> Store:
        """The store of `settings`; no request is made yet.

        A `patient` store waits an outage out (a worker's way); else a call that cannot reach Redis
        raises StoreUnavailable within about a second. `clock` answers ms (None: Redis TIME).
        """
        redis = connect_redis(settings)
        scripts = Scripts(
            redis, keep_ms=round(settings.keep_s * 1000), patient=patient, clock=clock
        )
        return cls(redis, scripts, patient=patient)

    async def ping(self) -> None:
        """Raises StoreUnavailable when Redis does not answer."""
        await self.ask(lambda: self.redis.ping())

    async def workers(self) -> list[dict[str, Any]]:
        """What each live worker says of itself."""
        said = await self.ask(lambda: self.redis.hgetall(name("workers")))
        return [
            {"worker": worker.decode(), **loads(about.partition(b"\n")[2])}
            for worker, about in said.items()
        ]

    async def live_workers(self) -> int:
        """How many workers renewed their leases lately."""
        return len(await self.workers())
