"""Every way in which a call can fail, counted at the endpoint: nobody below us asks again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.chaos.conftest import QUICK, Customer, Model, Site, streamed
from tests.chaos.kinds import RAISED
from tests.conftest import wait_until
from tests.endpoint import (
    DONE,
    FIN,
    HJ,
    HOLD,
    HS,
    RST,
    SHUT,
    C,
    Pause,
    Script,
    Step,
    answered,
    completion,
    data,
    reply,
)

ERROR: Final = {"error": {"message": "no", "type": "server_error"}}
QUOTA_SPENT: Final = {"error": {"message": "pay", "code": "insufficient_quota"}}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Customer, Model]]:
    """A customer of a site whose processes nobody harms, and the model that its workers ask."""
    settings = {
        **QUICK,
        "SLOWCALL_QUOTA": "2",
        "SLOWCALL_IDLE_TIMEOUT_S": "1",
        "SLOWCALL_FIRST_BYTE_S": "1",
        "SLOWCALL_MAX_WAIT_S": "1",
    }
    with Model() as model:
        folder = tmp_path_factory.mktemp("calm")
        with Site(folder, {**settings, "AI_URL": model.url}) as house:
            yield house.open(workers=2), model
            assert all(worker.alive for worker in house.workers), "no job ends a worker"


def order(prompt: str, **more: Any) -> dict[str, Any]:
    """The body of a chat with a model and a user of its own, so that no test slows another."""
    messages = [{"role": "user", "content": prompt}]
    return {
        "input": {"messages": messages, "model": f"model of {prompt}"},
        "user_id": uuid4().hex,
        **more,
    }


FAILURES: Final[dict[str, tuple[Script, int, str, str]]] = {
    "500": (HJ(ERROR, status=500), 2, "transient", "rejected"),
    "502": (HJ(ERROR, status=502), 2, "transient", "unknown"),
    "503": (HJ(ERROR, status=503), 2, "transient", "rejected"),
    "529": (HJ(ERROR, status=529), 2, "transient", "rejected"),
    "408": (HJ(ERROR, status=408), 2, "transient", "unknown"),
    "400": (HJ(ERROR, status=400), 1, "permanent", "rejected"),
    "401": (HJ(ERROR, status=401), 1, "permanent", "rejected"),
    "404": (HJ(ERROR, status=404), 1, "permanent", "rejected"),
    "413": (HJ(ERROR, status=413), 1, "permanent", "rejected"),
    "422": (HJ(ERROR, status=422), 1, "permanent", "rejected"),
    "quota spent": (HJ(QUOTA_SPENT, status=429), 1, "permanent", "rejected"),
    "error in a stream": (HS(C("a"), data(ERROR), DONE), 2, "transient", "rejected"),
    "reset before the head": ([RST], 2, "transient", "unknown"),
    "closed without a word": ([SHUT], 2, "transient", "unknown"),
    "reset in the stream": (HS(C("a"), RST), 2, "transient", "unknown"),
    "no finish": (HS(C("The first half")), 2, "transient", "unknown"),
    "silence": (HS(C("a"), HOLD), 2, "timeout", "unknown"),
    "silence at once": ([HOLD], 2, "timeout", "unknown"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_one_request_is_one_line(calm: tuple[Customer, Model], name: str) -> None:
    """A request for each attempt, a line for each request."""
    customer, model = calm
    script, requests, type_, outcome = FAILURES[name]
    model.teach(name, script)
    job = customer.await_end(customer.submit(order(name, max_attempts=2)))
    assert (job["status"], job["error"]["type"]) == ("failed", type_), job["error"]
    assert len(model.asked(name)) == job["attempts"] == requests
    assert customer.outcomes(job["job_id"]) == [outcome] * requests


def test_waiting_for_a_rate_limit_costs_no_attempt(calm: tuple[Customer, Model]) -> None:
    """As long as it was told each time."""
    customer, model = calm
    model.teach("busy", *[HJ(ERROR, "Retry-After: 0.3", status=429)] * 2, answered("At last."))
    job = customer.await_end(customer.submit(order("busy", max_attempts=1)))
    assert (job["status"], job["attempts"]) == ("done", 1), job["error"]
    assert customer.outcomes(job["job_id"]) == ["rejected", "rejected", "paid"]
    log = customer.log(job["job_id"])
    assert [event.data["reason"] for event in log if event.name == "retrying"] == (
        ["rate_limited"] * 2
    )


def test_it_does_not_wait_for_ever(calm: tuple[Customer, Model]) -> None:
    """SLOWCALL_MAX_WAIT_S in all."""
    customer, model = calm
    model.teach("closed", HJ(ERROR, "Retry-After: 0.4", status=429))
    job = customer.await_end(customer.submit(order("closed", max_attempts=1)))
    assert (job["status"], job["error"]["type"]) == ("failed", "rate_limited")
    assert len(model.asked("closed")) == len(customer.ledger(job["job_id"])) == 3


def test_the_text_of_a_lost_attempt_is_void(calm: tuple[Customer, Model]) -> None:
    """Case A26: in the stream and in the result."""
    customer, model = calm
    model.teach("twice", HS(C("Alpha "), C("beta "), Pause(0.2), RST), answered("Alpha beta gamma"))
    job = customer.await_end(customer.submit(order("twice")))
    log = customer.log(job["job_id"])
    texts = [event.data["text"] for event in log if event.name == "delta"]
    assert texts[0].startswith("Alpha "), "the lost text was shown while it came"
    assert streamed(log) == job["result"]["text"] == "Alpha beta gamma"
    assert customer.outcomes(job["job_id"]) == ["unknown", "paid"]


def test_a_connection_that_was_closed_while_idle(calm: tuple[Customer, Model]) -> None:
    """Case A27: the next job does not feel it."""
    customer, model = calm
    model.teach("first", [*answered("1"), SHUT])
    customer.await_end(customer.submit(order("first")))
    job = customer.await_end(customer.submit(order("second")))
    assert (job["status"], job["attempts"], len(model.asked("second"))) == ("done", 1, 1)


def test_a_request_that_was_read_and_not_answered(calm: tuple[Customer, Model]) -> None:
    """Case A27: perhaps bought; the next one gives the same key."""
    customer, model = calm
    model.teach("read", [Pause(0.3), SHUT], answered("Here."))
    job = customer.await_end(customer.submit(order("read")))
    assert (job["status"], job["attempts"]) == ("done", 2)
    assert customer.outcomes(job["job_id"]) == ["unknown", "paid"]
    assert len(model.keys("read")) == 1


def test_a_refusal_at_the_door_keeps_the_key_of_a_call_in_doubt(
    calm: tuple[Customer, Model],
) -> None:
    """The endpoint may hold the answer; but after a plain failure a new key is given."""
    customer, model = calm
    busy = HJ(ERROR, status=409)
    model.teach("doubt", HS(C("a"), RST), busy, answered("Held."))
    model.teach("plain", HJ(ERROR, status=500), answered("Anew."))
    for prompt, keys in (("doubt", 1), ("plain", 2)):
        job = customer.await_end(customer.submit(order(prompt)))
        assert (job["status"], len(model.keys(prompt))) == ("done", keys), prompt


def test_an_unknown_outcome_goes_to_a_person(calm: tuple[Customer, Model]) -> None:
    """on_unknown: park. Their retry gives the same key."""
    customer, model = calm
    model.teach("park", HS(C("a"), RST), answered("Bought."))
    job = customer.await_end(customer.submit(order("park", on_unknown="park")))
    assert (job["status"], job["error"]["type"]) == ("failed", "unknown")
    assert len(model.asked("park")) == 1
    assert customer.http.post(f"/jobs/{job['job_id']}/retry").status_code == 202
    job = customer.await_end(job["job_id"])
    assert (job["status"], job["result"]["text"]) == ("done", "Bought.")
    assert customer.outcomes(job["job_id"]) == ["unknown", "paid"]
    assert len(model.keys("park")) == 1


def test_a_dripping_answer_is_bounded(calm: tuple[Customer, Model]) -> None:
    """Case C4: by `timeout_s`, and it may be tried again."""
    customer, model = calm
    drops: list[Step] = [C("a"), Pause(0.3)]
    model.teach("drip", HS(*drops * 20), answered("Whole."))
    job = customer.await_end(customer.submit(order("drip", timeout_s=1)))
    assert (job["status"], job["attempts"]) == ("done", 2)
    log = customer.log(job["job_id"])
    assert next(e.data["reason"] for e in log if e.name == "retrying") == "timeout"


@pytest.mark.parametrize("script", [[HOLD], HS(C("a"), HOLD)], ids=["before", "in the stream"])
def test_a_cancel_reaches_the_model(calm: tuple[Customer, Model], script: Script) -> None:
    """Cases C22, C8: within two seconds; a second cancel is refused, a retry runs."""
    customer, model = calm
    prompt = f"cancelled after {len(script)}"
    model.teach(prompt, script, answered("Run."))
    left = model.endpoint.left
    job_id = customer.submit(order(prompt))
    wait_until(lambda: model.asked(prompt), "the call is out")
    assert customer.http.post(f"/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    wait_until(lambda: model.endpoint.left == left + 1, "the call is closed", within_s=2)
    assert customer.http.post(f"/jobs/{job_id}/cancel").status_code == 409
    assert customer.http.post(f"/jobs/{'0' * 32}/cancel").status_code == 404
    assert customer.http.post(f"/jobs/{job_id}/retry").status_code == 202
    assert customer.await_end(job_id)["result"]["text"] == "Run."
    assert customer.outcomes(job_id) == ["unknown", "paid"]


@pytest.mark.parametrize("error", RAISED)
def test_whatever_a_kind_raises_ends_its_job(calm: tuple[Customer, Model], error: str) -> None:
    """Case C12: as a dead letter that names it and tells none of its words; the worker lives."""
    customer, _ = calm
    job = customer.await_end(
        customer.submit({"kind": "raising", "input": {"error": error}, "user_id": uuid4().hex})
    )
    assert (job["status"], job["error"]["type"]) == ("failed", "permanent")
    assert error in job["error"]["message"]
    assert "nobody shall see" not in job["error"]["message"]


def test_a_large_answer_is_no_death(calm: tuple[Customer, Model]) -> None:
    """Case C23: the leases are renewed beside it, its own and those of nine that stream."""
    customer, model = calm
    model.teach("large", HJ(completion("word " * 4_000_000)))
    words: list[Step] = [Pause(0.2), C("a word ")]
    model.teach("slow", HS(*words * 15, FIN(), DONE))
    streaming = [customer.submit(order("slow")) for _ in range(9)]
    job = customer.await_end(customer.submit(order("large")))
    assert (job["status"], job["attempts"], len(job["result"]["text"])) == ("done", 1, 20_000_000)
    for job_id in streaming:
        other = customer.await_end(job_id)
        assert (other["status"], other["attempts"]) == ("done", 1), other["error"]


ENDS: Final[dict[str, tuple[Script, dict[str, Any]]]] = {
    "done": (answered("ok"), {}),
    "refused": (HJ(ERROR, status=400), {}),
    "silent": (HS(C("a"), HOLD), {"max_attempts": 1}),
    "late": ([HOLD], {"deadline_s": 0.5}),
    "cancelled": ([HOLD], {}),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_gives_its_place_back(calm: tuple[Customer, Model], end: str) -> None:
    """Cases D6, D7: then two more are taken and not a third."""
    customer, model = calm
    script, options = ENDS[end]
    model.teach(end, script)
    model.teach("held", [HOLD])
    user = {"user_id": f"user of {end}"}
    jobs = [customer.submit({**order(end, **options), **user}) for _ in range(2)]
    if end == "cancelled":
        assert all(customer.http.post(f"/jobs/{job}/cancel").is_success for job in jobs)
    for job_id in jobs:
        customer.await_end(job_id)
    more = [customer.submit({**order("held"), **user}) for _ in range(2)]
    assert customer.http.post("/jobs", json={**order("held"), **user}).status_code == 429
    for job_id in more:
        customer.http.post(f"/jobs/{job_id}/cancel")


def test_replies_that_are_no_answer(calm: tuple[Customer, Model]) -> None:
    """Case A12: an empty 200 and a page: one line for each request, no page in the error."""
    customer, model = calm
    page = b"<html>" + b"Just a moment... " * 2000
    model.teach("empty", reply(200))
    model.teach("page", reply(200, page, content_type="text/html"))
    for prompt in ("empty", "page"):
        job = customer.await_end(customer.submit(order(prompt, max_attempts=2)))
        assert job["status"] == "failed"
        assert len(model.asked(prompt)) == len(customer.ledger(job["job_id"])) == job["attempts"]
        assert len(job["error"]["message"]) < 500
