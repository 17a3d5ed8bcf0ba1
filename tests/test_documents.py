"""Cutting texts: at sensible places, within the budget, with nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.documents import Page, cut, fit, groups, number_pages, split_pages, tokens

SENTENCE = "The quick brown fox jumps over the lazy dog. "


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("abcd", 1), ("abcde", 2), ("日本語", 3), ("añb", 2)]
)
def test_tokens_are_estimated_with_caution(text: str, count: int) -> None:
    assert tokens(text) == count


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("one", ["one"]),
        ("  one  ", ["one"]),
        ("one\ftwo\f\fthree", ["one", "two", "", "three"]),
        ("a\n\nb", ["a\n\nb"]),
        (" \n ", []),
    ],
)
def test_a_text_has_the_pages_it_says(text: str, pages: list[str]) -> None:
    assert split_pages(text, 10) == pages


@pytest.mark.parametrize(
    ("text", "most", "parts"),
    [
        ("aaa.\n\nbbb.\n\nccc.", 3, ["aaa.\n\nbbb.", "ccc."]),
        ("aaaa. bbbb. cccc.", 3, ["aaaa. bbbb.", "cccc."]),
        ("aaaa bbbb cccc", 2, ["aaaa", "bbbb", "cccc"]),
        ("abcdefghijkl", 2, ["abcdefgh", "ijkl"]),
        ("一二三。四五六。", 4, ["一二三。", "四五六。"]),
        ("a.\n \t\nb.\n\n\n\nc.", 1, ["a.", "b.", "c."]),
        ("It is 3.14159 or so", 2, ["It is", "3.14159", "or so"]),
        ("A. B. C. D. E.", 2, ["A. B. C.", "D. E."]),
        ("Überübermäßig lang", 6, ["Überübermäßi", "g lang"]),
    ],
)
def test_a_text_is_cut_where_a_reader_would(text: str, most: int, parts: list[str]) -> None:
    assert cut(text, most) == parts


def test_a_heading_stays_with_what_follows_it() -> None:
    text = f"{SENTENCE * 4}\n\n# Methods\n\n{SENTENCE * 4}"
    assert [page.partition("\n")[0][:9] for page in cut(text, 55)] == ["The quick", "# Methods"]


def test_a_page_knows_the_heading_under_which_it_goes_on() -> None:
    pages = number_pages([f"Results\n\n{SENTENCE}", SENTENCE, "", f"# Outlook\n{SENTENCE}", "End."])
    told = [(page.number, page.section) for page in pages]
    assert told == [(1, ""), (2, "Results"), (4, ""), (5, "Outlook")]


def test_a_page_that_is_too_long_keeps_its_number_in_every_part() -> None:
    assert number_pages(["x.", "aaaa. bbbb. cccc."], most=3) == [
        Page(1, "x."),
        Page(2, "aaaa. bbbb."),
        Page(2, "cccc."),
    ]


TEXTS = st.text(st.sampled_from("ab. \n#é日"), max_size=200)


@given(text=TEXTS, most=st.integers(1, 30))
def test_nothing_is_lost_and_nothing_is_too_long(text: str, most: int) -> None:
    parts = cut(text, most)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(tokens(part) <= most and part.strip() for part in parts)


@given(texts=st.lists(TEXTS, max_size=8), most=st.integers(0, 200))
def test_what_does_not_fit_is_cut_short_and_the_short_stay_whole(
    texts: list[str], most: int
) -> None:
    fitted = fit(texts, most)
    assert sum(map(tokens, fitted)) <= most + 2 * len(texts)
    if sum(map(tokens, texts)) <= most:
        assert fitted == texts


@given(texts=st.lists(TEXTS, min_size=1, max_size=20), most=st.integers(1, 100))
def test_groups_keep_the_order_and_every_level_is_shorter(texts: list[str], most: int) -> None:
    grouped = groups(texts, most)
    assert [text for group in grouped for text in group] == texts
    assert all(len(group) >= 2 for group in grouped[:-1])
    assert all(sum(map(tokens, group)) <= most for group in grouped if len(group) > 2)
