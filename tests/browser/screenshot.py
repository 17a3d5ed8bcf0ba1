"""Take the README's picture of the page: `python -m tests.browser.screenshot [FILE.png]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from pydantic import SecretStr

from server.valkey import EmbeddedStore
from tasks.settings import Settings
from tasks.store.records import Progress
from tests.browser.conftest import Server, launch
from tests.browser.hand import Hand

PICTURE = Path(__file__).with_name("page.png")
PAGES, DONE, REUSED, OPEN = 40, 17, 6, 4
ANSWER = (
    "A lease is a worker's right to a job, renewed for as long as the worker lives. "
    "When it lapses, another worker takes the job over and goes on from the last stored step."
)
HAIKU = "Wait, then wait again —\nthe lane opens like a door"


def scene(hand: Hand) -> None:
    """A document on its way, an answer as it streams, a dead letter, an answer that is there."""
    hand.submit("Explain what a lease is, in two sentences")
    answered = hand.start()
    hand.buy(answered, "answer")
    hand.finish(answered, ANSWER)
    hand.submit("Translate the minutes of the meeting", kind="summarize", text="one\ftwo")
    failed = hand.start()
    hand.buy(failed, "page 1")
    hand.fail(failed, "131,072 tokens at most, 140,022 were sent")
    hand.submit("Write a haiku about backoff")
    streaming = hand.start()
    hand.begin(streaming, "answer")
    hand.submit("annual-report.pdf", kind="summarize")
    document = hand.start()
    hand.reuse(document, 0, PAGES, reused=REUSED)
    for page in range(1, DONE + 1):
        hand.buy(document, f"page {page}", Progress(page, PAGES, f"page {page} of {PAGES}"))
    for page in range(DONE + 1, DONE + OPEN + 1):
        hand.begin(document, f"page {page}")
    hand.write(streaming, HAIKU)


def take(picture: Path) -> None:
    """Stage the scene on the real server and photograph it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedStore(Path(folder)) as store,
        sync_playwright() as playwright,
    ):
        settings = Settings(REDIS_URL=SecretStr(store.url), data_dir=Path(folder))
        server = Server({"REDIS_URL": store.url, "SLOWCALL_QUOTA": "0"})
        server.start()
        try:
            with Hand(settings) as hand:
                hand.alive()
                scene(hand)
                browser = launch(playwright.chromium)
                page = browser.new_page(
                    base_url=server.url, locale="en-GB", viewport={"width": 900, "height": 1180}
                )
                page.goto("/")
                haiku = page.get_by_role("article", name="haiku")
                expect(haiku.locator("[data-part=text]")).to_contain_text("door")
                expect(page.locator(".price:visible")).to_contain_text("A retry keeps")
                page.mouse.click(0, 0)
                page.screenshot(path=picture, full_page=True)
                browser.close()
        finally:
            server.stop()


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
