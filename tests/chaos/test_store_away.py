"""The store dies, hangs or is full during calls: no worker ends, nothing is asked twice."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
import redis

from server.prove_parts import meter
from tests.chaos.conftest import Build, Customer, Model, Site, numbers, streamed
from tests.conftest import wait_until
from tests.endpoint import DONE, FIN, HS, C, Pause

JOBS = 6
SLOW = {"SLOWCALL_LAB_TOKENS_PER_S": "8"}
TEXT = "twelve words that take a second and a half to be told"


@pytest.mark.parametrize(
    ("manner", "away_s"),
    [
        ("killed", 1.5),
        ("killed", 15),
        ("frozen", 6),
        pytest.param("killed", 120, marks=[pytest.mark.long, pytest.mark.timeout(240)]),
        pytest.param("frozen", 120, marks=[pytest.mark.long, pytest.mark.timeout(240)]),
    ],
)
def test_the_store_is_away(build: Build, manner: str, away_s: float) -> None:
    """Cases C5, C6, B3: for longer than leases last, gone or silent; two servers, two workers."""
    house = build(**SLOW)
    lab = house.add_lab()
    customer = house.open(workers=2, servers=2)
    pids = [part.pid for part in (*house.workers, *house.servers)]
    jobs = [customer.post(f"{number} {TEXT}") for number in range(JOBS)]
    watchers = [Customer(house.servers[n % 2].url).watch(job) for n, job in enumerate(jobs)]
    wait_until(lambda: meter(lab)["sold"] == JOBS, "all calls are out")
    for watcher in watchers:
        watcher.await_event("delta")

    came_back_at = time.monotonic() + away_s
    house.store.kill() if manner == "killed" else house.store.freeze()
    refused = _post_now(customer)
    wait_until(lambda: time.monotonic() > came_back_at, "the outage is over", away_s + 1)
    house.store.start() if manner == "killed" else house.store.thaw()

    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    for job_id, watcher in zip(jobs, watchers, strict=True):
        log = watcher.await_end(within_s=30)
        assert numbers(log) == list(range(1, len(log) + 1))
        assert (log[-1].name, log[-1].data["attempts"]) == ("done", 1), watcher.names
        assert streamed(log) == log[-1].data["result"]["text"]
        assert customer.outcomes(job_id) == ["paid"]
    taken = _post_now(customer)
    customer.await_end(taken.json()["job_id"])
    assert meter(lab)["requests"] == len(customer.http.get("/jobs").json()["jobs"]) == JOBS + 1
    assert [part.pid for part in (*house.workers, *house.servers) if part.alive] == pids


def test_a_link_that_flaps_loses_nothing(build: Build) -> None:
    """Case C6: five times in three seconds, all connections at once and not only the idle ones."""
    house = build(**SLOW)
    lab = house.add_lab()
    customer = house.open()
    pids = [part.pid for part in (*house.workers, *house.servers)]
    jobs = [customer.post(f"{number} {TEXT}") for number in range(JOBS)]
    wait_until(lambda: meter(lab)["sold"] == JOBS, "all calls are out")
    for _ in range(5):
        with _client(house) as client:
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub")
        _wait_for(time.monotonic() + 0.6)
    later = customer.post(TEXT)
    for job_id in (*jobs, later):
        job = customer.await_end(job_id)
        assert (job["status"], job["attempts"]) == ("done", 1), job["error"]
        assert customer.outcomes(job_id) == ["paid"]
    assert meter(lab)["requests"] == JOBS + 1
    assert [part.pid for part in (*house.workers, *house.servers) if part.alive] == pids


def test_a_worker_leaves_its_answers_to_the_next_start(build: Build, model: Model) -> None:
    """It must stop while the store is away: what it bought lies in the spool."""
    house = build(AI_URL=model.url, SLOWCALL_DRAIN_S="1.5")
    customer = house.open()
    worker = house.workers[0]
    model.teach("slow", HS(Pause(0.5), C("Bought."), FIN(), DONE))
    job_id = customer.post("slow")
    wait_until(lambda: model.asked("slow"), "the call is out")

    house.store.kill()
    worker.ask_to_leave()
    assert worker.wait() == 0
    assert len(_spooled(house)) == 1
    house.store.start()
    worker.start()

    job = customer.await_end(job_id)
    assert (job["status"], job["result"]["text"]) == ("done", "Bought.")
    assert len(model.asked("slow")) == 1
    assert customer.outcomes(job_id) == ["paid"]
    assert _spooled(house) == []


def test_streams_whose_subscription_dies_lose_nothing(build: Build) -> None:
    """Case B2: at any moment, the one before the final event too."""
    house = build(SLOWCALL_LAB_TOKENS_PER_S="20")
    house.add_lab()
    customer = house.open()
    watchers = [customer.watch(customer.post(f"{n} {TEXT}")) for n in range(JOBS)]
    with _client(house) as client:

        def cut() -> bool:
            client.client_kill_filter(_type="pubsub")
            return all("done" in watcher.names for watcher in watchers)

        wait_until(cut, "all streams end", 20)
    for watcher in watchers:
        log = watcher.await_end()
        assert numbers(log) == list(range(1, len(log) + 1))
        assert streamed(log) == log[-1].data["result"]["text"]


@pytest.mark.parametrize(
    ("setting", "refused_by", "taken_by"),
    [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")],
)
def test_a_store_that_takes_no_writes_takes_no_job_and_loses_none(
    build: Build, model: Model, setting: str, refused_by: str, taken_by: str
) -> None:
    """Case C18: 503, never a 202 for nothing; what is in flight waits with its paid answer."""
    house = build(AI_URL=model.url)
    customer = house.open()
    model.teach("slow", HS(Pause(1), C("Kept."), FIN(), DONE))
    job_id = customer.post("slow")
    wait_until(lambda: model.asked("slow"), "the call is out")
    with _client(house) as client:
        client.config_set(setting, refused_by)
        refused = customer.http.post("/jobs", json={"input": "now"})
        wait_until(
            lambda: customer.outcomes(job_id) == ["paid"] or _spooled(house), "the answer is kept"
        )
        client.config_set(setting, taken_by)

    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    job = customer.await_end(job_id)
    assert (job["status"], job["result"]["text"], job["attempts"]) == ("done", "Kept.", 1)
    assert customer.outcomes(job_id) == ["paid"]
    assert customer.http.get("/jobs").json()["jobs"] == [job]


def _wait_for(at: float) -> None:
    wait_until(lambda: time.monotonic() > at, "the next time")


def test_a_store_that_evicts_answers_clearly(build: Build) -> None:
    """Case C18: the start warns of it. What it dropped is gone, what is left is told, nothing
    breaks."""
    house = build(SLOWCALL_LAB_DELAY_S="0")
    house.add_lab()
    customer = house.open(workers=0)
    with _client(house) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", str(client.info("memory")["used_memory"] + 4_000_000))
        jobs = [customer.post(f"{n} " + "x" * 50_000, user_id=f"{n % 7}") for n in range(200)]
        house.add_worker()
        assert client.info("stats")["evicted_keys"] > 0
        for what in ("", "/ledger"):
            paths = [f"/jobs/{job_id}{what}" for job_id in jobs]
            answers = {customer.http.get(path).status_code for path in paths}
            assert answers == {200, 404}
        for path in ("/jobs", "/stats", "/metrics"):
            assert customer.http.get(path).status_code == 200, path
        client.config_set("maxmemory", "0")
    assert customer.await_end(customer.post("later", user_id="new"))["status"] == "done"
    assert house.workers[0].alive


def _post_now(customer: Customer) -> httpx.Response:
    """A refusal does not say that nothing was stored: a hanging store may still take it. The key
    makes it one job."""
    return customer.http.post("/jobs", json={"input": "now"}, headers={"Idempotency-Key": "now"})


def _client(house: Site) -> redis.Redis:
    return redis.Redis.from_url(house.store.url)


def _spooled(house: Site) -> list[Path]:
    return list((house.folder / "spool").glob("*.json*"))
