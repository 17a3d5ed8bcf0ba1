"""How many streams a process serves, in all and to each user, and how many it may."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager


class Seats:
    """Counts open streams against a limit in all and one for each user; 0 is no limit."""

    def __init__(self, *, limit: int, user_limit: int) -> None:
        self._limit, self._user_limit = limit, user_limit
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        """All open streams of this process."""
        return self._taken.total()

    def take(self, user_id: str | None) -> AbstractContextManager[str | None]:
        """Hold a seat; answers why there is none, in words. Nobody in particular (None) has no
        limit of their own."""
        return _Seat(self, user_id)

    def sit_down(self, user_id: str | None) -> None:
        """Take a seat that is free."""
        self._taken[user_id] += 1

    def get_up(self, user_id: str | None) -> None:
        """Give a seat back."""
        self._taken[user_id] -= 1
        if not self._taken[user_id]:
            del self._taken[user_id]

    def refusal(self, user_id: str | None) -> str | None:
        """Why there is no seat, in words; None: there is one."""
        if 0 < self._limit <= self.taken:
            return "this server has as many streams as SLOWCALL_MAX_STREAMS allows"
        if user_id is not None and 0 < self._user_limit <= self._taken[user_id]:
            return "you have as many streams as SLOWCALL_USER_STREAMS allows"
        return None


class _Seat(AbstractContextManager[str | None]):
    """A seat while it is held. No generator, whose frame would stay with every stream."""

    __slots__ = ("_seats", "_user_id", "_held")

    def __init__(self, seats: Seats, user_id: str | None) -> None:
        self._seats, self._user_id, self._held = seats, user_id, False

    def __enter__(self) -> str | None:
        refused = self._seats.refusal(self._user_id)
        if refused is None:
            self._seats.sit_down(self._user_id)
            self._held = True
        return refused

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._seats.get_up(self._user_id)
