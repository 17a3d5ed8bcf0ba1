"""The page of a server with keys: it asks for one, shows what is one's own, and lets go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from server.gate import COOKIE
from server.valkey import EmbeddedStore
from tests.browser.conftest import UNTRUSTED, Server
from tests.browser.hand import Hand
from tests.test_proxy import nginx


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


def test_the_page_works_without_tls_behind_a_proxy_that_renames_the_host(
    keyed: Server, browse: Callable[..., BrowserContext], hand: Hand, tmp_path: Path
) -> None:
    """nginx as it is installed: the browser's origin is not our host, and it does not say that they
    are one site."""
    with nginx(tmp_path, [keyed.url]) as url:
        page = entered(browse(base_url=url.replace("127.0.0.1", UNTRUSTED)), "ann-key")
        assert not page.evaluate("isSecureContext")
        page.get_by_label("Prompt", exact=True).fill("hello")
        page.click("button[type=submit]")
        expect(page.locator("[data-job-id] h3")).to_have_text(["hello"])


def entered(context: BrowserContext, key: str) -> Page:
    """The page, opened with a key."""
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_label("Key", exact=True).press("Enter")
    expect(page.locator("body")).to_have_attribute("data-connection", "open")
    return page


def test_a_link_lets_a_guest_without_a_key_watch_one_job(
    keyed: Server, browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    """And nothing but that one."""
    hand.submit("Secret", user_id="ann")
    run = hand.start()
    hand.submit("Shown", user_id="ann")
    page = entered(browse(base_url=keyed.url), "ann-key")
    shown = page.locator("[data-job-id]", has_text="Shown")
    shown.locator("[data-action=share]").click()
    link = shown.locator(".shared input")
    expect(link).to_have_value(re.compile("share="))
    guest = browse(base_url=keyed.url).new_page()
    guest.goto(link.input_value())
    expect(guest.locator("[data-job-id] h3")).to_have_text(["Shown"])
    hand.finish(run, "for Ann alone")
    run = hand.start()
    hand.write(run, "for all")
    expect(guest.locator("[data-part=text]")).to_have_text("for all")
    hand.finish(run, "for all to see")
    expect(guest.locator("[data-part=text]")).to_have_text("for all to see")
    expect(guest.locator("[data-job-id]")).to_have_attribute("data-status", "done")
    expect(guest.locator("dialog")).to_be_hidden()
    expect(guest.locator("[data-job-id]")).to_have_count(1)
    guest.goto("/")
    expect(guest.get_by_label("Key", exact=True)).to_be_focused()


def test_a_session_that_has_ended_asks_for_the_key_again(
    keyed: Server, browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    """Its key was taken away, or its time is over: nothing of it is shown any more."""
    hand.submit("Ann's", user_id="ann")
    context = browse(base_url=keyed.url)
    page = entered(context, "ann-key")
    expect(page.locator("[data-job-id] h3")).to_have_text(["Ann's"])
    (cookie,) = context.cookies()
    forged = cookie["value"].replace(cookie["value"].split(".")[1], "1")
    context.clear_cookies()
    context.add_cookies([{"name": COOKIE, "value": forged, "url": keyed.url}])
    page.reload()
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    expect(page.locator("[data-job-id]")).to_have_count(0)
