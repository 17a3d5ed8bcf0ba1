"""The model client against a scripted endpoint, over real sockets: every reply a table's row.

Each failing row also counts the requests: one call is one request, whatever becomes of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.errors import (
    CallFailed,
    ContentRefused,
    OptionRefused,
    OutcomeUnknown,
    RateLimited,
    Rejected,
    SettingsError,
    Unusable,
)
from tasks.model import Answer, ModelClient
from tasks.settings import Settings
from tests.endpoint import (
    DONE,
    FIN,
    HJ,
    HOLD,
    HS,
    RST,
    SHUT,
    C,
    Endpoint,
    Pause,
    Request,
    Script,
    answered,
    completion,
    data,
    delta,
    head,
    reply,
    usage,
)

PROMPT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def quick(**changed: Any) -> Settings:
    """Settings whose limits of time suit a test."""
    return Settings(**({"idle_timeout_s": 10, "connect_timeout_s": 5} | changed))


async def ask(
    url: str,
    body: dict[str, Any] | None = None,
    *,
    settings: Settings | None = None,
    timeout_s: float = 20,
    **call: Any,
) -> Answer:
    """One call with a client of its own."""
    client = ModelClient(settings or quick(), base_url=url)
    try:
        return await client.chat(
            body or PROMPT, idempotency_key="job:step:hash:0", timeout_s=timeout_s, **call
        )
    finally:
        await client.aclose()


async def answer_of(script: Script, body: dict[str, Any] | None = None, **how: Any) -> Answer:
    with Endpoint(script) as endpoint:
        return await ask(endpoint.url, body, **how)


async def failure_of(script: Script, **how: Any) -> CallFailed:
    """How the call fails, after the one request that it may make."""
    with Endpoint(script) as endpoint:
        with pytest.raises(CallFailed) as failed:
            await ask(endpoint.url, **how)
        assert len(endpoint.requests) == 1, "one call is one request"
    assert len(str(failed.value)) <= 240
    return failed.value


# What answers.

THREE = [C("one "), C("two "), FIN("stop")]


def lines(end: str, colon: str = "data: ") -> Script:
    """The three events and the end, in that encoding of lines."""
    text = b"".join([*THREE, DONE]).decode().replace("data: ", colon).replace("\n", end)
    return HS(text.encode())


def odd(*blocks: bytes) -> Script:
    """An answer with these blocks between its two words."""
    return HS(C("one "), *blocks, C("two "), FIN("stop"), DONE)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(lines("\n"), id="A9 LF"),
        pytest.param(lines("\r"), id="A9 CR"),
        pytest.param(lines("\r\n"), id="A9 CRLF"),
        pytest.param(lines("\n", "data:"), id="A9 no space"),
        pytest.param(
            HS(C("one ")[:-2] + b"\r", Pause(0.05), b"\n\r\n", *THREE[1:], DONE), id="A9 CRLF split"
        ),
        pytest.param(HS(*THREE), id="A3 no DONE"),
        pytest.param(HS(*THREE, b"data: [DONE]"), id="A3 unterminated DONE"),
        pytest.param(HS(*THREE[:2], DONE), id="A3 DONE without a reason"),
        pytest.param(HS(*THREE, HOLD), id="held open after the finish"),
        pytest.param(HS(*THREE, DONE, HOLD), id="held open after DONE"),
        pytest.param(HS(*THREE, RST), id="reset after the finish"),
        pytest.param(odd(b": PROCESSING\n\n"), id="A8 comment"),
        pytest.param(odd(b"data: : keepalive\n\n"), id="A8 comment as data"),
        pytest.param(odd(b"data:\n\n"), id="A8 empty data"),
        pytest.param(odd(b"retry: 3000\n\n"), id="A8 retry"),
        pytest.param(odd(b"id: 7\n\n"), id="A8 id"),
        pytest.param(odd(b'event: ping\ndata: {"type":"ping"}\n\n'), id="ping"),
        pytest.param(odd(data({"choices": [], "prompt_filter_results": []})), id="A10 no choice"),
        pytest.param(odd(data({"choices": [{"index": 0, "finish_reason": None}]})), id="A10 delta"),
        pytest.param(odd(data({"choices": None, "error": None})), id="A1 error null"),
        pytest.param(odd(delta({"role": "assistant", "content": None})), id="A23 null content"),
        pytest.param(odd(data({"choices": [{"index": 1, "delta": {"content": "x"}}]})), id="n > 1"),
        pytest.param(
            HS(C("one "), delta({"content": [{"type": "text", "text": "two "}]}), FIN(), DONE),
            id="parts in a delta",
        ),
        pytest.param(HJ(completion("one two ")), id="A24 document instead of a stream"),
        pytest.param(
            HJ(completion([{"type": "text", "text": "one "}, {"text": "two "}])),
            id="a list of parts",
        ),
        pytest.param(
            HS(json.dumps(completion("one two ")).encode(), b"\n\ndata: [DONE]\n\n"),
            id="A24 a document called a stream",
        ),
        pytest.param(
            reply(200, b"".join([*THREE, DONE]), content_type="application/json"),
            id="A24 a stream called a document",
        ),
        pytest.param(
            HS(b"\n".join(event.removeprefix(b"data: ").strip() for event in THREE)), id="NDJSON"
        ),
        pytest.param(
            reply(200, b"\n\n \n" + json.dumps(completion("one two ")).encode()), id="blank lines"
        ),
    ],
)
async def test_the_answer_is_got_where_there_is_one(script: Script) -> None:
    pieces: list[str] = []
    answer = await answer_of(script, on_text=pieces.append)
    assert answer.text == "one two "
    assert "".join(pieces) == answer.text


@pytest.mark.parametrize("text", ["one\u2028two\u0085three\u2029\v\f\x1c.", "\0 null", "naïve 😀"])
async def test_no_character_is_lost(text: str) -> None:
    assert (await answer_of(answered(text))).text == text


async def test_a_pair_of_surrogates_split_over_two_deltas_is_one_character() -> None:
    half, other = b'"\\ud83d"', b'"\\ude00"'
    event = b'data: {"choices":[{"delta":{"content":%s}}]}\n\n'
    pieces: list[str] = []
    script = HS(event % half, event % other, event % other, FIN(), DONE)
    assert (await answer_of(script, on_text=pieces.append)).text == "😀\ufffd"
    assert pieces == ["😀", "\ufffd"]


async def test_two_hundred_random_splittings_give_the_same_text() -> None:
    text = "One\u2028naïve 😀 answer\r\n in thirty words: " + "x" * 60
    events = [C(text[at : at + 7]) for at in range(0, len(text), 7)]
    stream = b": hi\r\n\r\n".join([*events, FIN(), usage(3, 2), DONE])

    def split(request: Request) -> Script:
        chance = random.Random(int(request.json["seed"]))
        cuts = sorted(chance.choices(range(len(stream) + 1), k=chance.randrange(1, 60)))
        pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
        return HS(*(piece for piece in pieces if piece))

    with Endpoint(split) as endpoint:
        seeds = range(200)
        client = ModelClient(quick(idle_timeout_s=20), base_url=endpoint.url)
        answers = await asyncio.gather(
            *(
                client.chat(PROMPT | {"seed": seed}, idempotency_key="k", timeout_s=20)
                for seed in seeds
            )
        )
        await client.aclose()
    for seed, answer in zip(seeds, answers, strict=True):
        assert (answer.text, answer.input_tokens) == (text, 3), f"seed {seed}"


async def test_what_comes_with_the_text() -> None:
    script = HS(
        data({"id": "r-7", "model": "big", "choices": [{"delta": {"reasoning": "hm "}}]}),
        delta({"reasoning_content": "so", "content": None}),
        C("Yes"),
        FIN("length"),
        usage(30, 20),
        DONE,
        headers=["X-Request-Id: q-1"],
    )
    answer = await answer_of(script)
    assert answer == Answer(
        text="Yes",
        model="big",
        finish_reason="length",
        input_tokens=30,
        output_tokens=20,
        tool_calls=[],
        reasoning="hm so",
        request_id="q-1",
        lab=False,
        response_id="r-7" if answer.response_id == "r-7" else "c-1",
    )


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        ([], 0),
        ([data({"choices": [], "usage": None})], 0),
        ([usage(3, 1), usage(3, 2), usage(3, 5)], 5),
        ([data({"choices": [], "usage": {"output_tokens": 4}})], 4),
        ([data({"choices": [], "usage": {"completion_tokens": "many"}})], 0),
    ],
)
async def test_usage_is_the_last_one_told(chunks: list[bytes], tokens: int) -> None:
    assert (await answer_of(HS(C("a"), *chunks, FIN(), DONE))).output_tokens == tokens


def call(name: str, arguments: str, id: str = "t-1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def piece(arguments: str, **more: Any) -> bytes:
    return delta({"tool_calls": [{"function": {"arguments": arguments}, **more}]})


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        pytest.param(
            HS(
                delta({"tool_calls": [{"index": 0, **call("find", "")}]}),
                *(piece(part, index=0) for part in ('{"q"', ":", '"a', 'b"', "}")),
                FIN("tool_calls"),
            ),
            [call("find", '{"q":"ab"}')],
            id="arguments over five deltas",
        ),
        pytest.param(
            HS(
                delta({"tool_calls": [{"index": 0, **call("a", "{", "t-1")}]}),
                delta({"tool_calls": [{"index": 1, **call("b", "[", "t-2")}]}),
                piece("}", index=0),
                piece("]", index=1),
                FIN("tool_calls"),
            ),
            [call("a", "{}", "t-1"), call("b", "[]", "t-2")],
            id="two at once",
        ),
        pytest.param(
            HS(
                delta({"tool_calls": [call("a", "{}", "t-1")]}),
                delta({"tool_calls": [call("b", "{}", "t-2")]}),
                FIN("stop"),
            ),
            [call("a", "{}", "t-1"), call("b", "{}", "t-2")],
            id="without an index",
        ),
        pytest.param(
            HJ(completion(None, finish="tool_calls", tool_calls=[call("a", "{}")])),
            [call("a", "{}")],
            id="whole",
        ),
        pytest.param(
            HJ(completion(None, function_call={"name": "a", "arguments": {"b": 1}})),
            [call("a", '{"b": 1}', "")],
            id="as it was once called, arguments as an object",
        ),
    ],
)
async def test_tool_calls_are_part_of_the_answer(script: Script, calls: list[Any]) -> None:
    answer = await answer_of(script)
    assert (answer.text, answer.tool_calls) == ("", calls)


@pytest.mark.parametrize(
    ("script", "lab"),
    [
        (HJ(completion("a"), "X-Slowcall-Lab: 1"), True),
        (HJ(completion("a"), "llm_provider-X-Slowcall-Lab: 1"), True),
        (HJ(completion("a") | {"model": "lab"}), True),
        (HJ(completion("a")), False),
    ],
)
async def test_the_lab_says_so(script: Script, lab: bool) -> None:
    assert (await answer_of(script)).lab is lab


# What fails.


@dataclass(frozen=True)
class Fails:
    """How a call ends that got no answer."""

    failure: type[CallFailed]
    type: str
    status: int | None
    says: str = ""


def error(message: str, **more: Any) -> bytes:
    return data({"error": {"message": message, **more}})


FILTERED = Fails(Unusable, "permanent", None, "content filter")
CUT = Fails(OutcomeUnknown, "transient", None)
NO_ANSWER = Fails(Unusable, "transient", None, "no answer in the reply")
PAGE = b"<!DOCTYPE html><html><title>Just a moment\xe2\x80\xa6</title>" + b"<p>x</p>" * 5000
THOUGHT = [delta({"reasoning_content": "hm ", "content": None})] * 25
THOUGHT += [delta({"reasoning": "hm ", "content": None})] * 25


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(
            HS(C("Hel"), error("engine queue full", type="server_error", code=503), DONE),
            Fails(Rejected, "transient", 503, "engine queue full"),
            id="A1 503",
        ),
        pytest.param(
            HS(error("full", code="503")), Fails(Rejected, "transient", 503, "full"), id="A1 first"
        ),
        pytest.param(HS(error("no", code=400)), Fails(Rejected, "permanent", 400), id="A1 400"),
        pytest.param(HS(error("no", code=502)), Fails(Rejected, "transient", 502), id="A1 502"),
        pytest.param(
            HS(error("slow", code=429)), Fails(RateLimited, "rate_limited", 429), id="A1 429"
        ),
        pytest.param(
            HS(C("a"), error("pay", code="insufficient_quota")),
            Fails(Rejected, "permanent", 200, "pay"),
            id="A1 quota",
        ),
        pytest.param(
            HS(data({"error": "plain string"}), DONE),
            Fails(Rejected, "transient", 200, "plain string"),
            id="A1 string",
        ),
        pytest.param(
            HS(delta({}, finish_reason="error", error={"code": 502, "message": "up"})),
            Fails(Rejected, "transient", 502, "up"),
            id="A1 with a choice",
        ),
        pytest.param(
            HS(C("a"), FIN("error"), DONE), Fails(Rejected, "transient", 200), id="A1 reason"
        ),
        pytest.param(
            HS(C("a"), FIN(), error("late", code=500)),
            Fails(Rejected, "transient", 500),
            id="A1 late",
        ),
        pytest.param(
            HS(error("x", type="rate_limit_error")),
            Fails(RateLimited, "rate_limited", 200),
            id="A1 words",
        ),
        pytest.param(
            HS(data({"object": "error", "message": "too long", "code": 400})),
            Fails(Rejected, "permanent", 400, "too long"),
            id="A1 the chunk is the error",
        ),
        pytest.param(
            HS(
                b'error: {"code":400,"message":"request exceeds context size",'
                b'"type":"invalid_request_error"}\n\n',
                DONE,
            ),
            Fails(ContentRefused, "permanent", 400, "request exceeds context size"),
            id="A2 field",
        ),
        pytest.param(
            HS(b'event: error\ndata: {"code":400,"details":"too many logprobs"}\n\n', DONE),
            Fails(Rejected, "permanent", 400, "too many logprobs"),
            id="A2 event",
        ),
        pytest.param(
            HS(b"event: error\ndata: overloaded\n\n"),
            Fails(Rejected, "transient", 200, "overloaded"),
            id="A2 no JSON",
        ),
        pytest.param(HS(DONE), NO_ANSWER, id="A2 nothing but DONE"),
        pytest.param(HS(C("The first half")), CUT, id="A3 no finish"),
        pytest.param(
            HS(), Fails(OutcomeUnknown, "transient", None, "empty"), id="A3 nothing at all"
        ),
        pytest.param(
            HS(b"internal trouble\n"),
            Fails(OutcomeUnknown, "transient", None, "internal trouble"),
            id="text",
        ),
        pytest.param(
            [*HS(C("a"), SHUT)[:-1], b"40\r\n0123456789", RST], CUT, id="A4 reset inside a chunk"
        ),
        pytest.param([RST], CUT, id="A4 reset before any header"),
        pytest.param([SHUT], CUT, id="A27 closed after reading"),
        pytest.param(
            [head(200, "text/event-stream", "Transfer-Encoding: chunked"), RST],
            CUT,
            id="A4 reset between header and body",
        ),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", SHUT], CUT, id="short body"
        ),
        pytest.param([b"SSH-2.0-OpenSSH_9\r\n\r\n", SHUT], CUT, id="not HTTP"),
        pytest.param(
            HS(C("a"), b"data: {broken\n\n", C("b"), FIN(), DONE),
            Fails(OutcomeUnknown, "transient", None, "{broken"),
            id="A8 malformed",
        ),
        pytest.param(
            HS(C("a"), b"data: " + b"[" * 100_000 + b"\n\n"),
            Fails(OutcomeUnknown, "transient", None, "not JSON"),
            id="too deep",
        ),
        pytest.param(
            HJ({"choices": None, "error": {"message": "Provider returned error", "code": 429}}),
            Fails(RateLimited, "rate_limited", 429, "Provider returned error"),
            id="A11 error",
        ),
        pytest.param(HJ({"id": None, "choices": None, "usage": None}), NO_ANSWER, id="A11 null"),
        pytest.param(HJ({"choices": []}), NO_ANSWER, id="A11 empty"),
        pytest.param(HJ({"choices": [None]}), NO_ANSWER, id="A11 null choice"),
        pytest.param(HJ({"choices": {"a": 1}}), NO_ANSWER, id="A11 object"),
        pytest.param(HJ({"choices": [{"message": "hi"}]}), NO_ANSWER, id="A11 message"),
        pytest.param(HJ([]), NO_ANSWER, id="A11 list"),
        pytest.param(HJ(None), NO_ANSWER, id="A11 nothing"),
        pytest.param(HJ("ok"), NO_ANSWER, id="A11 string"),
        pytest.param(
            reply(200, b'{"choices": [{"mess'),
            Fails(Unusable, "transient", None, "not JSON"),
            id="half",
        ),
        pytest.param(
            reply(502, PAGE, content_type="text/html"),
            Fails(OutcomeUnknown, "transient", 502, "a web page: Just a moment…"),
            id="A12 502",
        ),
        pytest.param(
            reply(200, PAGE, content_type="text/html"),
            Fails(Unusable, "permanent", None, "a web page: Just a moment…"),
            id="A12 200",
        ),
        pytest.param(reply(503), Fails(Rejected, "transient", 503), id="A12 503 empty"),
        pytest.param(
            reply(200), Fails(OutcomeUnknown, "transient", None, "empty"), id="A12 200 empty"
        ),
        pytest.param(
            HJ({"error": {"type": "insufficient_quota", "message": "check billing"}}, status=429),
            Fails(Rejected, "permanent", 429, "check billing"),
            id="A14 quota",
        ),
        pytest.param(
            HJ({"error": {"type": "rate_limit_exceeded"}}, status=429),
            Fails(RateLimited, "rate_limited", 429),
            id="A14 rate",
        ),
        pytest.param(
            HJ({"error": {"code": "context_length_exceeded", "message": "too much"}}, status=400),
            Fails(ContentRefused, "permanent", 400, "too much"),
            id="A18 code",
        ),
        pytest.param(
            HJ({"message": "longer than the model's context length"}, status=500),
            Fails(ContentRefused, "permanent", 500, "context length"),
            id="A18 words",
        ),
        pytest.param(
            HS(error("maximum context length is 4096 tokens", code=500)),
            Fails(ContentRefused, "permanent", 500, "4096"),
            id="A18 in a stream",
        ),
        pytest.param(
            HJ({"error": {"message": "request body is not valid JSON"}}, status=400),
            Fails(Rejected, "permanent", 400, "not valid JSON"),
            id="A19",
        ),
        pytest.param(HJ(completion(None, finish="content_filter")), FILTERED, id="A20 document"),
        pytest.param(HS(C("par"), FIN("content_filter"), DONE), FILTERED, id="A20 stream"),
        pytest.param(
            HJ({"error": {"code": "content_filter", "message": "filtered"}}, status=400),
            Fails(ContentRefused, "permanent", 400, "filtered"),
            id="A20 400",
        ),
        pytest.param(
            HJ(completion(None, finish="content_filter"), status=400),
            Fails(ContentRefused, "permanent", 400, "content filter"),
            id="A20 400 with a completion",
        ),
        pytest.param(
            HS(*THOUGHT, FIN("length")),
            Fails(Unusable, "permanent", None, "by thinking"),
            id="A21 length",
        ),
        pytest.param(
            HS(*THOUGHT, FIN("stop")), Fails(Unusable, "transient", None, "thought"), id="A21 stop"
        ),
        pytest.param(
            HS(FIN("stop")), Fails(Unusable, "transient", None, "empty answer"), id="empty"
        ),
        pytest.param(
            HJ(completion(None, refusal="I would rather not")),
            Fails(Unusable, "permanent", None, "I would rather not"),
            id="refused",
        ),
        pytest.param(
            HJ({"error": {"message": "Loading model", "code": 503}}, status=503),
            Fails(RateLimited, "rate_limited", 503, "Loading model"),
            id="A31 loading",
        ),
        pytest.param(
            reply(307, b"", "Location: http://elsewhere/v1?key=x"),
            Fails(Rejected, "permanent", 307, "http://elsewhere/v1: AI_URL"),
            id="A17 redirect",
        ),
        pytest.param(
            HJ({"error": {"message": "Backend: Connection error."}}, status=500),
            Fails(OutcomeUnknown, "transient", 500, "Connection error"),
            id="a gateway lost the model",
        ),
        pytest.param(
            HS(C("a"), error("Connection error.", code=500)),
            Fails(OutcomeUnknown, "transient", 500, "Connection error"),
            id="a gateway lost the model in the middle",
        ),
        pytest.param(
            HJ({"detail": "Not Found"}, status=404),
            Fails(Rejected, "permanent", 404, "/v1/chat/completions; is AI_URL right?: Not Found"),
            id="F9 404",
        ),
    ],
)
async def test_every_failure_is_named_after_one_request(script: Script, expected: Fails) -> None:
    failed = await failure_of(script)
    found = Fails(type(failed), failed.type, failed.upstream_status, expected.says)
    assert (found, expected.says in str(failed)) == (expected, True), str(failed)


REFUSED, PERHAPS = "rejected", "unknown"


@pytest.mark.parametrize(
    ("status", "type", "outcome"),
    [
        (301, "permanent", REFUSED), (400, "permanent", REFUSED), (401, "permanent", REFUSED),
        (402, "permanent", REFUSED), (403, "permanent", REFUSED), (408, "transient", PERHAPS),
        (409, "transient", REFUSED), (413, "permanent", REFUSED), (418, "permanent", REFUSED),
        (422, "permanent", REFUSED), (425, "transient", REFUSED), (429, "rate_limited", REFUSED),
        (499, "permanent", REFUSED), (500, "transient", REFUSED), (501, "permanent", REFUSED),
        (502, "transient", PERHAPS), (503, "transient", REFUSED), (504, "transient", PERHAPS),
        (505, "transient", REFUSED), (520, "transient", PERHAPS), (521, "transient", PERHAPS),
        (522, "transient", PERHAPS), (523, "transient", PERHAPS), (524, "transient", PERHAPS),
        (529, "transient", REFUSED), (599, "transient", PERHAPS),
    ],
)  # fmt: skip
async def test_statuses(status: int, type: str, outcome: str) -> None:
    failed = await failure_of(HJ({"error": {"message": "no"}}, status=status))
    assert (failed.type, failed.outcome, failed.upstream_status) == (type, outcome, status)


async def test_a_status_without_content_is_no_answer() -> None:
    failed = await failure_of([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert (type(failed), failed.type) == (OutcomeUnknown, "transient")


async def test_the_status_stands_when_its_body_does_not_come() -> None:
    script: Script = [head(401, "text/plain", "Content-Length: 99"), b"no", HOLD]
    failed = await failure_of(script, settings=quick(idle_timeout_s=0.4))
    assert (failed.type, failed.upstream_status) == ("permanent", 401)


@pytest.mark.parametrize(
    ("status", "headers", "failure", "wait_s"),
    [
        (429, ["Retry-After: 2"], RateLimited, 2),
        (429, ["Retry-After: 1", "Retry-After: 3"], RateLimited, 3),
        (429, ["Retry-After: nan"], RateLimited, None),
        (429, ["x-ratelimit-reset-requests: 6m0s"], RateLimited, 360),
        (503, ["Retry-After: 2"], RateLimited, 2),
        (503, [], Rejected, None),
        (500, ["Retry-After: 2"], Rejected, 2),
    ],
)
async def test_waits(
    status: int, headers: list[str], failure: type[CallFailed], wait_s: float | None
) -> None:
    failed = await failure_of(HJ({}, *headers, status=status))
    assert (type(failed), failed.retry_after_s) == (failure, wait_s)


async def test_tokens_of_a_failed_call_are_told() -> None:
    failed = await failure_of(HS(C("a"), usage(30, 7), RST, headers=["X-Request-Id: q-1"]))
    assert (failed.input_tokens, failed.output_tokens, failed.request_id) == (30, 7, "q-1")


# Limits.


def dripping(data: bytes, every_s: float, times: int) -> Script:
    return [data, Pause(every_s)] * times


PINGS = dripping(b": ping\n\n", 0.05, 200)
BLANKS = dripping(b" \n", 0.05, 200)
EMPTY = dripping(data({"choices": []}), 0.05, 200)


@pytest.mark.parametrize(
    ("script", "settings", "timeout_s", "says"),
    [
        pytest.param(HS(C("a"), HOLD), {}, 5, "for 0.4 s", id="A5a silence"),
        pytest.param(HS(*PINGS), {}, 5, "for 0.4 s", id="A5b keep-alives"),
        pytest.param(HS(C("a"), *EMPTY), {}, 5, "for 0.4 s", id="A5b chunks of nothing"),
        pytest.param(HS(*BLANKS), {}, 5, "for 0.4 s", id="blanks"),
        pytest.param([HOLD], {"first_byte_s": 0.3}, 5, "within 0.3 s", id="A5c first byte"),
        pytest.param([HOLD], {}, 0.5, "after 0.5 s", id="A5c no header at all"),
        pytest.param(HS(*dripping(C("x"), 0.1, 100)), {}, 0.6, "after 0.6 s", id="A5d dripping"),
    ],
)
async def test_limits_of_time(
    script: Script, settings: dict[str, Any], timeout_s: float, says: str
) -> None:
    started = time.monotonic()
    changed = quick(**({"idle_timeout_s": 0.4} | settings))
    failed = await failure_of(script, settings=changed, timeout_s=timeout_s)
    assert (type(failed), failed.type, says in str(failed)) == (OutcomeUnknown, "timeout", True)
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(HS(*dripping(C("x"), 0.3, 5), FIN()), id="slow text"),
        pytest.param(HS(*dripping(THOUGHT[0], 0.3, 5), C("x" * 5), FIN()), id="slow thoughts"),
        pytest.param([Pause(1.3), *answered("xxxxx")], id="A31 slow first byte"),
    ],
)
async def test_slow_is_not_silent(script: Script) -> None:
    answer = await answer_of(script, settings=quick(idle_timeout_s=1))
    assert answer.text == "xxxxx"


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        pytest.param(HS(*[C("x" * 500)] * 100), {"max_answer": 10_000}, id="text"),
        pytest.param(HS(*[THOUGHT[0]] * 9000), {"max_answer": 10_000}, id="thoughts"),
        pytest.param(HJ(completion("x" * 20_000)), {"max_answer": 10_000}, id="document"),
        pytest.param(HS(C("x" * 20_000)), {"max_line": 10_000}, id="line"),
        pytest.param(HS(b"data: x\n" * 5_000), {"max_event": 10_000}, id="event"),
    ],
)
async def test_limits_of_size(script: Script, settings: dict[str, Any]) -> None:
    failed = await failure_of(script, settings=quick(**settings))
    assert (type(failed), failed.type) == (Unusable, "permanent")


async def test_a_large_answer_within_the_limits_comes_whole() -> None:
    text = "x" * 4_000_000
    assert (await answer_of(HJ(completion(text)))).text == text
    assert (await answer_of(answered(text))).text == text


async def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 2
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([HOLD], id="before the first byte"),
        pytest.param(HS(C("a"), HOLD), id="in the middle of the stream"),
    ],
)
async def test_a_cancelled_call_closes_its_connection_at_once(script: Script) -> None:
    with Endpoint(script) as endpoint:
        call = asyncio.create_task(ask(endpoint.url))
        await until(lambda: endpoint.requests, "the request arrives")
        call.cancel()
        await until(lambda: endpoint.left == 1, "the connection is closed")
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_call_cancelled_while_it_sends_closes_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        body = PROMPT | {"user": "x" * 20_000_000}
        call = asyncio.create_task(ask(f"http://127.0.0.1:{deaf.getsockname()[1]}", body))
        deaf.settimeout(5)
        connection, _ = await asyncio.to_thread(deaf.accept)
        call.cancel()
        with connection, pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 2)


async def test_a_large_prompt_arrives_whole_or_is_refused_by_name() -> None:
    body = PROMPT | {"user": "x" * 5_000_000}
    with Endpoint(HJ(completion("a")), HJ({"detail": "too large"}, status=413)) as endpoint:
        assert (await ask(endpoint.url, body)).text == "a"
        with pytest.raises(Rejected, match="too large"):
            await ask(endpoint.url, body)
        assert endpoint.requests[0].json["user"] == body["user"]


# What is sent.


async def test_the_request() -> None:
    with Endpoint(answered("a")) as endpoint:
        opened: list[bool] = []
        settings = quick(AI_KEY=SecretStr("sk-test"))
        await ask(endpoint.url, settings=settings, on_open=lambda: opened.append(True))
        (request,) = endpoint.requests
    assert request.json == PROMPT | {"stream": True, "stream_options": {"include_usage": True}}
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-test"
    assert request.headers["idempotency-key"] == "job:step:hash:0"
    assert opened == [True]


async def test_a_body_that_wants_no_stream_gets_none() -> None:
    with Endpoint(HJ(completion("a")), answered("a")) as endpoint:
        for _ in range(2):
            await ask(endpoint.url, PROMPT | {"stream": False, "stream_options": None})
        assert [request.json for request in endpoint.requests] == [PROMPT | {"stream": False}] * 2


async def test_azure_and_logins_have_their_own_header() -> None:
    with Endpoint(answered("a")) as endpoint:
        azure = f"{endpoint.url}/openai/deployments/d?api-version=1"
        await ask(azure, settings=quick(AI_KEY=SecretStr("sk-test")))
        await ask(endpoint.url.replace("//", "//user:pass@"))
        first, second = endpoint.requests
    assert first.path == "/openai/deployments/d/chat/completions?api-version=1"
    assert first.headers["api-key"] == "sk-test"
    assert "authorization" not in first.headers
    assert second.headers["authorization"] == "Basic dXNlcjpwYXNz"


def picky(request: Request) -> Script:
    if "stream_options" in request.json:
        return HJ({"error": {"message": "unknown field: stream_options"}}, status=400)
    return answered("a")


async def test_an_option_that_is_refused_is_not_sent_again() -> None:
    with Endpoint(picky) as endpoint:
        client = ModelClient(quick(), base_url=endpoint.url)
        with pytest.raises(OptionRefused) as refused:
            await client.chat(PROMPT, idempotency_key="k", timeout_s=20)
        assert refused.value.outcome == "rejected"
        for _ in range(2):
            answer = await client.chat(PROMPT, idempotency_key="k", timeout_s=20)
            assert answer.text == "a"
        assert len(endpoint.requests) == 3
        await client.aclose()


async def test_calls_at_once_all_learn_that_an_option_is_refused() -> None:
    with Endpoint(picky) as endpoint:
        client = ModelClient(quick(), base_url=endpoint.url)
        for expected in (OptionRefused, Answer):
            calls = [client.chat(PROMPT, idempotency_key="k", timeout_s=20) for _ in range(10)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(one) for one in ended} == {expected}
        await client.aclose()


async def test_an_endpoint_that_always_complains_is_not_asked_for_ever() -> None:
    with Endpoint(HJ({"error": "stream_options"}, status=400)) as endpoint:
        client = ModelClient(quick(), base_url=endpoint.url)
        with pytest.raises(OptionRefused):
            await client.chat(PROMPT, idempotency_key="k", timeout_s=20)
        with pytest.raises(Rejected) as refused:
            await client.chat(PROMPT, idempotency_key="k", timeout_s=20)
        assert (type(refused.value), refused.value.type) == (Rejected, "permanent")
        await client.aclose()


async def test_a_connection_is_used_again_and_a_dead_one_is_not() -> None:
    closing = [*answered("a"), SHUT]
    with Endpoint(answered("a"), closing, answered("b")) as endpoint:
        client = ModelClient(quick(), base_url=endpoint.url)
        for expected in ("a", "a", "b"):
            answer = await client.chat(PROMPT, idempotency_key="k", timeout_s=20)
            assert answer.text == expected
            await asyncio.sleep(0.02)
        assert (len(endpoint.requests), endpoint.connections) == (3, 2)
        await client.aclose()


# Secrets.


@pytest.mark.parametrize(
    "echo",
    [
        "wrong key sk-geheim",
        "x" * 190 + " Bearer sk-geheim",
        "login user:geheim",
        "asked at ?code=geheimgeheimgeheim",
    ],
)
async def test_no_message_holds_a_secret(echo: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Endpoint(HJ({"error": {"message": echo}}, status=401)) as endpoint:
        url = endpoint.url.replace("//", "//user:geheim@") + "?code=geheimgeheimgeheim"
        with pytest.raises(Rejected) as refused:
            await ask(url, settings=quick(AI_KEY=SecretStr("sk-geheim")))
    assert "gehe" not in str(refused.value)
    assert "gehe" not in repr(refused.value)
    assert "gehe" not in caplog.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Your key is sk-geheim-0123.", "Your key is ***."),
        ("It begins with sk-geheim-01", "It begins with sk-geheim-01"),
    ],
)
async def test_an_answer_holds_no_secret_and_its_pieces_are_the_whole(
    said: str, shown: str, stream: bool
) -> None:
    pieces: list[str] = []
    script = HS(*map(C, said), FIN("stop"), DONE) if stream else HJ(completion(said))
    with Endpoint(script) as endpoint:
        key = SecretStr("sk-geheim-0123")
        answer = await ask(endpoint.url, settings=quick(AI_KEY=key), on_text=pieces.append)
    assert answer.text == "".join(pieces) == shown


@pytest.mark.parametrize("key", ["a b", "schlüssel", "a\nb"])
def test_a_key_that_no_header_can_hold_stops_the_start(key: str) -> None:
    with pytest.raises(SettingsError, match=r"^AI_KEY: ") as refused:
        ModelClient(quick(AI_KEY=SecretStr(key)), base_url="http://127.0.0.1:1")
    assert key not in str(refused.value)
