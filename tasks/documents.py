"""PURE: cut a text into pages at places a reader would choose."""

from __future__ import annotations

import re
from typing import Final

PAGE_CHARACTERS: Final = 3000


def split_pages(text: str, most: int = PAGE_CHARACTERS) -> list[str]:
    """The pages of a text: parted at form feeds, else at paragraph ends after `most` characters.

    A paragraph longer than a page is cut at sentence ends, then at spaces, then anywhere. Nothing
    is lost but the white space at the cuts; empty pages are left out.
    """
    if "\f" in text:
        pages = text.split("\f")
    else:
        pages = _gather(re.split(r"\n\s*\n", text), most, "\n\n")
    return [page.strip() for page in pages if page.strip()]


def _gather(pieces: list[str], most: int, glue: str) -> list[str]:
    """Join neighbours for as long as they fit on one page; cut what does not fit alone."""
    pages: list[str] = []
    for piece in pieces:
        if pages and len(pages[-1]) + len(glue) + len(piece) <= most:
            pages[-1] += glue + piece
        elif len(piece) <= most:
            pages.append(piece)
        else:
            pages.extend(_cut(piece, most))
    return pages


def _cut(text: str, most: int) -> list[str]:
    for pattern, glue in ((r"(?<=[.!?])\s+", " "), (r"\s+", " ")):
        pieces = re.split(pattern, text)
        if len(pieces) > 1:
            return _gather(pieces, most, glue)
    return [text[start : start + most] for start in range(0, len(text), most)]
