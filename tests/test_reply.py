"""Whatever an endpoint sends, a reply is an answer or a failure of the tree."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.draft import Answer
from tasks.errors import CallFailed
from tasks.reply import Limits, Reply

LIMITS = Limits(line=10_000, event=20_000, answer=50_000)

NAMES = st.sampled_from(
    [
        "choices",
        "delta",
        "message",
        "content",
        "text",
        "error",
        "code",
        "type",
        "finish_reason",
        "index",
        "usage",
        "id",
        "model",
        "prompt_tokens",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "reasoning",
        "refusal",
        "thinking",
        "object",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("ab\ud83d\ude00é:\n", max_size=5)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=12
)
DELTAS = st.dictionaries(NAMES, VALUES)
CHUNKS = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": DELTAS, "finish_reason": VALUES}))}
)


def outcome(body: bytes, size: int) -> Answer | CallFailed:
    reply = Reply(LIMITS)
    try:
        for at in range(0, len(body), size):
            reply.feed(body[at : at + size])
        return reply.answer()
    except CallFailed as failure:
        reply.book(failure)
        return failure


@settings(max_examples=50)
@given(st.lists(CHUNKS | VALUES, max_size=4), st.integers(1, 50))
def test_any_chunks(chunks: list[Any], size: int) -> None:
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    for body in (stream, json.dumps(chunks), "\n".join(map(json.dumps, chunks))):
        found = outcome(body.encode(), size)
        assert isinstance(found, Answer | CallFailed)
        if isinstance(found, Answer):
            json.dumps(found.tool_calls)
            f"{found.text}{found.reasoning}{found.finish_reason}{found.model}".encode()


@given(st.binary(max_size=200), st.sampled_from([b"", b"data: ", b": x\n\ndata: {", b"error: "]))
def test_any_bytes(tail: bytes, start: bytes) -> None:
    assert isinstance(outcome(start + tail, 7), Answer | CallFailed)
