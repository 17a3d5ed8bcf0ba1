"""JSON fragments: what the scripts move without reading it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import orjson

from tasks.errors import ErrorType
from tasks.lifecycle import Status


def dumps(value: Any) -> bytes:
    """One line of compact JSON."""
    return orjson.dumps(value)


def loads(fragment: bytes) -> Any:
    """The value of a fragment."""
    return orjson.loads(fragment)


def iso(seconds: float) -> str:
    """A Unix time as the contract writes times."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def quoted(status: Status) -> str:
    """A status as the record holds it."""
    return f'"{status}"'


def unquoted(fragment: bytes) -> Status:
    """A status out of the record. Raises ValueError for a foreign word."""
    return Status(fragment.decode().strip('"'))


def status_set(statuses: Iterable[Status]) -> str:
    """A set of statuses as a script's argument: the quotes keep the words apart."""
    return ",".join(quoted(status) for status in sorted(statuses))


def error(
    type: ErrorType, message: str, attempt: int, upstream_status: int | None = None
) -> dict[str, Any]:
    """The contract's `error` of a job."""
    return {
        "type": type,
        "message": message,
        "attempt": attempt,
        "upstream_status": upstream_status,
    }


def error_template(type: ErrorType, message: str) -> str:
    """The contract's `error` for a script to fill: `%d` is the attempt, a second one a number."""
    return f'{{"attempt":%d,"type":"{type}","message":"{message}","upstream_status":null}}'
