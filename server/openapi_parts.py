"""The pieces that the description is put together of: schemas, answers, refusals, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from server.problems import MEDIA_TYPE, SHAPES
from server.schemas import MAX_WAIT_S, Revival, Submission
from tasks.kinds import Kind
from tasks.lifecycle import Status

Json = dict[str, Any]

_REF: Final = "#/components/schemas/{model}"
TEXT: Final[Json] = {"type": "string"}
_TIME: Final[Json] = {"type": "string", "format": "date-time"}
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_LEDGER: Final = (
    "paid", "open", "rejected", "not_sent", "unknown", "reused", "input_tokens", "output_tokens",
)  # fmt: skip
_EVERYWHERE: Final = ("Unauthorized", "Forbidden", "StoreUnavailable")
RETRY_AFTER: Final[Json] = {"Retry-After": {"schema": COUNT, "description": "Seconds."}}
RATE_LIMIT: Final[Json] = {
    name: {"schema": TEXT, "description": "Jobs in flight, where SLOWCALL_QUOTA is set."}
    for name in ("RateLimit-Policy", "RateLimit")
}


def schemas(kinds: Mapping[str, Kind]) -> Json:
    """The schemas, by the names that `ref` takes."""
    submission = Submission.model_json_schema(ref_template=_REF)
    submission["properties"]["kind"]["enum"] = sorted(kinds)
    submission["properties"]["input"] = ref("Input")
    return {
        **_inputs(kinds),
        "Submission": submission,
        "Revival": Revival.model_json_schema(),
        "Status": {"enum": [str(status) for status in Status]},
        "Job": _job_schema(),
        "Problem": _problem_schema(),
        "Share": strings("url", "job", "stream", "expires_at"),
        "DryRun": {
            "type": "object",
            "required": ["job_id", "steps_kept", "calls_at_most"],
            "properties": {
                "job_id": TEXT,
                "steps_kept": COUNT,
                "calls_at_most": {"type": ["integer", "null"], "minimum": 0},
            },
        },
    }


def _inputs(kinds: Mapping[str, Kind]) -> Json:
    """What each kind takes, and `Input`: one of these, or plain text."""
    found: Json = {}
    for kind in kinds.values():
        schema = kind.input_model.model_json_schema(ref_template=_REF)
        found |= schema.pop("$defs", {})
        found[f"{kind.name}.input"] = schema
    plain = {"type": "string", "pattern": r"\S"}
    ours = [ref(f"{name}.input") for name in sorted(kinds)]
    text = "What to do, as the kind wants it: see GET /kinds."
    return {**found, "Input": {"description": text, "anyOf": [plain, *ours]}}


def _job_schema() -> Json:
    progress = {
        "done": COUNT,
        "total": {"type": ["integer", "null"]},
        "note": {"type": ["string", "null"]},
    }
    planned = {"step": TEXT, "title": TEXT, "done": {"type": "boolean"}}
    plan = {
        "description": "What the steps do, where a kind plans them: only there.",
        "type": "array",
        "items": {"type": "object", "required": [*planned], "properties": planned},
    }
    properties = {
        "job_id": TEXT,
        "kind": TEXT,
        "status": ref("Status"),
        "user_id": TEXT,
        "attempts": COUNT,
        "max_attempts": {"type": "integer", "minimum": 1},
        "progress": {
            "type": "object",
            "required": [*progress],
            "properties": progress | {"plan": plan},
        },
        "result": {"type": ["object", "null"]},
        "error": {"type": ["object", "null"]},
        "retry_at": {"type": ["string", "null"]},
        "queue_position": {"type": ["integer", "null"], "minimum": 1},
        "eta_s": {"type": ["number", "null"]},
        "ledger": {"type": "object", "properties": dict.fromkeys(_LEDGER, COUNT)},
        "metadata": {"type": "object"},
        "created_at": _TIME,
        "started_at": {"type": ["string", "null"]},
        "finished_at": {"type": ["string", "null"]},
        "callback": {"anyOf": [_callback_schema(), {"type": "null"}]},
        "links": strings("self", "stream", "cancel", "retry"),
    }
    return {"type": "object", "required": [*properties], "properties": properties}


def _callback_schema() -> Json:
    properties = {
        "state": {"enum": ["waiting", "pending", "delivered", "failed"]},
        "attempts": COUNT,
        "status": {"type": ["integer", "null"]},
        "next_at": {"type": ["string", "null"]},
    }
    return {
        "description": "How the delivery to `callback_url` goes.",
        "type": "object",
        "required": [*properties],
        "properties": properties,
    }


def _problem_schema() -> Json:
    fault = {"type": "object", "properties": {"pointer": TEXT, "message": TEXT}}
    properties = {
        "type": {"type": "string", "format": "uri-reference"},
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": TEXT,
        "errors": {"type": "array", "items": fault},
    }
    required = ["type", "title", "status", "detail"]
    return {"type": "object", "required": required, "properties": properties}


def problems() -> Json:
    """Each problem by the name of its error; a problem's `type` points here."""
    problems = {error.__name__: problem(shape.title) for error, shape in SHAPES.items()}
    problems["QuotaExceeded"]["headers"] = RETRY_AFTER | RATE_LIMIT
    problems["StoreUnavailable"]["headers"] = RETRY_AFTER
    return problems


def problem(title: str) -> Json:
    """An answer that is a problem."""
    return {"description": title, "content": {MEDIA_TYPE: {"schema": ref("Problem")}}}


def operation(summary: str, answers: Mapping[int, Json], *problems: str, **more: Any) -> Json:
    """An operation with its answers and, one response for each status, its problems."""
    responses: dict[str, Json] = {str(status): answer for status, answer in answers.items()}
    for error, shape in SHAPES.items():
        if error.__name__ in (*problems, *_EVERYWHERE):
            name = f"#/components/responses/{error.__name__}"
            responses.setdefault(str(shape.status), {"$ref": name})
    responses["431"] = problem(HTTPStatus(431).phrase)
    responses["500"] = problem(HTTPStatus(500).phrase)
    return {"summary": summary, "responses": responses, **more}


def job(description: str, headers: Json | None = None) -> Json:
    """An answer that is a job."""
    return {**json_of(description, ref("Job")), **({"headers": headers} if headers else {})}


def json_of(description: str, schema: Json) -> Json:
    """An answer in JSON."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def text_of(description: str, media_type: str) -> Json:
    """An answer in text."""
    return {"description": description, "content": {media_type: {"schema": TEXT}}}


def ref(name: str) -> Json:
    """A reference to a schema."""
    return {"$ref": _REF.format(model=name)}


def strings(*names: str) -> Json:
    """An object of strings, all of them there."""
    return {"type": "object", "required": [*names], "properties": dict.fromkeys(names, TEXT)}


def path(name: str) -> Json:
    """A part of the path."""
    return {"name": name, "in": "path", "required": True, "schema": TEXT}


def query(name: str, schema: Json, description: str = "") -> Json:
    """A question of the query string."""
    return {"name": name, "in": "query", "schema": schema, "description": description}


def header(name: str, description: str, **schema: str) -> Json:
    """A header of the request."""
    return {"name": name, "in": "header", "schema": TEXT | schema, "description": description}


def prefer() -> Json:
    """The header that asks to wait for the end."""
    return header(
        "Prefer", f"`wait=N`: answer when the job is final, or after N (≤ {MAX_WAIT_S}) s."
    )
