"""What a test looks at on the page: the newest job and its parts."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect


def card(page: Page) -> Locator:
    """The newest job."""
    return page.locator("[data-job-id]").first


def status(page: Page, word: str) -> None:
    """The newest job has this status, in its attribute and in words."""
    expect(card(page)).to_have_attribute("data-status", word)
    expect(card(page).locator(".status")).to_have_text(word)


def text(page: Page) -> Locator:
    """The text of the newest job."""
    return card(page).locator("[data-part=text]")


def bar(page: Page) -> Locator:
    """The bar of the newest job."""
    return card(page).get_by_role("progressbar")
