"""The main job on the real parts: a forty-page text is dropped, its bar is read from 0 to 40."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from server.valkey import EmbeddedStore
from tasks.settings import Settings
from tests.browser.conftest import Server
from tests.conftest import LabModel

PAGES = 40
TEXT = "\f".join(
    f"Page {number}. The queue grew by {number} jobs. Nobody was charged twice for any of them."
    for number in range(1, PAGES + 1)
)
DROP = """(text) => {
    window.bars = [];
    const note = () => {
        const now = document.querySelector('.bar')?.getAttribute('aria-valuenow');
        if (now && window.bars.at(-1) !== Number(now)) window.bars.push(Number(now));
    };
    const watched = { subtree: true, childList: true, attributeFilter: ['aria-valuenow'] };
    new MutationObserver(note).observe(document.querySelector('.list'), watched);
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([text], 'report.txt', { type: 'text/plain' }));
    for (const name of ['dragover', 'drop']) {
        const event = new DragEvent(name, { dataTransfer, bubbles: true, cancelable: true });
        document.body.dispatchEvent(event);
    }
}"""


@pytest.fixture
def real_lab(settings: Settings, serve_lab: Callable[[Settings], LabModel]) -> LabModel:
    """A lab model that takes a moment for each call."""
    return serve_lab(settings.model_copy(update={"lab_delay_s": 0.05}))


@pytest.fixture
def worker(server: Server, valkey: EmbeddedStore, real_lab: LabModel) -> Iterator[None]:
    """A worker process, at home with the page's server."""
    environment = {
        **os.environ,
        "REDIS_URL": valkey.url,
        "AI_URL": real_lab.url,
        "SLOWCALL_BACKOFF_S": "0.1",
    }
    process = subprocess.Popen([sys.executable, "-m", "server", "worker"], env=environment)
    yield
    process.terminate()
    process.wait(20)


def test_forty_pages_dropped_become_a_summary(page: Page, worker: None, real_lab: LabModel) -> None:
    """One page fails once: the job goes on in a second attempt and buys nothing twice."""
    real_lab.misbehave({"match": "Page 7.", "status": 500, "times": 1})
    page.evaluate(DROP, TEXT)
    card = page.locator("[data-job-id]")
    expect(card.get_by_role("heading")).to_have_text("report.txt")
    expect(card).to_have_attribute("data-status", "done", timeout=40_000)
    bars = page.evaluate("window.bars")
    assert bars[0] == 0
    assert bars[-1] == PAGES
    assert bars == sorted(bars)
    assert len(bars) > PAGES / 8
    expect(card.locator("[data-part=attempts]")).to_have_text("attempt 2 of 3")
    expect(card.locator(".cells i")).to_have_count(PAGES)
    expect(card.locator(".cells :not(.done, .reused)")).to_have_count(0)
    expect(card.locator(".source")).to_contain_text("no AI was asked")
    expect(card.locator(".ledger summary")).to_contain_text("1 refused")
    assert "Page 1." in card.locator("[data-part=text]").inner_text()
    assert real_lab.ledger()["sold"] == PAGES + 1
