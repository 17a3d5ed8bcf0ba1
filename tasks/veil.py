"""PURE: hide secrets in a text that comes in pieces, also one that is split between two of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "***"


def hideable(secrets: Iterable[str]) -> tuple[str, ...]:
    """Those that may be hidden in a text for a person: they are no words that it could be about.

    A key such as `ollama` or `lm-studio` stands for none; the real ones are long or hold digits.
    """
    return tuple(s for s in secrets if len(s) >= 16 or (len(s) >= 8 and re.search(r"\d", s)))


class Veil:
    """Takes a text piece by piece, and holds back what may be the beginning of a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = hideable(secrets)
        self._held = ""

    def take(self, text: str) -> str:
        """What can be shown now of all that came."""
        if not self._secrets:
            return text
        text = self.hide(self._held + text)
        held = max((_begun(secret, text) for secret in self._secrets), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back, once no more can come."""
        held, self._held = self._held, ""
        return held

    def hide(self, text: str) -> str:
        """`text`, which is whole, without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def _begun(secret: str, text: str) -> int:
    """How many characters at the end of `text` are the beginning of `secret`."""
    start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while start >= 0 and not secret.startswith(text[start:]):
        start = text.find(secret[0], start + 1)
    return len(text) - start if start >= 0 else 0
