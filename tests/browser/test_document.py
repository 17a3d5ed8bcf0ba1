"""A real document through the page of a server that `slowcall up` started."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.commands import ROOT, Command

OPENINGS = ROOT / "tests" / "data" / "openings.pdf"


def test_a_pdf_given_to_the_page_comes_back_summarised(chromium: Browser, tmp_path: Path) -> None:
    with Command("up", "--port", "0", data_dir=tmp_path) as up, chromium.new_context() as context:
        page = context.new_page()
        page.goto(up.url())
        page.set_input_files("form#new-job input[type=file][name=file]", OPENINGS)
        page.click("form#new-job button[type=submit]")
        job = page.locator("[data-job-id]")
        expect(job).to_have_attribute("data-status", "done", timeout=20_000)
        expect(job.locator("[data-part=text]")).to_contain_text("[page 3] Les Misérables")
        bar = job.get_by_role("progressbar")
        expect(bar).to_have_attribute("aria-valuenow", "3")
        expect(bar).to_have_attribute("aria-valuemax", "3")
