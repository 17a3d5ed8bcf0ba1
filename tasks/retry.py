"""PURE: judge what an attempt ended with, and say how long to wait before the next one.

what ended the attempt                     transition   error type
an unknown outcome, on_unknown "park"      fail         unknown
anything outside the tree of errors        fail         permanent
the store away                             retry        transient
deadline passed                            fail         timeout
permanent                                  fail         permanent
rate limited, no place in its lane         defer        rate_limited; fail past MAX_WAIT_S
transient, timeout, unknown, lost          retry        its own; fail when the budget is spent
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, TypedDict

from tasks.errors import (
    DeadlinePassed,
    ErrorType,
    JobError,
    LaneBusy,
    PermanentError,
    SlowcallError,
    StoreUnavailable,
    TransientError,
)
from tasks.lifecycle import DEFER, FAIL, RETRY, Reason, Transition


class ErrorRecord(TypedDict):
    """What the job's `error` says of the failure; the runner adds the attempt."""

    type: ErrorType
    message: str
    upstream_status: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the job goes: the transition, its reason where it goes on, and the wait before that."""

    transition: Transition
    reason: Reason | None
    wait_s: float
    error: ErrorRecord


def judge(
    error: Exception,
    *,
    attempts: int,
    max_attempts: int,
    on_unknown: Literal["retry", "park"],
    paid_unknown: bool,
    waited_s: float,
    max_wait_s: float,
    backoff: Callable[[int], float],
    backoff_max_s: float,
) -> Verdict:
    """The verdict on `error`, by the table above. Never raises.

    `attempts` counts the one that failed. `paid_unknown`: the ledger holds a call that was perhaps
    bought. `waited_s` is the time already spent on closed lanes. `backoff(attempts)` gives the
    seconds to wait where the endpoint named none; what it named is kept up to `backoff_max_s`.
    """
    known = _known(error)
    if known.type == "permanent" or isinstance(known, DeadlinePassed):
        return _fail(known, known.type)
    if paid_unknown and on_unknown == "park":
        return _fail(known, "unknown", "A call may have been bought: a person decides.")
    asked_s = known.retry_after_s
    named_s = None if asked_s is None else min(asked_s, backoff_max_s)
    if known.type == "rate_limited":
        wait_s = backoff(max(attempts, 1)) if named_s is None else named_s
        # A place in a lane may get free at any time; the model's own wish is certain.
        certain_s = 0.0 if isinstance(known, LaneBusy) else wait_s
        if waited_s + certain_s > max_wait_s:
            return _fail(known, known.type, f"It waited {waited_s:.0f} s in all.")
        return Verdict(DEFER, "rate_limited", wait_s, _record(known, known.type))
    if attempts >= max_attempts:
        return _fail(known, known.type)
    wait_s = max(backoff(max(attempts, 1)), named_s or 0.0)
    return Verdict(RETRY, known.type, wait_s, _record(known, known.type))


def _known(error: BaseException) -> JobError:
    """The error as one of the tree; of a group the one that most surely ends the job."""
    if isinstance(error, JobError):
        return error
    if isinstance(error, BaseExceptionGroup):
        leaves = [_known(leaf) for leaf in error.exceptions]
        return next((leaf for leaf in leaves if leaf.type == "permanent"), leaves[0])
    if isinstance(error, StoreUnavailable):
        return TransientError(str(error))
    if isinstance(error, SlowcallError):
        return PermanentError(str(error))
    # Only the name: the text of a stranger's exception can hold anything, a password too.
    return PermanentError(f"The kind raised {type(error).__name__}.")


def _record(error: JobError, type: ErrorType, more: str = "") -> ErrorRecord:
    message = f"{error} {more}".strip()
    return {"type": type, "message": message, "upstream_status": error.upstream_status}


def _fail(error: JobError, type: ErrorType, more: str = "") -> Verdict:
    return Verdict(FAIL, None, 0.0, _record(error, type, more))


def backoff_s(attempt: int, *, base_s: float, cap_s: float, jitter: float, random: float) -> float:
    """Seconds to wait after attempt `attempt` (from 1): base * 2^(n-1) ± jitter, at most `cap_s`.

    `random` is uniform in [0, 1): 0.5 means no jitter.
    """
    doubled = base_s * 2.0 ** min(max(attempt, 1) - 1, 60)
    return min(cap_s, doubled * (1 + jitter * (2 * random - 1)))


_NUMBER = re.compile(r"\d{1,15}(\.\d{0,9})?")
_DURATION = re.compile(
    r"(?=\d)(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_RATE_LIMIT_T = re.compile(r";\s*t=(\d{1,9})")
_BEHIND = "llm_provider-"
_EPOCH_S = 1_000_000_000
_EPOCH_MS = _EPOCH_S * 1000


def asked_wait_s(headers: Iterable[tuple[str, str]], now: float) -> float | None:
    """The seconds that a reply's headers ask us to wait, or None; `now` in seconds of the epoch.

    `retry-after-ms` and `Retry-After` (RFC 9110: seconds or a date; fractions are taken too) come
    first, else the latest of the `…ratelimit…reset…` fields and the `t` of `RateLimit`. Several
    of one sort: the longest. Junk, negative and infinite values are ignored. LiteLLM hands on the
    fields of the model behind it as `llm_provider-…`.
    """
    pairs = [(name.lower().removeprefix(_BEHIND), value.strip()) for name, value in headers]
    plain = [_retry_after_s(name, value, now) for name, value in pairs]
    resets = [_reset_s(name, value, now) for name, value in pairs]
    for found in (plain, resets):
        if waits := [wait for wait in found if wait is not None]:
            return max(waits)
    return None


def _retry_after_s(name: str, value: str, now: float) -> float | None:
    if name == "retry-after-ms" and _NUMBER.fullmatch(value):
        return float(value) / 1000
    if name != "retry-after":
        return None
    return float(value) if _NUMBER.fullmatch(value) else _until(_moments(value), now)


def _reset_s(name: str, value: str, now: float) -> float | None:
    if name == "ratelimit":
        return max(map(float, _RATE_LIMIT_T.findall(value)), default=None)
    if "ratelimit" not in name or "reset" not in name:
        return None
    if _NUMBER.fullmatch(value):
        number = float(value)
        epoch_s = number / 1000 if number >= _EPOCH_MS else number
        return max(0.0, epoch_s - now) if epoch_s >= _EPOCH_S else number
    if match := _DURATION.fullmatch(value):
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    return _until(_moments(value), now)


def _until(moments: Iterator[datetime], now: float) -> float | None:
    """Seconds from `now` to the first of `moments`, 0 when it has passed; None without one."""
    for moment in moments:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - now)
    return None


def _moments(value: str) -> Iterator[datetime]:
    """`value` read as an HTTP date (any of its three forms), then as an ISO 8601 time."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            yield read(value)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
