"""The part of the description that is about jobs: submit, read, list, cancel, retry, discard."""

from __future__ import annotations

from typing import Final

from server.openapi_parts import (
    RATE_LIMIT,
    RETRY_AFTER,
    TEXT,
    Json,
    header,
    job,
    json_of,
    operation,
    path,
    prefer,
    query,
    ref,
)
from server.schemas import DEFAULT_PAGE, MAX_PAGE

CURSOR: Final[Json] = {"type": "string", "pattern": r"^[0-9]{1,16}(\.[0-9]{1,17})?_[0-9a-f]{32}$"}
_ABOUT_A_JOB: Final = (
    ("get", "/jobs/{job_id}"),
    ("delete", "/jobs/{job_id}"),
    ("get", "/jobs/{job_id}/ledger"),
    ("post", "/jobs/{job_id}/cancel"),
    ("post", "/jobs/{job_id}/retry"),
    ("post", "/jobs/{job_id}/share"),
)


def job_paths() -> Json:
    """The addresses of the jobs, but for their streams."""
    return {
        "/jobs": {"post": _submit(), "get": _list()},
        "/jobs/retry": {"post": _retry_all()},
        **_paths_of_one(),
    }


def _paths_of_one() -> Json:
    one = [path("job_id")]
    return {
        "/jobs/{job_id}": {"parameters": one, "get": _read(), "delete": _discard()},
        "/jobs/{job_id}/ledger": {
            "parameters": one,
            "get": operation(
                "The calls of a job and how each ended",
                {
                    200: json_of(
                        "Its lines in order.", {"type": "array", "items": {"type": "object"}}
                    )
                },
                "JobNotFound",
            ),
        },
        "/jobs/{job_id}/cancel": {
            "parameters": one,
            "post": operation(
                "Cancel a job that is not final",
                {200: job("The job, cancelled.")},
                "JobNotFound",
                "WrongStatus",
            ),
        },
        "/jobs/{job_id}/retry": {"parameters": one, "post": _retry()},
        "/jobs/{job_id}/share": {
            "parameters": one,
            "post": operation(
                "A signed, expiring, read-only address of this job",
                {200: json_of("The addresses.", ref("Share"))},
                "JobNotFound",
            ),
        },
    }


def _read() -> Json:
    return operation(
        "Read a job, or wait for its end",
        {200: job("The job.", RETRY_AFTER)},
        "JobNotFound",
        parameters=[prefer(), query("share", TEXT, "The token of a signed link.")],
    )


def _discard() -> Json:
    return operation(
        "Discard a final job and everything of it",
        {204: {"description": "It is gone."}},
        "JobNotFound",
        "WrongStatus",
    )


def _submit() -> Json:
    form = {
        "type": "object",
        "description": "The options as form fields, the fields of the input, and one file.",
        "properties": {"file": {"type": "string", "format": "binary"}, "kind": TEXT},
        "additionalProperties": TEXT,
    }
    headers = {
        "Location": {"schema": TEXT},
        "Idempotent-Replayed": {"schema": {"const": "true"}},
        "Preference-Applied": {"schema": TEXT},
        **RATE_LIMIT,
    }
    return operation(
        "Submit a job",
        {
            202: {
                **job("The job, stored and sure to run.", headers | RETRY_AFTER),
                "links": _links(),
            },
            200: job("The job, final already: a replay, or within the preferred wait.", headers),
        },
        "MalformedRequest",
        "TooLarge",
        "WrongType",
        "InvalidInput",
        "KeyReused",
        "QuotaExceeded",
        parameters=[
            header(
                "Idempotency-Key",
                "One job per key and user, for as long as the job exists.",
                pattern=r'^([!#-~][!-~]{0,254}|"[!#-\[\]-~]{1,255}")$',
            ),
            prefer(),
            header("traceparent", "The trace that the job belongs to."),
        ],
        requestBody={
            "required": True,
            "content": {
                "application/json": {"schema": ref("Submission")},
                "multipart/form-data": {"schema": form},
            },
        },
    )


def _links() -> Json:
    """Where the id of a new job leads."""
    parameters = {"job_id": "$response.body#/job_id"}
    return {
        f"{method} {path.rpartition('/')[2]}": {
            "operationRef": f"#/paths/{path.replace('/', '~1')}/{method}",
            "parameters": parameters,
        }
        for method, path in _ABOUT_A_JOB
    }


def _list() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}
    page = {
        "type": "object",
        "required": ["jobs", "next_cursor"],
        "properties": {
            "jobs": {"type": "array", "items": ref("Job")},
            "next_cursor": {"type": ["string", "null"]},
        },
    }
    return operation(
        "The caller's jobs, newest first",
        {200: json_of("A page of jobs.", page)},
        "MalformedRequest",
        "InvalidInput",
        parameters=[
            query("status", ref("Status")),
            query("kind", TEXT),
            query("user_id", TEXT, "Whose jobs; with keys only one's own, or the admin's choice."),
            query("limit", limit),
            query("cursor", CURSOR, "`next_cursor` of the page before."),
        ],
    )


def _retry() -> Json:
    return operation(
        "Begin a new life of a failed or cancelled job, its finished steps kept",
        {
            202: job("The job, queued."),
            200: json_of("With dry_run: what a retry would reuse and buy.", ref("DryRun")),
        },
        "MalformedRequest",
        "JobNotFound",
        "WrongStatus",
        "TooLarge",
        "WrongType",
        "InvalidInput",
        "QuotaExceeded",
        parameters=[query("dry_run", {"type": "boolean", "default": False})],
        requestBody={"content": {"application/json": {"schema": ref("Revival")}}},
    )


def _retry_all() -> Json:
    answer = {
        "type": "object",
        "required": ["retried", "left"],
        "properties": {
            "retried": {"type": "array", "items": TEXT},
            "left": {"type": "integer", "minimum": 0},
        },
    }
    return operation(
        "Retry the caller's failed jobs of a kind, the oldest first, as far as quotas allow",
        {202: json_of("Which have a new life, and how many are left.", answer)},
        "InvalidInput",
        parameters=[
            query("kind", TEXT) | {"required": True},
            query("user_id", TEXT, "Whose jobs; with keys only one's own, or the admin's choice."),
        ],
    )
