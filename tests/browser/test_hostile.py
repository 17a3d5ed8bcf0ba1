"""Hostile text in every place that shows text: it is text, no request leaves, no script runs."""

from __future__ import annotations

import socket

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Server
from tests.browser.hand import Hand

HOSTILE = (
    "<img src=x onerror=alert(1)><svg/onload=alert(1)><script>alert(1)</script>",
    "'\"><iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "</template><style>*{background:url(http://127.0.0.1:9/leak)}</style>",
    "[a](javascript:alert(1)) ![x](http://127.0.0.1:9/leak?d=1)",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_everywhere(page: Page, hand: Hand, text: str) -> None:
    """`page` fails its test for any script error and any request to another host."""
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    hand.submit(text, user_id=text[:100])
    run = hand.start()
    hand.begin(run, text)
    hand.write(run, *text, step=text)
    hand.plan(run, {text: False}, note=text)
    newest = page.locator("[data-job-id]").first
    expect(newest.locator("h3")).to_have_text(text)
    expect(newest.locator(".doing")).to_contain_text(text)
    expect(newest.locator("[data-part=text]")).to_have_text(text)
    expect(newest.locator(".steps summary").first).to_have_text(text)
    newest.locator(".ledger summary").click(timeout=10_000)
    expect(newest.locator(".lines td").first).to_have_text(text)
    hand.fail(run, text)
    expect(newest.locator(".error")).to_contain_text(text)
    page.click("nav a[href='#dead']")
    expect(newest.locator(".error")).to_contain_text(text)
    hand.submit(text)
    hand.finish(hand.start(), text, source=text, steps=[{"title": text, "text": text}])
    page.click("nav a[href='#jobs']")
    expect(newest.locator("[data-part=text]")).to_have_text(text)
    expect(newest.locator(".steps summary")).to_have_text(text)
    elements = "img[src=x], svg, iframe, .list script, .list style, .list a"
    expect(page.locator(elements)).to_have_count(0)


def test_the_policy_would_stop_what_slipped_through(chromium: Browser, server: Server) -> None:
    """Markup put into the page by force: its script does not run, its image is not fetched."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, chromium.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        page.evaluate(
            """(address) => {
                const image = `<img src="${address}" onerror="window.ran = 1">`;
                document.body.insertAdjacentHTML('beforeend', image);
                const script = document.createElement('script');
                script.textContent = 'window.ran = 2';
                document.body.append(script);
            }""",
            f"http://127.0.0.1:{elsewhere.getsockname()[1]}/leak",
        )
        page.wait_for_function("document.querySelector('img').complete")
        assert page.evaluate("window.ran") is None
        elsewhere.settimeout(0.2)
        with pytest.raises(TimeoutError):
            elsewhere.accept()
