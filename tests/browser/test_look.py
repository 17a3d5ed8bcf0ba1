"""How the page reads and looks: three languages, five themes, every reader, and what it weighs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Request, expect

from tasks.store.records import Progress
from tests.browser.hand import Hand

STATIC = Path(__file__).parents[2] / "static"
LESSONS = {
    "en": ("queued", "running", "retrying", "done", "failed"),
    "es": ("en cola", "en curso", "reintentando", "hecha", "fallida"),
    "fr": ("en attente", "en cours", "nouvel essai", "terminée", "en échec"),
}
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
THEMES = ("light", "dark", "contrast", "cream")


def a_scene(hand: Hand) -> None:
    """One job of every status."""
    hand.submit("A report", kind="summarize")
    run = hand.start()
    hand.reuse(run, 1, 40, reused=1)
    hand.buy(run, "page 2", Progress(2, 40, "page 2 of 40"))
    hand.submit("An answer")
    hand.finish(hand.start(), "The answer.\n" * 40, source="lab")
    hand.submit("A refusal")
    hand.fail(hand.start(), "no such model")
    hand.submit("A second try")
    hand.retry(hand.start(), 600)
    hand.submit("A wait")


def paths(words: object, before: str = "") -> set[str]:
    """The keys of a word list, plural forms left out."""
    if not isinstance(words, dict) or "other" in words:
        return {before}
    return set().union(*(paths(value, f"{before}/{key}") for key, value in words.items()))


def test_the_languages_say_the_same_things() -> None:
    spoken = {
        language: json.loads((STATIC / "words" / f"{language}.json").read_text())
        for language in LESSONS
    }
    assert paths(spoken["en"]) == paths(spoken["es"]) == paths(spoken["fr"])
    for language, words in spoken.items():
        assert tuple(words["status"].values())[:5] == LESSONS[language]


@pytest.mark.parametrize("language", LESSONS)
def test_a_language_is_spoken_in_full(
    browse: Callable[..., BrowserContext], hand: Hand, language: str
) -> None:
    a_scene(hand)
    page = browse(locale=language).new_page()
    page.goto("/")
    expect(page.locator("html")).to_have_attribute("lang", language)
    expect(page.locator("[data-job-id]")).to_have_count(5)
    shown = page.locator(".status").all_text_contents()
    assert sorted(shown) == sorted(LESSONS[language])
    for view in ("dead", "overview", "jobs"):
        page.click(f"nav a[href='#{view}']")
        unsaid = re.findall(r"\b[a-z]+\.[a-z_]+\b|undefined|\{\w+\}", page.inner_text("body"))
        assert unsaid == []


@pytest.mark.parametrize(
    ("locale", "tokens", "clock"),
    [
        ("en-US", "12,345 tokens in", r"\d+:\d\d:\d\d [AP]M"),
        ("es-ES", "12.345 tokens", r"\d\d?:\d\d:\d\d"),
        ("fr-FR", "12\u202f345 jetons", r"\d\d:\d\d:\d\d"),
    ],
)
def test_numbers_and_times_are_written_as_the_reader_does(
    browse: Callable[..., BrowserContext], hand: Hand, locale: str, tokens: str, clock: str
) -> None:
    hand.submit("A report")
    hand.buy(hand.start(), "answer", input_tokens=12345)
    page = browse(locale=locale).new_page()
    page.goto("/")
    expect(page.locator(".ledger summary")).to_contain_text(tokens)
    expect(page.locator(".timeline li").first).to_have_text(re.compile(rf"{clock}$"))


def test_a_switch_of_language_is_kept(page: Page, hand: Hand) -> None:
    a_scene(hand)
    expect(page.locator("[data-status=done]")).to_have_count(1)
    page.select_option("select[name=language]", "fr")
    expect(page.locator("html")).to_have_attribute("lang", "fr")
    expect(page.locator("[data-status=done] .status")).to_have_text("terminée")
    expect(page.locator("[data-status=running] [data-part=attempts]")).to_have_text("essai 1 sur 3")
    page.reload()
    expect(page.locator("[data-status=done] .status")).to_have_text("terminée")
    page.select_option("select[name=language]", "es")
    expect(page.locator("[data-status=queued] .status")).to_have_text("en cola")
    expect(page.locator("button[type=submit]")).to_have_text("Empezar")


@pytest.mark.parametrize("theme", THEMES)
def test_a_theme_is_applied_kept_and_legible(page: Page, hand: Hand, theme: str) -> None:
    a_scene(hand)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator(".display summary").click()
    page.select_option("select[name=theme]", theme)
    page.select_option("select[name=size]", "larger")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (before == after) == (theme == "light")
    page.reload()
    expect(page.locator("[data-job-id]")).to_have_count(5)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") > 20
    page.select_option("select[name=kind]", "review")
    no_violations(page)


@pytest.mark.parametrize("view", ["dead", "overview"])
def test_a_view_is_fit_for_every_reader(page: Page, hand: Hand, view: str) -> None:
    a_scene(hand)
    page.click(f"nav a[href='#{view}']")
    shown = page.locator("section:not([hidden]) :is(dd, .card)")
    expect(shown.first).to_be_visible()
    no_violations(page)


def no_violations(page: Page) -> None:
    """axe-core finds nothing."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    assert [(rule["id"], [n["html"] for n in rule["nodes"]]) for rule in found["violations"]] == []


def test_nothing_moves_for_whom_motion_is_too_much(
    browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    page = browse(reduced_motion="reduce").new_page()
    page.goto("/")
    hand.submit("running")
    hand.start()
    bar = page.locator(".moving div")
    expect(bar).to_have_css("animation-name", "none")
    page.emulate_media(reduced_motion="no-preference")
    expect(bar).to_have_css("animation-name", "to-and-fro")
    page.locator(".display summary").click()
    page.select_option("select[name=motion]", "less")
    expect(bar).to_have_css("animation-name", "none")


def test_nothing_is_cut_off_on_a_small_screen(
    browse: Callable[..., BrowserContext], hand: Hand
) -> None:
    a_scene(hand)
    hand.submit("x" * 70)
    page = browse(viewport={"width": 320, "height": 700}, locale="fr").new_page()
    page.goto("/")
    expect(page.locator("[data-job-id]")).to_have_count(6)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_keyboard_alone_does_everything(page: Page, hand: Hand) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.type("By keyboard")
    page.keyboard.press("Control+Enter")
    cancel = page.locator("[data-action=cancel]")
    expect(cancel).to_be_visible()
    for name, status in (("cancel", "cancelled"), ("retry", "queued")):
        tab_to(page, f"[data-action={name}]")
        page.keyboard.press("Enter")
        expect(page.locator("[data-job-id]")).to_have_attribute("data-status", status)
    tab_to(page, "select[name=language]")
    page.keyboard.press("ArrowDown")
    expect(page.locator("html")).to_have_attribute("lang", "es")


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is there."""
    for _ in range(40):
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab does not come to {selector}")


def test_a_screen_reader_hears_the_end_and_not_every_step(page: Page, hand: Hand) -> None:
    page.evaluate(
        """() => {
            window.said = [];
            const said = document.getElementById('said');
            const note = () => window.said.push(said.textContent);
            new MutationObserver(note).observe(said, { childList: true });
        }"""
    )
    page.fill("textarea[name=input]", "Mine")
    page.click("button[type=submit]")
    expect(page.locator("[data-job-id]")).to_have_count(1)
    run = hand.start()
    for done in range(20):
        hand.progress(run, done, 20)
    hand.finish(run, "text")
    hand.submit("Another's")
    hand.finish(hand.start(), "text")
    expect(page.locator("#said")).to_have_text("Mine: done.")
    assert page.evaluate("window.said") == ["Mine: done."]


def test_the_modules_of_the_page_are_named_with_it(browse: Callable[..., BrowserContext]) -> None:
    page = browse().new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.split("/", 3)[3]))
    response = page.goto("/")
    assert response
    page.wait_for_selector("body[data-connection=open]")
    modules = {path for path in asked if path.endswith(".js")}
    named = set(re.findall(r"<([^>]+)>; rel=modulepreload", response.headers["link"]))
    assert modules == {"static/app.js", *named}
    assert len(named) > 10


@pytest.mark.parametrize("language", LESSONS)
def test_the_page_weighs_less_than_sixty_kilobytes(
    browse: Callable[..., BrowserContext], capsys: pytest.CaptureFixture[str], language: str
) -> None:
    page = browse(locale=language).new_page()
    requests: list[Request] = []
    page.on("requestfinished", lambda request: requests.append(request))
    page.goto("/")
    page.wait_for_selector("body[data-connection=open]")
    weights: dict[str, int] = {}
    for request in requests:
        path = request.url.split("/", 3)[3]
        if not path or path.startswith("static/"):
            response = request.response()
            assert response
            weights[path] = len(response.body())
    total = sum(weights.values())
    with capsys.disabled():
        sys.stdout.write(
            f"\nthe page in {language} weighs {total:,} bytes in {len(weights)} files\n"
        )
    assert {"static/app.js", "static/style.css", f"static/words/{language}.json"} < set(weights)
    assert total < 60_000
