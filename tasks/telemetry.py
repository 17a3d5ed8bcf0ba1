"""Traces: one trace from the POST of a job over every attempt, step and call, by OpenTelemetry.

The API is always there and costs next to nothing; with the extra `slowcall[otel]` and the standard
OTEL_* variables the spans go out over OTLP. Names and attributes are those of the OpenTelemetry
conventions for messaging and for generative AI. No prompt and no answer is ever put on a span.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from tasks.draft import Answer
from tasks.store import Run

log = logging.getLogger("slowcall.telemetry")

_SYSTEM: Final = "slowcall"
_EXPORT: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

tracer = trace.get_tracer("slowcall")


def configure_tracing(part: str) -> None:
    """Send spans over OTLP where an OTEL_EXPORTER_OTLP_* endpoint is set; say if that cannot be."""
    if not any(os.environ.get(name) for name in _EXPORT):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("OTEL_* is set, but spans need: pip install 'slowcall[otel]'")
        return
    resource = Resource.create(
        {"service.name": os.environ.get("OTEL_SERVICE_NAME", f"slowcall-{part}")}
    )
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@contextmanager
def submit_span(kind: str, user_id: str, headers: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The span of a POST, below the caller's `traceparent`; the block gets what to keep on the job
    so that its attempts go on in the same trace (W3C Trace Context; empty when there is none)."""
    if _untraced(headers):
        yield {}
        return
    parent = propagate.extract(headers)
    attributes = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": kind,
        "user.id": user_id,
    }
    with tracer.start_as_current_span(
        f"send {kind}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes
    ):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield {name: carrier[name] for name in ("traceparent", "tracestate") if name in carrier}


@contextmanager
def attempt_span(run: Run) -> Iterator[Span]:
    """The span of one attempt, in the trace of the POST and linked to it."""
    if _untraced(run.options["trace"]):
        yield trace.INVALID_SPAN
        return
    parent = propagate.extract(run.options["trace"])
    creation = trace.get_current_span(parent).get_span_context()
    attributes = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": run.kind,
        "messaging.message.id": run.job_id,
        **_job(run),
    }
    # Attached and detached in one frame: a span that outlives a cancelled task by its context would
    # fail to detach from another one (case B22).
    span = tracer.start_span(
        f"process {run.kind}",
        context=parent,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(creation)] if creation.is_valid else [],
    )
    token = otel_context.attach(trace.set_span_in_context(span, parent))
    try:
        yield span
    finally:
        otel_context.detach(token)
        span.end()


@contextmanager
def step_span(run: Run, step: str) -> Iterator[Span]:
    """The span of a step that is computed; a stored one makes none."""
    with _inner_span(f"step {step}", attributes={"slowcall.step": step, **_job(run)}) as span:
        yield span


@contextmanager
def call_span(run: Run, step: str, body: Mapping[str, Any]) -> Iterator[Span]:
    """The span of one request to the model, by the conventions for generative AI."""
    model = str(body.get("model", ""))
    asked = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": body.get("stream") is not False,
        "slowcall.step": step,
        **_job(run),
    }
    for name in ("max_tokens", "temperature", "top_p", "seed"):
        if isinstance(body.get(name), (int, float)):
            asked[f"gen_ai.request.{name}"] = body[name]
    with _inner_span(f"chat {model}", kind=SpanKind.CLIENT, attributes=asked) as span:
        yield span


@contextmanager
def webhook_span(letter: Mapping[str, Any]) -> Iterator[Span]:
    """The span of one try to deliver a callback, in the trace of its job; of the address only the
    host is told."""
    told = letter["event"]["data"]
    attributes = {
        "http.request.method": "POST",
        "http.request.resend_count": letter.get("tries", 0),
        "server.address": urlsplit(letter["url"]).hostname or "",
        "slowcall.job.id": told["job_id"],
        "slowcall.job.kind": told["kind"],
        "slowcall.job.attempt": told["attempts"],
        "user.id": told["user_id"],
    }
    parent = propagate.extract(letter.get("trace", {}))
    with _inner_span(
        "webhook", context=parent, kind=SpanKind.CLIENT, attributes=attributes
    ) as span:
        yield span


@contextmanager
def _inner_span(name: str, **more: Any) -> Iterator[Span]:
    """A span below the present one, or in `context`; of an error it tells the type alone."""
    with tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False, **more
    ) as span:
        try:
            yield span
        except BaseException as error:
            tell_failure(span, getattr(error, "type", type(error).__name__))
            raise


def _untraced(carrier: Mapping[str, str]) -> bool:
    """Whether nobody traces here and no trace comes from elsewhere: a span that is never seen took
    a tenth of a POST."""
    here = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return not here and not any(field in carrier for field in _carriers())


@cache
def _carriers() -> tuple[str, ...]:
    """The headers that a trace may come in."""
    return tuple(propagate.get_global_textmap().fields)


def tell_job(job_id: str) -> None:
    """Name the job that the present span made."""
    about = {"slowcall.job.id": job_id, "messaging.message.id": job_id}
    trace.get_current_span().set_attributes(about)


def tell_answer(span: Span, answer: Answer, first_ms: int | None) -> None:
    """What an answer says of itself; `first_ms`: the time to its first byte."""
    span.set_attributes(
        {
            "gen_ai.response.model": answer.model,
            "gen_ai.response.finish_reasons": [answer.finish_reason],
            "gen_ai.usage.input_tokens": answer.input_tokens,
            "gen_ai.usage.output_tokens": answer.output_tokens,
        }
    )
    if answer.response_id:
        span.set_attribute("gen_ai.response.id", answer.response_id)
    if first_ms is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", first_ms / 1000)


def tell_status(span: Span, status: int) -> None:
    """What a receiver answered; what is no success is an error."""
    span.set_attribute("http.response.status_code", status)
    if not 200 <= status < 300:
        tell_failure(span, str(status))


def tell_failure(span: Span, type: str) -> None:
    """Mark a span as an error by the contract's type; the message may quote the prompt."""
    span.set_attribute("error.type", type)
    span.set_status(Status(StatusCode.ERROR, type))


def trace_id() -> str | None:
    """The present trace's id in hex; None outside of one."""
    span = trace.get_current_span().get_span_context()
    return f"{span.trace_id:032x}" if span.is_valid else None


def _job(run: Run) -> dict[str, str | int]:
    return {
        "slowcall.job.id": run.job_id,
        "slowcall.job.kind": run.kind,
        "slowcall.job.attempt": run.attempt,
        "user.id": run.user_id,
    }
