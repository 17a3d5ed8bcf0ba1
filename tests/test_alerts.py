"""Alerts: each failed job is told of, once; a slow or dead target loses none and doubles none."""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest
from pydantic import SecretStr

from tasks.alerts import Alerter, send_test, topic_of
from tasks.errors import TransientError
from tasks.lifecycle import DEFER, FAIL, RETRY
from tasks.settings import Settings, name_of_target
from tasks.store import Store
from tests.commands import run
from tests.crew import crew, ended
from tests.endpoint import HJ, HOLD, Endpoint, Pause, reply
from tests.rig import Clock, a_job, a_kind, rigged, store_at
from tests.serving import until
from tests.test_limits import LEASE_S, Ward, expired, lost_with_its_worker


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
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
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
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        port = server.server_address[1]
        yield f"mailto://127.0.0.1:{port}?from=slowcall@example.com&to=ops@example.com", mails
        server.shutdown()


def alerting(settings: Settings, *urls: str, **changes: Any) -> Settings:
    """The settings with these targets and no window to wait for."""
    secrets = tuple(SecretStr(url) for url in urls)
    return settings.model_copy(update={"alert_urls": secrets, "alert_window_s": 0, **changes})


class Desk:
    """A store by the test's clock, with jobs that fail on demand and somebody who tells of them."""

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.ward = Ward(store, clock)
        self.alerter = Alerter(settings, store)

    async def fail(self, message: str = "It broke.", kind: str = "chat") -> str:
        """A job that failed for good."""
        new = a_job(kind, user_id="ann", max_attempts=1)
        job_id = (await self.store.submit(new)).job.job_id
        claimed, _ = await self.store.claim("w", [kind], 1, LEASE_S)
        run = claimed[0].run
        assert run is not None
        await self.store.conclude(run, FAIL, problem=("permanent", message, 400))
        return job_id

    async def owed(self) -> int:
        """How many targets have letters that are not delivered yet."""
        return len(await self.store.redis.keys("slowcall:letters:alert:*"))


@asynccontextmanager
async def desk(settings: Settings, *urls: str, **changes: Any) -> AsyncIterator[Desk]:
    settings, clock = alerting(settings, *urls, **changes), Clock()
    async with store_at(settings, clock) as store:
        yield Desk(settings, store, clock)


async def test_a_failed_job_raises_one_alert_with_its_story(settings: Settings) -> None:
    with listening_target() as target:
        async with desk(settings, target.url) as office:
            job_id = await office.fail("The prompt is too long.")
            await office.alerter.deliver_due()
            await office.alerter.deliver_due()
    (told,) = target.told
    assert told["type"] == "failure"
    assert told["title"] == "slowcall: a job of kind chat failed (permanent 400)"
    for part in (job_id, "user ann", "The prompt is too long.", "Attempts: 1 of 1", "paid: 0"):
        assert part in told["message"]
    assert f"http://127.0.0.1:8000/jobs/{job_id}" in told["message"]


# whatever the path to the failure


async def expired_before_a_sweep(ward: Ward) -> None:
    await ward.post(expires_s=5)
    ward.clock.forward(6)
    claimed, _ = await ward.store.claim("w", ["chat"], 9, LEASE_S)
    assert [entry.run for entry in claimed] == [None]


async def past_its_deadline(ward: Ward) -> None:
    run = await ward.start(await ward.post(deadline_s=20))
    await ward.store.requeue(run, RETRY, wait_s=100, reason="transient")
    await ward.pass_time(21)


async def waited_too_long_for_its_model(ward: Ward) -> None:
    run = await ward.start(await ward.post())
    await ward.store.requeue(run, DEFER, wait_s=9e3, reason="rate_limited", counted=False)
    await ward.pass_time(3601)


async def parked(ward: Ward) -> None:
    run = await ward.start(await ward.post(on_unknown="park"), "dies")
    await ward.store.begin(run, call="c", step="answer", model="m", hash="h", memo=False)
    await ward.pass_time(1.1 * LEASE_S)
    claimed, _ = await ward.store.claim("heir", ["chat"], 9, LEASE_S)
    assert [entry.run for entry in claimed] == [None]


async def by_a_verdict(ward: Ward) -> None:
    run = await ward.start(await ward.post())
    await ward.store.conclude(run, FAIL, problem=("permanent", "no", None))


async def with_a_damaged_record(ward: Ward) -> None:
    await ward.post()
    claimed, _ = await ward.store.claim("w", ["chat"], 9, LEASE_S)
    assert await ward.store.condemn(claimed[0], ["chat"], "damaged") is not None


PATHS: Final[dict[Callable[[Ward], Awaitable[None]], str]] = {
    expired: "timeout",
    expired_before_a_sweep: "timeout",
    past_its_deadline: "timeout",
    waited_too_long_for_its_model: "rate_limited",
    lost_with_its_worker: "lost",
    parked: "unknown",
    by_a_verdict: "permanent",
    with_a_damaged_record: "permanent",
}


@pytest.mark.parametrize("path", PATHS)
async def test_every_failure_is_told(
    settings: Settings, path: Callable[[Ward], Awaitable[None]]
) -> None:
    with listening_target() as target:
        async with desk(settings, target.url) as office:
            await path(office.ward)
            await office.alerter.deliver_due()
    (told,) = target.told
    assert f"({PATHS[path]})" in told["title"]


async def test_spent_attempts_are_told_once_and_not_each(settings: Settings) -> None:
    """Case C25."""

    async def perform(context: Any, given: Any) -> dict[str, Any]:
        raise TransientError("away")

    with listening_target() as target:
        own = alerting(settings, target.url)
        async with rigged(own, {"ever": a_kind("ever", perform)}) as rig:
            alerter = Alerter(own, rig.store)
            await rig.submit("ever", max_attempts=5)
            assert await rig.work(asyncio.sleep) == 5
            await alerter.deliver_due()
    (told,) = target.told
    assert "Attempts: 5 of 5" in told["message"]


# many at once, slow and dead targets


async def test_many_failures_of_one_cause_are_one_alert_with_a_count(settings: Settings) -> None:
    with listening_target() as target:
        async with desk(settings, target.url, alert_window_s=10) as office:
            for _ in range(30):
                await office.fail()
                office.clock.forward(0.2)
            await office.fail(kind="summarize")
            await office.alerter.deliver_due()
            assert target.told == [], "the window is open"
            office.clock.forward(10)
            await office.alerter.deliver_due()
    titles = sorted(told["title"] for told in target.told)
    assert len(titles) == 2
    assert "30 jobs of kind chat" in titles[0]
    assert "a job of kind summarize" in titles[1]


async def test_a_dead_target_is_tried_again_and_a_living_one_is_not_told_twice(
    settings: Settings,
) -> None:
    with listening_target() as alive, listening_target() as dead:
        dead.status = 500
        async with desk(settings, alive.url, dead.url, "json://127.0.0.1:9") as office:
            await office.fail()
            await office.alerter.deliver_due()
            dead.status = 200
            for _ in range(3):
                office.clock.forward(30)
                await office.alerter.deliver_due()
            assert await office.owed() == 1, "the one that refuses connections"
    assert (len(alive.told), len(dead.told)) == (1, 2)


DOWN: Final = HJ({"error": {"message": "down"}}, status=500)


async def test_a_slow_target_delays_nothing_and_is_told_once(settings: Settings) -> None:
    with (
        Endpoint([Pause(4.5), *reply(200)], reply(200)) as slow,
        listening_target() as quick,
        Endpoint(DOWN) as model,
    ):
        own = alerting(settings, f"json://127.0.0.1:{slow.port}", quick.url, ai_model="m")
        async with store_at(own) as store, crew(own, model.url):
            for count in (1, 2):
                new = a_job("chat", f"{count}", max_attempts=1)
                await ended(store, [(await store.submit(new)).job.job_id], 2)
                await until(_told(quick.told, count), f"the quick one hears of no. {count}", 3)
            assert len(slow.requests) == 1, "and the slow one thinks"
            await until(partial(_nothing_is_owed, store), "the slow one took both", 12)
    assert (len(quick.told), len(slow.requests)) == (2, 2)


async def test_a_target_that_never_answers_keeps_no_worker(settings: Settings) -> None:
    with Endpoint([HOLD]) as silent, Endpoint(DOWN) as model:
        own = alerting(settings, f"json://127.0.0.1:{silent.port}", ai_model="m")
        async with store_at(own) as store:
            async with crew(own, model.url):
                await store.submit(a_job("chat", max_attempts=1))

                async def asked() -> bool:
                    return bool(silent.requests)

                await until(asked, "it is told")
                left_at = monotonic()
            assert monotonic() - left_at < 4, "the worker gave it no more than its last words"
            assert not await _nothing_is_owed(store), "another worker tries again"


async def _nothing_is_owed(store: Store) -> bool:
    return not await store.redis.keys("slowcall:letters:alert:*")


def _told(told: list[Any], count: int) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return len(told) >= count

    return condition


async def test_a_storm_over_a_restart_is_told_in_few_alerts_and_loses_none(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C25: the model is down, one of the targets too at first."""
    monkeypatch.setattr("tasks.alerts._WAITS_S", (0.3,))
    jobs = 60
    with (
        listening_target() as alive,
        listening_target() as dead,
        Endpoint(DOWN) as model,
    ):
        dead.status = 500
        own = alerting(settings, alive.url, dead.url, alert_window_s=0.5, ai_model="m")
        async with store_at(own) as store:
            posted = [
                (await store.submit(a_job("chat", f"{n}", user_id=f"{n}", max_attempts=2))).job
                for n in range(jobs)
            ]
            async with crew(own, model.url, workers=2):
                await until(_told(alive.told, 1), "the first alert")
            dead.told.clear()
            dead.status = 200
            async with crew(own, model.url):
                await ended(store, [job.job_id for job in posted])
                await until(partial(_nothing_is_owed, store), "all alerts are delivered", 20)
    for target in (alive, dead):
        assert sum(map(_count, target.told)) == jobs
        assert len(target.told) < jobs / 4


def _count(told: dict[str, Any]) -> int:
    """How many jobs an alert tells of."""
    number = told["title"].split()[1]
    return 1 if number == "a" else int(number)


async def test_another_worker_tells_what_a_dead_one_had_taken(settings: Settings) -> None:
    with listening_target() as target:
        async with desk(settings, target.url) as office:
            job_id = await office.fail()
            topic = topic_of(name_of_target(SecretStr(target.url)))
            assert len(await office.store.take_letters(topic, lease_s=120, most=9)) == 1
            await office.alerter.deliver_due()
            assert target.told == [], "it is taken"
            office.clock.forward(120)
            await office.alerter.deliver_due()
            await office.alerter.deliver_due()
    assert [job_id in told["message"] for told in target.told] == [True]


@pytest.mark.writes_by_hand
async def test_a_letter_that_is_not_ours_ends_no_worker(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    own = alerting(settings, "json://127.0.0.1:9", ai_model="m")
    topic = topic_of(name_of_target(own.alert_urls[0]))
    with Endpoint(DOWN) as model:
        async with store_at(own) as store, crew(own, model.url) as (worker,):
            await store.redis.hset(f"slowcall:letters:{topic}", "x:1", '{"a": 1}')  # type: ignore[misc]
            await store.redis.zadd(f"slowcall:outbox:{topic}", {"x:1": 0})

            async def noticed() -> bool:
                return "alerts cannot be told" in caplog.text

            await until(noticed, "it is noticed")
            assert worker.allow_pick_jobs


async def test_two_deliverers_share_the_letters_and_double_none(settings: Settings) -> None:
    with listening_target() as target:
        async with desk(settings, target.url) as office:
            another = Alerter(alerting(settings, target.url), office.store)
            await office.fail()
            await asyncio.gather(office.alerter.deliver_due(), another.deliver_due())
    assert len(target.told) == 1


async def test_without_targets_no_letter_is_written(settings: Settings) -> None:
    async with desk(settings) as office:
        await office.fail()
        assert await office.owed() == 0


async def test_a_cancelled_job_raises_none(settings: Settings) -> None:
    async with desk(settings, "json://127.0.0.1:9") as office:
        await office.store.cancel(await office.ward.post())
        assert await office.owed() == 0


# the test alert


async def test_mail_and_chat_take_a_test_alert(settings: Settings) -> None:
    with listening_target() as target, listening_mailbox() as (url, mails):
        took = await send_test(alerting(settings, target.url, url, "json://127.0.0.1:9"))
    assert took == [True, True, False]
    assert "only a test" in target.told[0]["message"]
    assert "only a test" in mails[0]


def test_the_command(tmp_path: Path) -> None:
    with listening_target() as target:
        alone = run("alert-test", data_dir=tmp_path, SLOWCALL_ALERT_URLS=target.url)
        urls = f"{target.url} json://127.0.0.1:9/secret"
        both = run("alert-test", data_dir=tmp_path, SLOWCALL_ALERT_URLS=urls)
    assert (alone.returncode, alone.stdout) == (0, "target 1: took it\n")
    assert (both.returncode, len(target.told)) == (1, 2)
    assert "target 2: did NOT take it" in both.stdout
    assert "secret" not in both.stdout + both.stderr
    nobody = run("alert-test", data_dir=tmp_path)
    assert nobody.returncode == 2
    assert nobody.stderr.startswith("slowcall: SLOWCALL_ALERT_URLS: not set")
