"""The parts of a browser test: one Chromium, one server, a store of its own, a worker in hand."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, BrowserContext, BrowserType, Error, Page, sync_playwright
from pydantic import SecretStr

from server.valkey import EmbeddedStore
from tasks.settings import Settings
from tests.browser.hand import Hand
from tests.conftest import wait_until
from tests.invariants import Books, faults

UNTRUSTED = "slowcall.test"
"""A name of this machine. Without TLS, a browser trusts only those that say so."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {UNTRUSTED} 127.0.0.1",
]
BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser", "chrome")
NO_BROWSER = (
    "The browser tests need Chromium or Chrome: none is on PATH and Playwright could not fetch one."
)


def launch(kind: BrowserType, without: Sequence[str] = ()) -> Browser:
    """The system's Chromium or Chrome, else the one that Playwright has or fetches; `without` some
    of the arguments that Playwright gives it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)

    def start() -> Browser:
        return kind.launch(executable_path=path, args=ARGUMENTS, ignore_default_args=[*without])

    try:
        return start()
    except Error:
        fetched = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"])
        if path or fetched.returncode:
            pytest.fail(NO_BROWSER)
        return start()


class Server:
    """A server process that a test can stop and start again at the same address."""

    def __init__(self, environment: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--log-level", "warning"], env=self._environment
        )
        wait_until(self._answers, "the server answers", 20)

    def stop(self) -> None:
        """Stop it in order."""
        if self._process:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def streams(self) -> int:
        """How many event streams it serves now."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return int(
            float(
                next(line for line in lines if line.startswith("slowcall_streams_open ")).split()[1]
            )
        )

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
    with sync_playwright() as playwright:
        browser = launch(playwright.chromium)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def page_settings(valkey: EmbeddedStore) -> Iterator[Settings]:
    """The settings of the page's server and worker: they share the session's store."""
    with tempfile.TemporaryDirectory(prefix="slowcall-page-") as folder:
        yield Settings(REDIS_URL=SecretStr(valkey.url), data_dir=Path(folder))


@pytest.fixture(scope="package")
def running_server(valkey: EmbeddedStore) -> Iterator[Server]:
    """One server for all tests."""
    server = Server(
        {
            "REDIS_URL": valkey.url,
            "SLOWCALL_QUOTA": "0",
            "SLOWCALL_KINDS": "tests.browser.review",
        }
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def store_url(valkey: EmbeddedStore, running_server: Server) -> Iterator[str]:
    """The address of an empty store, whose invariants hold after the test. The session's server
    stays connected to it, by as many connections as it likes."""
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        yield valkey.url
        assert faults(Books.read(client)) == []


@pytest.fixture
def server(running_server: Server, store_url: str) -> Server:
    """The server, on an empty store."""
    return running_server


@pytest.fixture
def hand(server: Server, page_settings: Settings) -> Iterator[Hand]:
    """A worker that does what the test says."""
    with Hand(page_settings) as hand:
        hand.alive()
        yield hand


@pytest.fixture
def browse(chromium: Browser, server: Server) -> Iterator[Callable[..., BrowserContext]]:
    """Make browsers of their own (cookies, storage, locks), watched: no script may fail on the
    page and nothing may be asked of any other host."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def make(**options: Any) -> BrowserContext:
        context = chromium.new_context(**{"base_url": server.url, "locale": "en-GB", **options})
        context.set_default_timeout(10_000)
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        home = options.get("base_url", server.url)
        context.on("request", lambda request: _foreign(request.url, home, wrong))
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
    assert not wrong, wrong


def _foreign(url: str, home: str, wrong: list[str]) -> None:
    if not url.startswith((home, "blob:", "data:")):
        wrong.append(f"a request left the page: {url}")


@pytest.fixture
def page(browse: Callable[..., BrowserContext]) -> Page:
    """The page, opened and connected."""
    page = browse().new_page()
    page.goto("/")
    page.wait_for_selector("body[data-connection=open]")
    return page
