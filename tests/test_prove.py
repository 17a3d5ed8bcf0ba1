"""The proof's books: they hold when all is well, and each broken promise is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.prove_books import Books, Delivery
from server.prove_orders import Order, orders
from server.terminal_client import Event
from tests.commands import Command

Spoil = Callable[[Books], Any]


def books(*, honours_keys: bool = True) -> Books:
    """Two orders, each answered at its first call."""
    wanted = orders(2, seed=7)
    deliveries = [_delivery(order) for order in wanted]
    keys = [f"{delivery.job['job_id']}:page%201:h:0" for delivery in deliveries]
    meter = {"requests": 2, "sold": 2, "by_key": dict.fromkeys(keys, 1)}
    return Books(honours_keys, wanted, deliveries, jobs=2, meter=meter)


def _delivery(order: Order) -> Delivery:
    job_id = f"job{order.number}"
    order.job_ids.add(job_id)
    text = " ".join(order.expected)
    sums = {"paid": 1, "open": 0, "rejected": 0, "not_sent": 0, "unknown": 0}
    job = {"job_id": job_id, "status": "done", "result": {"text": text}, "error": None}
    line = {"outcome": "paid", "idempotency_key": f"{job_id}:page 1:h:0"}
    names = ["queued", "running", "delta", "done"]
    log = [Event(str(n), name, {"text": text}) for n, name in enumerate(names, 1)]
    return Delivery(order, job | {"ledger": sums}, [line], log)


def _unsold(book: Books) -> None:
    book.meter["by_key"].popitem()


def _sold_behind_our_back(book: Books) -> None:
    book.meter["by_key"]["job1:page%201:h:9"] = 1


def _asked_behind_our_back(book: Books) -> None:
    book.meter["requests"] += 1


def _sold_again(book: Books) -> None:
    book.meter["by_key"]["job1:page%201:h:0"] = 2


def _lost(book: Books) -> None:
    book.deliveries[0].job |= {"status": "failed", "error": {"type": "lost"}}


def _answered_wrongly(book: Books) -> None:
    book.deliveries[0].job["result"]["text"] = "something else"


def _two_jobs(book: Books) -> None:
    book.orders[0].job_ids.add("job3")
    book.jobs += 1


def _ended_twice(book: Books) -> None:
    log = book.deliveries[0].log
    log.append(Event(str(len(log) + 1), "done", {}))


def _gap(book: Books) -> None:
    del book.deliveries[0].log[1]


def _seen_otherwise(book: Books) -> None:
    book.orders[0].seen = book.deliveries[0].log[:-1]


def _wrong_sums(book: Books) -> None:
    book.deliveries[0].job["ledger"]["open"] = 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_unsold, "never sold"),
        (_sold_behind_our_back, "no ledger line tells of"),
        (_asked_behind_our_back, "more requests than there are lines"),
        (_sold_again, "1 sales were repeats, 0 at most"),
        (_lost, "1 orders were lost"),
        (_answered_wrongly, "not the one to this order"),
        (_two_jobs, "2 orders made 3 jobs"),
        (_ended_twice, "not one final event"),
        (_gap, "a gap"),
        (_seen_otherwise, "saw something else"),
        (_wrong_sums, "other sums"),
    ],
)
def test_a_broken_promise_is_seen(spoil: Spoil, said: str) -> None:
    """Each in its own words."""
    book = books()
    assert book.broken() == []
    spoil(book)
    assert any(said in line for line in book.broken()), book.broken()


def test_a_repeat_needs_a_call_that_was_broken_off() -> None:
    """With an endpoint that ignores keys: as many as there were in doubt, and no more."""
    book = books(honours_keys=False)
    _sold_again(book)
    assert book.broken() == ["1 sales were repeats, 0 at most may be"]
    delivery = book.deliveries[0]
    delivery.lines.append({**delivery.lines[0], "outcome": "unknown"})
    delivery.job["ledger"]["unknown"] = 1
    book.meter["requests"] += 1
    assert book.broken() == []


@pytest.mark.timeout(120)
@pytest.mark.long
def test_the_command(tmp_path: Any) -> None:
    """The shortest proof: its table, its last word, its exit code. `.ci/run` proves for longer."""
    words = ("prove", "--seconds", "10", "--jobs", "12", "--workers", "2", "--seed", "5")
    with Command(*words, data_dir=tmp_path) as command:
        assert command.ends(within_s=110) == 0, command.text
    for row in ("submitted", "calls sold, by its own meter", "lost", "bought twice"):
        assert row in command.text
    assert "The books hold." in command.text
