"""The faults of a proof: what the endpoint does by its rules, and what happens to the processes."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from server.prove_parts import House, Part

ENDPOINT: Final[Sequence[dict[str, Any]]] = (
    {"every": 11, "drop": "before"},
    {"every": 13, "drop": "after"},
    {"every": 17, "cut_after": 4},
    {"every": 19, "status": 503},
    {"every": 23, "status": 429, "retry_after": "0.3"},
    {"every": 29, "error_after": 2},
)
RULES: Final = (
    "every 11th call is dropped before it is sold, every 13th after it, every 17th in its stream; "
    "every 19th is refused, every 23rd told to wait, every 29th ended by an error"
)
"""The same in words."""


class Havoc:
    """Does harm to the processes of a house, by a seed: each sort in turn, in a shuffled order.

    `applied` counts what was done; no harm comes to those who are `spared`.
    """

    def __init__(
        self,
        house: House,
        seed: int,
        *,
        lease_s: float,
        say: Callable[[str], None],
        spared: Collection[Part] = (),
    ) -> None:
        self.applied: Counter[str] = Counter()
        self._house = house
        self._random = random.Random(seed)
        self._lease_s = lease_s
        self._say = say
        self._spared = spared
        self._began = time.monotonic()

    def rage(self, for_s: float, *, every_s: float) -> None:
        """One fault after the other for so long, `every_s` apart."""
        moves: list[Callable[[], str]] = []
        while time.monotonic() - self._began < for_s:
            time.sleep(every_s)
            if not moves:
                moves = self._moves()
            what = moves.pop()()
            self.applied[what] += 1
            self._say(f"{time.monotonic() - self._began:.0f} s: {what}")

    def _moves(self) -> list[Callable[[], str]]:
        moves = [
            self._kill_worker,
            self._kill_worker,
            self._kill_worker,
            self._restart_store,
            self._stop_worker,
            self._freeze_worker,
            self._restart_server,
        ]
        self._random.shuffle(moves)
        return moves

    def _kill_worker(self) -> str:
        worker = self._one_of(self._house.workers)
        worker.kill()
        worker.start()
        return "kill -9 of a worker"

    def _stop_worker(self) -> str:
        worker = self._one_of(self._house.workers)
        worker.leave()
        worker.start()
        return "SIGTERM to a worker"

    def _freeze_worker(self) -> str:
        worker = self._one_of(self._house.workers)
        worker.freeze()
        time.sleep(self._lease_s * 1.8)
        worker.thaw()
        return "a worker frozen past its lease"

    def _restart_store(self) -> str:
        self._house.store.kill()
        time.sleep(self._random.uniform(0.1, 1.5) * self._lease_s)
        self._house.store.start()
        return "kill -9 of the store, begun anew"

    def _restart_server(self) -> str:
        server = self._one_of(self._house.servers)
        if self._random.random() < 0.5:
            server.leave()
        else:
            server.kill()
        server.start()
        return "end of a server, begun anew"

    def _one_of(self, parts: list[Part]) -> Part:
        return self._random.choice([part for part in parts if part not in self._spared])
