"""What a request says, checked: the submission, its headers, the questions of a list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from starlette.datastructures import Headers, QueryParams

from tasks.errors import InvalidInput, MalformedRequest
from tasks.kinds import faults
from tasks.lifecycle import Status

MAX_WAIT_S: Final = 60
MAX_METADATA: Final = 16_384
MAX_PAGE: Final = 200
DEFAULT_PAGE: Final = 50

_KEY: Final = re.compile(r"[!-~]{1,255}")
_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_WAIT: Final = re.compile(r"wait(?:\s*=\s*\"?([0-9]{1,9})\"?)?", re.IGNORECASE)


def _small(metadata: dict[str, Any]) -> dict[str, Any]:
    if len(orjson.dumps(metadata)) > MAX_METADATA:
        raise ValueError(f"at most {MAX_METADATA} bytes of JSON")
    return metadata


Duration = Annotated[float, Field(gt=0, le=31_536_000)]
UserId = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]
CallbackUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+\S*$", max_length=2048)]


_Model = TypeVar("_Model", bound=BaseModel)


class Submission(BaseModel):
    """The body of `POST /jobs`; an option that is left out or null takes the server's setting."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Annotated[Any, Field(description="What to do, as the kind wants it: see GET /kinds.")]
    kind: Annotated[str, Field(description="What the job does.")] = "chat"
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    timeout_s: Annotated[Duration | None, Field(description="Bounds one call.")] = None
    deadline_s: Annotated[Duration | None, Field(description="Bounds the whole job.")] = None
    expires_s: Annotated[Duration | None, Field(description="Bounds the wait to its start.")] = None
    on_unknown: Literal["retry", "park"] | None = None
    memo: bool = False
    metadata: Annotated[dict[str, Any], AfterValidator(_small)] = {}
    user_id: UserId | None = None
    callback_url: CallbackUrl | None = None

    @classmethod
    def read(cls, document: dict[str, Any]) -> Submission:
        """The submission of a JSON object. Raises InvalidInput with a pointer for each fault."""
        return _validated(cls, document)


class Revival(BaseModel):
    """The body of `POST /jobs/{id}/retry`, if there is one: what to change."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Annotated[Any, Field(description="Replaces the input: steps it changes are redone.")] = (
        None
    )
    model: Annotated[str | None, Field(min_length=1, description="Asks another model.")] = None

    @classmethod
    def read(cls, document: dict[str, Any]) -> Revival:
        """The changes of a JSON object. Raises InvalidInput with a pointer for each fault."""
        return _validated(cls, document)


def _validated(model: type[_Model], document: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidInput("The body does not fit.", faults(error)) from None


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The questions of `GET /jobs`."""

    status: Status | None
    kind: str | None
    user_id: str | None
    limit: int
    cursor: str | None

    @classmethod
    def read(cls, query: QueryParams) -> ListQuery:
        """The questions of a query string. Raises InvalidInput for a foreign status or limit."""
        status, limit = query.get("status"), query.get("limit") or str(DEFAULT_PAGE)
        if status and status not in set(Status):
            raise InvalidInput(f"`status` is one of {', '.join(Status)}.")
        if not re.fullmatch(r"[0-9]{1,4}", limit) or not 1 <= int(limit) <= MAX_PAGE:
            raise InvalidInput(f"`limit` is a number from 1 to {MAX_PAGE}.")
        return cls(
            status=Status(status) if status else None,
            kind=query.get("kind") or None,
            user_id=query.get("user_id") or None,
            limit=int(limit),
            cursor=query.get("cursor") or None,
        )


def idempotency_key(headers: Headers) -> str | None:
    """The key, quoted as the draft standard has it, or bare; both spellings are one key.

    Raises MalformedRequest for anything but one key of 1 to 255 visible ASCII characters.
    """
    values = headers.getlist("idempotency-key")
    if not values:
        return None
    key = values[0].strip(" \t")
    if quoted := _QUOTED.fullmatch(key):
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif key.startswith('"'):
        key = ""
    if len(values) > 1 or not _KEY.fullmatch(key):
        raise MalformedRequest(
            "Idempotency-Key is one key of 1 to 255 visible ASCII characters, quoted or bare."
        )
    return key


def preferred_wait_s(headers: Headers) -> int | None:
    """How long the caller would wait for the end (`Prefer: wait=N`), at most 60 s; None: not at
    all. What is not understood is ignored, as RFC 7240 asks."""
    for preference in ",".join(headers.getlist("prefer")).split(","):
        if match := _WAIT.fullmatch(preference.partition(";")[0].strip()):
            return min(int(match[1] or MAX_WAIT_S), MAX_WAIT_S)
    return None
