"""The page's connection: what goes away comes back, once each, and is never called a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, Request, Route, expect

from tests.browser.conftest import Server
from tests.browser.hand import Hand
from tests.conftest import wait_until

RESTARTS = 5
HIDE = """(hidden) => {
    Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def connection(page: Page, state: str) -> None:
    """The page says so."""
    expect(page.locator("body")).to_have_attribute("data-connection", state, timeout=15_000)


def text(page: Page, expected: str) -> None:
    """The newest job's text."""
    expect(page.locator("[data-part=text]").first).to_have_text(expected)


def streams_settle_at(server: Server, count: int) -> None:
    """The server has as many streams, and not more in between unseen."""
    wait_until(lambda: server.streams() == count, f"{count} streams, not {server.streams()}")


@pytest.fixture
def asked(page: Page) -> Iterator[list[str]]:
    """The paths of all requests that the page makes from now on."""
    paths: list[str] = []

    def note(request: Request) -> None:
        paths.append(request.url.split("/", 3)[3])

    page.on("request", note)
    yield paths
    page.remove_listener("request", note)


def test_the_connection_does_not_wait_for_the_words_and_nothing_is_said_without_them(
    browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    page = browse().new_page()
    words: list[Route] = []
    page.route("**/words/*.json", lambda route: words.append(route))
    page.goto("/")
    connection(page, "open")
    hand.submit("early")
    assert not page.inner_text("main").strip()
    words[0].continue_()
    expect(page.locator("[data-job-id] .status")).to_have_text("queued")
    expect(page.locator(".connection")).to_have_text("Live")


def test_a_server_restart_is_a_reconnect_and_nothing_else(
    page: Page, hand: Hand, server: Server
) -> None:
    hand.submit("long")
    run = hand.start()
    hand.write(run, "before ")
    text(page, "before")
    for _ in range(RESTARTS):
        server.stop()
        connection(page, "reconnecting")
        expect(page.locator("[data-status=failed]")).to_have_count(0)
        hand.write(run, "meanwhile ")
        server.start()
        connection(page, "open")
    text(page, "before" + " meanwhile" * RESTARTS)
    streams_settle_at(server, 2)
    hand.finish(run, "before and after")
    text(page, "before and after")
    streams_settle_at(server, 1)


def test_an_action_during_a_restart_is_told_to_try_again(
    page: Page, hand: Hand, server: Server
) -> None:
    hand.submit("waiting")
    cancel = page.locator("[data-action=cancel]")
    expect(cancel).to_be_visible()
    server.stop()
    cancel.click()
    expect(page.locator(".card .fault")).to_contain_text("Nothing is lost")
    expect(page.locator("[data-status=queued]")).to_have_count(1)
    server.start()
    connection(page, "open")
    cancel.click()
    expect(page.locator("[data-status=cancelled]")).to_have_count(1)
    expect(page.locator(".card .fault")).to_be_hidden()
    streams_settle_at(server, 1)


def test_back_online_it_connects_and_reads_anew(page: Page, hand: Hand) -> None:
    page.context.set_offline(True)
    page.evaluate("window.dispatchEvent(new Event('online'))")
    hand.submit("posted meanwhile")
    page.context.set_offline(False)
    connection(page, "open")
    expect(page.locator("[data-job-id]")).to_have_count(1)


@pytest.mark.parametrize("refusal", [429, 502, 503, "html"])
def test_a_proxys_error_page_does_not_end_the_stream(
    page: Page, hand: Hand, server: Server, refusal: int | str
) -> None:
    refused: list[str] = []

    def proxy(route: Route) -> None:
        if len(refused) == 2:
            return route.continue_()
        refused.append(route.request.url)
        if refusal == "html":
            return route.fulfill(status=200, content_type="text/html", body="<p>hello")
        return route.fulfill(status=int(refusal), body="no")

    page.context.route("**/jobs/stream*", proxy)
    hand.submit("seen before")
    expect(page.locator("[data-job-id]")).to_have_count(1)
    page.evaluate(HIDE, True)
    page.evaluate("window.dispatchEvent(new Event('pagehide'))")
    connection(page, "closed")
    page.evaluate(HIDE, False)
    connection(page, "reconnecting")
    hand.submit("posted meanwhile")
    connection(page, "open")
    expect(page.locator("[data-job-id]")).to_have_count(2)
    assert len(refused) == 2


@pytest.mark.parametrize("status", [401, 404])
def test_a_final_refusal_of_the_stream_is_not_asked_again(
    page: Page, hand: Hand, status: int
) -> None:
    page.context.route("**/jobs/stream*", lambda route: route.fulfill(status=status, body="{}"))
    page.context.route("**/jobs?limit=1", lambda route: route.fulfill(status=status, body="{}"))
    page.evaluate("window.dispatchEvent(new Event('pagehide'))")
    page.evaluate("window.dispatchEvent(new Event('online'))")
    connection(page, "reconnecting")
    connection(page, "closed")
    expect(page.locator("dialog")).to_be_visible(visible=status == 401)


def test_a_double_click_makes_one_job(page: Page, hand: Hand) -> None:
    page.fill("textarea[name=input]", "once")
    page.dblclick("button[type=submit]")
    page.evaluate("document.getElementById('new-job').requestSubmit()")
    expect(page.locator("[data-job-id]")).to_have_count(1)
    page.reload()
    connection(page, "open")
    expect(page.locator("[data-job-id]")).to_have_count(1)


def test_an_answer_that_was_lost_is_asked_for_with_the_same_key(page: Page, hand: Hand) -> None:
    keys: list[str] = []

    def lose_the_first(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) > 1:
            return route.continue_()
        route.fetch()
        return route.abort()

    page.route("**/jobs", lose_the_first)
    page.fill("textarea[name=input]", "pay once")
    page.click("button[type=submit]")
    expect(page.locator("#fault")).to_contain_text("Nothing is lost")
    page.reload()
    connection(page, "open")
    expect(page.locator("textarea[name=input]")).to_have_value("pay once")
    page.click("button[type=submit]")
    expect(page.locator("textarea[name=input]")).to_have_value("")
    expect(page.locator("[data-job-id]")).to_have_count(1)
    assert keys[0] == keys[1]
    page.fill("textarea[name=input]", "pay once")
    page.click("button[type=submit]")
    expect(page.locator("[data-job-id]")).to_have_count(2)


def test_reloads_and_back_and_forward_keep_what_was_there(page: Page, hand: Hand) -> None:
    hand.submit("long")
    run = hand.start()
    hand.write(run, "one ")
    hand.retry(run, 0)
    run = hand.start()
    hand.write(run, "two ")
    text(page, "two")
    page.reload()
    text(page, "two")
    page.goto("about:blank")
    hand.write(run, "three ")
    page.go_back()
    text(page, "two three")
    connection(page, "open")
    page.click("nav a[href='#overview']")
    page.go_back()
    page.go_forward()
    expect(page.locator(".figures")).to_be_visible()
    page.go_back()
    hand.finish(run, "two three four")
    text(page, "two three four")


def test_ten_quick_tab_switches_leave_one_copy_of_the_text(
    page: Page, hand: Hand, server: Server
) -> None:
    hand.submit("long")
    run = hand.start()
    hand.write(run, "once ")
    text(page, "once")
    for _ in range(10):
        page.evaluate(HIDE, True)
        page.evaluate(HIDE, False)
    hand.write(run, "only")
    text(page, "once only")
    streams_settle_at(server, 2)


def test_a_page_that_is_hidden_for_long_lets_go_and_comes_back(
    browse: Callable[..., BrowserContext], hand: Hand, server: Server
) -> None:
    page = browse().new_page()
    page.clock.install()
    page.goto("/")
    page.clock.run_for(1000)
    connection(page, "open")
    page.evaluate(HIDE, True)
    page.clock.run_for(61_000)
    connection(page, "closed")
    streams_settle_at(server, 0)
    hand.submit("posted meanwhile")
    page.evaluate(HIDE, False)
    connection(page, "open")
    page.clock.run_for(1000)
    expect(page.locator("[data-job-id]")).to_have_count(1)


def test_a_finished_job_is_asked_for_no_more(page: Page, hand: Hand, asked: list[str]) -> None:
    job_id = hand.submit("short")
    run = hand.start()
    hand.write(run, "text")
    text(page, "text")
    hand.finish(run, "text")
    expect(page.locator("[data-status=done]")).to_have_count(1)
    before = len([path for path in asked if path.startswith(f"jobs/{job_id}/stream")])
    assert before == 1
    page.wait_for_timeout(2500)  # a browser comes back after 2 s to a stream that was not closed
    after = [path for path in asked if path.startswith(f"jobs/{job_id}/stream")]
    assert len(after) == before


def test_a_source_that_is_never_closed_comes_back_once(
    page: Page, hand: Hand, asked: list[str]
) -> None:
    """A plain EventSource of anybody's: the server tells it that there is nothing left."""
    page.evaluate(HIDE, True)  # the page itself leaves the job alone
    job_id = hand.submit("short")
    path = f"jobs/{job_id}/stream"
    page.evaluate("(path) => { window.source = new EventSource(path) }", path)
    hand.finish(hand.start(), "text")
    wait_until(lambda: page.evaluate("source.readyState === EventSource.CLOSED"), "it is closed")
    assert asked.count(path) == 2
    page.wait_for_timeout(2500)  # as long as it would wait before a third time
    assert asked.count(path) == 2


def test_ten_jobs_at_once_need_no_more_streams_than_one(
    page: Page, hand: Hand, server: Server
) -> None:
    for number in range(10):
        hand.submit(f"job {number}")
        hand.write(hand.start(), f"text {number}")
    expect(page.locator("[data-status=running]")).to_have_count(10)
    expect(page.locator("[data-part=text]:visible")).to_have_count(1)
    streams_settle_at(server, 2)
    page.close()
    streams_settle_at(server, 0)


def test_seven_tabs_share_what_a_browser_allows(
    browse: Callable[..., BrowserContext], hand: Hand, server: Server
) -> None:
    context = browse()
    pages = [context.new_page() for _ in range(7)]
    hand.submit("long")
    run = hand.start()
    hand.write(run, "streamed")
    for page in pages:
        page.bring_to_front()
        page.goto("/")
        connection(page, "open")
        expect(page.locator("[data-status=running]")).to_have_count(1)
    wait_until(lambda: server.streams() == 4, f"4 streams, not {server.streams()}")
    pages[-1].fill("textarea[name=input]", "one more")
    pages[-1].click("button[type=submit]")
    for page in pages:
        expect(page.locator("[data-job-id]")).to_have_count(2)
    pages[0].close()
    hand.finish(run, "streamed to the end")
    for page in pages[1:]:
        expect(page.locator("[data-status=done] [data-part=text]")).to_have_text(
            "streamed to the end"
        )
