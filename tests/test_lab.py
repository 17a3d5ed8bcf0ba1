"""The lab model: what it answers, what it charges, how it misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from server.lab_answers import answer, reply, summary
from tasks.settings import Settings
from tests.conftest import LabModel, wait_until


def ask(
    lab: LabModel, prompt: str = "hello big world", key: str | None = None, **body: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    messages = [{"role": "user", "content": prompt}]
    return lab.http.post(
        "/v1/chat/completions", json={"messages": messages} | body, headers=headers
    )


def events(text: str) -> list[Any]:
    data = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [json.loads(item) if item != "[DONE]" else item for item in data]


def streamed(text: str) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content", "")
        for event in events(text)
        if event != "[DONE]" and event["choices"]
    )


def test_a_prompt_comes_back_in_upper_case_and_is_metered(lab: LabModel) -> None:
    response = ask(lab)
    assert response.headers["x-slowcall-lab"] == "1"
    assert response.json()["model"] == "lab"
    assert response.json()["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "HELLO BIG WORLD"},
            "finish_reason": "stop",
        }
    ]
    assert response.json()["usage"]["total_tokens"] == 6
    books = lab.ledger()
    assert (books["requests"], books["sold"], books["refused"]) == (1, 1, 0)
    assert books["calls"][0]["state"] == "answered"


def test_a_stream_has_the_same_text_a_finish_and_the_usage_asked_for(lab: LabModel) -> None:
    response = ask(lab, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert streamed(response.text) == "HELLO BIG WORLD"
    *_, finish, usage, done = events(response.text)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 3, "[DONE]")
    assert "usage" not in ask(lab, stream=True).text


def test_an_answer_stops_at_max_tokens(lab: LabModel) -> None:
    choice = ask(lab, max_tokens=2).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("HELLO BIG", "length")


def test_the_models_are_one(lab: LabModel) -> None:
    listed = lab.http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["lab"]


@pytest.mark.parametrize(
    ("system", "prompt", "expected"),
    [
        ("", "make it so", "MAKE IT SO"),
        ("Summarise this page.", "One. Two. Three.", "One. Two."),
        ("Summarize in French", "Une\nphrase. Deux.", "Une phrase. Deux."),
        ("", "Summarise this:\nOne. Two. Three.", "One. Two."),
        ("Summarise.", "A1. A2.\n\nB1. B2.\n\nC1.", "A1. B1. C1."),
        ("Summarise.", "", ""),
    ],
)  # fmt: skip
def test_what_it_makes_of_a_prompt(system: str, prompt: str, expected: str) -> None:
    assert reply(system, prompt) == expected


def test_a_plan_is_json_with_steps() -> None:
    plan = json.loads(reply('Answer with a plan as JSON: {"steps": []}', "build\na boat"))
    assert len(plan["steps"]) == 3
    assert all("build a boat" in step for step in plan["steps"])


def test_a_long_summary_is_thinned_out_over_the_whole_text() -> None:
    text = "\n\n".join(f"Page {n} begins. It ends." for n in range(40))
    lines = summary(text).split(". ")
    assert len(lines) <= 12
    assert lines[0] == "Page 0 begins"
    assert lines[-1] >= "Page 36"


def test_parts_of_a_content_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert answer({"messages": [{"role": "user", "content": parts}]}).text == "A B"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"messages": []}', b'{"messages": [1]}', b'{"messages": "x"}']
)
def test_what_is_no_chat_completion_is_refused_unsold(lab: LabModel, body: bytes) -> None:
    response = lab.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert lab.ledger()["sold"] == 0


def test_one_key_is_sold_once(lab: LabModel) -> None:
    first, again, other = ask(lab, key="k1"), ask(lab, key="k1", stream=True), ask(lab, key="k2")
    assert streamed(again.text) == first.json()["choices"][0]["message"]["content"]
    assert events(again.text)[0]["id"] == first.json()["id"] != other.json()["id"]
    books = lab.ledger()
    assert (books["requests"], books["sold"], books["replayed"]) == (3, 2, 1)
    assert books["by_key"] == {"k1": 1, "k2": 1}


def test_keys_can_be_ignored(settings: Settings, serve_lab: Callable[[Settings], LabModel]) -> None:
    deaf = serve_lab(settings.model_copy(update={"lab_honours_keys": False}))
    ask(deaf, key="k1")
    ask(deaf, key="k1")
    assert deaf.ledger()["by_key"] == {"k1": 2}


def test_the_books_can_begin_anew(lab: LabModel) -> None:
    ask(lab, key="k1")
    assert lab.http.delete("/ledger").status_code == 204
    assert (lab.ledger()["sold"], lab.ledger()["calls"]) == (0, [])


def outcome(lab: LabModel, **body: Any) -> str:
    """How one streamed call went, in a word."""
    try:
        response = ask(lab, stream=True, **body)
    except httpx.TransportError as error:
        return type(error).__name__
    if response.status_code != 200:
        return str(response.status_code)
    last = [event for event in events(response.text) if event != "[DONE]"][-1]
    return "error" if "error" in last else "ok"


@pytest.mark.parametrize(
    ("rule", "outcomes", "sold"),
    [
        ({"status": 503, "times": 2}, ["503", "503", "ok"], 1),
        ({"status": 400, "skip": 1}, ["ok", "400", "400"], 1),
        ({"status": 500, "every": 2}, ["ok", "500", "ok", "500"], 2),
        ({"status": 500, "match": "nobody says this"}, ["ok"], 1),
        ({"status": 429, "match": "big", "times": 1}, ["429", "ok"], 1),
        ({"drop": "before", "times": 1}, ["RemoteProtocolError", "ok"], 1),
        ({"drop": "after", "times": 1}, ["RemoteProtocolError", "ok"], 2),
        ({"cut_after": 2, "times": 1}, ["RemoteProtocolError", "ok"], 2),
        ({"cut_after": 3, "times": 1}, ["RemoteProtocolError", "ok"], 2),
        ({"error_after": 1, "times": 1}, ["error", "ok"], 1),
        ({"delay_s": 0.01}, ["ok"], 1),
    ],
    ids=str,
)
def test_it_misbehaves_on_request(
    lab: LabModel, rule: dict[str, Any], outcomes: list[str], sold: int
) -> None:
    lab.misbehave(rule)
    assert [outcome(lab) for _ in outcomes] == outcomes
    assert lab.ledger()["sold"] == sold
    lab.http.delete("/faults")
    assert outcome(lab) == "ok"


def test_a_whole_answer_misbehaves_too(lab: LabModel) -> None:
    lab.misbehave({"error_after": 0, "times": 1}, {"cut_after": 0, "times": 1})
    assert "error" in ask(lab).json()
    with pytest.raises(httpx.RemoteProtocolError):
        ask(lab)
    assert lab.ledger()["sold"] == 1


def test_a_refusal_says_what_it_was_told_to(lab: LabModel) -> None:
    lab.misbehave({"status": 429, "retry_after": "7", "message": "slow down", "code": "tpm"})
    response = ask(lab)
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["message"] == "slow down"
    assert response.json()["error"]["code"] == "tpm"


@pytest.mark.parametrize("rules", [b"{}", b'[{"staus": 500}]', b'[{"status": 200}]', b"nonsense"])
def test_a_wrong_rule_is_refused(lab: LabModel, rules: bytes) -> None:
    assert lab.http.post("/faults", content=rules).status_code == 422


def test_it_takes_its_time_and_notices_when_the_client_leaves(
    settings: Settings, serve_lab: Callable[[Settings], LabModel]
) -> None:
    pace = {"lab_delay_s": 0.01, "lab_tokens_per_s": 20}
    slow = serve_lab(settings.model_copy(update=pace))
    body = {"stream": True, "messages": [{"role": "user", "content": "a " * 1000}]}
    with slow.http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: slow.ledger()["calls"][0]["state"] == "left", "the lab sees the client go")
    assert slow.ledger()["calls"][0]["output_tokens"] < 100


def test_a_stream_that_hangs_is_let_go_with_its_client(lab: LabModel) -> None:
    lab.misbehave({"hang_after": 1})
    left = threading.Event()

    def hang() -> None:
        with pytest.raises(httpx.ReadTimeout):
            lab.http.post(
                "/v1/chat/completions",
                json={"stream": True, "messages": [{"role": "user", "content": "a b"}]},
                timeout=0.2,
            )
        left.set()

    threading.Thread(target=hang).start()
    assert left.wait(5)
    wait_until(lambda: lab.ledger()["calls"][0]["state"] == "left", "the lab sees the client go")
