"""The tree of everything that can go wrong; the HTTP status meets it in server/problems.py.

SlowcallError
├── SettingsError            a wrong setting: the start stops with one line
├── StoreUnavailable         Redis does not answer, or takes nothing now
├── RecordDamaged            a job's record in Redis holds what is not ours
├── Refusal                  a request that is not carried out
│   ├── MalformedRequest     not JSON, a bad header or cursor
│   ├── Unauthorized         no key, or a wrong one
│   ├── Forbidden            another's user_id, a cross-site request
│   ├── JobNotFound          unknown, or another user's
│   ├── WrongStatus          the job's status does not allow this verb
│   ├── TooLarge             the body is larger than the server takes
│   ├── WrongType            a content type that is not taken
│   ├── InvalidInput         well-formed but wrong, with a pointer for each fault
│   ├── KeyReused            an idempotency key that came before with another body
│   └── QuotaExceeded        the user has as many jobs in flight as are allowed
├── JobError                 what an attempt can end with (a kind may raise it)
│   ├── PermanentError       trying again would not help
│   │   └── StepUnknown      a stored step that the code no longer knows
│   ├── TransientError       trying again may help
│   ├── DeadlinePassed       the job ran out of its time
│   ├── LaneBusy             the lane of its model has no place for a call: it waits in line
│   └── CallFailed           one request to the model gave no usable answer
│       ├── NotSent          it never reached the endpoint: nothing bought
│       ├── Rejected         the endpoint refused it: nothing bought
│       │   ├── ContentRefused  it never answers this content: a filter, too long
│       │   ├── OptionRefused   it does not know `stream_options`: ask again without
│       │   └── RateLimited  it asked us to wait: the lane closes, no attempt is counted
│       ├── OutcomeUnknown   it was sent and no usable answer came: perhaps bought
│       └── Unusable         it was answered and paid, but the answer is of no use
└── Stopped                  the run must end here; its job is somebody else's decision
    ├── RunLost              another worker has the job, or it was cancelled
    └── Drained              this worker leaves
"""

from __future__ import annotations

from typing import Literal, TypedDict

ErrorType = Literal["transient", "permanent", "timeout", "unknown", "lost", "rate_limited"]
Outcome = Literal["paid", "rejected", "not_sent", "unknown"]


class Fault(TypedDict):
    """One fault of a body: where it is (JSON pointer) and what to do."""

    pointer: str
    message: str


class SlowcallError(Exception):
    """Something went wrong; the message is a sentence for a person and holds no secret."""


class SettingsError(SlowcallError):
    """A setting is wrong."""


class StoreUnavailable(SlowcallError):
    """Redis does not answer, or takes nothing now."""


class RecordDamaged(SlowcallError):
    """A job's record holds what is not ours."""

    def __init__(self, message: str = "The record of this job holds what is not ours.") -> None:
        super().__init__(message)


class Refusal(SlowcallError):
    """The request is not carried out."""


class MalformedRequest(Refusal):
    """The request cannot be read."""


class Unauthorized(Refusal):
    """A key is needed."""


class Forbidden(Refusal):
    """This is not the caller's to do."""


class JobNotFound(Refusal):
    """There is no such job."""


class WrongStatus(Refusal):
    """The job's status does not allow this."""


class TooLarge(Refusal):
    """The body is larger than the server takes."""


class WrongType(Refusal):
    """The content type is not one the server takes."""


class InvalidInput(Refusal):
    """The request is well-formed but wrong."""

    def __init__(self, message: str, faults: list[Fault] | None = None) -> None:
        super().__init__(message)
        self.faults = faults or []


class KeyReused(Refusal):
    """The idempotency key came before with another body."""


class QuotaExceeded(Refusal):
    """The user has as many jobs in flight as are allowed."""

    def __init__(self, message: str, *, limit: int, retry_after_s: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s


class JobError(SlowcallError):
    """What an attempt can end with: `type` is the contract's, the message short."""

    type: ErrorType = "permanent"

    def __init__(
        self,
        message: str,
        *,
        type: ErrorType | None = None,
        upstream_status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.type = type or self.type
        self.upstream_status = upstream_status
        self.retry_after_s = retry_after_s


class PermanentError(JobError):
    """Trying again would not help."""


class StepUnknown(PermanentError):
    """A stored step that the code no longer knows."""


class TransientError(JobError):
    """Trying again may help."""

    type = "transient"


class DeadlinePassed(JobError):
    """The job ran out of its time."""

    type = "timeout"


class LaneBusy(JobError):
    """The lane of its model has no place for a call."""

    type = "rate_limited"


class CallFailed(JobError):
    """One request to the model gave no usable answer; `outcome` is how the ledger books it."""

    type: ErrorType = "transient"
    outcome: Outcome = "unknown"
    input_tokens: int = 0
    output_tokens: int = 0
    request_id: str | None = None

    @property
    def about_content(self) -> bool:
        """Whether this very content will never be answered, while other content may be."""
        unusable = isinstance(self, Unusable) and self.type == "permanent"
        return unusable or isinstance(self, ContentRefused)


class NotSent(CallFailed):
    """The request never reached the endpoint."""

    outcome = "not_sent"


class Rejected(CallFailed):
    """The endpoint refused the request."""

    outcome = "rejected"


class ContentRefused(Rejected):
    """The endpoint never answers this content: a filter withholds it, or it is too long."""

    type = "permanent"


class OptionRefused(Rejected):
    """The endpoint does not know `stream_options`."""


class RateLimited(Rejected):
    """The endpoint asked us to wait."""

    type = "rate_limited"


class OutcomeUnknown(CallFailed):
    """The request was sent and no usable answer came."""

    outcome = "unknown"


class Unusable(CallFailed):
    """The endpoint answered and was paid, but the answer is of no use."""

    outcome = "paid"


class Stopped(SlowcallError):
    """The run must end here; its job is somebody else's decision."""


class RunLost(Stopped):
    """Another worker has the job, or it was cancelled."""


class Drained(Stopped):
    """This worker leaves."""
