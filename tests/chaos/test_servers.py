"""Servers that die in the middle of a POST, and several of them: no job is lost or made twice."""

from __future__ import annotations

import threading
from contextlib import suppress

import httpx

from tests.chaos.conftest import Build, Customer, Model, numbers, streamed
from tests.conftest import wait_until
from tests.endpoint import HS, RST, C, Pause, answered

POSTS = 40


def test_a_server_killed_during_posts(build: Build) -> None:
    """Case D5: every key can be posted again, makes one job that runs, and counts once."""
    house = build(SLOWCALL_QUOTA=str(POSTS), SLOWCALL_LAB_DELAY_S="0")
    house.add_lab()
    customer = house.open(workers=0)
    server = house.servers[0]
    posted = threading.Event()

    def post(number: int) -> None:
        with suppress(httpx.TransportError):
            _post(customer, number)
            posted.set()

    threads = [threading.Thread(target=post, args=(number,)) for number in range(POSTS)]
    for thread in threads:
        thread.start()
    wait_until(posted.is_set, "the first job is taken")
    server.kill()
    server.start()
    for thread in threads:
        thread.join()

    again = [_post(customer, number) for number in range(POSTS)]
    assert all(response.status_code in {200, 202} for response in again)
    assert len({response.json()["job_id"] for response in again}) == POSTS
    full = customer.http.post("/jobs", json={"input": "one more"})
    assert full.status_code == 429, "each is counted once"
    house.add_worker()
    for response in again:
        assert customer.await_end(response.json()["job_id"])["status"] == "done"
    assert len(customer.http.get("/jobs?limit=100").json()["jobs"]) == POSTS


def _post(customer: Customer, number: int) -> httpx.Response:
    return customer.http.post(
        "/jobs", json={"input": f"post {number}"}, headers={"Idempotency-Key": f"key-{number}"}
    )


def test_a_job_is_there_at_once_for_every_server(build: Build) -> None:
    """Case C16: right after the 202, with no worker alive; and it runs in the end (case C7)."""
    house = build(SLOWCALL_LAB_DELAY_S="0")
    house.add_lab()
    customer = house.open(workers=0, servers=2)
    jobs = [customer.post(f"number {number}") for number in range(30)]
    for job_id in jobs:
        with httpx.Client(base_url=house.servers[0].url, trust_env=False) as other:
            assert other.get(f"/jobs/{job_id}").json()["status"] == "queued"
            with other.stream("GET", f"/jobs/{job_id}/stream") as stream:
                assert b"event: queued" in b"".join(_first(stream, 2))
    house.add_worker()
    for job_id in jobs:
        assert customer.await_end(job_id)["status"] == "done"


def _first(stream: httpx.Response, count: int) -> list[bytes]:
    chunks = []
    for chunk in stream.iter_raw():
        chunks.append(chunk)
        if len(chunks) == count or b"event:" in chunk:
            break
    return chunks


def test_posted_here_watched_there_and_run_elsewhere(build: Build, model: Model) -> None:
    """Three processes and the model's: both servers tell the same events under the same ids."""
    house = build(AI_URL=model.url)
    posts = house.open(workers=1, servers=1)
    watches = house.open(workers=0, servers=1)
    assert posts.url != watches.url
    model.teach("first", HS(C("Once "), Pause(0.3), RST), answered("Once upon a time"))
    job_id = posts.post("first")
    there, here = watches.watch(job_id), posts.watch(job_id)
    story = there.await_end()
    assert story == here.await_end()
    assert numbers(story) == list(range(1, len(story) + 1))
    states = [event.name for event in story if event.name not in {"delta", "progress"}]
    assert states == ["queued", "running", "retrying", "running", "done"]
    assert streamed(story) == watches.read(job_id)["result"]["text"] == "Once upon a time"
    assert watches.read(job_id) == posts.read(job_id)
    assert watches.ledger(job_id) == posts.ledger(job_id)


def test_nobody_waits_behind_all_jobs_of_another(build: Build) -> None:
    """Case C14: the second user's only job runs in the first one's turns."""
    house = build(SLOWCALL_CONCURRENCY="1", SLOWCALL_LAB_DELAY_S="0.02")
    house.add_lab()
    customer = house.open()
    first = [customer.post(f"a {number}", user_id="a") for number in range(30)]
    job_id = customer.post("b", user_id="b")
    customer.await_end(job_id)
    waiting = customer.http.get("/jobs?user_id=a&status=queued&limit=100").json()["jobs"]
    assert len(waiting) > 10
    assert customer.await_end(first[-1])["status"] == "done"
