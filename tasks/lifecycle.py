"""The life of a job as one pure table: statuses, transitions, who may move where.

                   ┌──────── release ────────┐
                   ▼                         │
  submit ──▶  queued ──── start ──────▶  running ──── finish ──▶  done
                │ ▲                      │ │ ▲ ▲ └──── fail ────▶  failed ─┐
                │ │        retry, defer ─┘ │ │ └─ take over (lease lapsed) │
                │ │                 ▼      │ │                             │
                │ │            retrying ───│─┘ start                       │
                │ │                 │      │                               │
                ├─│───── expire ────┴──────│───────────────────▶  failed   │
                └─│───── cancel ───────────┴───────────────────▶ cancelled ┤
                  └──────────────────────── revive ────────────────────────┘

queued     waits for its turn; a worker's `start` moves it on, or `expire` when its time is up
running    a worker holds its lease; when that lapses, the next claim takes the job over
retrying   waits until `retry_at`; then it is due in the queue and a `start` moves it on
done       has its result; nothing moves it on, it is gone KEEP_S later
failed     a dead letter: a person (or a rule) revives or discards it, else it is gone KEEP_S later
cancelled  a person ended it; the same
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Status(StrEnum):
    """Where a job stands; the values are the contract's words and the names of state events."""

    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED})
WAITING = frozenset({Status.QUEUED, Status.RETRYING})
IN_FLIGHT = WAITING | {Status.RUNNING}

Reason = Literal["transient", "timeout", "rate_limited", "unknown", "lost"]


@dataclass(frozen=True, slots=True)
class Transition:
    """One way to move: the statuses it may leave (none: the job is new) and the one it enters."""

    name: str
    origins: frozenset[Status]
    target: Status


SUBMIT = Transition("submit", frozenset(), Status.QUEUED)
START = Transition("start", WAITING, Status.RUNNING)
TAKE_OVER = Transition("take over", frozenset({Status.RUNNING}), Status.RUNNING)
RETRY = Transition("retry", frozenset({Status.RUNNING}), Status.RETRYING)
DEFER = Transition("defer", frozenset({Status.RUNNING}), Status.RETRYING)
RELEASE = Transition("release", frozenset({Status.RUNNING}), Status.QUEUED)
EXPIRE = Transition("expire", WAITING, Status.FAILED)
FINISH = Transition("finish", frozenset({Status.RUNNING}), Status.DONE)
FAIL = Transition("fail", frozenset({Status.RUNNING}), Status.FAILED)
CANCEL = Transition("cancel", IN_FLIGHT, Status.CANCELLED)
REVIVE = Transition("revive", frozenset({Status.FAILED, Status.CANCELLED}), Status.QUEUED)

TRANSITIONS = (
    SUBMIT, START, TAKE_OVER, RETRY, DEFER, RELEASE, EXPIRE, FINISH, FAIL, CANCEL, REVIVE,
)  # fmt: skip


def allowed(transition: Transition, status: Status | None) -> bool:
    """Whether `transition` may leave `status` (None: there is no job yet)."""
    return status in transition.origins if transition.origins else status is None
