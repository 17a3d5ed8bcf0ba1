"""Secrets in a text that comes in pieces are hidden, wherever it is split; all else is shown."""

from __future__ import annotations

import random

import pytest

from tasks.veil import Veil, hideable

KEY = "sk-geheim-0123456789"
URL = "geheim-und-lang-genug"


def through(pieces: list[str], *secrets: str) -> str:
    veil = Veil(secrets)
    return "".join(veil.take(piece) for piece in pieces) + veil.rest()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing to hide", "nothing to hide"),
        (f"your key is {KEY}, is it not?", "your key is ***, is it not?"),
        (f"{KEY}{KEY} and {URL}", "****** and ***"),
        (KEY, "***"),
        ("it begins with sk-geheim-01234", "it begins with sk-geheim-01234"),
        ("ssk-geheim-0sk-geheim-0123456789", "ssk-geheim-0***"),
        ("", ""),
    ],
)
def test_a_text_split_anywhere(text: str, shown: str) -> None:
    dice = random.Random(1)
    for _ in range(50):
        cuts = sorted(dice.choices(range(len(text) + 1), k=4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert through(pieces, KEY, URL) == shown, pieces
    assert through(list(text), KEY, URL) == shown


def test_what_cannot_be_a_secret_comes_at_once() -> None:
    veil = Veil([KEY])
    assert [veil.take(piece) for piece in ("ask", " me", " s", "k-", "ip it")] == [
        "a", "sk me", " ", "", "sk-ip it",
    ]  # fmt: skip


def test_words_are_no_secrets() -> None:
    """A dummy key must not be cut out of an answer that is about it."""
    assert hideable(["ollama", "lm-studio", "none", "1234", "sk-12345", KEY, URL]) == (
        "sk-12345", KEY, URL,
    )  # fmt: skip
