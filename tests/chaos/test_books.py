"""The books after the worst: every job final, delivered once, no sale that no line tells of."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from server.prove_books import Books, Delivery
from server.prove_faults import ENDPOINT
from server.prove_orders import Customers, orders
from server.prove_parts import meter, misbehave
from tasks.lifecycle import FINAL
from tests.chaos.conftest import Build
from tests.conftest import wait_until

ORDERS = 300


@pytest.mark.parametrize(
    "for_s",
    [
        pytest.param(10, marks=pytest.mark.timeout(180)),
        pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(300)]),
    ],
)
def test_a_worker_dies_every_second(build: Build, for_s: int) -> None:
    """300 jobs, an endpoint that fails, three restarts of the store."""
    house = build(SLOWCALL_LAB_DELAY_S="0.1", SLOWCALL_BACKOFF_MAX_S="0.5")
    lab = house.add_lab()
    misbehave(lab, *ENDPOINT)
    house.add(workers=4, servers=2)
    wanted = orders(ORDERS, seed=for_s)
    choice = random.Random(for_s)
    with closing(Customers([server.url for server in house.servers], for_s)) as customers:
        with ThreadPoolExecutor(max_workers=8) as crowd:
            posts = [crowd.submit(customers.post, order) for order in wanted]
            for second in range(for_s):
                next_at = time.monotonic() + 1
                worker = choice.choice(house.workers)
                worker.kill()
                worker.start()
                if second % (for_s // 3) == 2:
                    house.store.kill()
                    house.store.start()
                _wait_for(next_at)
            for post in posts:
                post.result()
        wait_until(
            lambda: all(job["status"] in FINAL for job in customers.jobs()), "all jobs end", 90
        )
        jobs = {job["job_id"]: job for job in customers.jobs()}
        deliveries = []
        for order in wanted:
            (job_id,) = order.job_ids
            lines = customers.read(f"/jobs/{job_id}/ledger")
            log = customers.watch(order, live=False)
            deliveries.append(Delivery(order, jobs[job_id], lines, log))
    books = Books(True, wanted, deliveries, len(jobs), meter(lab))
    assert books.broken() == []
    assert (books.delivered, books.lost, books.twice) == (ORDERS, 0, 0)


def _wait_for(at: float) -> None:
    wait_until(lambda: time.monotonic() > at, "the next second")
