"""GET /openapi.json: OpenAPI 3.1 of every address, its answers and its refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.openapi_jobs import job_paths
from server.openapi_parts import (
    TEXT,
    Json,
    header,
    json_of,
    operation,
    path,
    problems,
    query,
    schemas,
    text_of,
)
from tasks.kinds import Kind

VERSION: Final = "0.1.0"


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
            "schemas": schemas(kinds),
            "responses": problems(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "slowcall_session"},
            },
        },
    }


def _paths() -> Json:
    return {**job_paths(), **_stream_paths(), **_service_paths()}


def _stream_paths() -> Json:
    ok = {
        "description": "Server-Sent Events: state events named by status (data: Job), `progress`, "
        "`delta`, `snapshot` (data: Job). Keep-alives are comments.",
        "content": {"text/event-stream": {"schema": TEXT}},
    }
    place = [
        header("Last-Event-ID", "What was seen last; an EventSource sends it by itself."),
        query("after", TEXT, "The same, for the first request."),
    ]
    end = {"description": "Caught up with a final job: do not come back."}
    return {
        "/jobs/stream": {
            "get": operation(
                "State and progress events of all the caller's jobs; it does not end",
                {200: ok},
                parameters=[*place, query("user_id", TEXT)],
            )
        },
        "/jobs/{job_id}/stream": {
            "parameters": [path("job_id")],
            "get": operation(
                "The log of one job, then its events as they happen, until the final one",
                {200: ok, 204: end},
                "JobNotFound",
                parameters=[*place, query("share", TEXT, "The token of a signed link.")],
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
    key = {"type": "object", "required": ["key"], "properties": {"key": TEXT}}
    return {
        "/session": {
            "post": operation(
                "A cookie for the page, for a key",
                {200: json_of("Whose session it is.", session)},
                "MalformedRequest",
                "TooLarge",
                "WrongType",
                requestBody={"content": {"application/json": {"schema": key}}},
            ),
            "delete": operation("End the session", {204: {"description": "The cookie is gone."}}),
        },
        "/kinds": {"get": operation("What a job can do", {200: json_of("The kinds.", anything)})},
        "/stats": {"get": operation("Queue and workers", {200: json_of("Figures.", anything)})},
        "/healthz": {"get": operation("Alive", {200: json_of("The process answers.", anything)})},
        "/readyz": {
            "get": operation("Ready", {200: json_of("Redis answers and a worker lives.", anything)})
        },
        "/metrics": {"get": operation("Prometheus text", {200: text_of("Metrics.", "text/plain")})},
        "/openapi.json": {"get": operation("This", {200: json_of("OpenAPI 3.1.", anything)})},
        "/": {"get": operation("The page", {200: text_of("HTML.", "text/html")})},
    }
