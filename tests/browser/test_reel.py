"""The README's moving picture: true to the screen, without a script, small."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pyte
import pytest
from playwright.sync_api import Browser

from tests.browser.reel import Frame, Run, svg
from tests.commands import ROOT
from tests.terminals import replay

WRITTEN = [(0.5, b"$ run\r\n"), (1.0, b"\x1b[1;31m3<5\x1b[0m  &c \xe2\x94"), (1.5, b"\x81\x1b[A!")]
SCREENS = [
    [],
    ["$ run"],
    ["$ run", "3<5|&c"],
    ["$ run    !", "3<5|&c ━"],
]


def screens() -> list[Frame]:
    """The screen at each half second."""
    screen = replay(WRITTEN, rows=3, columns=20)
    return [Frame.of(screen(moment / 2), 0.5) for moment in range(4)]


def test_a_frame_is_what_stood_on_the_screen() -> None:
    read = [["|".join(run.text for run in row) for row in frame.rows if row] for frame in screens()]
    assert read == SCREENS
    assert screens()[2].rows[1] == (Run(0, "3<5", "e5737a", True), Run(5, "&c", "d5dde0", False))


def test_a_browser_shows_each_frame_in_its_time(chromium: Browser, tmp_path: Path) -> None:
    picture = tmp_path / "reel.svg"
    picture.write_text(svg(screens(), title="<run>", rows=3, columns=20))
    page = chromium.new_page()
    page.goto(picture.as_uri())
    shown = [
        page.evaluate(
            """(moment) => {
                const [reel] = document.getAnimations();
                reel.pause();
                reel.currentTime = moment;
                const { height } = document.documentElement.getBoundingClientRect();
                return [...document.querySelectorAll('use')]
                    .map((use) => use.getBoundingClientRect())
                    .filter(({ top, bottom }) => top >= 0 && bottom <= height).length;
            }""",
            moment,
        )
        for moment in (100, 600, 1100, 1600, 2100)
    ]
    assert shown == [0, 1, 2, 2, 0]
    assert page.title() == "<run>"
    page.close()


@pytest.mark.parametrize("name", ["page.png", "terminal.svg"])
def test_the_readme_shows_a_picture_that_is_there_and_light(name: str) -> None:
    shown = re.findall(r"tests/browser/\w+\.(?:png|svg)", (ROOT / "README.md").read_text())
    assert f"tests/browser/{name}" in shown
    assert 1000 < (ROOT / "tests/browser" / name).stat().st_size < 200_000


def test_the_recording_is_a_real_one_without_a_script() -> None:
    text = (ROOT / "tests/browser/terminal.svg").read_text()
    tags = {node.tag.rpartition("}")[2] for node in ElementTree.fromstring(text).iter()}
    assert tags == {"svg", "title", "style", "defs", "g", "text", "use", "rect"}
    for words in ("retrying after attempt 1 of 3", "running, attempt 2 of 3", "reused (lab)"):
        assert words in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_run_has_its_place_and_its_own_colour() -> None:
    screen = pyte.Screen(4, 1)
    pyte.Stream(screen).feed(" \x1b[38;2;249;38;114mab")
    assert Frame.of(screen, 1).rows == ((Run(1, "ab", "f92672", False),),)
