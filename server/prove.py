"""`slowcall prove`: the paid-once proof, with real parts, real faults and a metered model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from server.prove_books import Books, Delivery
from server.prove_faults import ENDPOINT, RULES, Havoc
from server.prove_orders import Customers, Order, orders
from server.prove_parts import House, await_that, meter, misbehave
from tasks.lifecycle import FINAL

SETTLE_S: Final = 90.0
"""As long as the jobs may take to end once the faults are over."""
_AROUND_S: Final = 11.0
"""What a round takes beside its faults: starts, the last jobs, the reading of the books."""
_POSTING: Final = 0.8
"""The part of a round's faults during which orders come in."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a proof is run: about `seconds` in all, `jobs` and `workers` in each of two rounds."""

    seconds: float = 45
    jobs: int = 60
    workers: int = 3
    lease_s: float = 1
    seed: int = 1

    @property
    def faults_s(self) -> float:
        """How long faults go on in one round."""
        return max(3.0, self.seconds / 2 - _AROUND_S)


def prove(plan: Plan, console: Console) -> bool:
    """Run both rounds, print the table; whether all promises held."""
    console.print(
        f"Twice {plan.jobs} orders to 2 servers and {plan.workers} workers with leases of "
        f"{plan.lease_s:g} s, seed {plan.seed}."
    )
    console.print(f"The endpoints fail by rule: {RULES}.")
    books = [_told_round(plan, honours_keys, console) for honours_keys in (True, False)]
    console.print(table(books))
    broken = [line for book in books for line in book.broken()]
    for line in broken or ["The books hold."]:
        console.print(line, markup=False)
    return not broken


def _told_round(plan: Plan, honours_keys: bool, console: Console) -> Books:
    manner = "honours" if honours_keys else "ignores"
    console.print(f"\nAn endpoint that {manner} Idempotency-Key, and")
    with console.status("starting") as status:
        books = _round(plan, honours_keys, status.update)
    for fault, times in books.faults.most_common():
        console.print(f"  {times:3} × {fault}")
    return books


def _round(plan: Plan, honours_keys: bool, say: Say) -> Books:
    settings = {
        "SLOWCALL_LEASE_S": str(plan.lease_s),
        "SLOWCALL_DRAIN_S": str(plan.lease_s),
        "SLOWCALL_BACKOFF_S": "0.1",
        "SLOWCALL_BACKOFF_MAX_S": "0.5",
        "SLOWCALL_QUOTA": "0",
        "SLOWCALL_LAB_DELAY_S": "0.3",
        "SLOWCALL_LAB_TOKENS_PER_S": "25",
        "SLOWCALL_LAB_HONOURS_KEYS": str(honours_keys),
    }
    with (
        tempfile.TemporaryDirectory(prefix="slowcall-") as folder,
        House(Path(folder), settings) as house,
    ):
        return _round_in(house, plan, honours_keys, say)


def _round_in(house: House, plan: Plan, honours_keys: bool, say: Say) -> Books:
    lab = house.add_lab()
    misbehave(lab, *ENDPOINT)
    house.add(workers=plan.workers, servers=2)
    wanted = orders(plan.jobs, plan.seed)
    with closing(Customers([server.url for server in house.servers], plan.seed)) as customers:
        havoc = Havoc(house, plan.seed, lease_s=plan.lease_s, say=say)
        with ThreadPoolExecutor(max_workers=64) as crowd:
            ends = _place(wanted, customers, crowd, plan.faults_s * _POSTING)
            havoc.rage(plan.faults_s, every_s=max(0.4, plan.lease_s * 0.4))
            say("the last orders")
            for end in ends:
                end.result()
        _await_ends(customers)
        jobs = {job["job_id"]: job for job in customers.jobs()}
        deliveries = [_delivery(order, jobs, customers) for order in wanted]
    return Books(honours_keys, wanted, deliveries, len(jobs), meter(lab), havoc.applied)


def _place(
    wanted: list[Order], customers: Customers, crowd: ThreadPoolExecutor, within_s: float
) -> list[Future[None]]:
    """Place the orders one after the other; every third one twice at once, every fifth watched."""
    began = time.monotonic()

    def place(order: Order) -> None:
        due = began + within_s * order.number / len(wanted)
        time.sleep(max(0.0, due - time.monotonic()))
        again = crowd.submit(customers.post, order) if order.number % 3 == 0 else None
        customers.post(order)
        if again:
            again.result()
        if order.number % 5 == 0:
            order.seen = customers.watch(order, live=True)

    clerks = ThreadPoolExecutor(max_workers=16)
    ends = [clerks.submit(place, order) for order in wanted]
    clerks.shutdown(wait=False)
    return ends


def _await_ends(customers: Customers) -> None:
    def unended() -> list[dict[str, Any]]:
        return [job for job in customers.jobs() if job["status"] not in FINAL]

    await_that(lambda: not unended(), "every job is final", SETTLE_S)


def _delivery(order: Order, jobs: dict[str, Any], customers: Customers) -> Delivery:
    job_id = min(order.job_ids)
    ledger = customers.read(f"/jobs/{job_id}/ledger")
    return Delivery(order, jobs[job_id], ledger, customers.watch(order, live=False))


def table(books: list[Books]) -> Table:
    """What was submitted, bought, delivered; a column for each endpoint."""
    drawn = Table(box=box.SIMPLE)
    drawn.add_column("")
    for book in books:
        drawn.add_column(f"{'honours' if book.honours_keys else 'ignores'} keys", justify="right")
    rows = [_rows(book) for book in books]
    for name in rows[0]:
        drawn.add_row(name, *(str(row[name]) for row in rows))
        if name in _LAST_OF_GROUP:
            drawn.add_section()
    return drawn


_LAST_OF_GROUP: Final = {"jobs", "calls sold, by its own meter", "  unknown", "faults at processes"}


def _rows(book: Books) -> dict[str, Any]:
    sent_by_us = sum(book.lines.values())
    return {
        "submitted": len(book.orders),
        "  posts, with repeats": sum(order.posts for order in book.orders),
        "jobs": book.jobs,
        "requests to the endpoint": book.meter["requests"],
        "calls sold, by its own meter": book.meter["sold"],
        "ledger lines": sent_by_us,
        **{f"  {outcome.replace('_', ' ')}": count for outcome, count in book.lines.items()},
        "faults at processes": sum(book.faults.values()),
        "delivered": book.delivered,
        "lost": book.lost,
        "bought twice": book.twice,
        "  calls broken off by a fault": book.in_doubt,
    }
