"""The judgement of failures and the waits after them, as tables."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from tasks.errors import (
    DeadlinePassed,
    InvalidInput,
    JobError,
    NotSent,
    OutcomeUnknown,
    PermanentError,
    RateLimited,
    Rejected,
    StepUnknown,
    StoreUnavailable,
    TransientError,
    Unusable,
)
from tasks.lifecycle import DEFER, FAIL, RETRY, Transition
from tasks.retry import Verdict, asked_wait_s, backoff_s, judge

NOW = 1_700_000_000.0


def verdict(error: Exception, **given: Any) -> Verdict:
    defaults: dict[str, Any] = {
        "attempts": 1,
        "max_attempts": 3,
        "on_unknown": "retry",
        "paid_unknown": False,
        "waited_s": 0.0,
        "max_wait_s": 3600.0,
        "backoff": lambda attempt: 5.0 * attempt,
        "backoff_max_s": 300.0,
    }
    return judge(error, **(defaults | given))


@pytest.mark.parametrize(
    ("error", "transition", "type", "wait_s"),
    [
        (PermanentError("no"), FAIL, "permanent", 0),
        (StepUnknown("no"), FAIL, "permanent", 0),
        (Rejected("no", type="permanent"), FAIL, "permanent", 0),
        (Unusable("no", type="permanent"), FAIL, "permanent", 0),
        (DeadlinePassed("late"), FAIL, "timeout", 0),
        (TransientError("hm"), RETRY, "transient", 5),
        (NotSent("hm"), RETRY, "transient", 5),
        (OutcomeUnknown("cut"), RETRY, "transient", 5),
        (OutcomeUnknown("slow", type="timeout"), RETRY, "timeout", 5),
        (JobError("gone", type="lost"), RETRY, "lost", 5),
        (JobError("who knows", type="unknown"), RETRY, "unknown", 5),
        (TransientError("hm", retry_after_s=2), RETRY, "transient", 5),
        (TransientError("hm", retry_after_s=20), RETRY, "transient", 20),
        (TransientError("hm", retry_after_s=9e9), RETRY, "transient", 300),
        (RateLimited("wait"), DEFER, "rate_limited", 5),
        (RateLimited("wait", retry_after_s=0), DEFER, "rate_limited", 0),
        (RateLimited("wait", retry_after_s=1.5), DEFER, "rate_limited", 1.5),
        (RateLimited("wait", retry_after_s=198300), DEFER, "rate_limited", 300),
        (StoreUnavailable("away"), RETRY, "transient", 5),
        (InvalidInput("wrong"), FAIL, "permanent", 0),
        (KeyError("k"), FAIL, "permanent", 0),
        (MemoryError(), FAIL, "permanent", 0),
        (TimeoutError(), FAIL, "permanent", 0),
        (ExceptionGroup("two", [RateLimited("a"), PermanentError("b")]), FAIL, "permanent", 0),
        (ExceptionGroup("one", [TransientError("a")]), RETRY, "transient", 5),
    ],
    ids=repr,
)
def test_judgements(error: Exception, transition: Transition, type: str, wait_s: float) -> None:
    judged = verdict(error)
    assert (judged.transition, judged.error["type"], judged.wait_s) == (transition, type, wait_s)
    assert judged.reason == (None if transition is FAIL else type)


@pytest.mark.parametrize(("attempts", "transition"), [(1, RETRY), (2, RETRY), (3, FAIL), (4, FAIL)])
def test_the_budget_of_attempts(attempts: int, transition: Transition) -> None:
    judged = verdict(OutcomeUnknown("cut", upstream_status=502), attempts=attempts)
    assert judged.transition is transition
    assert judged.error == {"type": "transient", "message": "cut", "upstream_status": 502}


def test_a_closed_lane_costs_no_attempt_but_has_a_limit() -> None:
    waiting = RateLimited("wait", retry_after_s=100)
    assert verdict(waiting, attempts=3, waited_s=3500).transition is DEFER
    late = verdict(waiting, attempts=3, waited_s=3501)
    assert (late.transition, late.error["type"]) == (FAIL, "rate_limited")


@pytest.mark.parametrize(
    ("error", "type"),
    [
        (OutcomeUnknown("cut"), "unknown"),
        (RateLimited("wait"), "unknown"),
        (Rejected("no", type="permanent"), "permanent"),
    ],
    ids=repr,
)
def test_park_goes_by_the_ledger(error: Exception, type: str) -> None:
    judged = verdict(error, on_unknown="park", paid_unknown=True)
    assert (judged.transition, judged.error["type"]) == (FAIL, type)
    assert verdict(OutcomeUnknown("cut"), on_unknown="park").transition is RETRY
    assert verdict(OutcomeUnknown("cut"), paid_unknown=True).transition is RETRY


def test_a_strangers_exception_is_named_but_not_quoted() -> None:
    class Awkward(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert verdict(KeyError("password")).error["message"] == "The kind raised KeyError."
    assert verdict(Awkward()).error["message"] == "The kind raised Awkward."


@pytest.mark.parametrize(
    ("attempt", "random", "expected"),
    [(1, 0.5, 5), (2, 0.5, 10), (3, 0.5, 20), (1, 0.0, 4.5), (1, 1.0, 5.5), (7, 0.5, 300),
     (7, 1.0, 300), (10_000, 0.5, 300), (0, 0.5, 5)],
)  # fmt: skip
def test_backoff(attempt: int, random: float, expected: float) -> None:
    wait_s = backoff_s(attempt, base_s=5, cap_s=300, jitter=0.1, random=random)
    assert wait_s == pytest.approx(expected)


def in_3_s(**form: bool) -> str:
    return formatdate(NOW + 3, **form)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "2"}, 2),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"Retry-After": "0"}, 0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": in_3_s(usegmt=True)}, 3),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:23 GMT"}, 3),
        ({"Retry-After": "Tuesday, 14-Nov-23 22:13:23 GMT"}, 3),
        ({"Retry-After": "Tue Nov 14 22:13:23 2023"}, 3),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
        ({"Retry-After": "2023-11-14T22:13:23Z"}, 3),
        ({"Retry-After": "abc"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "198300"}, 198300),
        ({"Retry-After": "1e309"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "9" * 400}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "x", "Retry-After": "4"}, 4),
        ({"retry-after-ms": "1500", "Retry-After": "2"}, 2),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-reset-tokens": "850ms"}, 360),
        ({"x-ratelimit-reset-requests": "1h30m0s"}, 5400),
        ({"x-ratelimit-reset-tokens": "7.66s"}, 7.66),
        ({"x-ratelimit-reset-tokens": "12"}, 12),
        ({"x-ratelimit-reset": "1700000030"}, 30),
        ({"X-RateLimit-Reset": "1700000030000"}, 30),
        ({"anthropic-ratelimit-tokens-reset": "2023-11-14T22:13:30Z"}, 10),
        ({"x-ratelimit-reset-tokens": "soon"}, None),
        ({"x-ratelimit-reset-tokens": ""}, None),
        ({"RateLimit": '"hour";r=0;t=42, "day";r=9;t=7'}, 42),
        ({"RateLimit": '"hour";r=0'}, None),
        ({"Retry-After": "1", "x-ratelimit-reset-tokens": "6m0s"}, 1),
        ({"Retry-After": "junk", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        ({"llm_provider-retry-after": "3"}, 3),
        ({}, None),
    ],
    ids=str,
)
def test_what_the_endpoint_asks_for(headers: dict[str, str], expected: float | None) -> None:
    assert asked_wait_s(headers.items(), NOW) == pytest.approx(expected)


def test_of_two_retry_after_fields_the_longer_counts() -> None:
    assert asked_wait_s([("Retry-After", "1"), ("retry-after", "7")], NOW) == 7
