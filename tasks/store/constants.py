"""What the scripts know of the settings and of the lifecycle, written as Lua."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tasks.keys import FEED_LENGTH, OP_KEEP_S
from tasks.lifecycle import EXPIRE, REVIVE, START, TAKE_OVER, WAITING, Reason, Status
from tasks.settings import Concurrency, RetryRule, Settings, name_of_target
from tasks.store.fragments import error_template, quoted, status_set

BUCKETS_MS: Final = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000),
    *(10_000, 30_000, 60_000, 120_000, 300_000, 600_000),
)
"""The upper bounds of every histogram that the scripts count."""

_LOST: Final[Reason] = "lost"


def lua_constants(settings: Settings) -> str:
    """A `local` for each: times in ms, limits, and the words that a script enters by itself.

    They are in the text, and not in the arguments of each call, so that Redis reads them once.
    """
    constants = {
        "KEEP_MS": str(round(settings.keep_s * 1000)),
        "OP_KEEP_MS": str(OP_KEEP_S * 1000),
        "FEED_LENGTH": str(FEED_LENGTH),
        "MAX_WAIT_MS": str(round(settings.max_wait_s * 1000)),
        "LEASE_MS": str(round(settings.lease_s * 1000)),
        "LONGEST_PAUSE_MS": str(round(settings.backoff_max_s * 1000)),
        "BUCKETS_MS": f"{{{', '.join(map(str, BUCKETS_MS))}}}",
        "ALERT_WINDOW_MS": str(round(settings.alert_window_s * 1000)),
        "ALERT_TARGETS": _list(map(name_of_target, settings.alert_urls)),
        "QUOTA": str(settings.quota),
        "RULES": _rules(settings.auto_retry),
        "MODEL_LIMITS": _limits(settings.model_concurrency),
        "KIND_LIMITS": _limits(settings.kind_concurrency),
        **{name: _text(word) for name, word in _words().items()},
    }
    return "".join(f"local {name} = {value}\n" for name, value in constants.items())


def _words() -> dict[str, str]:
    """Statuses, sets of them, and errors (see `fail`)."""
    return {
        "STARTS_FROM": status_set(START.origins),
        "LOST_FROM": status_set(TAKE_OVER.origins),
        "WAITS": status_set(WAITING),
        "RULED": status_set({Status.FAILED}),
        "QUEUED": quoted(REVIVE.target),
        "RUNNING": quoted(START.target),
        "RETRYING": quoted(Status.RETRYING),
        "FAILED": quoted(EXPIRE.target),
        "LOST": _LOST,
        "OVERDUE_ERROR": error_template("timeout", "Its time was up before it could start."),
        "WAITED_ERROR": error_template(
            "rate_limited",
            "It waited for its model for as long as a job may (SLOWCALL_MAX_WAIT_S).",
        ),
        "LOST_ERROR": error_template(
            "lost", "The worker died in its last attempt; deaths in all: %d."
        ),
        "UNKNOWN_ERROR": error_template(
            "unknown",
            "The worker died during a call: nobody knows whether the model sold an answer. "
            "on_unknown is park, so a person decides.",
        ),
    }


def _list(texts: Iterable[str]) -> str:
    return f"{{{', '.join(map(_text, texts))}}}"


def _limits(limits: Concurrency) -> str:
    single = ", ".join(f"[{_text(name)}] = {most}" for name, most in limits.single)
    return f"{{default = {limits.default}, single = {{{single}}}}}"


def _rules(rules: Iterable[RetryRule]) -> str:
    entries = (
        f"{rule.type} = {{after_ms = {round(rule.after_s * 1000)}, times = {rule.times}}}"
        for rule in rules
    )
    return f"{{{', '.join(entries)}}}"


def _text(text: str) -> str:
    """A Lua string of any bytes: each as its number, so that none can end it."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'
