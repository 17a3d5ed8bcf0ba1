"""PURE: the books of a proof, and every promise that they break.

A key is what an endpoint is asked under: job, step, request, number. The endpoint's own meter says
how often it sold under each; the ledgers of the jobs say what we know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from server.prove_orders import Order
from server.terminal_client import Event
from tasks.lifecycle import FINAL, Status

OUTCOMES = ("paid", "rejected", "not_sent", "unknown")


@dataclass(slots=True)
class Delivery:
    """What became of one job: its record, its ledger, its whole log as a replay shows it."""

    order: Order
    job: dict[str, Any]
    lines: list[dict[str, Any]]
    log: list[Event]

    def faults(self) -> list[str]:
        """What is wrong with it, a line each."""
        who = f"{self.order.key}:"
        names = [event.name for event in self.log]
        if self.job["status"] != Status.DONE:
            return [f"{who} lost: {self.job['status']}, {self.job['error']}"]
        text = self.job["result"]["text"]
        checks = {
            "two posts under one key made two jobs": len(self.order.job_ids) > 1,
            "the answer is not the one to this order": not self._is_answered_by(text),
            "not one final event at the end": [n for n in names if n in FINAL] != names[-1:],
            "its log has a gap": _ids(self.log) != list(range(1, len(self.log) + 1)),
            "whoever watched it saw something else": self.order.seen not in (None, self.log),
            "the text streamed is not the text stored": self._streamed() not in ("", text),
            "its ledger has other sums than its lines": self._sums() != self._line_sums(),
        }
        return [f"{who} {what}" for what, wrong in checks.items() if wrong]

    def _is_answered_by(self, text: str) -> bool:
        return all(part in text for part in self.order.expected)

    def _streamed(self) -> str:
        parts: list[str] = []
        for event in self.log:
            if event.name == Status.RUNNING:
                parts.clear()
            elif event.name == "delta":
                parts.append(event.data["text"])
        return "".join(parts)

    def _sums(self) -> list[int]:
        return [self.job["ledger"][outcome] for outcome in ("open", *OUTCOMES)]

    def _line_sums(self) -> list[int]:
        found = Counter(line["outcome"] for line in self.lines)
        return [found[outcome] for outcome in ("open", *OUTCOMES)]


@dataclass(slots=True)
class Books:
    """All of one round: orders and what became of them, and what the endpoint's meter says."""

    honours_keys: bool
    orders: Sequence[Order]
    deliveries: Sequence[Delivery]
    jobs: int
    meter: dict[str, Any]
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> dict[str, int]:
        """Ledger lines by outcome."""
        found = Counter(line["outcome"] for line in self._all_lines())
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def delivered(self) -> int:
        """Jobs whose right answer was delivered, once."""
        return sum(not delivery.faults() for delivery in self.deliveries)

    @property
    def lost(self) -> int:
        """Orders that a server took and nobody got an answer to."""
        ended = [delivery for delivery in self.deliveries if delivery.job["status"] == Status.DONE]
        return len(self.orders) - len(ended)

    @property
    def twice(self) -> int:
        """Sales of a step beyond its first."""
        sold: Counter[str] = Counter()
        for key, times in self.meter["by_key"].items():
            sold[key.rpartition(":")[0]] += times
        return sum(times - 1 for times in sold.values())

    @property
    def in_doubt(self) -> int:
        """Calls that a fault broke off: no answer came (`unknown`), or it came when the step had
        been asked for again."""
        paid = Counter(key for key, outcome in self._keys() if outcome == "paid")
        return self.lines["unknown"] + sum(times - 1 for times in paid.values())

    def broken(self) -> list[str]:
        """Every promise that is broken, a line each."""
        faults = [fault for delivery in self.deliveries for fault in delivery.faults()]
        return faults + [what for what, holds in self._promises().items() if not holds]

    def _promises(self) -> dict[str, bool]:
        paid = {key for key, outcome in self._keys() if outcome == "paid"}
        unknown = {key for key, outcome in self._keys() if outcome == "unknown"}
        sold = set(self.meter["by_key"])
        allowed = 0 if self.honours_keys else self.in_doubt
        return {
            f"{len(self.orders)} orders made {self.jobs} jobs": self.jobs == len(self.orders),
            f"{self.lost} orders were lost": self.lost == 0,
            "something was paid that the endpoint never sold": paid <= sold,
            "something was sold that no ledger line tells of": sold <= paid | unknown,
            "the endpoint had more requests than there are lines": self.meter["requests"]
            <= sum(self.lines.values()) - self.lines["not_sent"],
            f"{self.twice} sales were repeats, {allowed} at most may be": self.twice <= allowed,
        }

    def _all_lines(self) -> Iterable[dict[str, Any]]:
        return (line for delivery in self.deliveries for line in delivery.lines)

    def _keys(self) -> Iterable[tuple[str, str]]:
        for delivery in self.deliveries:
            for line in delivery.lines:
                yield quote(line["idempotency_key"], safe=":"), line["outcome"]


def _ids(log: Sequence[Event]) -> list[int]:
    return [int(event.id) for event in log if event.id.isdecimal()]
