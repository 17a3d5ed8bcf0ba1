"""The page of a server with keys: it asks for one, shows what is one's own, and lets go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, expect

from server.valkey import EmbeddedStore
from tests.browser.conftest import Server
from tests.browser.hand import Hand


@pytest.fixture
def keyed(valkey: EmbeddedStore, hand: Hand) -> Iterator[Server]:
    """A second server on the same store, with two users."""
    server = Server({"REDIS_URL": valkey.url, "SLOWCALL_API_KEYS": "ann:ann-key,bob:bob-key"})
    server.start()
    yield server
    server.stop()


def test_a_key_opens_the_page_for_its_user(
    keyed: Server, browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    hand.submit("Ann's", user_id="ann")
    hand.submit("Bob's", user_id="bob")
    page = browse(base_url=keyed.url).new_page()
    page.goto("/")
    key = page.get_by_label("Key", exact=True)
    expect(key).to_be_focused()
    key.fill("wrong")
    key.press("Enter")
    expect(page.locator("dialog .fault")).to_have_text("This key is not known.")
    key.fill("ann-key")
    key.press("Enter")
    expect(page.locator("body")).to_have_attribute("data-connection", "open")
    expect(page.locator("[data-job-id] h3")).to_have_text(["Ann's"])
    hand.finish(hand.start(), "for Ann")
    expect(page.locator("[data-part=text]")).to_have_text("for Ann")
    assert "ann-key" not in page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}])"
    )
    page.locator(".display summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    expect(page.locator("[data-job-id]")).to_have_count(0)
