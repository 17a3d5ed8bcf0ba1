"""The values that go into the store and come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.errors import Outcome
from tasks.lifecycle import FINAL, Status


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted; `_s` are seconds, `input` is validated and JSON-able."""

    kind: str
    input: Any
    user_id: str
    max_attempts: int
    timeout_s: float
    on_unknown: Literal["retry", "park"] = "retry"
    deadline_s: float | None = None
    expires_s: float | None = None
    memo: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    callback_url: str | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""
    blob: bytes | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as a reader sees it: `body` is the contract's JSON, ready to send."""

    job_id: str
    user_id: str
    status: Status
    seq: int
    body: bytes

    @property
    def final(self) -> bool:
        """Whether nobody but a person moves the job on."""
        return self.status in FINAL


@dataclass(frozen=True, slots=True)
class Origin:
    """What a job was asked for; `edited`: a person changed that after its submission."""

    input: Any
    edited: bool


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission: the job, whether it was there before, the quota in use."""

    job: JobView
    replayed: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event of a job's log: `block` is `event: …\\ndata: …\\n\\n`, ready to send."""

    seq: int
    name: str
    block: bytes


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """One event of a user's feed with its opaque id; `block` is empty where the job is gone."""

    feed_id: str
    block: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """A queue entry that this worker holds until its lease ends, and the run that began of it.

    None began of a job that failed instead (`moved`: it was too late, or its worker died once too
    often), that is `ours` (it runs here by its record), or whose record is damaged.
    """

    entry: str
    run: Run | None = None
    moved: Moved | None = None
    ours: bool = False

    @property
    def job_id(self) -> str:
        """The job of the entry."""
        return self.entry.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job by a worker: what a claim begins. `run` is the fence of all its writes."""

    job_id: str
    run: int
    attempt: int
    max_attempts: int
    kind: str
    user_id: str
    input: Any
    options: dict[str, Any]
    deadline_left_s: float | None
    created_ms: float
    waited_ms: int
    edited: bool
    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """A job that a script moved on by itself: no run tells of it."""

    job_id: str
    user_id: str
    kind: str
    attempt: int
    status: str
    reason: str
    trace_id: str | None

    @classmethod
    def read(cls, fields: Sequence[bytes]) -> Moved:
        """From what a script tells of it."""
        job_id, user, kind, attempt, status, reason, trace = (field.decode() for field in fields)
        return cls(job_id, user, kind, int(attempt), status, reason, trace or None)


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step's result as it is kept: with the hash of the request or arguments that gave it."""

    hash: str
    value: Any


@dataclass(frozen=True, slots=True)
class Begun:
    """A call may be sent now; `number` is the last part of its idempotency key."""

    number: int


@dataclass(frozen=True, slots=True)
class NoPlace:
    """The lane of the model is full or closed: look again after `wait_s`."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: `total` is None while unknown; `note` says it in words.

    `plan` is for kinds that tell what they are going to do: `{"step", "title", "done"}` for each.
    """

    done: int
    total: int | None
    note: str
    plan: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """Something that has to leave the house: what a transition put in the outbox."""

    id: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a call ended, for its ledger line; `value` is the step's result where there is one.

    `closed_s`: for so long the model asked for no call, whoever makes it.
    """

    call: str
    step: str
    hash: str
    outcome: Outcome
    status: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    request_id: str | None = None
    message: str = ""
    first_ms: int | None = None
    value: Any = None
    progress: Progress | None = None
    closed_s: float | None = None
