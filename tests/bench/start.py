"""Starting: `slowcall up` until it is ready, `import tasks.worker`, the page until it is live."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from tests.bench.parts import ROOT, free_port, running, until
from tests.bench.table import OURS, Table

BARE: Final = "a bare page"
LIBRARIES: Final = "the libraries alone"
_LIBRARIES: Final = "arq.worker, httpx_aiohttp, opentelemetry.trace, pydantic_settings"
_IMPORT: Final = "`import tasks.worker` s"
_SEEN: Final = """
window.live = new Promise((live) => {
    const look = () => document.body?.dataset.connection === 'open' && live(performance.now());
    const what = { subtree: true, childList: true, attributeFilter: ['data-connection'] };
    new MutationObserver(look).observe(document, what);
});"""
"""Says in the page when it is live, in ms since the navigation: a look from outside comes late."""
_OPENS: Final = """
window.live = new Promise((live) => {
    new EventSource('/jobs/stream').onopen = () => live(performance.now());
});"""
"""The least that can be live: one stream, in a page with nothing in it."""


def bench(runs: int, quick: bool) -> list[Table]:
    """One table."""
    note = (
        f"{LIBRARIES.capitalize()}: {_LIBRARIES}. {BARE.capitalize()} has nothing in it but the "
        "stream it opens."
    )
    table = Table("Starting", note)
    for _ in range(runs):
        bare_s = _import_s("sys")
        table.add(OURS, _IMPORT, _import_s("tasks.worker") - bare_s)
        table.add(LIBRARIES, _IMPORT, _import_s(_LIBRARIES) - bare_s)
        _up(table)
    return [table]


def _import_s(module: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, check=True)
    return time.perf_counter() - began


def _up(table: Table) -> None:
    with tempfile.TemporaryDirectory(prefix="slowcall-bench-") as folder:
        port = free_port()
        environment = {
            **{name: value for name, value in os.environ.items() if "SLOWCALL" not in name},
            "SLOWCALL_DATA_DIR": folder,
            "PYTHONPATH": str(ROOT),
        }
        words = [sys.executable, "-m", "server", "up", "--port", str(port)]
        began = time.perf_counter()
        with running(*words, env=environment, cwd=Path(folder)):
            url = f"http://127.0.0.1:{port}"
            until(lambda: _ready(url), "it is ready")
            table.add(OURS, "`slowcall up` until ready s", time.perf_counter() - began)
            table.add(OURS, "page until live s", _live_s(url, _SEEN))
            table.add(BARE, "page until live s", _live_s(f"{url}/healthz", _OPENS))


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _live_s(url: str, script: str) -> float:
    """From the navigation until its connection is open, in a browser that runs already."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import launch

    with sync_playwright() as playwright:
        browser = launch(playwright.chromium)
        page = browser.new_page()
        page.goto("about:blank")
        page.add_init_script(script)
        page.goto(url, wait_until="commit")
        took_ms: float = page.evaluate("live")
        browser.close()
        return took_ms / 1000
