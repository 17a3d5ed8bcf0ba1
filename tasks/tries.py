"""Try a step again within one attempt, where that is its policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tasks.errors import CallFailed, DeadlinePassed, JobError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A step that failed in a way that may pass is tried again up to `times` times.

    The first of these comes after `wait_s` seconds, each other one after twice the wait before it.
    """

    times: int = 0
    wait_s: float = 1.0


ONCE: Final = Retry()
"""No second try: what fails ends the attempt, and the job's own policy decides."""


async def tried(make: Callable[[], Awaitable[T]], retry: Retry, *, park: bool) -> T:
    """What `make` answers, in the end. Raises what the last try raised.

    `park`: a call that was perhaps bought is not tried again, for a person decides.
    """
    wait_s = retry.wait_s
    for _ in range(retry.times):
        try:
            return await make()
        except JobError as error:
            if not _may_pass(error, park):
                raise
            await asyncio.sleep(max(wait_s, error.retry_after_s or 0))
            wait_s *= 2
    return await make()


def _may_pass(error: JobError, park: bool) -> bool:
    in_doubt = isinstance(error, CallFailed) and error.outcome == "unknown"
    passing = error.type in ("transient", "timeout", "unknown")
    return passing and not isinstance(error, DeadlinePassed) and not (park and in_doubt)
