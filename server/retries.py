"""Dead letters: what a retry would cost, a retry as it was or changed, a retry of all of a kind."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.bodies import media_type_of, parse_object, read_body
from server.parts import Parts, caller_of, job_of, parts_of
from server.routes import job_response, json_response, kind_of, log_decision
from server.schemas import ListQuery, Revival
from tasks.errors import (
    Fault,
    InvalidInput,
    JobNotFound,
    QuotaExceeded,
    WrongStatus,
    WrongType,
)
from tasks.kinds import Kind
from tasks.lifecycle import REVIVE, Status
from tasks.rehearsal import Price, rehearse
from tasks.store import JobView

PAGE: Final = 100
MOST: Final = 10 * PAGE
"""Dead letters that one request may retry."""


async def retry(request: Request) -> Response:
    """`POST /jobs/{job_id}/retry`: a new life, or with `dry_run` what it would reuse and buy."""
    parts, job = parts_of(request.scope), await job_of(request)
    changes = await _changes(request, parts.settings.max_body)
    input = await _new_input(parts, job, changes)
    if request.query_params.get("dry_run") == "true":
        price = await _price(parts, job, input)
        return json_response({"job_id": job.job_id, **asdict(price)})
    revived = await parts.store.revive(job.job_id, quota=parts.settings.quota, input=input)
    await log_decision(parts.store, revived, reason="retried by a person")
    return job_response(revived, 202)


async def _changes(request: Request, limit: int) -> Revival:
    body = await read_body(request, limit)
    if not body.strip():
        return Revival()
    if media_type_of(request) != "application/json":
        raise WrongType("Send the changes as `Content-Type: application/json`, or no body.")
    return Revival.read(parse_object(body))


async def _new_input(parts: Parts, job: JobView, changes: Revival) -> Any:
    """The input that the new life gets instead of its own; None: it keeps that."""
    if changes.input is None and changes.model is None:
        return None
    kind, input = _kind_of(parts, job), changes.input
    if input is None:
        input = (await parts.store.origin(job.job_id)).input
    if changes.model is not None:
        input = _with_model(kind, input, changes.model)
    kind.parse(input)
    return input


def _kind_of(parts: Parts, job: JobView) -> Kind:
    return kind_of(parts, orjson.loads(job.body)["kind"])


def _with_model(kind: Kind, input: Any, model: str) -> Any:
    if "model" not in kind.input_model.model_fields:
        fault: Fault = {"pointer": "/model", "message": f"the kind {kind.name} takes no model"}
        raise InvalidInput("The body does not fit.", [fault])
    return kind.parse(input).model_dump(mode="json", exclude_unset=True) | {"model": model}


async def _price(parts: Parts, job: JobView, input: Any) -> Price:
    """What a retry with this input (None: its own) takes from the store and at most buys."""
    if job.status not in REVIVE.origins:
        raise WrongStatus("Only a failed or cancelled job can be retried.")
    store = parts.store
    origin = await store.origin(job.job_id)
    lines = await store.ledger(job.job_id)
    return await rehearse(
        _kind_of(parts, job),
        origin.input if input is None else input,
        parts.settings,
        await store.steps(job.job_id),
        {line["step"]: line["model"] for line in lines},
        edited=origin.edited or input is not None,
    )


async def retry_all(request: Request) -> Response:
    """`POST /jobs/retry?kind=`: all the caller's failed jobs of a kind, as far as quotas allow."""
    parts = parts_of(request.scope)
    query = ListQuery.read(request.query_params)
    if query.kind is None:
        raise InvalidInput("Say which `kind` of failed jobs is to be retried.")
    failed = await _dead_letters(parts, caller_of(request.scope).scope(query.user_id), query.kind)
    retried = [job.job_id for job in reversed(failed) if await _revived(parts, job)]
    return json_response({"retried": retried, "left": len(failed) - len(retried)}, 202)


async def _dead_letters(parts: Parts, user_id: str | None, kind: str) -> list[JobView]:
    failed: list[JobView] = []
    cursor: str | None = None
    while len(failed) < MOST:
        page, cursor = await parts.store.list_jobs(
            user_id=user_id, status=Status.FAILED, kind=kind, limit=PAGE, cursor=cursor
        )
        failed += page
        if cursor is None:
            break
    return failed


async def _revived(parts: Parts, job: JobView) -> bool:
    """Whether a dead letter has a new life; not, where its user's quota is full or it is gone."""
    try:
        revived = await parts.store.revive(job.job_id, quota=parts.settings.quota)
    except (QuotaExceeded, JobNotFound, WrongStatus):
        return False
    reason = "retried by a person, with all of its kind"
    await log_decision(parts.store, revived, reason=reason)
    return True
