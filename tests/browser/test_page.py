"""The page, sentence by sentence: what a person sees and does."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.hand import Hand


def test_a_prompt_becomes_a_job_whose_text_is_seen_as_it_comes(page: Page, hand: Hand) -> None:
    page.fill("textarea[name=input]", "Tell me about queues")
    page.click("button[type=submit]")
    card = page.locator("[data-job-id]")
    expect(card).to_have_attribute("data-status", "queued")
    run = hand.start()
    expect(card).to_have_attribute("data-status", "running")
    expect(card.locator("[data-part=attempts]")).to_have_text("attempt 1 of 3")
    hand.write(run, "The first", " and the second")
    expect(card.locator("[data-part=text]")).to_have_text("The first and the second")
    hand.finish(run, "The first and the second part.")
    expect(card).to_have_attribute("data-status", "done")
    expect(card.locator("[data-part=text]")).to_have_text("The first and the second part.")
