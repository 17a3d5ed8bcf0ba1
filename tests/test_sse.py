"""The event-stream decoder: every way to end, split and spoil a line."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tasks.errors import Unusable
from tasks.sse import Decoder, Event


def decode(*chunks: bytes, max_line: int = 1000, max_event: int = 1000) -> list[Event]:
    decoder = Decoder(max_line=max_line, max_event=max_event)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.close()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lf_cr_and_crlf_end_a_line(end: bytes) -> None:
    stream = end.join([b"event: delta", b"data: one", b"data:two", b"", b"data:[DONE]", b"", b""])
    assert decode(stream) == [Event("delta", "one\ntwo"), Event("", "[DONE]")]


def test_crlf_split_over_two_chunks_is_one_line_end() -> None:
    assert decode(b"data: a\r", b"\ndata: b\r", b"", b"\n\r", b"\n") == [Event("", "a\nb")]


def test_a_lone_cr_at_the_end_of_a_chunk_completes_the_event_at_once() -> None:
    decoder = Decoder(max_line=100, max_event=100)
    assert decoder.feed(b"data: a\r\r") == [Event("", "a")]


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1e"])
def test_no_other_character_ends_a_line(char: str) -> None:
    assert decode(f"data: a{char}b\n\n".encode()) == [Event("", f"a{char}b")]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b": ping\n\n", [], id="comment"),
        pytest.param(b":\n\n", [], id="bare colon"),
        pytest.param(b"data:\n\n", [], id="empty data"),
        pytest.param(b"data\n\n", [], id="data without a colon"),
        pytest.param(b"retry: 3000\n\n", [], id="retry alone"),
        pytest.param(b"id: 7\n\n", [], id="id alone"),
        pytest.param(b"event: ping\n\n", [], id="name alone"),
        pytest.param(b"\n\n\n", [], id="blank lines"),
        pytest.param(b"data: : x\n\n", [Event("", ": x")], id="a comment as data"),
        pytest.param(b"data:  two\n\n", [Event("", " two")], id="one space is taken off"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Event("", "a")], id="byte order mark"),
        pytest.param(b"data: a", [Event("", "a")], id="unterminated line"),
        pytest.param(b"data: a\n", [Event("", "a")], id="unterminated event"),
        pytest.param(b"data: \xff\n\n", [Event("", "\ufffd")], id="not UTF-8"),
        pytest.param(b"error: x\n\n", [Event("", "", {"error": "x"})], id="unknown field"),
        pytest.param(b"event: a\n\ndata: b\n\n", [Event("", "b")], id="a name does not stick"),
    ],
)
def test_blocks(stream: bytes, events: list[Event]) -> None:
    assert decode(stream) == events


def test_two_hundred_random_splittings_give_the_same_events() -> None:
    stream = (
        "\ufeffdata: naïve 😀\r\ndata: b\r\n\r\n: x\n\nevent: e\rdata: é\u2028\r\rdata: z".encode()
    )
    whole = decode(stream)
    assert [event.data for event in whole] == ["naïve 😀\nb", "é\u2028", "z"]
    for seed in range(200):
        chance = random.Random(seed)
        cuts = sorted(chance.choices(range(len(stream) + 1), k=chance.randrange(1, 40)))
        chunks = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
        assert decode(*chunks) == whole, f"seed {seed}"


@pytest.mark.parametrize(
    ("stream", "setting"),
    [
        pytest.param(b"data: " + b"x" * 2000, "SLOWCALL_MAX_LINE", id="endless line"),
        pytest.param(b"data: xxxxxxxxxx\n" * 100, "SLOWCALL_MAX_EVENT", id="endless event"),
    ],
)
def test_memory_is_bounded(stream: bytes, setting: str) -> None:
    with pytest.raises(Unusable, match=setting) as refused:
        decode(*(stream[at : at + 7] for at in range(0, len(stream), 7)))
    assert refused.value.type == "permanent"


def test_comments_do_not_fill_an_event() -> None:
    assert decode(b": ping\n" * 1000 + b"data: a\n\n") == [Event("", "a")]
