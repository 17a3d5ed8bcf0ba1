"""The books of the lab model: every call it sold, once for each idempotency key."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from server.lab_answers import LabAnswer

KEPT: Final = 100_000
"""Sales and keys that are remembered; the totals go on."""

State = Literal["open", "answered", "cut", "left"]


@dataclass(slots=True)
class Sale:
    """One answer that the lab computed, and so charges for; `state` says how its delivery went."""

    number: int
    key: str | None
    prompt: str
    input_tokens: int
    output_tokens: int = 0
    state: State = "open"
    replays: int = 0
    answer: LabAnswer = field(repr=False, kw_only=True)

    def line(self) -> dict[str, Any]:
        """The sale as `GET /ledger` shows it."""
        line = asdict(self)
        del line["answer"]
        return line


class Meter:
    """Sells answers and keeps the books; without `honour_keys` a known key is sold to again."""

    def __init__(self, *, honour_keys: bool) -> None:
        self.honour_keys = honour_keys
        self.clear()

    def clear(self) -> None:
        """Begin new books."""
        self.requests = self.refused = self.sold = self.replayed = 0
        self._sales: deque[Sale] = deque(maxlen=KEPT)
        self._by_key: OrderedDict[str, Sale] = OrderedDict()
        self._sold_by_key: Counter[str] = Counter()

    def holds(self, key: str | None) -> bool:
        """Whether the answer under this key is sold, so that it would be told again for nothing."""
        return self.honour_keys and key in self._by_key

    def sell(self, answer: LabAnswer, *, prompt: str, key: str | None) -> Sale:
        """A new sale, or, for a key that was served before, the old one."""
        if key and self.holds(key):
            known = self._by_key[key]
            known.replays += 1
            self.replayed += 1
            return known
        self.sold += 1
        sale = Sale(self.sold, key, prompt, answer.input_tokens, answer=answer)
        self._sales.append(sale)
        if key:
            self._sold_by_key[key] += 1
            self._by_key[key] = sale
            if len(self._by_key) > KEPT:
                oldest, _ = self._by_key.popitem(last=False)
                del self._sold_by_key[oldest]
        return sale

    def ledger(self) -> dict[str, Any]:
        """The books as `GET /ledger` answers them."""
        return {
            "requests": self.requests,
            "sold": self.sold,
            "refused": self.refused,
            "replayed": self.replayed,
            "input_tokens": sum(sale.input_tokens for sale in self._sales),
            "output_tokens": sum(sale.output_tokens for sale in self._sales),
            "by_key": dict(self._sold_by_key),
            "calls": [sale.line() for sale in self._sales],
        }
