"""How many streams a process serves, in all and to each user, and how many it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Seats:
    """Counts open streams against a limit in all and one for each user; 0 is no limit."""

    def __init__(self, *, limit: int, user_limit: int) -> None:
        self._limit, self._user_limit = limit, user_limit
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        """All open streams of this process."""
        return self._taken.total()

    @contextmanager
    def take(self, user_id: str | None) -> Iterator[str | None]:
        """Hold a seat; answers why there is none, in words. Nobody in particular (None) has no
        limit of their own."""
        if refused := self._full(user_id):
            yield refused
            return
        self._taken[user_id] += 1
        try:
            yield None
        finally:
            self._taken[user_id] -= 1
            if not self._taken[user_id]:
                del self._taken[user_id]

    def _full(self, user_id: str | None) -> str | None:
        if 0 < self._limit <= self.taken:
            return "this server has as many streams as SLOWCALL_MAX_STREAMS allows"
        if user_id is not None and 0 < self._user_limit <= self._taken[user_id]:
            return "you have as many streams as SLOWCALL_USER_STREAMS allows"
        return None
