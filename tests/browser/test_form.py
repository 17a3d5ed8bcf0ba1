"""The form of a new job: a prompt, a document, a kind of one's own, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, FilePayload, Page, expect

from tests.browser.hand import Hand
from tests.browser.sight import card, status, text


def test_a_prompt_may_be_sent_before_anything_else_has_come(
    browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    page = browse().new_page()
    page.route("**/kinds", lambda route: None)
    page.goto("/")
    page.fill("textarea[name=input]", "At once")
    page.click("button[type=submit]")
    status(page, "queued")


def test_a_kind_of_ones_own_has_a_form_by_its_schema(page: Page, hand: Hand) -> None:
    page.select_option("select[name=kind]", "review")
    expect(page.locator("#about")).to_have_text("Review a text.")
    page.fill("textarea[name=input]", "My novel")
    page.click("button[type=submit]")
    expect(page.locator("#fault")).to_have_text("tone: this is needed.")
    page.get_by_label("Tone").select_option("strict")
    page.locator(".more summary").click()
    page.get_by_label("Stars").fill("9")
    page.get_by_label("Public").check()
    page.get_by_label("Points").fill("plot\n\nstyle")
    page.get_by_label("Extra").fill("{nonsense")
    page.click("button[type=submit]")
    expect(page.locator("#fault")).to_have_text("extra: this is not JSON.")
    page.get_by_label("Extra").fill('{"a": [1]}')
    page.click("button[type=submit]")
    expect(page.locator("#fault")).to_contain_text("/input/stars")
    page.get_by_label("Stars").fill("5")
    page.click("button[type=submit]")
    status(page, "queued")
    assert hand.start().input == {
        "text": "My novel",
        "tone": "strict",
        "stars": 5,
        "public": True,
        "points": ["plot", "style"],
        "extra": {"a": [1]},
    }


@pytest.mark.parametrize(
    ("kind", "label", "given"),
    [
        ("chat", "Prompt", "Some words"),
        ("summarize", "Text", {"text": "Some words"}),
        ("agent", "Goal", {"goal": "Some words"}),
    ],
)
def test_a_kind_of_ours_asks_for_one_text(
    page: Page, hand: Hand, kind: str, label: str, given: object
) -> None:
    page.select_option("select[name=kind]", kind)
    page.get_by_label(label, exact=True).fill("Some words")
    page.click("button[type=submit]")
    status(page, "queued")
    run = hand.start()
    assert (run.kind, run.input) == (kind, given)


def test_a_document_is_chosen_or_pasted(page: Page, hand: Hand) -> None:
    documents: list[FilePayload] = [
        {"name": f"{name}.md", "mimeType": "text/markdown", "buffer": f"about {name}".encode()}
        for name in ("one", "two")
    ]
    page.set_input_files("input[type=file][name=file]", documents)
    expect(page.locator("#files")).to_have_text("one.md, two.md")
    expect(page.locator("select[name=kind]")).to_have_value("summarize")
    page.click("button[type=submit]")
    expect(page.get_by_role("heading", name="one.md")).to_be_visible()
    expect(page.get_by_role("heading", name="two.md")).to_be_visible()
    assert {hand.start().input["text"] for _ in documents} == {"about one", "about two"}
    page.evaluate(
        """() => {
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File(['about three'], 'three.txt'));
            const paste = new ClipboardEvent('paste', { clipboardData, bubbles: true });
            document.body.dispatchEvent(paste);
        }"""
    )
    expect(page.locator("#files")).to_have_text("three.txt")


def test_what_is_written_while_a_job_is_sent_stays(page: Page, hand: Hand) -> None:
    held: list[Callable[[], None]] = []
    page.route("**/jobs", lambda route: held.append(route.continue_))

    def send(text: str) -> None:
        page.fill("textarea[name=input]", text)
        before = len(held)
        page.click("button[type=submit]")
        while len(held) == before:
            page.wait_for_timeout(10)

    send("the first")
    page.fill("textarea[name=input]", "the second")
    held[0]()
    status(page, "queued")
    expect(page.locator("textarea[name=input]")).to_have_value("the second")
    send("the second")
    held[1]()
    expect(page.locator("textarea[name=input]")).to_have_value("")
    assert [hand.start().input for _ in held] == ["the first", "the second"]


def test_an_empty_form_and_a_refusal_are_told(page: Page, hand: Hand) -> None:
    page.click("button[type=submit]")
    expect(page.locator("#fault")).to_have_text("Write something, or choose a document.")
    page.set_input_files(
        "input[name=file]", {"name": "x.bin", "mimeType": "text/plain", "buffer": b"\0\1"}
    )
    page.click("button[type=submit]")
    expect(page.locator("#fault")).to_contain_text("neither a PDF nor text")


def test_json_survives_the_form_untouched(page: Page, hand: Hand) -> None:
    odd = "one\u2028two\u0085three 𝄞 " + json.dumps({"a": "\\u0000"})
    page.fill("textarea[name=input]", odd)
    page.keyboard.press("Control+Enter")
    status(page, "queued")
    run = hand.start()
    assert run.input == odd
    hand.finish(run, odd)
    expect(card(page)).to_have_attribute("data-status", "done")
    assert text(page).evaluate("(node) => node.textContent") == odd
