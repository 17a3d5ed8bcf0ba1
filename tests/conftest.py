"""The fixtures that all tests share: one real Valkey for the session, a server, the lab model."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import redis
import uvicorn
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

from server.lab import create_lab
from server.protocol import Protocol
from server.valkey import EmbeddedStore
from tasks.settings import Settings
from tests.invariants import Books, faults

hypothesis.settings.register_profile("long", max_examples=3_000)

OURS = {"REDIS_URL", "AI_URL", "AI_KEY", "AI_MODEL"}
PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings or the proxies of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("SLOWCALL_") or name in OURS or name.lower() in PROXIES:
            monkeypatch.delenv(name)


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Whatever the test started in its loop has ended."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=2)
    assert not left, f"the test left tasks behind: {left}"


@pytest.fixture(autouse=True)
def tidy(request: pytest.FixtureRequest) -> None:
    """A test with a loop of its own leaves nothing running in it."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("no_task_left")


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedStore]:
    """The session's Valkey, as users get it embedded but for one thing: it does not wait for the
    disk, whose speed is none of the tests' business. It is gone afterwards with its folder."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slowcall-"))
        store = stack.enter_context(EmbeddedStore(Path(folder)))
        with redis.Redis.from_url(store.url) as client:
            client.config_set("appendfsync", "everysec")
        yield store


@pytest.fixture
def store_url(valkey: EmbeddedStore, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty store; whatever the test did to it, the invariants hold after it,
    unless it is marked to write past the scripts."""
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        connections = len(client.client_list())
        yield valkey.url
        wait_until(
            lambda: len(client.client_list()) <= connections, "the test's connections are closed"
        )
        if not request.node.get_closest_marker("writes_by_hand"):
            assert faults(Books.read(client)) == []


@pytest.fixture
def settings(store_url: str, tmp_path: Path) -> Settings:
    """Settings on the empty store, quick to fail, with a data folder of the test's own.

    Change some with `settings.model_copy(update={"quota": 0})`.
    """
    return Settings(
        REDIS_URL=SecretStr(store_url),
        data_dir=tmp_path,
        backoff_s=0.05,
        jitter=0,
        lease_s=2,
        lab_delay_s=0,
        lab_tokens_per_s=0,
    )


@pytest.fixture
def serve_app() -> Iterator[Callable[[Any], str]]:
    """Serve an ASGI app on a free port of this machine until the test ends; answers its URL."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(serving(app))


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """A real server in a thread of its own; the block gets its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(app, http=Protocol, log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server starts")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive(), "the server ends"


class LabModel:
    """A running lab model: its address, its books, its rules for misbehaving."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, verify=False)

    def ledger(self) -> dict[str, Any]:
        """What it sold so far."""
        return dict(self.http.get("/ledger").json())

    def misbehave(self, *rules: dict[str, Any]) -> None:
        """Put these rules in force instead of the old ones."""
        self.http.post("/faults", json=rules).raise_for_status()


@pytest.fixture
def serve_lab() -> Iterator[Callable[[Settings], LabModel]]:
    """Serve lab models until the test ends."""
    with ExitStack() as stack:

        def serve(settings: Settings) -> LabModel:
            model = LabModel(stack.enter_context(serving(create_lab(settings))))
            stack.enter_context(model.http)
            return model

        yield serve


@pytest.fixture
def lab(settings: Settings, serve_lab: Callable[[Settings], LabModel]) -> LabModel:
    """A lab model that answers at once."""
    return serve_lab(settings)


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """Where the spans of this process go: a provider can be set once in a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Callable[[], list[ReadableSpan]]:
    """The spans that ended since the test began."""
    exporter.clear()
    return lambda: list(exporter.get_finished_spans())


def wait_until(condition: Callable[[], object], what: str, within_s: float = 10) -> None:
    """Wait for a condition; fail with `what` was waited for."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain: {what}"
        time.sleep(0.005)
