"""What a house holds while it rests: memory, open files, connections, keys; and what has leaked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import redis

from server.prove_parts import House, Part
from tests.bench.parts import memory_kib
from tests.invariants import Books, faults, origin

PROCESS: Final = (1.1, 8.0)
STORE: Final = (1.1, 1.0)
"""Memory may grow by this factor and so many MiB besides."""
POOLED: Final = 32
"""So many more files and connections there may be: a pool keeps what was needed at once."""
THREADS: Final = 8
PASSING: Final = "op"
"""Replies to scripts: keys that outlive a rest by some minutes, each with its time to live."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A house at rest. Files and threads are sums over the processes that lived on; memory is
    each one's own, by its name."""

    keys: Counter[str]
    passing: int
    wrong: tuple[str, ...]
    connections: int
    streams: int
    files: int
    threads: int
    memory_mib: Mapping[str, float]
    store_mib: float

    @classmethod
    def take(cls, house: House, survivors: Sequence[Part]) -> Reading:
        """The house as it stands; nothing may move meanwhile."""
        with redis.Redis.from_url(house.store.url) as client:
            books = Books.read(client)
            connections = len(client.client_list())
            store_mib = client.info("memory")["used_memory"] / 1024**2
        keys = Counter(origin(key)[0] for key in books.values)
        return cls(
            keys=keys,
            passing=keys.pop(PASSING, 0),
            wrong=tuple(faults(books)),
            connections=connections,
            streams=sum(streams_of(server) for server in house.servers),
            files=sum(len([*Path(f"/proc/{part.pid}/fd").iterdir()]) for part in survivors),
            threads=sum(len([*Path(f"/proc/{part.pid}/task").iterdir()]) for part in survivors),
            memory_mib={part.name: memory_kib(part.pid) / 1024 for part in survivors},
            store_mib=store_mib,
        )

    def row(self) -> dict[str, str]:
        """It for people, by column."""
        return {
            **{name: f"{mib:.1f}" for name, mib in self.memory_mib.items()},
            "files": str(self.files),
            "threads": str(self.threads),
            "clients": str(self.connections),
            "store": f"{self.store_mib:.2f}",
            "keys": str(self.keys.total()),
            "replies": str(self.passing),
        }

    def leaks(self, first: Reading) -> Iterator[str]:
        """What is more than at the first reading, a line each."""
        yield from self.wrong
        for name, more in (self.keys - first.keys).items():
            yield f"{more} more keys of the sort {name}"
        bounds = [
            ("streams", self.streams, 0, 0),
            ("connections", self.connections, first.connections, first.connections + POOLED),
            ("open files", self.files, first.files, first.files + POOLED),
            ("threads", self.threads, first.threads, first.threads + THREADS),
            ("MiB of the store", self.store_mib, first.store_mib, _most(first.store_mib, STORE)),
        ]
        for name, mib in self.memory_mib.items():
            then = first.memory_mib[name]
            bounds.append((f"MiB of {name}", mib, then, _most(then, PROCESS)))
        for what, now, then, most in bounds:
            if now > most:
                yield f"{now:.5g} {what}, {then:.5g} in the beginning, {most:.5g} at most"


def _most(first: float, margin: tuple[float, float]) -> float:
    factor, more = margin
    return first * factor + more


def streams_of(server: Part) -> int:
    """The streams that it serves."""
    metrics = httpx.get(f"{server.url}/metrics", timeout=10, trust_env=False).text
    (line,) = [line for line in metrics.splitlines() if line.startswith("slowcall_streams_open ")]
    return int(float(line.partition(" ")[2]))


def jobs_left(house: House) -> int:
    """Jobs whose record or mark is in the store still."""
    with redis.Redis.from_url(house.store.url) as client:
        books = Books.read(client)
    return len(books.jobs) + len(books.get("expiry", default=[]))
