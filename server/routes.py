"""The jobs: submit, read, list, cancel, discard, share, and the ledger of each."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.auth import SHARE_S, share_token
from server.bodies import fingerprint, media_type_of, read_json
from server.parts import Parts, caller_of, job_of, parts_of
from server.problems import refusal
from server.schemas import (
    ListQuery,
    Submission,
    idempotency_key,
    preferred_wait_s,
)
from server.uploads import read_upload
from server.watch import Watch
from tasks import keys
from tasks.callbacks import check_callback
from tasks.calls import upstream_key
from tasks.errors import (
    Fault,
    InvalidInput,
    QuotaExceeded,
    RecordDamaged,
    SlowcallError,
    StoreUnavailable,
)
from tasks.kinds import Kind, UploadedFile
from tasks.logs import log_job
from tasks.store import JobView, NewJob, Store
from tasks.store.fragments import iso
from tasks.telemetry import submit_span, tell_job

POLL_S: Final = 2
"""When to ask again for a job of which nobody knows how long it takes."""
LONGEST_POLL_S: Final = 60


async def submit(request: Request) -> Response:
    """`POST /jobs`: the job, stored and sure to run, or the one that came with this key before."""
    parts = parts_of(request.scope)
    quota = parts.settings.quota
    try:
        return await _submit(request, parts)
    except SlowcallError as error:
        response = refusal(error, request.scope.get("root_path", ""))
        full = quota if isinstance(error, QuotaExceeded) else None
        response.headers.update(rate_limit(quota, full))
        return response


async def _submit(request: Request, parts: Parts) -> Response:
    new = await _new_job(request, parts)
    with submit_span(new.kind, new.user_id, request.headers) as trace:
        submitted = await parts.store.submit(new, quota=parts.settings.quota, trace=trace)
        tell_job(submitted.job.job_id)
        if not submitted.replayed:  # the answer does not wait for its line
            loop = asyncio.get_running_loop()
            loop.call_soon(log_job, submitted.job, submitted.job.status)
    job, headers = await _preferred(request, parts, submitted.job)
    headers |= rate_limit(parts.settings.quota, submitted.in_flight)
    headers["Location"] = f"{request.scope.get('root_path', '')}/jobs/{job.job_id}"
    if submitted.replayed:
        headers["Idempotent-Replayed"] = "true"
    if not job.final:
        headers["Retry-After"] = str(retry_after_s(job))
    return job_response(job, 200 if job.final else 202, headers)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A submission as it was sent, whatever its content type; `seen` tells it from another."""

    submission: Submission
    seen: dict[str, Any]
    blob: bytes | None


async def _asked(request: Request, limit: int) -> _Asked:
    if media_type_of(request) == "multipart/form-data":
        upload = await read_upload(request, limit)
        return _Asked(Submission.read(upload.document), upload.seen, upload.blob)
    document = await read_json(request, limit)
    return _Asked(Submission.read(document), document, None)


async def _new_job(request: Request, parts: Parts) -> NewJob:
    """The job that is asked for, everything about it checked. Raises the refusals of section 2."""
    settings = parts.settings
    key = idempotency_key(request.headers)
    asked = await _asked(request, settings.max_body)
    body = asked.submission
    user_id = caller_of(request.scope).owner(body.user_id)
    if body.callback_url is not None:
        check_callback(body.callback_url, settings)
    kind = kind_of(parts, body.kind)
    _check_document(kind.parse(body.input), asked.blob)
    return NewJob(
        kind=body.kind,
        input=body.input,
        user_id=user_id,
        max_attempts=body.max_attempts or kind.max_attempts or settings.max_attempts,
        timeout_s=body.timeout_s or kind.timeout_s or settings.timeout_s,
        on_unknown=body.on_unknown or settings.on_unknown,
        deadline_s=body.deadline_s,
        expires_s=body.expires_s,
        memo=body.memo,
        metadata=body.metadata,
        callback_url=body.callback_url,
        idempotency_key=key,
        fingerprint=fingerprint(asked.seen) if key else "",
        blob=asked.blob,
    )


def kind_of(parts: Parts, name: str) -> Kind:
    """The kind of that name. Raises InvalidInput, which lists what there is."""
    if name not in parts.kinds:
        known = ", ".join(sorted(parts.kinds))
        fault: Fault = {"pointer": "/kind", "message": f"one of {known}"}
        raise InvalidInput(f"There is no kind {name[:100]!r}; there is {known}.", [fault])
    return parts.kinds[name]


def _check_document(given: BaseModel, blob: bytes | None) -> None:
    """Raises InvalidInput for a document that is told of and did not come."""
    if blob is None and isinstance(getattr(given, "file", None), UploadedFile):
        fault: Fault = {"pointer": "/input/file", "message": "send the file itself"}
        raise InvalidInput("A document is sent as the `file` of multipart/form-data.", [fault])


def rate_limit(quota: int, in_flight: int | None) -> dict[str, str]:
    """The RateLimit fields of the quota; what is left only where it is known how much is used."""
    if quota == 0:
        return {}
    headers = {"RateLimit-Policy": f'"inflight";q={quota};qu="concurrent-requests"'}
    if in_flight is not None:
        headers["RateLimit"] = f'"inflight";r={max(0, quota - in_flight)}'
    return headers


async def read(request: Request) -> Response:
    """`GET /jobs/{job_id}`, at once or, if preferred, when it is final."""
    job, headers = await _preferred(request, parts_of(request.scope), await job_of(request))
    if not job.final:
        headers["Retry-After"] = str(retry_after_s(job))
    return job_response(job, 200, headers)


async def _preferred(
    request: Request, parts: Parts, job: JobView
) -> tuple[JobView, dict[str, str]]:
    """The job when it is final, or as it stands after `Prefer: wait=N`."""
    wait_s = preferred_wait_s(request.headers)
    if wait_s is None:
        return job, {}
    with suppress(StoreUnavailable):  # what is known already is an answer, too
        job = await _final_job(request, parts, job, wait_s)
    return job, {"Preference-Applied": f"wait={wait_s}"}


async def _final_job(request: Request, parts: Parts, job: JobView, wait_s: float) -> JobView:
    """The job as soon as it is final, else as it stands after `wait_s`; Redis is not polled."""
    if job.final:
        return job
    with parts.hub.watch(keys.name("job_channel", job.job_id)) as watch, suppress(TimeoutError):
        leaving = asyncio.create_task(_end_with_client(request, watch))
        try:
            async with asyncio.timeout(wait_s):
                while not job.final:
                    await watch.wait()
                    if watch.closed:
                        break
                    messages, reread, pinged = watch.take()
                    if reread or pinged or any(message.final for message in messages):
                        job = await parts.store.read(job.job_id)
                return job
        finally:
            leaving.cancel()
    return await parts.store.read(job.job_id)


async def _end_with_client(request: Request, watch: Watch) -> None:
    """Close the watch of a client that has left; the job goes on."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    watch.close()


def retry_after_s(view: JobView) -> int:
    """When it pays to ask again: by the job's own estimate or the time of its next attempt."""
    job = orjson.loads(view.body)
    seconds = job["eta_s"] or POLL_S
    if job["retry_at"]:
        seconds = (datetime.fromisoformat(job["retry_at"]) - datetime.now(UTC)).total_seconds()
    return max(1, min(LONGEST_POLL_S, round(seconds)))


def job_response(job: JobView, status: int, headers: dict[str, str] | None = None) -> Response:
    """A job as it is stored: its bytes are ready to send."""
    return Response(job.body, status, headers, "application/json")


async def list_jobs(request: Request) -> Response:
    """`GET /jobs`: a page of the caller's jobs, newest first."""
    query = ListQuery.read(request.query_params)
    views, next_cursor = await parts_of(request.scope).store.list_jobs(
        user_id=caller_of(request.scope).scope(query.user_id),
        status=query.status,
        kind=query.kind,
        limit=query.limit,
        cursor=query.cursor,
    )
    jobs = b",".join(view.body for view in views)
    body = b'{"jobs":[%b],"next_cursor":%b}' % (jobs, orjson.dumps(next_cursor))
    return Response(body, media_type="application/json")


async def ledger(request: Request) -> Response:
    """`GET /jobs/{job_id}/ledger`: each call of the job and how it ended."""
    job = await job_of(request)
    lines = await parts_of(request.scope).store.ledger(job.job_id)
    return json_response([_ledger_line(job.job_id, line) for line in lines])


def _ledger_line(job_id: str, line: dict[str, Any]) -> dict[str, Any]:
    """A line as the contract shows it; what is not known (yet) is null."""
    told = ("call", "step", "attempt", "model", "outcome", "status")
    tokens = {name: line.get(name) for name in ("input_tokens", "output_tokens")}
    texts = {name: line.get(name) or None for name in ("request_id", "message")}
    ended_at = iso(line["ended"] / 1000) if "ended" in line else None
    times = {"started_at": iso(line["started"] / 1000), "ended_at": ended_at}
    key = {"idempotency_key": upstream_key(job_id, line["step"], line["hash"], line["number"])}
    return {name: line.get(name) for name in told} | tokens | texts | times | key


async def cancel(request: Request) -> Response:
    """`POST /jobs/{job_id}/cancel`."""
    job = await job_of(request)
    store = parts_of(request.scope).store
    cancelled = await store.cancel(job.job_id)
    await log_decision(store, cancelled)
    return job_response(cancelled, 200)


async def log_decision(store: Store, job: JobView, **about: str | None) -> None:
    """The line of what a person decided about a job, in the job's own trace."""
    with suppress(StoreUnavailable, RecordDamaged):
        about["trace_id"] = await store.trace_id(job.job_id)
    log_job(job, job.status, **about)


async def delete(request: Request) -> Response:
    """`DELETE /jobs/{job_id}`: nothing of it is left."""
    job = await job_of(request)
    await parts_of(request.scope).store.delete(job.job_id)
    return Response(status_code=204)


async def share(request: Request) -> Response:
    """`POST /jobs/{job_id}/share`: addresses by which anybody may read this one job for a while."""
    job = await job_of(request)
    expires_at = int(time.time()) + SHARE_S
    token = share_token(parts_of(request.scope).keyring, job, expires_at)
    path = f"/jobs/{job.job_id}"
    return json_response(
        {
            "url": f"/?job={job.job_id}&share={token}",
            "job": f"{path}?share={token}",
            "stream": f"{path}/stream?share={token}",
            "expires_at": iso(expires_at),
        }
    )


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(orjson.dumps(value), status, media_type="application/json")
