"""The store as one value: a connection, the scripts, the verbs of servers and of workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tasks.keys import ALL, name
from tasks.lifecycle import Status
from tasks.settings import Settings
from tasks.store.client_verbs import ClientVerbs
from tasks.store.connect import connect_redis
from tasks.store.constants import lua_constants
from tasks.store.damage import Damage
from tasks.store.fragments import iso, loads, quoted
from tasks.store.outbox import Outbox
from tasks.store.run_verbs import RunVerbs
from tasks.store.scripts import Scripts
from tasks.store.worker_verbs import WorkerVerbs

_TRACE: Final = re.compile(rb'"traceparent":"[0-9a-f]+-([0-9a-f]+)-')


class Store(ClientVerbs, WorkerVerbs, RunVerbs, Outbox, Damage):
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
        scripts = Scripts(redis, constants=lua_constants(settings), patient=patient, clock=clock)
        return cls(redis, scripts, patient=patient)

    async def ping(self) -> None:
        """Raises StoreUnavailable when Redis does not answer."""
        await self.ask(lambda: self.redis.ping())

    async def workers(self) -> list[dict[str, Any]]:
        """What each worker that renewed within its last lease says of itself."""
        said = await self.ask(lambda: self.redis.hgetall(name("workers")))
        seconds, _ = await self.ask(lambda: self.redis.time())
        workers = []
        for worker, words in said.items():
            renewed_ms, _, about = words.partition(b"\n")
            facts = loads(about)
            if int(renewed_ms) / 1000 >= seconds - facts["lease_s"]:
                workers.append({"worker": worker.decode(), **facts})
        return sorted(workers, key=lambda facts: str(facts["since"]))

    async def live_workers(self) -> int:
        """How many workers live."""
        return len(await self.workers())

    async def trace_id(self, job_id: str) -> str | None:
        """The trace that began with the job's POST, in hex; None without one."""
        options = await self.ask(lambda: self.redis.hget(name("job", job_id), "options"))
        found = _TRACE.search(options or b"")
        return found[1].decode() if found else None

    async def figures(self) -> dict[tuple[str, ...], int]:
        """What the scripts count over all servers and workers, by name and labels."""
        counted = await self.ask(lambda: self.redis.hgetall(name("figures")))
        return {tuple(field.decode().split("\n")): int(n) for field, n in counted.items()}

    async def stats(self) -> dict[str, Any]:
        """How much waits and for how long (seconds), how much runs, who works, the lanes."""

        async def counts() -> Any:
            async with self.redis.pipeline(transaction=True) as pipe:
                pipe.zcard(name("waiting"))
                pipe.zrange(name("waiting"), 0, 0, withscores=True)
                pipe.zcard(name("index", ALL, quoted(Status.RUNNING), ALL))
                pipe.time()
                return await pipe.execute()

        depth, oldest, running, (seconds, micros) = await self.ask(counts)
        wait_s = seconds + micros / 1e6 - oldest[0][1] / 1000 if oldest else 0.0
        workers = await self.workers()
        return {
            "queue_depth": depth,
            "running": running,
            "oldest_wait_s": round(max(0.0, wait_s), 3),
            "live_workers": len(workers),
            "workers": workers,
            "lanes": await self.lanes(),
        }

    async def lanes(self) -> list[dict[str, Any]]:
        """For each model with something going on: calls open and at once (0: any number), jobs in
        line, and when it opens again, where the model asked for a pause."""
        return [
            {
                "model": model.decode(),
                "open": open,
                "limit": limit,
                "in_line": in_line,
                "opens_at": iso(float(opens) / 1000) if opens else None,
            }
            for model, open, limit, in_line, opens in await self.scripts.call("look_at_lanes")
        ]
