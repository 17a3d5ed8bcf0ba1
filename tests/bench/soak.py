"""A soak: the whole house under load and faults for minutes, which has to end as it began.

    make soak ARGS="--minutes 20"

In each of some laps orders come, are posted twice, watched to the end and from time to time;
one worker and one server are harmed, the store is killed, the model misbehaves. Then the house
rests until all jobs have expired, and is looked at. The first lap warms it up. Exit 0: nothing
leaked, every job ended, nothing was lost or bought twice.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from server.prove_books import Books, Delivery
from server.prove_faults import ENDPOINT, Havoc
from server.prove_orders import Customers, Order, orders
from server.prove_parts import House, Part, await_that, meter, misbehave
from tests.bench.readings import Reading, jobs_left, streams_of

LAPS: Final = 4
KEEP_S: Final = 15.0
REST_S: Final = KEEP_S + 5
ORDERS_PER_S: Final = 2.0
FAULT_EVERY_S: Final = 4.0
LEASE_S: Final = 1.0
PASSERS: Final = 12
LATELY: Final = 30
"""The jobs that somebody passes by: older ones have expired."""
SETTINGS: Final = {
    "SLOWCALL_KEEP_S": str(KEEP_S),
    "SLOWCALL_LEASE_S": str(LEASE_S),
    "SLOWCALL_DRAIN_S": str(LEASE_S),
    "SLOWCALL_BACKOFF_S": "0.1",
    "SLOWCALL_BACKOFF_MAX_S": "0.5",
    "SLOWCALL_PING_S": "1",
    "SLOWCALL_QUOTA": "0",
    "SLOWCALL_LAB_DELAY_S": "0.3",
    "SLOWCALL_LAB_TOKENS_PER_S": "25",
}


@dataclass(slots=True)
class Soak:
    """A house that is soaked, and all that came of it so far."""

    house: House
    seed: int
    orders: list[Order] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    passed_by: int = 0

    @property
    def survivors(self) -> tuple[Part, Part]:
        """The worker and the server that nobody harms."""
        return self.house.workers[0], self.house.servers[0]

    def lap(self, number: int, for_s: float) -> Reading:
        """Load and faults for so long, then rest; what the house holds then."""
        seed = 1000 * self.seed + number
        wanted = orders(max(1, int(for_s * ORDERS_PER_S)), seed)
        urls = [server.url for server in self.house.servers]
        havoc = Havoc(self.house, seed, lease_s=LEASE_S, say=lambda _: None, spared=self.survivors)
        with closing(Customers(urls, seed)) as customers, ThreadPoolExecutor(64) as crowd:
            began = time.monotonic()
            served = [crowd.submit(self._serve, order, began, customers) for order in wanted]
            passing = [
                crowd.submit(pass_by, urls, wanted, began + for_s, random.Random(seed + number))
                for number in range(PASSERS)
            ]
            havoc.rage(for_s, every_s=FAULT_EVERY_S)
            self.deliveries += [delivery.result() for delivery in served]
            self.passed_by += sum(passer.result() for passer in passing)
        self.orders += wanted
        self.faults += havoc.applied
        await_that(lambda: not jobs_left(self.house), "all jobs have expired", KEEP_S + 30)
        await_that(lambda: not any(map(streams_of, self.house.servers)), "no stream is open")
        self._begin_anew()
        return Reading.take(self.house, self.survivors)

    def _begin_anew(self) -> None:
        """Those that were harmed: what pools they have come to is not what is looked at."""
        others = [*self.house.workers[1:], *self.house.servers[1:]]
        for part in others:
            part.leave()
            part.start()
        for server in self.house.servers:
            server.await_ready()

    @staticmethod
    def _serve(order: Order, began: float, customers: Customers) -> Delivery:
        """Place an order when it is due, stay to its end, and read its books before they expire."""
        time.sleep(max(0.0, began + order.number / ORDERS_PER_S - time.monotonic()))
        for _ in range(2 if order.number % 3 == 0 else 1):
            customers.post(order)
        order.seen = customers.watch(order, live=True)
        path = f"/jobs/{min(order.job_ids)}"
        while True:
            job, lines = customers.read(path), customers.read(f"{path}/ledger")
            if customers.read(path) == job:  # a call may be settled late, and in between
                return Delivery(order, job, lines, customers.watch(order, live=False))

    def books(self, lab: Part) -> Books:
        """The books of all laps."""
        jobs = {job_id for order in self.orders for job_id in order.job_ids}
        return Books(True, self.orders, self.deliveries, len(jobs), meter(lab), self.faults)


def pass_by(urls: Sequence[str], wanted: Sequence[Order], until: float, dice: random.Random) -> int:
    """Open streams of jobs and of all, and leave each after some of its bytes; how many."""
    opened = 0
    with httpx.Client(timeout=10, trust_env=False) as http:
        while time.monotonic() < until:
            known = [job_id for order in wanted for job_id in list(order.job_ids)][-LATELY:]
            path = f"{dice.choice(known)}/stream" if known and dice.random() < 0.8 else "stream"
            with (
                suppress(httpx.TransportError),
                http.stream("GET", f"{dice.choice(urls)}/jobs/{path}") as response,
            ):
                opened += response.status_code == 200
                for _ in zip(range(dice.randint(1, 8)), response.iter_raw(), strict=False):
                    pass
            time.sleep(dice.random())
    return opened


def main() -> None:
    """Soak a house, print what it held after each lap and all that is wrong with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="about so long in all (20)")
    parser.add_argument("--seed", type=int, default=1, help="of orders and faults (1)")
    asked = parser.parse_args()
    console = Console(highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="slowcall-") as folder,
        House(Path(folder), SETTINGS) as house,
    ):
        lab = house.add_lab()
        misbehave(lab, *ENDPOINT)
        house.add(workers=2, servers=2)
        soak = Soak(house, asked.seed)
        for_s = max(10.0, 60 * asked.minutes / LAPS - REST_S)
        readings = []
        for number in range(1, LAPS + 1):
            with console.status(f"lap {number} of {LAPS}"):
                readings.append(soak.lap(number, for_s))
            console.print(f"lap {number} of {LAPS}: {len(soak.orders)} orders in all")
        books = soak.books(lab)
    wrong = [*readings[-1].leaks(readings[0]), *books.broken()]
    show(console, soak, readings, books)
    for line in wrong or ["Nothing leaked, and the books hold."]:
        console.print(line, markup=False)
    sys.exit(1 if wrong else 0)


def show(console: Console, soak: Soak, readings: Sequence[Reading], books: Books) -> None:
    """What was done to the house, and what it held after each lap."""
    console.print(
        f"{len(soak.orders)} orders, {books.delivered} delivered, {books.lost} lost, "
        f"{books.twice} bought twice; {soak.passed_by} streams opened and left; "
        f"{soak.faults.total()} faults:",
        soft_wrap=True,
    )
    for fault, times in soak.faults.most_common():
        console.print(f"  {times:3} × {fault}")
    console.print("At rest: MiB of each, counts, keys besides the replies that expire in minutes")
    table = Table(box=None, padding=(0, 0, 0, 2))
    rows: list[dict[str, Any]] = [reading.row() for reading in readings]
    for column in ("lap", *rows[0]):
        table.add_column(column, justify="right")
    for number, row in enumerate(rows, 1):
        table.add_row(str(number), *row.values())
    console.print(table)


if __name__ == "__main__":
    main()
