"""The lab model's answers in the shapes of OpenAI's chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from server.lab_meter import Sale

MODEL: Final = "lab"


def completion(sale: Sale) -> dict[str, Any]:
    """The answer as OpenAI's `chat.completion`."""
    message = {"role": "assistant", "content": sale.answer.text}
    choice = {"index": 0, "message": message, "finish_reason": sale.answer.finish_reason}
    return head(sale, "chat.completion") | {"choices": [choice], "usage": usage(sale)}


def chunk(
    sale: Sale, delta: dict[str, str] | None, finish_reason: str | None = None
) -> dict[str, Any]:
    """One `chat.completion.chunk`; without a delta it has no choices (the usage chunk)."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return head(sale, "chat.completion.chunk") | {"choices": [] if delta is None else [choice]}


def head(sale: Sale, kind: str) -> dict[str, Any]:
    """What all answers of a sale have in common."""
    return {
        "id": f"chatcmpl-lab-{sale.number}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
    }


def usage(sale: Sale) -> dict[str, int]:
    """What the sale counts in tokens."""
    output = len(sale.answer.pieces)
    return {
        "prompt_tokens": sale.input_tokens,
        "completion_tokens": output,
        "total_tokens": sale.input_tokens + output,
    }


def event(document: Mapping[str, Any]) -> bytes:
    """A document as one server-sent event."""
    return b"data: " + encode(document) + b"\n\n"


def encode(document: Mapping[str, Any]) -> bytes:
    """A document as compact JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
