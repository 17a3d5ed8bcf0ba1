"""Workers that are killed, frozen, blocked, asked to leave: their jobs go on, nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from server.prove_parts import meter
from tests.chaos.conftest import LEASE_S, Build, Customer, Model, numbers, streamed
from tests.conftest import wait_until
from tests.endpoint import DONE, FIN, HOLD, HS, C, Pause, answered

HALF = HS(C("Half an "), HOLD)


def test_the_job_of_a_killed_worker_goes_on(build: Build, model: Model) -> None:
    """Cases C2, A26: within a lease and two seconds, as `retrying`, reason `lost`."""
    house = build(AI_URL=model.url)
    customer = house.open()
    first = house.workers[0]
    model.teach("slow", HALF, answered("Half an hour."))
    job_id = customer.post("slow")
    watcher = customer.watch(job_id)
    watcher.await_event("delta")
    house.add_worker()

    killed_at = time.monotonic()
    first.kill()
    lost_at = watcher.await_event("retrying")
    log = watcher.await_end()

    assert lost_at - killed_at < LEASE_S + 2
    assert watcher.names == ["queued", "running", "delta", "retrying", "running", "delta", "done"]
    assert next(event.data for event in log if event.name == "retrying")["reason"] == "lost"
    assert streamed(log) == log[-1].data["result"]["text"] == "Half an hour."
    assert numbers(log) == list(range(1, len(log) + 1))
    assert customer.outcomes(job_id) == ["unknown", "paid"]
    assert customer.read(job_id)["attempts"] == len(model.asked("slow")) == 2
    assert len(model.keys("slow")) == 1, "the second request gives the first one's key"


def test_a_sleeper_moves_nothing_when_it_wakes(build: Build, model: Model) -> None:
    """Case C10: frozen past its lease, its successor done: its answer is booked, no more."""
    house = build(AI_URL=model.url)
    customer = house.open()
    first = house.workers[0]
    model.teach("slow", HS(Pause(0.5), C("Late."), FIN(), DONE), answered("In time."))
    job_id = customer.post("slow")
    wait_until(lambda: model.asked("slow"), "the call is out")
    first.freeze()
    house.add_worker()
    done = customer.await_status(job_id, "done")
    log = customer.log(job_id)

    first.thaw()
    wait_until(lambda: customer.outcomes(job_id) == ["paid", "paid"], "the late answer is booked")

    assert customer.read(job_id) | {"ledger": {}} == done | {"ledger": {}}
    assert done["result"]["text"] == "In time."
    assert customer.log(job_id) == log
    second = customer.post("another")
    assert customer.await_end(second)["status"] == "done"
    assert first.alive


def test_a_sleepers_answer_is_taken_where_none_is_stored(build: Build, model: Model) -> None:
    """The later call is told to stop: an answer that is paid is never thrown away."""
    house = build(AI_URL=model.url)
    customer = house.open()
    first = house.workers[0]
    model.teach("slow", HS(Pause(0.5), C("First."), FIN(), DONE), HS(C("Sec"), HOLD))
    job_id = customer.post("slow")
    watcher = customer.watch(job_id)
    wait_until(lambda: model.asked("slow"), "the call is out")
    first.freeze()
    house.add_worker()
    watcher.await_event("delta")
    wait_until(lambda: len(model.asked("slow")) == 2, "the second call is out")

    first.thaw()
    log = watcher.await_end()

    assert log[-1].name == "done"
    assert streamed(log) == log[-1].data["result"]["text"] == "First."
    assert len(model.asked("slow")) == 2
    wait_until(lambda: model.endpoint.left == 1, "the second call is closed")
    assert sorted(customer.outcomes(job_id)) == ["paid", "unknown"]


def test_a_job_that_kills_its_workers_ends(build: Build) -> None:
    """Cases C1, D6: as a dead letter that names the deaths, its place in the quota given back."""
    house = build(AI_URL="http://127.0.0.1:9", SLOWCALL_QUOTA="1")
    customer = house.open()
    worker = house.workers[0]
    job_id = customer.post({}, kind="deadly", max_attempts=2)
    watcher = customer.watch(job_id)
    for _ in range(2):
        wait_until(lambda: not worker.alive, "the job kills its worker")
        worker.start()

    log = watcher.await_end()
    error = log[-1].data["error"]
    assert (log[-1].name, error["type"], error["attempt"]) == ("failed", "lost", 2)
    assert "deaths in all: 2" in error["message"]
    assert watcher.names == ["queued", "running", "retrying", "running", "failed"]
    again = customer.post({"error": "KeyError"}, kind="raising")
    assert customer.await_end(again)["status"] == "failed"
    assert worker.alive


def test_a_parked_job_whose_worker_died_goes_to_a_person(build: Build, model: Model) -> None:
    """on_unknown: park. Nobody knows what became of its call, so nobody asks again."""
    house = build(AI_URL=model.url)
    customer = house.open()
    model.teach("slow", HALF, answered("Half an hour."))
    job_id = customer.post("slow", on_unknown="park")
    wait_until(lambda: model.asked("slow"), "the call is out")
    house.workers[0].kill()
    house.workers[0].start()
    job = customer.await_end(job_id)
    assert (job["status"], job["error"]["type"]) == ("failed", "unknown")
    assert "a person decides" in job["error"]["message"]
    assert customer.http.post(f"/jobs/{job_id}/retry").status_code == 202
    assert customer.await_end(job_id)["result"]["text"] == "Half an hour."
    assert (len(model.asked("slow")), len(model.keys("slow"))) == (2, 1)


def test_ten_restarts_cost_a_long_job_nothing(build: Build, tmp_path: Path) -> None:
    """Case C3: no finished step and no attempt."""
    house = build(AI_URL="http://127.0.0.1:9")
    customer = house.open(workers=2)
    tally, hold = tmp_path / "tally", tmp_path / "hold"
    hold.touch()
    steps = {"steps": 1, "each_s": 0.1, "tally": str(tally), "hold": str(hold)}
    job_id = customer.post(steps, kind="stepping")
    for turn in range(10):
        worker = house.workers[turn % 2]
        worker.await_word("worker ready", times=1 + turn // 2)
        customer.await_status(job_id, "running")
        assert worker.leave() == 0
        worker.start()
    # The kind ends when the hold is gone: not before the last run has come by all stored steps.
    so_far = len(tally.read_text().split())
    wait_until(lambda: len(tally.read_text().split()) > so_far, "the last run makes a new step")
    hold.unlink()

    job = customer.await_end(job_id)
    assert (job["status"], job["attempts"]) == ("done", 1)
    computed = [int(line) for line in tally.read_text().split()]
    assert computed == list(range(1, len(computed) + 1))
    released = [event.name for event in customer.log(job_id)].count("queued") - 1
    assert released > 4, "the job was released by the workers that left"


def test_no_step_of_a_killed_summary_is_bought_again(build: Build) -> None:
    """Case C24: only what was under way when the worker died is asked for once more."""
    house = build()
    lab = house.add_lab()
    customer = house.open()
    worker = house.workers[0]
    pages = [f"Page {page} is here." for page in range(1, 17)]
    job_id = customer.post({"pages": pages}, kind="summarize")
    wait_until(lambda: customer.read(job_id)["progress"]["done"] >= 7, "seven pages are read")
    worker.kill()
    worker.start()

    job = customer.await_end(job_id)
    assert job["status"] == "done"
    assert all(f"Page {page} is here." in job["result"]["text"] for page in (1, 3, 5))
    books = meter(lab)
    assert set(books["by_key"].values()) == {1}
    assert books["sold"] == job["ledger"]["paid"] == 17
    assert 1 <= job["ledger"]["unknown"] <= 4, "at once four pages are under way"
    assert job["ledger"]["reused"] >= 7


def test_a_blocked_worker_is_fenced(build: Build) -> None:
    """Case C10: its job goes to another one, whose end stands."""
    house = build(AI_URL="http://127.0.0.1:9")
    customer = house.open(workers=2)
    job_id = customer.post({"seconds": 2.5 * LEASE_S}, kind="blocking")
    assert customer.await_end(job_id)["result"]["text"] == "run 2"
    wait_until(lambda: any("left to another" in part.said for part in house.workers), "it wakes")
    log = customer.log(job_id)
    assert [event.name for event in log] == ["queued", "running", "retrying", "running", "done"]
    assert all(worker.alive for worker in house.workers)


def test_a_worker_that_is_alive_but_deaf_is_not_counted(build: Build) -> None:
    """Case C6: readiness goes by what was heard of it lately, not by its process."""
    house = build(AI_URL="http://127.0.0.1:9")
    customer = house.open()
    worker = house.workers[0]
    wait_until(lambda: _ready(customer)[0] == 200, "the server is ready")
    worker.freeze()
    wait_until(lambda: _ready(customer)[0] == 503, "it is missed", LEASE_S + 1)
    assert worker.alive
    assert "No worker is alive: start one with `slowcall worker`" in _ready(customer)[1]
    assert customer.http.get("/stats").json()["live_workers"] == 0
    waiting = customer.post({"seconds": 0}, kind="blocking")
    worker.thaw()
    customer.await_status(waiting, "done", within_s=LEASE_S + 2)
    assert _ready(customer)[0] == 200
    house.store.kill()
    status, words = _ready(customer)
    assert (status, "Redis" in words) == (503, True)
    house.store.start()
    wait_until(lambda: _ready(customer)[0] == 200, "all is well again")


def _ready(customer: Customer) -> tuple[int, str]:
    answer = customer.http.get("/readyz")
    return answer.status_code, answer.json().get("detail", "")


def test_an_end_stands(build: Build) -> None:
    """Case C17: the worker dies right after it, the lease lapses, another worker looks."""
    house = build(AI_URL="http://127.0.0.1:9")
    customer = house.open()
    first = house.workers[0]
    job_id = customer.post({"seconds": 0}, kind="blocking")
    customer.await_end(job_id)
    first.kill()
    house.add_worker()
    later = customer.post({"steps": 8, "each_s": 0.2, "tally": "/dev/null"}, kind="stepping")
    customer.await_end(later)
    assert [event.name for event in customer.log(job_id)] == ["queued", "running", "done"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_that_leaves_lets_its_call_end(build: Build, model: Model, signals: int) -> None:
    """For SLOWCALL_DRAIN_S; at a second signal it waits no longer. No attempt is counted."""
    house = build(AI_URL=model.url, SLOWCALL_DRAIN_S="20")
    customer = house.open()
    worker = house.workers[0]
    model.teach("slow", HS(Pause(1), C("Slow."), FIN(), DONE))
    job_id = customer.post("slow")
    wait_until(lambda: model.asked("slow"), "the call is out")
    worker.ask_to_leave()
    worker.await_word("leaving")
    if signals == 2:
        worker.ask_to_leave()
    assert worker.wait() == 0
    assert model.endpoint.left == signals - 1
    assert customer.outcomes(job_id) == [["paid"], ["unknown"]][signals - 1]
    worker.start()
    job = customer.await_end(job_id)
    assert (job["status"], job["result"]["text"], job["attempts"]) == ("done", "Slow.", 1)
