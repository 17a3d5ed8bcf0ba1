"""PURE: cut texts at places a reader would choose, within a budget of tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

PAGE_TOKENS: Final = 750
"""The length of a page where a text has none of its own."""
CALL_TOKENS: Final = 6_000
"""As much text as goes into one call."""

_PARAGRAPHS: Final = re.compile(r"\n[^\S\n]*\n\s*")
# Up to the last end of a sentence, or of a word.
_SENTENCES: Final = re.compile(r".*(?:[.!?…](?=\s)|[。！？](?=.))", re.DOTALL)
_WORDS: Final = re.compile(r".*\S(?=\s)", re.DOTALL)
_LIST_ITEM: Final = re.compile(r"[-*•–]\s|\d+[.)]\s.*[.;,:!?]$")
_HEADING_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or a part of one that was too long for one call.

    `number` is that of the page in the document, from 1; `section` the heading under which the page
    goes on, empty where it begins with one of its own or none came before.
    """

    number: int
    text: str
    section: str = ""


def tokens(text: str) -> int:
    """A cautious estimate: four characters a token in ASCII, one in every other script."""
    return -(-_weight(text) // 4)


def _weight(text: str) -> int:
    """Quarters of tokens."""
    plain = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return 4 * len(text) - 3 * plain


def split_pages(text: str, most: int) -> list[str]:
    """The pages of a text: parted at form feeds, else cut at paragraph ends; some may be empty.

    Of one with more than `most` form feeds the last page is all the rest.
    """
    return text.split("\f", most) if "\f" in text else cut(text, PAGE_TOKENS)


def number_pages(pages: Iterable[str], most: int = CALL_TOKENS) -> list[Page]:
    """The pages that are not empty, those of more than `most` tokens in parts."""
    numbered: list[Page] = []
    section = ""
    for number, page in enumerate(pages, 1):
        for part in cut(page, most):
            begins = _heading(_PARAGRAPHS.split(part, 1)[0].partition("\n")[0])
            numbered.append(Page(number, part, "" if begins else section))
            section = _last_heading(part) or section
    return numbered


def cut(text: str, most: int) -> list[str]:
    """`text` in parts of at most `most` tokens each.

    It is cut at paragraph ends, a longer paragraph at sentence ends, then at spaces, then anywhere.
    A heading stays with what follows it. Nothing is lost but the white space at the cuts.
    """
    if tokens(text) <= most:
        return [text.strip()] if text.strip() else []
    return _gather(_PARAGRAPHS.split(text.strip()), most, "\n\n")


def fit(texts: Sequence[str], most: int) -> list[str]:
    """The texts, the longest of them cut short, so that together they have at most `most` tokens
    and a few."""
    share = _share([tokens(text) for text in texts], most)
    return [text if tokens(text) <= share else f"{_begin(text, share)} …" for text in texts]


def groups(texts: Iterable[str], most: int) -> list[list[str]]:
    """Neighbours that fit into one call together, at least two in each group but the last."""
    gathered: list[list[str]] = []
    size = 0
    for text in texts:
        size += tokens(text)
        if gathered and (len(gathered[-1]) < 2 or size <= most):
            gathered[-1].append(text)
        else:
            gathered.append([text])
            size = tokens(text)
    return gathered


def _gather(pieces: Iterable[str], most: int, glue: str) -> list[str]:
    """Join neighbours for as long as they fit on one page."""
    pages: list[list[str]] = [[]]
    room = 4 * most
    for piece in _pieces(pieces, most):
        weight = _weight(piece)
        if pages[-1] and weight > room:
            carried = _headings_at_end(pages[-1], 4 * most - weight)
            pages.append(carried)
            room = 4 * most - sum(_weight(heading + glue) for heading in carried)
        pages[-1].append(piece)
        room -= weight + _weight(glue)
    return [glue.join(page) for page in pages if page]


def _pieces(pieces: Iterable[str], most: int) -> Iterator[str]:
    """The pieces that are not empty; one that does not fit alone in parts."""
    for piece in pieces:
        if tokens(piece) > most:
            yield from _cut_piece(piece, most)
        elif piece.strip():
            yield piece


def _cut_piece(piece: str, most: int) -> Iterator[str]:
    start = 0
    while len(piece) - start > most and _weight(piece[start : start + 4 * most + 1]) > 4 * most:
        end = start + _fitting(piece[start : start + 4 * most], 4 * most)
        # One character more can be seen, so that no number is taken for the end of a sentence.
        found = _SENTENCES.match(piece, start, end + 1) or _WORDS.match(piece, start, end + 1)
        end = found.end() if found else end
        if part := piece[start:end].strip():
            yield part
        start = end
    if part := piece[start:].strip():
        yield part


def _fitting(text: str, room: int) -> int:
    """How many characters of `text` have no more weight than `room`."""
    lengths = range(len(text) + 1)
    return bisect_right(lengths, room, key=lambda length: _weight(text[:length])) - 1


def _headings_at_end(page: list[str], room: int) -> list[str]:
    """Take the headings off the end of a page that head nothing there, if they fit elsewhere."""
    first = len(page)
    while first > 1 and _heading(page[first - 1]):
        first -= 1
    headings = page[first:]
    if not headings or sum(_weight(heading) + 2 for heading in headings) > room:
        return []
    del page[first:]
    return headings


def _last_heading(text: str) -> str:
    """The last heading in a text: a paragraph of its own, or a Markdown line."""
    for paragraph in reversed(_PARAGRAPHS.split(text)):
        if heading := _heading(paragraph):
            return heading
        for line in reversed(paragraph.splitlines()):
            if line.startswith("#") and (heading := _heading(line)):
                return heading
    return ""


def _heading(paragraph: str) -> str:
    """The words of a heading; empty where the paragraph is none."""
    line = paragraph.strip()
    if "\n" in line or len(line) > _HEADING_LENGTH or not any(map(str.isalpha, line)):
        return ""
    if line.startswith("#"):
        return line.lstrip("#").strip()
    return "" if line[-1] in ".!?…。:;," or _LIST_ITEM.match(line) else line


def _share(sizes: Iterable[int], most: int) -> int:
    """The size to which the larger ones are cut, when the smaller ones leave them their rest."""
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        others = len(ordered) - index
        if size * others > most:
            return most // others
        most -= size
    return max(ordered, default=0)


def _begin(text: str, most: int) -> str:
    return cut(text, max(most, 1))[0] if most else ""
