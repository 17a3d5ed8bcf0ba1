"""Coming back to the page, and what comes to it late: the latest truth is shown, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import Server, launch
from tests.browser.hand import Hand
from tests.browser.sight import bar, card, status, text
from tests.conftest import wait_until

OPEN = "body[data-connection=open]"


@pytest.fixture
def cached(chromium: Browser, server: Server) -> Iterator[Page]:
    """The page in a browser that keeps pages for going back to them, as browsers do."""
    without = ["--disable-back-forward-cache"]
    with launch(chromium.browser_type, without) as browser:
        page = browser.new_page(base_url=server.url, locale="en-GB")
        page.goto("/")
        page.wait_for_selector(OPEN)
        page.evaluate("addEventListener('pageshow', ({ persisted }) => window.back = persisted)")
        yield page


def go_back(page: Page) -> None:
    """Back to the page as it was left: it is the same one, not loaded anew."""
    page.go_back(wait_until="commit")
    assert page.evaluate("window.back")


def test_a_page_from_the_back_forward_cache_is_live_again(
    cached: Page, hand: Hand, server: Server
) -> None:
    hand.submit("long")
    run = hand.start()
    hand.write(run, "one ")
    expect(text(cached)).to_have_text("one")
    cached.goto("/healthz")
    wait_until(lambda: server.streams() == 0, "the page that was left lets go")
    hand.write(run, "two ")
    go_back(cached)
    cached.wait_for_selector(OPEN)
    hand.write(run, "three")
    expect(text(cached)).to_have_text("one two three")
    cached.goto("/healthz")
    hand.finish(run, "one two three four")
    go_back(cached)
    status(cached, "done")
    expect(text(cached)).to_have_text("one two three four")
    expect(cached.locator(".moving")).to_have_count(0)
    wait_until(lambda: server.streams() == 1, f"one stream, not {server.streams()}")


def test_a_list_that_comes_late_takes_nothing_back(page: Page, hand: Hand) -> None:
    """It was asked for before the events that have been shown meanwhile."""
    late: list[Route] = []
    hand.submit("report", kind="summarize")
    run = hand.start()
    hand.progress(run, 3, 40)
    expect(bar(page)).to_have_attribute("aria-valuenow", "3")
    old = page.request.get("/jobs?limit=50")
    page.route("**/jobs?limit=50", lambda route: late.append(route))
    with page.expect_request("**/jobs?limit=50"):
        page.evaluate("window.dispatchEvent(new Event('online'))")
    hand.progress(run, 30, 40)
    expect(bar(page)).to_have_attribute("aria-valuenow", "30")
    hand.finish(run, "whole")
    status(page, "done")
    with page.expect_response("**/jobs?limit=50"):
        late[0].fulfill(response=old)
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    status(page, "done")
    expect(text(page)).to_have_text("whole")
    expect(bar(page)).to_have_attribute("aria-valuenow", "30")
    expect(card(page).locator(".timeline li")).to_have_count(3)
