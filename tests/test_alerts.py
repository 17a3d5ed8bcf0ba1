"""Alerts: each failed job is told of, once; a dead target loses none and doubles none."""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.alerts import TOPIC, Alerter, send_test
from tasks.lifecycle import FAIL
from tasks.settings import Settings
from tasks.store import NewJob, Run, Store


class Target:
    """A chat service's webhook: what it was told, and how it answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: list[dict[str, Any]] = []
        self.status = 200


@contextmanager
def listening_target() -> Iterator[Target]:
    """A real HTTP server that takes Apprise's plain JSON."""
    target = Target("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            target.told.append(json.loads(body))
            self.send_response(target.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        target.url = f"json://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield target
        server.shutdown()
        thread.join()


@contextmanager
def listening_mailbox() -> Iterator[tuple[str, list[str]]]:
    """A real SMTP server: its Apprise URL and the mails it took."""
    mails: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                verb = line[:4].upper()
                if verb == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    mails.append(b"".join(lines).decode())
                self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
                if verb == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        yield f"mailto://127.0.0.1:{port}?from=slowcall@example.com&to=ops@example.com", mails
        server.shutdown()


def alerting(settings: Settings, *urls: str) -> Settings:
    """The settings with these targets and no window to wait for."""
    secrets = tuple(SecretStr(url) for url in urls)
    return settings.model_copy(update={"alert_urls": secrets, "alert_window_s": 0})


async def started(store: Store, kind: str = "chat") -> Run:
    """A job of this kind that runs."""
    await store.submit(NewJob(kind, "x", "ann", max_attempts=1, timeout_s=1))
    claimed, _ = await store.claim("w", [kind], 1, 2)
    run = await store.start(claimed[0], "w")
    assert run is not None
    return run


async def failed(store: Store, message: str = "It broke.", kind: str = "chat") -> Run:
    """A job that failed for good."""
    run = await started(store, kind)
    await store.conclude(run, FAIL, problem=("permanent", message, 400))
    return run


@pytest.fixture
async def store(settings: Settings) -> Any:
    """A store that writes letters for alerts."""
    store = Store.connect(alerting(settings, "json://127.0.0.1:9"))
    yield store
    await store.aclose()


async def test_a_failed_job_raises_one_alert_with_its_story(
    settings: Settings, store: Store
) -> None:
    with listening_target() as target:
        alerter = Alerter(alerting(settings, target.url), store)
        run = await failed(store, "The prompt is too long.")
        await alerter.deliver_due()
        await alerter.deliver_due()
    (told,) = target.told
    assert told["type"] == "failure"
    assert told["title"] == "slowcall: a job of kind chat failed (permanent 400)"
    for part in (run.job_id, "user ann", "The prompt is too long.", "Attempts: 1 of 1", "paid: 0"):
        assert part in told["message"]
    assert f"http://127.0.0.1:8000/jobs/{run.job_id}" in told["message"]


async def test_a_worker_that_keeps_dying_raises_an_alert(settings: Settings, store: Store) -> None:
    with listening_target() as target:
        run = await started(store)
        await store.redis.zadd("slowcall:queue:chat", {f"{run.job_id}:1": 0})
        claimed, _ = await store.claim("another", ["chat"], 1, 2)
        assert await store.start(claimed[0], "another") is None, "its only attempt is spent"
        await Alerter(alerting(settings, target.url), store).deliver_due()
    assert [run.job_id in told["message"] for told in target.told] == [True]
    assert "lost" in target.told[0]["title"]


async def test_many_failures_of_one_cause_are_one_alert_with_a_count(
    settings: Settings, store: Store
) -> None:
    with listening_target() as target:
        for _ in range(30):
            await failed(store)
        await failed(store, kind="summarize")
        await Alerter(alerting(settings, target.url), store).deliver_due()
    titles = sorted(told["title"] for told in target.told)
    assert ["30 jobs of kind chat" in titles[0], "a job of kind summarize" in titles[1]] == [
        True,
        True,
    ]
    assert len(titles) == 2


async def test_a_dead_target_is_tried_again_and_a_living_one_is_not_told_twice(
    settings: Settings, store: Store
) -> None:
    with listening_target() as alive, listening_target() as dead:
        dead.status = 500
        alerter = Alerter(alerting(settings, alive.url, dead.url), store)
        await failed(store)
        await alerter.deliver_due()
        dead.status = 200
        await make_due(store)
        await alerter.deliver_due()
        await make_due(store)
        await alerter.deliver_due()
    assert (len(alive.told), len(dead.told)) == (1, 2)
    assert await store.redis.exists(f"slowcall:letters:{TOPIC}") == 0


async def make_due(store: Store) -> None:
    """As if the time until the next try had passed."""
    for entry in await store.redis.zrange(f"slowcall:outbox:{TOPIC}", 0, -1):
        await store.redis.zadd(f"slowcall:outbox:{TOPIC}", {entry: 0})


async def test_two_deliverers_share_the_letters_and_double_none(
    settings: Settings, store: Store
) -> None:
    with listening_target() as target:
        alerters = [Alerter(alerting(settings, target.url), store) for _ in range(2)]
        await failed(store)
        await asyncio.gather(*(alerter.deliver_due() for alerter in alerters))
    assert len(target.told) == 1


async def test_without_targets_no_letter_is_written(settings: Settings) -> None:
    store = Store.connect(settings)
    await failed(store)
    assert await store.redis.exists(f"slowcall:outbox:{TOPIC}") == 0
    await store.aclose()


async def test_a_cancelled_job_raises_none(store: Store) -> None:
    submitted = await store.submit(NewJob("chat", "x", "ann", max_attempts=1, timeout_s=1))
    await store.cancel(submitted.job.job_id)
    assert await store.redis.exists(f"slowcall:outbox:{TOPIC}") == 0


async def test_mail_and_chat_take_a_test_alert(settings: Settings) -> None:
    with listening_target() as target, listening_mailbox() as (url, mails):
        took = await send_test(alerting(settings, target.url, url, "json://127.0.0.1:9"))
    assert took == [True, True, False]
    assert "only a test" in target.told[0]["message"]
    assert "only a test" in mails[0]
