"""Thousands of jobs: the page shows some, stays quick, and shows the others when asked."""

from __future__ import annotations

import asyncio

from playwright.sync_api import Page, expect

from tasks.store import NewJob
from tests.browser.hand import Hand

CROWD = 1000
A_FRAME_MS = 500
"""As long as the page may hold the browser at a time, on a busy machine with two cores."""


def crowd(hand: Hand, count: int) -> None:
    """Submit many jobs at once."""

    async def submit_all() -> None:
        for start in range(0, count, 100):
            await asyncio.gather(
                *(
                    hand.store.submit(
                        NewJob("chat", "Hello", "local", 3, 600, metadata={"title": f"no {n}"})
                    )
                    for n in range(start, min(start + 100, count))
                )
            )

    hand.do(submit_all())


def test_a_crowd_is_shown_by_the_page_and_grows_smoothly(page: Page, hand: Hand) -> None:
    crowd(hand, CROWD)
    page.reload()
    cards = page.locator("[data-job-id]")
    expect(cards).to_have_count(50)
    page.click(".older")
    expect(cards).to_have_count(100)
    page.evaluate(
        """() => {
            window.longest = 0;
            new PerformanceObserver((list) => {
                const lengths = list.getEntries().map(({ duration }) => duration);
                window.longest = Math.max(window.longest, ...lengths);
            }).observe({ entryTypes: ['longtask'] });
        }"""
    )
    crowd(hand, CROWD)
    job_id = hand.submit("the last one")
    expect(cards.first.locator("h3")).to_have_text("the last one")
    expect(cards.first).to_have_attribute("data-job-id", job_id)
    expect(cards).to_have_count(100)
    longest = page.evaluate("window.longest")
    hand.forget_all()
    assert longest < A_FRAME_MS
