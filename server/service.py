"""Everything but the jobs and the page: health, figures, kinds, the page's session."""

from __future__ import annotations

import time
from functools import cache
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.auth import SESSION_S, session_token
from server.bodies import read_json
from server.gate import COOKIE
from server.parts import Parts, parts_of
from server.problems import problem
from server.routes import json_response
from tasks.errors import Unauthorized
from tasks.metrics import store_metrics
from tasks.store.fragments import iso

NO_WORKER: Final = "No worker is alive: start one with `slowcall worker`. Jobs wait meanwhile."


async def alive(request: Request) -> Response:
    """`GET /healthz`: the process answers."""
    return json_response({"status": "alive"})


async def ready(request: Request) -> Response:
    """`GET /readyz`: jobs are taken and run. Raises StoreUnavailable."""
    store = parts_of(request.scope).store
    await store.ping()
    workers = await store.live_workers()
    if not workers:
        return problem(503, NO_WORKER, title="No worker is alive", headers={"Retry-After": "2"})
    return json_response({"status": "ready", "live_workers": workers})


async def kinds(request: Request) -> Response:
    """`GET /kinds`: what a job can do, and the schema of its input."""
    known = parts_of(request.scope).kinds.values()
    return json_response(
        {
            "kinds": [
                {
                    "name": kind.name,
                    "description": kind.description,
                    "input_schema": _schema(kind.input_model),
                }
                for kind in known
            ]
        }
    )


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


async def stats(request: Request) -> Response:
    """`GET /stats`: the queue, the workers, the lanes."""
    return json_response(await parts_of(request.scope).store.stats())


async def metrics(request: Request) -> Response:
    """`GET /metrics`: the figures of the whole store and of this server, as Prometheus text."""
    return Response(
        generate_latest(_Figures(await _metrics(parts_of(request.scope)))),
        headers={"Content-Type": CONTENT_TYPE_LATEST},
    )


async def _metrics(parts: Parts) -> list[Metric]:
    store = parts.store
    here = (
        GaugeMetricFamily("slowcall_streams_open", "Streams of this server.", parts.seats.taken),
        CounterMetricFamily(
            "slowcall_events_sent", "Events this server gave to streams.", parts.hub.handed_out
        ),
    )
    return [*store_metrics(await store.figures(), await store.stats()), *here]


class _Figures(Collector):
    """Metrics that were gathered already, as the Prometheus library takes them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """All of them."""
        return self._metrics


async def open_session(request: Request) -> Response:
    """`POST /session`: the page's cookie, for a key in the body. Raises Unauthorized."""
    parts = parts_of(request.scope)
    key = (await read_json(request, limit=4096)).get("key")
    if not isinstance(key, str):
        raise Unauthorized('Send {"key": "…"}.')
    if not parts.keyring:
        return json_response({"user_id": None, "expires_at": None})
    user_id = parts.keyring.user_of(key)
    expires_at = int(time.time()) + SESSION_S
    response = json_response({"user_id": user_id, "expires_at": iso(expires_at)})
    _set_cookie(request, response, session_token(parts.keyring, user_id, expires_at), SESSION_S)
    return response


async def close_session(request: Request) -> Response:
    """`DELETE /session`: the cookie is gone."""
    response = Response(status_code=204)
    _set_cookie(request, response, "", 0)
    return response


def _set_cookie(request: Request, response: Response, value: str, max_age_s: int) -> None:
    response.set_cookie(
        COOKIE,
        value,
        max_age=max_age_s,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
