"""Domain error -> HTTP: the one place where an error meets its status, as an RFC 9457 problem."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.errors import (
    Forbidden,
    InvalidInput,
    JobNotFound,
    KeyReused,
    MalformedRequest,
    QuotaExceeded,
    RecordDamaged,
    SlowcallError,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
    WrongStatus,
    WrongType,
)

log = logging.getLogger("slowcall.server")

MEDIA_TYPE: Final = "application/problem+json"
STORE_RETRY_S: Final = 2
"""When to ask again while Redis is away: it is either back in seconds or a person is needed."""
STORE_AWAY: Final = "Redis does not answer: nothing was changed that this answer could vouch for."

_IANA: Final = "https://iana.org/assignments/http-problem-types#"


@dataclass(frozen=True, slots=True)
class Shape:
    """What all problems of one class share; `type` is a place in /openapi.json unless given."""

    status: int
    title: str
    type: str | None = None


SHAPES: Final[Mapping[type[SlowcallError], Shape]] = {
    MalformedRequest: Shape(400, "The request cannot be read"),
    Unauthorized: Shape(401, "A key is needed"),
    Forbidden: Shape(403, "This is not yours to do"),
    JobNotFound: Shape(404, "There is no such job"),
    WrongStatus: Shape(409, "The job's status does not allow this"),
    TooLarge: Shape(413, "The body is too large"),
    WrongType: Shape(415, "The content type is not taken"),
    InvalidInput: Shape(422, "The request is well-formed but wrong"),
    KeyReused: Shape(422, "The idempotency key came before with another body"),
    QuotaExceeded: Shape(429, "Too many jobs in flight", _IANA + "quota-exceeded"),
    RecordDamaged: Shape(500, "Internal Server Error", "about:blank"),
    StoreUnavailable: Shape(503, "The store is away", _IANA + "temporary-reduced-capacity"),
}


def problem(
    status: int,
    detail: str,
    *,
    title: str | None = None,
    type: str = "about:blank",
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    """A problem as a response; without a title it is the status in words, as about:blank asks."""
    body = {
        "type": type,
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **members,
    }
    return Response(orjson.dumps(body), status, headers, MEDIA_TYPE)


def refusal(error: SlowcallError, root_path: str = "") -> Response:
    """The response to an error of the domain; one without a shape is a fault of ours: 500."""
    shape = SHAPES.get(type(error))
    if shape is None:
        log.error("not meant for a user", exc_info=error)
        return unexpected()
    return problem(
        shape.status,
        STORE_AWAY if isinstance(error, StoreUnavailable) else str(error),
        title=shape.title,
        type=shape.type or f"{root_path}/openapi.json#/components/responses/{type(error).__name__}",
        headers=_headers(error),
        **_members(error),
    )


def unexpected() -> Response:
    """The answer to a fault of ours: nothing of it is told, the log has it."""
    return problem(500, "Something went wrong here; the server's log says what.")


def _headers(error: SlowcallError) -> dict[str, str]:
    if isinstance(error, QuotaExceeded):
        return {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, StoreUnavailable):
        return {"Retry-After": str(STORE_RETRY_S)}
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="slowcall"'}
    return {}


def _members(error: SlowcallError) -> dict[str, Any]:
    if isinstance(error, InvalidInput) and error.faults:
        return {"errors": error.faults}
    if isinstance(error, QuotaExceeded):
        return {"violated-policies": ["inflight"]}
    return {}


def on_refusal(request: Request, error: Exception) -> Response:
    """Starlette's handler for the errors of the domain."""
    return refusal(cast(SlowcallError, error), request.scope.get("root_path", ""))


def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's handler for what it refuses itself: unknown paths, methods, broken forms."""
    error = cast(HTTPException, error)
    headers = dict(error.headers or {})
    detail = error.detail
    if error.status_code == 404:
        detail = "There is nothing at this address; /openapi.json lists what there is."
    elif error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
        detail = f"This address takes {headers['Allow']}."
    return problem(error.status_code, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """The methods of all routes at this path; Starlette knows those of the first one only."""
    routes = [r for r in request.app.routes if r.matches(request.scope)[0] is Match.PARTIAL]
    return sorted({method for route in routes for method in route.methods or ()})


class SafetyNet:
    """Middleware: an exception that nobody expected becomes a 500 problem and a line in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except Exception:
            if started or scope["type"] != "http":
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            await unexpected()(scope, receive, send)
