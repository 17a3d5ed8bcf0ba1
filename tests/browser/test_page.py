"""The page, sentence by sentence: what a person sees of a job, and what they do with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, get_args

from playwright.sync_api import BrowserContext, Page, Route, expect

from tasks.errors import ErrorType
from tasks.store.records import Progress
from tests.browser.hand import Hand
from tests.browser.sight import bar, card, status, text
from tests.commands import ROOT

BOUGHT = "2 calls bought · 1 under way · 1 unknown · 240 tokens in, 60 out"


def test_a_prompt_becomes_a_job_whose_text_is_seen_as_it_comes(page: Page, hand: Hand) -> None:
    page.fill("textarea[name=input]", "Tell me about queues")
    page.click("button[type=submit]")
    status(page, "queued")
    expect(card(page).get_by_role("heading")).to_have_text("Tell me about queues")
    expect(page.locator("textarea[name=input]")).to_have_value("")
    run = hand.start()
    status(page, "running")
    expect(card(page).locator("[data-part=attempts]")).to_have_text("attempt 1 of 3")
    hand.write(run, "The first", " and the second")
    expect(text(page)).to_have_text("The first and the second")
    hand.finish(run, "The first and the second part.")
    status(page, "done")
    expect(text(page)).to_have_text("The first and the second part.")
    expect(card(page).locator(".timeline li")).to_have_text(
        [re.compile(rf"{word} \d+:\d+:\d+") for word in ("queued", "running", "done")]
    )


def test_a_late_answer_to_the_post_does_not_undo_what_was_heard_meanwhile(
    page: Page, hand: Hand
) -> None:
    answers: list[Callable[[], None]] = []

    def hold(route: Route) -> None:
        response = route.fetch()
        answers.append(lambda: route.fulfill(response=response))

    page.route("**/jobs", hold)
    page.fill("textarea[name=input]", "Tell me about queues")
    page.click("button[type=submit]")
    status(page, "queued")
    run = hand.start()
    status(page, "running")
    answers[0]()
    expect(page.locator("textarea[name=input]")).to_have_value("")
    status(page, "running")
    expect(card(page).locator(".timeline li")).to_have_count(2)
    hand.finish(run, "done")
    status(page, "done")


def test_a_waiting_job_tells_its_place_and_no_bar_moves(page: Page, hand: Hand) -> None:
    hand.submit("first")
    hand.submit("second")
    expect(card(page).locator(".ahead")).to_have_text("number 2 in the queue")
    expect(card(page).locator(".moving")).to_have_count(0)
    run = hand.start()
    expect(card(page).locator(".ahead")).to_have_text("number 1 in the queue", timeout=8000)
    hand.finish(run, "done")


def test_the_bar_says_only_what_is_known_and_never_goes_back(page: Page, hand: Hand) -> None:
    hand.submit("report", kind="summarize")
    run = hand.start()
    status(page, "running")
    assert bar(page).get_attribute("aria-valuenow") is None
    assert bar(page).get_attribute("aria-valuemax") is None
    hand.progress(run, 7, 40, "page 7 of 40")
    expect(bar(page)).to_have_attribute("aria-valuenow", "7")
    expect(bar(page)).to_have_attribute("aria-valuemax", "40")
    expect(card(page).locator(".doing")).to_have_text("page 7 of 40")
    hand.retry(run, 0)
    again = hand.start()
    expect(card(page).locator("[data-part=attempts]")).to_have_text("attempt 2 of 3")
    hand.reuse(again, 2, 40, reused=2)
    expect(card(page).locator(".ledger summary")).to_contain_text("2 reused")
    assert bar(page).get_attribute("aria-valuenow") == "7"


def test_a_document_is_a_strip_of_cells_that_fill(page: Page, hand: Hand) -> None:
    hand.submit("report", kind="summarize")
    run = hand.start()
    hand.reuse(run, 2, 40, reused=2)
    hand.buy(run, "page 3", Progress(3, 40, "page 3 of 40"))
    hand.begin(run, "page 4")
    cells = card(page).locator(".cells i")
    expect(cells).to_have_count(40)
    for kind, count in (("reused", 2), ("done", 1), ("open", 1), ("failed", 0)):
        expect(card(page).locator(f".cells .{kind}")).to_have_count(count)
    hand.fail(run)
    expect(card(page).locator(".cells .failed")).to_have_count(1)


def test_the_pages_that_failed_are_told_apart_at_the_end(page: Page, hand: Hand) -> None:
    hand.submit("report", kind="summarize")
    run = hand.start()
    hand.reuse(run, 6, 6, reused=1)
    hand.finish(run, "All but two.", failed_pages=[3, 5])
    expect(card(page).locator(".cells i")).to_have_count(6)
    shown = card(page).locator(".cells i").evaluate_all("(cells) => cells.map((c) => c.className)")
    assert shown == ["reused", "done", "failed", "done", "failed", "done"]


def test_what_was_bought_is_summed_and_listed(page: Page, hand: Hand) -> None:
    hand.submit("report", kind="summarize")
    run = hand.start()
    hand.buy(run, "page 1")
    hand.buy(run, "page 2")
    hand.lose(run, "page 3")
    hand.begin(run, "page 4")
    expect(card(page).locator(".ledger summary")).to_have_text(BOUGHT, timeout=8000)
    card(page).locator(".ledger summary").click()
    outcomes = card(page).locator(".lines tbody td:nth-child(4)")
    expect(outcomes).to_have_text(["bought", "bought", "unknown", "under way"])


def test_a_new_attempt_voids_the_text_of_the_last(page: Page, hand: Hand) -> None:
    hand.submit("greek")
    run = hand.start()
    hand.write(run, "Alpha ", "beta ")
    expect(text(page)).to_have_text("Alpha beta")
    hand.retry(run, 0.3)
    status(page, "retrying")
    expect(card(page).locator(".error")).to_contain_text("Attempt 1 failed: the model failed")
    again = hand.start()
    hand.write(again, "Alpha beta gamma")
    expect(text(page)).to_have_text("Alpha beta gamma")
    hand.finish(again, "Alpha beta gamma")
    status(page, "done")
    expect(text(page)).to_have_text("Alpha beta gamma")
    lives = ("queued", "running", r"retrying \(the model failed\)", "running", "done")
    expect(card(page).locator(".timeline li")).to_have_text(
        [re.compile(rf"^{word} \d+:\d+:\d+") for word in lives]
    )


def test_a_retry_to_come_is_counted_down(page: Page, hand: Hand) -> None:
    hand.submit("later")
    hand.retry(hand.start(), 30)
    expect(card(page).locator(".ahead")).to_contain_text("again in 2")


def test_the_time_to_go_is_told_where_it_is_known(page: Page, hand: Hand) -> None:
    hand.submit("report", kind="summarize")
    run = hand.start()
    hand.buy(run, "page 1", Progress(1, 12, "page 1 of 12"))
    page.wait_for_timeout(1100)  # a page took so long, as far as the server can tell
    hand.buy(run, "page 2", Progress(2, 12, "page 2 of 12"))
    left = re.compile(r"about \d+ secs left")
    expect(card(page).locator(".ahead")).to_have_text(left, timeout=8000)


def test_a_failed_job_says_why_what_to_do_and_what_a_retry_costs(page: Page, hand: Hand) -> None:
    hand.submit("report", kind="summarize", text="one\ftwo")
    run = hand.start()
    hand.buy(run, "page 1", Progress(1, 2, "page 1 of 2"))
    hand.fail(run, "the context is too long")
    status(page, "failed")
    error = card(page).locator(".error")
    expect(error).to_contain_text("This cannot work as it was sent.")
    expect(error).to_contain_text("the context is too long (status 400)")
    expect(card(page).locator(".price")).to_have_text(
        "A retry keeps 1 finished step and buys at most 2 calls."
    )
    page.click("nav a[href='#dead']")
    expect(page.locator("[data-job-id]")).to_have_count(1)
    card(page).locator("[data-action=retry]").click()
    expect(page.locator("[data-job-id]")).to_have_count(0)
    expect(page.locator(".empty")).to_have_text("No failed job waits for a decision.")
    page.click("nav a[href='#jobs']")
    status(page, "queued")


def test_each_sort_of_failure_says_what_happened_and_what_to_do(page: Page, hand: Hand) -> None:
    words = json.loads((ROOT / "static/words/en.json").read_text())
    for sort in get_args(ErrorType):
        hand.submit(f"a {sort} one")
        hand.fail(hand.start(), "the model's own words", sort)
        expect(card(page).get_by_role("heading")).to_have_text(f"a {sort} one")
        expect(card(page).locator(".error p")).to_have_text(
            [words["error"][sort], words["todo"][sort], "the model's own words (status 400)"]
        )


def test_a_job_is_cancelled_and_discarded(page: Page, hand: Hand) -> None:
    hand.submit("unwanted")
    card(page).locator("[data-action=cancel]").click()
    status(page, "cancelled")
    expect(card(page).locator("[data-action=cancel]")).to_be_hidden()
    card(page).locator("[data-action=discard]").click()
    expect(page.locator("[data-job-id]")).to_have_count(0)
    expect(page.locator("#said")).to_have_text("Discarded.")
    page.reload()
    expect(page.locator(".empty")).to_be_visible()
    expect(page.locator("[data-job-id]")).to_have_count(0)


def test_a_result_is_copied_downloaded_and_shared(
    browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    context = browse(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto("/")
    hand.submit("Two lines")
    hand.finish(hand.start(), "one\ntwo", finish_reason="length")
    card(page).locator("[data-action=copy]").click()
    expect(page.locator("#said")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "one\ntwo"
    with page.expect_download() as download:
        card(page).locator("[data-action=download]").click()
    assert download.value.suggested_filename == "Two lines.md"
    assert download.value.path().read_text() == "# Two lines\n\none\ntwo\n"
    expect(card(page).locator(".source")).to_have_text(
        "The answer was cut off at its length limit."
    )
    card(page).locator("[data-action=share]").click()
    link = card(page).locator(".shared input")
    expect(link).to_have_value(re.compile("job=.*share="))
    guest = browse().new_page()
    guest.goto(link.input_value())
    expect(text(guest)).to_have_text("one\ntwo")
    expect(guest.locator("#new-job")).to_be_hidden()
    expect(guest.locator("[data-action=discard]")).to_be_hidden()


def test_a_shared_job_is_followed_to_its_end(
    page: Page, browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    hand.submit("Watch me")
    card(page).locator("[data-action=share]").click()
    link = card(page).locator(".shared input")
    expect(link).to_have_value(re.compile("share="))
    guest = browse().new_page()
    guest.goto(link.input_value())
    run = hand.start()
    hand.write(run, "so far")
    expect(text(guest)).to_have_text("so far")
    hand.finish(run, "so far, so good")
    status(guest, "done")
    expect(text(guest)).to_have_text("so far, so good")
    expect(guest.locator("body")).to_have_attribute("data-connection", "closed")
    guest.goto(link.input_value() + "x")
    expect(guest.locator("[data-notice=page]")).to_contain_text("This job is not there")


def test_the_lab_and_a_sample_are_told_apart_from_a_model(page: Page, hand: Hand) -> None:
    hand.submit("lab")
    hand.finish(hand.start(), "X", source="lab")
    expect(card(page).locator(".source")).to_contain_text("no AI was asked")
    hand.submit("sample")
    hand.finish(hand.start(), "X", source="sample")
    expect(card(page).locator(".source")).to_contain_text("A recorded sample")


def test_an_agents_steps_tick_off_and_stay_readable(page: Page, hand: Hand) -> None:
    hand.submit("plan", kind="agent")
    run = hand.start()
    hand.plan(run, {"Look around": True, "Tell of it": False})
    steps = card(page).locator(".steps li")
    expect(steps.locator("summary")).to_have_text(["Look around", "Tell of it"])
    expect(steps.first).to_have_attribute("data-done", "true")
    expect(steps.last).to_have_attribute("data-done", "false")
    hand.write(run, "It was ", step="step 2")
    hand.write(run, "quiet.", step="step 2")
    steps.last.locator("summary").click()
    expect(steps.last.locator(".text")).to_have_text("It was quiet.")
    told = [{"step": "step 1", "title": "Look around", "text": "Nobody."}, {"title": "Tell of it"}]
    hand.finish(run, "All quiet.", steps=told)
    expect(card(page).locator(".steps [data-done=true]")).to_have_count(2)
    steps.first.locator("summary").click()
    expect(steps.first.locator(".text")).to_have_text("Nobody.")


def test_an_agents_plan_is_seen_whole_and_ticked_off(page: Page, hand: Hand) -> None:
    def planned(*done: bool) -> list[dict[str, Any]]:
        return [
            {"step": f"step {number}", "title": f"task {number}", "done": told}
            for number, told in enumerate(done, 1)
        ]

    hand.submit("plan", kind="agent")
    run = hand.start()
    hand.progress(run, 0, 3, plan=planned(False, False, False))
    hand.write(run, "found it", step="step 2")
    steps = card(page).locator(".steps li")
    expect(steps.locator("summary")).to_have_text(["task 1", "task 2", "task 3"])
    expect(steps.nth(1).locator(".text")).to_have_text("found it")
    hand.progress(run, 1, 3, plan=planned(False, True, False))
    expect(card(page).locator(".steps [data-done=true] summary")).to_have_text(["task 2"])
    hand.fail(run)
    expect(card(page).locator(".steps [data-done=true] summary")).to_have_text(["task 2"])


def test_the_overview_shows_workers_queue_and_lanes(page: Page, hand: Hand) -> None:
    hand.submit("asking")
    hand.begin(hand.start(), "answer")
    hand.submit("waiting")
    page.click("nav a[href='#overview']")
    figures = page.locator(".figures div")
    expect(figures.filter(has_text="Workers alive").locator("dd")).to_have_text("1")
    expect(figures.filter(has_text="Waiting").locator("dd")).to_have_text("1")
    expect(figures.filter(has_text="Running").locator("dd")).to_have_text("1")
    lanes = page.locator(".tables h3", has_text="Lanes").locator("+ table")
    expect(lanes.locator("th")).to_have_text(["Model", "Calls", "Limit", "In line", "Opens"])
    expect(lanes.locator("tbody td")).to_have_text(["lab", "1", "0", "0", "–"])


def test_a_waiting_job_says_that_nobody_works(page: Page, hand: Hand) -> None:
    hand.do(hand.store.leave("hand"))
    hand.submit("waiting")
    expect(page.locator("[data-notice=worker]")).to_contain_text("No worker is alive", timeout=8000)
    hand.alive()
    expect(page.locator("[data-notice=worker]")).to_be_hidden(timeout=8000)


def test_the_text_of_another_running_job_is_shown_on_demand(page: Page, hand: Hand) -> None:
    hand.submit("one")
    one = hand.start()
    hand.write(one, "text of one")
    expect(text(page)).to_have_text("text of one")
    hand.submit("two")
    two = hand.start()
    hand.write(two, "text of two")
    expect(text(page)).to_be_hidden()
    card(page).locator("[data-action=watch]").click()
    expect(text(page)).to_have_text("text of two")
    expect(page.locator("[data-part=text]").last).to_be_hidden()
