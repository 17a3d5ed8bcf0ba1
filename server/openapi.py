"""GET /openapi.json: OpenAPI 3.1 of every address, its answers and its refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.problems import MEDIA_TYPE, SHAPES
from server.schemas import DEFAULT_PAGE, MAX_PAGE, MAX_WAIT_S, Revival, Submission
from tasks.kinds import Kind
from tasks.lifecycle import Status

Json = dict[str, Any]

VERSION: Final = "0.1.0"

_TEXT: Final[Json] = {"type": "string"}
_TIME: Final[Json] = {"type": "string", "format": "date-time"}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_LEDGER: Final = (
    "paid", "open", "rejected", "not_sent", "unknown", "reused", "input_tokens", "output_tokens",
)  # fmt: skip
_EVERYWHERE: Final = ("Unauthorized", "Forbidden", "StoreUnavailable")
_RETRY_AFTER: Final[Json] = {"Retry-After": {"schema": _COUNT, "description": "Seconds."}}
_RATE_LIMIT: Final[Json] = {
    name: {"schema": _TEXT, "description": "Jobs in flight, where SLOWCALL_QUOTA is set."}
    for name in ("RateLimit-Policy", "RateLimit")
}


def describe(kinds: Mapping[str, Kind]) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that serves the description; it is built once."""
    body = orjson.dumps(document(kinds))

    async def openapi(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return openapi


def document(kinds: Mapping[str, Kind]) -> Json:
    """The description of a server that has these kinds."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slowcall",
            "version": VERSION,
            "summary": "Slow model calls as jobs: paid once, streamed live, resumed",
        },
        "servers": [{"url": "."}],
        "security": [{}, {"key": []}, {"session": []}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(kinds),
            "responses": _problems(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "slowcall_session"},
            },
        },
    }


def _paths() -> Json:
    return {**_job_paths(), **_stream_paths(), **_service_paths()}


def _job_paths() -> Json:
    one = [_path("job_id")]
    return {
        "/jobs": {"post": _submit(), "get": _list()},
        "/jobs/{job_id}": {
            "parameters": one,
            "get": _operation(
                "Read a job, or wait for its end",
                {200: _job("The job.", _RETRY_AFTER)},
                "JobNotFound",
                parameters=[_prefer(), _query("share", _TEXT, "The token of a signed link.")],
            ),
            "delete": _operation(
                "Discard a final job and everything of it",
                {204: {"description": "It is gone."}},
                "JobNotFound",
                "WrongStatus",
            ),
        },
        "/jobs/{job_id}/ledger": {
            "parameters": one,
            "get": _operation(
                "The calls of a job and how each ended",
                {200: _json("Its lines in order.", {"type": "array", "items": {"type": "object"}})},
                "JobNotFound",
            ),
        },
        "/jobs/{job_id}/cancel": {
            "parameters": one,
            "post": _operation(
                "Cancel a job that is not final",
                {200: _job("The job, cancelled.")},
                "JobNotFound",
                "WrongStatus",
            ),
        },
        "/jobs/{job_id}/retry": {"parameters": one, "post": _retry()},
        "/jobs/{job_id}/share": {
            "parameters": one,
            "post": _operation(
                "A signed, expiring, read-only address of this job",
                {200: _json("The addresses.", _ref("Share"))},
                "JobNotFound",
            ),
        },
    }


def _submit() -> Json:
    form = {
        "type": "object",
        "description": "The options as form fields, the fields of the input, and one file.",
        "properties": {"file": {"type": "string", "format": "binary"}, "kind": _TEXT},
        "additionalProperties": _TEXT,
    }
    headers = {
        "Location": {"schema": _TEXT},
        "Idempotent-Replayed": {"schema": {"const": "true"}},
        "Preference-Applied": {"schema": _TEXT},
        **_RATE_LIMIT,
    }
    return _operation(
        "Submit a job",
        {
            202: _job("The job, stored and sure to run.", headers),
            200: _job("The job, final already: a replay, or within the preferred wait.", headers),
        },
        "MalformedRequest",
        "TooLarge",
        "WrongType",
        "InvalidInput",
        "KeyReused",
        "QuotaExceeded",
        parameters=[
            _header("Idempotency-Key", "One job per key and user, for as long as the job exists."),
            _prefer(),
            _header("traceparent", "The trace that the job belongs to."),
        ],
        requestBody={
            "required": True,
            "content": {
                "application/json": {"schema": _ref("Submission")},
                "multipart/form-data": {"schema": form},
            },
        },
    )


def _list() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}
    page = {
        "type": "object",
        "required": ["jobs", "next_cursor"],
        "properties": {
            "jobs": {"type": "array", "items": _ref("Job")},
            "next_cursor": {"type": ["string", "null"]},
        },
    }
    return _operation(
        "The caller's jobs, newest first",
        {200: _json("A page of jobs.", page)},
        "MalformedRequest",
        "InvalidInput",
        parameters=[
            _query("status", _ref("Status")),
            _query("kind", _TEXT),
            _query(
                "user_id", _TEXT, "Whose jobs; with keys only one's own, or the admin's choice."
            ),
            _query("limit", limit),
            _query("cursor", _TEXT, "`next_cursor` of the page before."),
        ],
    )


def _retry() -> Json:
    return _operation(
        "Begin a new life of a failed or cancelled job, its finished steps kept",
        {
            202: _job("The job, queued."),
            200: _json("With dry_run: what a retry would reuse and buy.", _ref("DryRun")),
        },
        "MalformedRequest",
        "JobNotFound",
        "WrongStatus",
        "TooLarge",
        "WrongType",
        "InvalidInput",
        "QuotaExceeded",
        parameters=[_query("dry_run", {"type": "boolean", "default": False})],
        requestBody={"content": {"application/json": {"schema": _ref("Revival")}}},
    )


def _stream_paths() -> Json:
    ok = {
        "description": "Server-Sent Events: state events named by status (data: Job), `progress`, "
        "`delta`, `snapshot` (data: Job). Keep-alives are comments.",
        "content": {"text/event-stream": {"schema": _TEXT}},
    }
    place = [
        _header("Last-Event-ID", "What was seen last; an EventSource sends it by itself."),
        _query("after", _TEXT, "The same, for the first request."),
    ]
    end = {"description": "Caught up with a final job: do not come back."}
    return {
        "/jobs/stream": {
            "get": _operation(
                "State and progress events of all the caller's jobs; it does not end",
                {200: ok},
                parameters=[*place, _query("user_id", _TEXT)],
            )
        },
        "/jobs/{job_id}/stream": {
            "parameters": [_path("job_id")],
            "get": _operation(
                "The log of one job, then its events as they happen, until the final one",
                {200: ok, 204: end},
                "JobNotFound",
                parameters=[*place, _query("share", _TEXT, "The token of a signed link.")],
            ),
        },
    }


def _service_paths() -> Json:
    anything = {"type": "object"}
    session = {
        "type": "object",
        "properties": {
            "user_id": {"type": ["string", "null"]},
            "expires_at": {"type": ["string", "null"]},
        },
    }
    key = {"type": "object", "required": ["key"], "properties": {"key": _TEXT}}
    return {
        "/session": {
            "post": _operation(
                "A cookie for the page, for a key",
                {200: _json("Whose session it is.", session)},
                "MalformedRequest",
                "TooLarge",
                "WrongType",
                requestBody={"content": {"application/json": {"schema": key}}},
            ),
            "delete": _operation("End the session", {204: {"description": "The cookie is gone."}}),
        },
        "/kinds": {"get": _operation("What a job can do", {200: _json("The kinds.", anything)})},
        "/stats": {"get": _operation("Queue and workers", {200: _json("Figures.", anything)})},
        "/healthz": {"get": _operation("Alive", {200: _json("The process answers.", anything)})},
        "/readyz": {
            "get": _operation("Ready", {200: _json("Redis answers and a worker lives.", anything)})
        },
        "/metrics": {"get": _operation("Prometheus text", {200: _text("Metrics.", "text/plain")})},
        "/openapi.json": {"get": _operation("This", {200: _json("OpenAPI 3.1.", anything)})},
        "/": {"get": _operation("The page", {200: _text("HTML.", "text/html")})},
    }


def _schemas(kinds: Mapping[str, Kind]) -> Json:
    submission = Submission.model_json_schema(ref_template="#/components/schemas/{model}")
    submission["properties"]["kind"]["enum"] = sorted(kinds)
    return {
        "Submission": submission,
        "Revival": Revival.model_json_schema(),
        "Status": {"enum": [str(status) for status in Status]},
        "Job": _job_schema(),
        "Problem": _problem_schema(),
        "Share": _strings("url", "job", "stream", "expires_at"),
        "DryRun": {
            "type": "object",
            "required": ["job_id", "steps_kept", "calls_at_most"],
            "properties": {
                "job_id": _TEXT,
                "steps_kept": _COUNT,
                "calls_at_most": {"type": ["integer", "null"], "minimum": 0},
            },
        },
    }


def _job_schema() -> Json:
    progress = {
        "done": _COUNT,
        "total": {"type": ["integer", "null"]},
        "note": {"type": ["string", "null"]},
    }
    properties = {
        "job_id": _TEXT,
        "kind": _TEXT,
        "status": _ref("Status"),
        "user_id": _TEXT,
        "attempts": _COUNT,
        "max_attempts": {"type": "integer", "minimum": 1},
        "progress": {"type": "object", "required": [*progress], "properties": progress},
        "result": {"type": ["object", "null"]},
        "error": {"type": ["object", "null"]},
        "retry_at": {"type": ["string", "null"]},
        "queue_position": {"type": ["integer", "null"], "minimum": 1},
        "eta_s": {"type": ["number", "null"]},
        "ledger": {"type": "object", "properties": dict.fromkeys(_LEDGER, _COUNT)},
        "metadata": {"type": "object"},
        "created_at": _TIME,
        "started_at": {"type": ["string", "null"]},
        "finished_at": {"type": ["string", "null"]},
        "links": _strings("self", "stream", "cancel", "retry"),
    }
    return {"type": "object", "required": [*properties], "properties": properties}


def _problem_schema() -> Json:
    fault = {"type": "object", "properties": {"pointer": _TEXT, "message": _TEXT}}
    properties = {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "errors": {"type": "array", "items": fault},
    }
    required = ["type", "title", "status", "detail"]
    return {"type": "object", "required": required, "properties": properties}


def _problems() -> Json:
    """Each problem by the name of its error; a problem's `type` points here."""
    problems = {error.__name__: _problem(shape.title) for error, shape in SHAPES.items()}
    problems["QuotaExceeded"]["headers"] = _RETRY_AFTER | _RATE_LIMIT
    problems["StoreUnavailable"]["headers"] = _RETRY_AFTER
    return problems


def _problem(title: str) -> Json:
    return {"description": title, "content": {MEDIA_TYPE: {"schema": _ref("Problem")}}}


def _operation(summary: str, answers: Mapping[int, Json], *problems: str, **more: Any) -> Json:
    """An operation with its answers and, one response for each status, its problems."""
    responses: dict[str, Json] = {str(status): answer for status, answer in answers.items()}
    for error, shape in SHAPES.items():
        if error.__name__ in (*problems, *_EVERYWHERE):
            name = f"#/components/responses/{error.__name__}"
            responses.setdefault(str(shape.status), {"$ref": name})
    responses["431"] = _problem(HTTPStatus(431).phrase)
    responses["500"] = _problem(HTTPStatus(500).phrase)
    return {"summary": summary, "responses": responses, **more}


def _job(description: str, headers: Json | None = None) -> Json:
    return {**_json(description, _ref("Job")), **({"headers": headers} if headers else {})}


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _text(description: str, media_type: str) -> Json:
    return {"description": description, "content": {media_type: {"schema": _TEXT}}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _strings(*names: str) -> Json:
    return {"type": "object", "required": [*names], "properties": dict.fromkeys(names, _TEXT)}


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


def _query(name: str, schema: Json, description: str = "") -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _header(name: str, description: str) -> Json:
    return {"name": name, "in": "header", "schema": _TEXT, "description": description}


def _prefer() -> Json:
    return _header(
        "Prefer", f"`wait=N`: answer when the job is final, or after N (≤ {MAX_WAIT_S}) s."
    )
