"""PURE: what the lab model answers to a request, and how it counts tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_TOKEN: Final = re.compile(r"\s*\S+|\s+")
_SENTENCE: Final = re.compile(r"(?<=[.!?…。])\s+")
_PARAGRAPH: Final = re.compile(r"\n\s*\n|\f")

SUMMARY_SENTENCES: Final = 12


@dataclass(frozen=True, slots=True)
class LabAnswer:
    """The answer in pieces as they are streamed, one a token, and what it costs in tokens."""

    pieces: tuple[str, ...]
    finish_reason: str
    input_tokens: int

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)


def answer(body: Mapping[str, Any]) -> LabAnswer:
    """The answer to the body of a chat completion. Raises ValueError where it is not one."""
    messages = texts(body)
    system = " ".join(text for role, text in messages if role in {"system", "developer"})
    users = [text for role, text in messages if role == "user"]
    pieces = _TOKEN.findall(reply(system, users[-1] if users else ""))
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(pieces)
    return LabAnswer(
        pieces=tuple(pieces[:limit]),
        finish_reason="stop" if len(pieces) <= limit else "length",
        input_tokens=sum(len(_TOKEN.findall(text)) for _, text in messages),
    )


def reply(system: str, prompt: str) -> str:
    """A plan where the instructions ask for one in JSON, a summary where they say so, else the
    prompt in upper case."""
    if "JSON" in system and "plan" in system.lower():
        return plan(prompt)
    if re.match(r"\s*summari[sz]e", system, re.IGNORECASE):
        return summary(prompt)
    if system_less := re.match(r"\s*summari[sz]e[^\n]*\n+(.+)", prompt, re.IGNORECASE | re.DOTALL):
        return summary(system_less[1])
    return prompt.upper()


def summary(text: str) -> str:
    """The first sentence of each paragraph, the first two of a single one; evenly thinned out."""
    paragraphs = [part.strip() for part in _PARAGRAPH.split(text) if part.strip()]
    if len(paragraphs) < 2:
        return " ".join(_sentences(text)[:2])
    leads = [_sentences(paragraph)[0] for paragraph in paragraphs]
    stride = -(-len(leads) // SUMMARY_SENTENCES)
    return " ".join(leads[::stride])


def _sentences(text: str) -> list[str]:
    return _SENTENCE.split(" ".join(text.split()))


def plan(goal: str) -> str:
    """A small valid plan for a goal."""
    subject = " ".join(goal.split())[:200]
    steps = [f"Collect what is known: {subject}", f"Weigh it: {subject}", f"Conclude: {subject}"]
    return json.dumps({"steps": steps}, ensure_ascii=False)


def texts(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message. Raises ValueError where the body is not a chat completion."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages: a list with at least one message is needed")
    return [_role_and_text(message) for message in messages]


def _role_and_text(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("messages: each needs a role and a content")
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return message["role"], str(content)
