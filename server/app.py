"""The ASGI application: its routes, what a request passes before them, its start and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache
from types import FrameType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from server import retries, routes, service
from server.auth import Keyring
from server.gate import Gate, HideTokens, SecurityHeaders
from server.hub import Hub
from server.openapi import describe
from server.pages import page_routes
from server.parts import Parts
from server.problems import SafetyNet, on_http_exception, on_refusal
from server.seats import Seats
from server.stream import FeedStream, JobStream
from server.valkey import join_store
from tasks.errors import SettingsError, SlowcallError
from tasks.kinds import load_kinds
from tasks.logs import configure_logging
from tasks.memory import settled_memory
from tasks.settings import Settings, load_settings
from tasks.store import Store
from tasks.telemetry import configure_tracing

_SENT_HEADERS: Final = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "Prefer",
    "traceparent",
)
_SHOWN_HEADERS: Final = (
    "Idempotent-Replayed",
    "Location",
    "Preference-Applied",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
)
_HIDE_TOKENS: Final = HideTokens()
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


def create_app(settings: Settings) -> Starlette:
    """The application; it connects to the store when it is started. Raises SettingsError."""
    keyring = Keyring((user, key.get_secret_value()) for user, key in settings.api_keys)
    kinds = load_kinds(settings.kinds)

    def lifespan(app: Starlette) -> AbstractAsyncContextManager[None]:
        return _run(app, settings, kinds, keyring)

    app = Starlette(
        routes=[*_routes(), Route("/openapi.json", describe(kinds))],
        middleware=_middleware(settings, keyring),
        exception_handlers={SlowcallError: on_refusal, HTTPException: on_http_exception},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _routes() -> list[Route]:
    job = "/jobs/{job_id}"
    return [
        Route("/jobs", routes.submit, methods=["POST"]),
        Route("/jobs", routes.list_jobs),
        Route("/jobs/stream", FeedStream(), methods=["GET"]),
        Route("/jobs/retry", retries.retry_all, methods=["POST"]),
        Route(job, routes.read),
        Route(job, routes.delete, methods=["DELETE"]),
        Route(job + "/stream", JobStream(), methods=["GET"]),
        Route(job + "/ledger", routes.ledger),
        Route(job + "/cancel", routes.cancel, methods=["POST"]),
        Route(job + "/retry", retries.retry, methods=["POST"]),
        Route(job + "/share", routes.share, methods=["POST"]),
        Route("/session", service.open_session, methods=["POST"]),
        Route("/session", service.close_session, methods=["DELETE"]),
        Route("/kinds", service.kinds),
        Route("/stats", service.stats),
        Route("/healthz", service.alive),
        Route("/readyz", service.ready),
        Route("/metrics", service.metrics),
        *page_routes(),
    ]


def _middleware(settings: Settings, keyring: Keyring) -> list[Middleware]:
    """From the outside in; the headers of the first two are on refusals and on our faults, too."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=_SENT_HEADERS,
        expose_headers=_SHOWN_HEADERS,
    )
    return [
        Middleware(SecurityHeaders),
        *([cors] if settings.cors_origins else []),
        Middleware(SafetyNet),
        Middleware(Gate, keyring=keyring, origins=settings.cors_origins),
    ]


@asynccontextmanager
async def _run(
    app: Starlette, settings: Settings, kinds: dict[str, Any], keyring: Keyring
) -> AsyncIterator[None]:
    """From start to end: the store is joined, the hub subscribed, memory settled."""
    logging.getLogger("uvicorn.access").addFilter(_HIDE_TOKENS)
    with join_store(settings) as joined:
        store = Store.connect(joined)
        await store.scripts.load()
        try:
            async with Hub(store.redis, ping_s=settings.ping_s) as hub:
                seats = Seats(limit=settings.max_streams, user_limit=settings.user_streams)
                app.state.parts = Parts(joined, kinds, keyring, store, hub, seats)
                with settled_memory(), _at_exit_signal(hub.end):
                    yield
        finally:
            await store.aclose()


@contextmanager
def _at_exit_signal(end: Any) -> Iterator[None]:
    """Call `end` on the signal itself: servers wait for open connections before they tell an app
    that it shall stop. The server's own handlers run, too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # nobody else can have signals
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _STOPS}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(end)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in _STOPS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@cache
def _app_of_the_environment() -> Starlette:
    if not logging.getLogger().handlers:  # whoever runs us has no wish of their own
        configure_logging("server", host=True)
    configure_tracing("server")
    try:
        return create_app(load_settings())
    except SettingsError as error:
        sys.exit(f"slowcall: {error}")


def __getattr__(name: str) -> Starlette:
    """`server.app:app`, made when it is asked for: importing this module reads no settings."""
    if name == "app":
        return _app_of_the_environment()
    raise AttributeError(name)
