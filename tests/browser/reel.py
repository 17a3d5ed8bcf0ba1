"""PURE: screens of a terminal as one moving picture in SVG, without a script."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

import pyte

WIDTH, HEIGHT, MARGIN = 8.4, 20, 14
"""Of a sign, of a row, around them all; pixels."""
COLOURS: Final = {
    "default": "d5dde0", "black": "10181b", "red": "e5737a", "green": "7fc28a",
    "brown": "d9b76c", "blue": "6ca6e0", "magenta": "c68adb", "cyan": "6cc5c5", "white": "d5dde0",
}  # fmt: skip
BOLD: Final = ' font-weight="700"'
STYLE: Final = (
    "text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "white-space:pre}}"
    "#reel{{animation:reel {whole_s:.2f}s steps(1,end) infinite}}"
    "@keyframes reel{{{stops}}}"
    "@media(prefers-reduced-motion:reduce){{#reel{{animation:none;transform:{end}}}}}"
)


@dataclass(frozen=True, slots=True)
class Run:
    """Signs of one look side by side in a row."""

    column: int
    text: str
    colour: str
    bold: bool


@dataclass(slots=True)
class Frame:
    """The rows of a screen, and for how long it stands."""

    rows: tuple[tuple[Run, ...], ...]
    lasts_s: float

    @classmethod
    def of(cls, screen: pyte.Screen, lasts_s: float) -> Frame:
        """The screen as it stands."""
        rows = ([line[x] for x in range(screen.columns)] for line in lines(screen))
        return cls(tuple(map(runs, rows)), lasts_s)


def lines(screen: pyte.Screen) -> list[Any]:
    """The rows of a screen, each a mapping of column -> sign."""
    return [screen.buffer[y] for y in range(screen.lines)]


def runs(row: list[Any]) -> tuple[Run, ...]:
    """The row in runs, without spaces at their ends."""
    found, column = [], 0
    for (colour, bold), signs in groupby(row, lambda sign: (sign.fg, sign.bold)):
        text = "".join(sign.data for sign in signs)
        if text.strip():
            start = column + len(text) - len(text.lstrip())
            found.append(Run(start, text.strip(), COLOURS.get(colour, colour), bold))
        column += len(text)
    return tuple(found)


def svg(frames: list[Frame], *, title: str, rows: int, columns: int) -> str:
    """The frames one below the other, and a window that stands before each of them for its time.

    Each row that differs is drawn once and used wherever it stands.
    """
    width, height = round(columns * WIDTH) + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN
    drawn: dict[tuple[Run, ...], str] = {}
    placed = []
    for number, frame in enumerate(frames):
        for y, row in enumerate(frame.rows):
            if row:
                name = drawn.setdefault(row, f"r{len(drawn)}")
                placed.append(f'<use href="#{name}" y="{number * height + y * HEIGHT}"/>')
    defined = "".join(f'<g id="{name}">{draw(row)}</g>' for row, name in drawn.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(title)}>'
        f"<title>{escape(title)}</title><style>{style(frames, height)}</style>"
        f"<defs>{defined}</defs>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#10181b"/>'
        f'<svg x="{MARGIN}" y="{MARGIN}"><g id="reel">{"".join(placed)}</g></svg></svg>\n'
    )


def draw(row: tuple[Run, ...]) -> str:
    """A row as text; each run as wide as its signs are, whatever the font."""
    return "".join(
        f'<text x="{run.column * WIDTH:.1f}" y="15" fill="#{run.colour}" '
        f'textLength="{len(run.text) * WIDTH:.1f}"{BOLD if run.bold else ""}>'
        f"{escape(run.text)}</text>"
        for run in row
    )


def style(frames: list[Frame], height: int) -> str:
    """How the window goes from frame to frame."""
    whole_s = sum(frame.lasts_s for frame in frames)
    begins = [0.0, *accumulate(frame.lasts_s for frame in frames)]
    stops = "".join(
        f"{100 * begin / whole_s:.2f}%{{transform:{moved(number, height)}}}"
        for number, begin in enumerate(begins[:-1])
    )
    end = moved(len(frames) - 1, height)
    return STYLE.format(whole_s=whole_s, stops=stops, end=end)


def moved(number: int, height: int) -> str:
    """Where the frames are when this one is seen."""
    return f"translateY(-{number * height}px)"
