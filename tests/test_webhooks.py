"""Callbacks: what is told, how it is signed, when it is tried again, and where it never goes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from pydantic import SecretStr

from tasks.callbacks import is_public
from tasks.errors import SettingsError
from tasks.kinds import load_kinds
from tasks.lifecycle import FAIL, FINISH
from tasks.settings import Settings, load_settings
from tasks.store import Store
from tasks.store.client_verbs import NO_TRACE
from tasks.webhooks import WAITS_S, Webhooks, sign
from tasks.worker import build_worker
from tests.conftest import LabModel
from tests.crew import crew, ended, job
from tests.endpoint import HOLD, SHUT, Endpoint, Request, Script, reply
from tests.rig import Clock, a_job, store_at
from tests.serving import served, submit, until

KEYS = [bytes(range(32)), bytes(range(32, 64))]
SECRETS = ["whsec_" + base64.b64encode(key).decode() for key in KEYS]
OK = reply(204)


@pytest.fixture
def told(settings: Settings) -> Settings:
    """Settings that sign, and that may call this machine."""
    secrets = tuple(SecretStr(secret) for secret in SECRETS[:1])
    return settings.model_copy(update={"webhook_secret": secrets, "webhook_private": True})


class Desk:
    """A store by the test's clock, with jobs that end on demand."""

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.webhooks = Webhooks(settings, store)

    async def job(self, url: str, *, trace: Mapping[str, str] = NO_TRACE, **more: Any) -> str:
        """A submitted job."""
        new = a_job("chat", callback_url=url, **more)
        return (await self.store.submit(new, trace=trace)).job.job_id

    async def end(self, job_id: str, *, failed: bool = False) -> None:
        """Run it, and end it."""
        claimed, _ = await self.store.claim("w", ["chat"], 1, 600)
        run = claimed[0].run
        assert run is not None
        assert run.job_id == job_id
        if failed:
            await self.store.conclude(run, FAIL, problem=("permanent", "no such model", 404))
        else:
            await self.store.conclude(run, FINISH, result={"text": "x" * 50_000, "source": "model"})

    async def ended(self, url: str, **more: Any) -> str:
        """A job that has ended."""
        job_id = await self.job(url)
        await self.end(job_id, **more)
        return job_id

    async def callback(self, job_id: str) -> dict[str, Any]:
        """How the delivery goes, as the job shows it."""
        shown: dict[str, Any] = (await job(self.store, job_id))["callback"]
        return shown


@asynccontextmanager
async def desk(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Desk]:
    clock = clock or Clock()
    async with store_at(settings, clock) as store:
        yield Desk(settings, store, clock)


async def test_the_end_is_told_once_signed_and_thin(told: Settings) -> None:
    with Endpoint(OK) as endpoint:
        async with desk(told) as office:
            metadata = {"order": 7}
            job_id = await office.job(f"{endpoint.url}/hook?for=me", metadata=metadata)
            assert (await office.callback(job_id))["state"] == "waiting"
            await office.end(job_id)
            assert (await office.callback(job_id))["state"] == "pending"
            await office.webhooks.deliver_due()
            await office.webhooks.deliver_due()
            shown = await office.callback(job_id)
            assert shown == {"state": "delivered", "attempts": 1, "status": 204, "next_at": None}
        (request,) = endpoint.requests
        assert (request.method, request.path) == ("POST", "/hook?for=me")
        assert len(request.body) < 20_000, "the result is read at the job's address"
        event = request.json
        assert event["type"] == "job.done"
        assert datetime.fromisoformat(event["timestamp"]).year >= 1970
        data = event["data"]
        assert (data["job_id"], data["status"], data["metadata"]) == (job_id, "done", metadata)
        assert data["url"] == f"{told.public_url}/jobs/{job_id}"
        verify(request, KEYS[0])


def verify(request: Request, key: bytes) -> None:
    """What a receiver does, by the standard alone."""
    id, timestamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    assert "." not in id
    assert abs(time.time() - int(timestamp)) < 60
    digest = hmac.new(key, f"{id}.{timestamp}.".encode() + request.body, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(digest).decode()}"
    assert expected in request.headers["webhook-signature"].split(" ")


def test_a_known_signature() -> None:
    """The example of the standard."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_two_secrets_sign_both(told: Settings) -> None:
    secrets = tuple(SecretStr(secret) for secret in SECRETS)
    both = told.model_copy(update={"webhook_secret": secrets})
    with Endpoint(OK) as endpoint:
        async with desk(both) as office:
            await office.ended(endpoint.url)
            await office.webhooks.deliver_due()
        for key in KEYS:
            verify(endpoint.requests[0], key)


async def test_a_failure_a_cancel_and_a_new_life_are_told(told: Settings) -> None:
    with Endpoint(OK) as endpoint:
        async with desk(told) as office:
            job_id = await office.ended(endpoint.url, failed=True)
            await office.webhooks.deliver_due()
            await office.store.revive(job_id)
            await office.store.cancel(job_id)
            await office.webhooks.deliver_due()
            assert (await office.callback(job_id))["state"] == "delivered"
        first, second = endpoint.requests
        assert (first.json["type"], second.json["type"]) == ("job.failed", "job.cancelled")
        assert first.json["data"]["error"]["message"] == "no such model"
        assert first.headers["webhook-id"] != second.headers["webhook-id"]


FAILURES: list[Script] = [reply(500), reply(302, b"", "Location: /elsewhere"), reply(404), [SHUT]]


@pytest.mark.parametrize("script", FAILURES)
async def test_what_is_no_success_is_tried_again(told: Settings, script: Script) -> None:
    clock = Clock()
    with Endpoint(script, OK) as endpoint:
        async with desk(told, clock) as office:
            job_id = await office.ended(endpoint.url)
            await office.webhooks.deliver_due()
            shown = await office.callback(job_id)
            assert (shown["state"], shown["attempts"]) == ("pending", 1)
            assert shown["next_at"] is not None
            clock.forward(4.9)
            await office.webhooks.deliver_due()
            assert len(endpoint.requests) == 1
            clock.forward(0.7)
            await office.webhooks.deliver_due()
            assert (await office.callback(job_id))["state"] == "delivered"
        first, second = endpoint.requests
        assert first.headers["webhook-id"] == second.headers["webhook-id"], "the receiver's key"
        assert first.body == second.body
        assert {request.path for request in endpoint.requests} == {"/"}


async def test_the_schedule_ends(told: Settings) -> None:
    clock = Clock()
    forever = told.model_copy(update={"keep_s": 1e7})
    with Endpoint(reply(500)) as endpoint:
        async with desk(forever, clock) as office:
            job_id = await office.ended(endpoint.url)
            for wait_s in (0, *WAITS_S):
                clock.forward(wait_s * 1.11)
                await office.webhooks.deliver_due()
            shown = await office.callback(job_id)
            expected = {"state": "failed", "attempts": 10, "status": 500, "next_at": None}
            assert shown == expected
            clock.forward(1e6)
            await office.webhooks.deliver_due()
            assert len(endpoint.requests) == 10


async def test_the_receiver_can_ask_for_more_time(told: Settings) -> None:
    clock = Clock()
    with Endpoint(reply(503, b"", "Retry-After: 100"), OK) as endpoint:
        async with desk(told, clock) as office:
            await office.ended(endpoint.url)
            await office.webhooks.deliver_due()
            clock.forward(99)
            await office.webhooks.deliver_due()
            assert len(endpoint.requests) == 1
            clock.forward(1)
            await office.webhooks.deliver_due()
            assert len(endpoint.requests) == 2


async def test_410_stops_it(told: Settings) -> None:
    clock = Clock()
    with Endpoint(reply(410)) as endpoint:
        async with desk(told, clock) as office:
            job_id = await office.ended(endpoint.url)
            await office.webhooks.deliver_due()
            clock.forward(1e6)
            await office.webhooks.deliver_due()
            shown = await office.callback(job_id)
            assert (shown["state"], shown["status"]) == ("failed", 410)
        assert len(endpoint.requests) == 1


async def test_another_worker_delivers_what_a_dead_one_took(told: Settings) -> None:
    clock = Clock()
    with Endpoint(OK) as endpoint:
        async with desk(told, clock) as office:
            job_id = await office.ended(endpoint.url)
            assert len(await office.store.take_letters("webhook", lease_s=60, most=9)) == 1
            await office.webhooks.deliver_due()
            assert endpoint.requests == [], "it is taken"
            clock.forward(60)
            await office.webhooks.deliver_due()
            assert (await office.callback(job_id))["state"] == "delivered"


async def test_a_discarded_job_is_told_to_nobody(told: Settings) -> None:
    with Endpoint(OK) as endpoint:
        async with desk(told) as office:
            job_id = await office.ended(endpoint.url)
            await office.store.delete(job_id)
            await office.webhooks.deliver_due()
            assert endpoint.requests == []
            assert await office.store.redis.keys("*letters*") == []


PRIVATE_URLS = [
    "http://127.0.0.1:{port}",
    "http://localhost:{port}",
    "http://[::1]:{port}",
    "http://[::ffff:127.0.0.1]:{port}",
    "http://127.1:{port}",
    "http://2130706433:{port}",
    "http://0x7f000001:{port}",
    "http://0.0.0.0:{port}",
]


@pytest.mark.parametrize("url", PRIVATE_URLS)
async def test_private_addresses_are_never_called(told: Settings, url: str) -> None:
    careful = told.model_copy(update={"webhook_private": False})
    with Endpoint(OK) as endpoint:
        async with desk(careful) as office:
            job_id = await office.ended(url.format(port=endpoint.port))
            await office.webhooks.deliver_due()
            shown = await office.callback(job_id)
            assert (shown["state"], shown["status"]) == ("pending", None)
        assert endpoint.connections == 0


ADDRESSES = {
    True: ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"],
    False: [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0"),
        *("fd00::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"),
    ],
}


@pytest.mark.parametrize(
    ("address", "public"), [(a, public) for public, some in ADDRESSES.items() for a in some]
)
def test_what_is_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("changes", "url", "detail"),
    [
        ({"webhook_secret": ()}, "https://example.org/hook", "SLOWCALL_WEBHOOK_SECRET"),
        ({"webhook_private": False}, "http://10.0.0.1/", "SLOWCALL_WEBHOOK_PRIVATE"),
        ({}, "http://example.org:port/", "not an address"),
    ],
)
async def test_a_callback_that_cannot_be_is_refused_at_once(
    told: Settings, changes: dict[str, Any], url: str, detail: str
) -> None:
    async with served(told.model_copy(update=changes)) as client:
        answer = await client.post("/jobs", json={"input": "x", "callback_url": url})
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert fault["pointer"] == "/callback_url"
        assert detail in fault["message"]


async def test_a_worker_delivers_at_once(
    told: Settings, serve_lab: Callable[[Settings], LabModel]
) -> None:
    lab = serve_lab(told)
    with Endpoint(OK) as endpoint:
        async with served(told) as client, store_at(told) as store, crew(told, lab.url, workers=2):
            secret = f"{endpoint.url}/secret-path"
            job_id = await submit(client, callback_url=secret)
            await ended(store, [job_id])

            async def delivered() -> bool:
                return bool((await job(store, job_id))["callback"]["state"] == "delivered")

            await until(delivered, "the callback is delivered", 5)
            shown = (await client.get(f"/jobs/{job_id}")).text
            assert "secret-path" not in shown, "the address may hold a secret"
        assert len(endpoint.requests) == 1
        assert json.loads(endpoint.requests[0].body)["data"]["job_id"] == job_id


async def test_a_slow_receiver_holds_up_no_other(told: Settings, lab: LabModel) -> None:
    with Endpoint([HOLD]) as slow, Endpoint(OK) as quick:
        async with store_at(told) as store, crew(told, lab.url):
            first = (await store.submit(a_job("chat", "1", callback_url=slow.url))).job.job_id

            async def asked() -> bool:
                return bool(slow.requests)

            await until(asked, "the slow one is told")
            await store.submit(a_job("chat", "2", callback_url=quick.url))

            async def heard() -> bool:
                return bool(quick.requests)

            await until(heard, "the quick one is told meanwhile", 5)
            assert (await job(store, first))["callback"]["state"] == "pending"


async def test_a_delivery_is_a_span_of_its_job_s_trace(
    told: Settings, spans: Callable[[], list[ReadableSpan]]
) -> None:
    clock, trace = (
        Clock(),
        {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    )
    with Endpoint(reply(500), [SHUT], OK) as endpoint:
        async with desk(told, clock) as office:
            job_id = await office.job(f"{endpoint.url}/secret-path", trace=trace)
            await office.end(job_id)
            for _ in range(3):
                await office.webhooks.deliver_due()
                clock.forward(400)
    ours = [span for span in spans() if span.name == "webhook"]
    assert {f"{span.context.trace_id:032x}" for span in ours} == {trace["traceparent"][3:35]}
    seen = [dict(span.attributes or {}) for span in ours]
    assert [about.get("http.response.status_code") for about in seen] == [500, None, 204]
    assert [span.status.is_ok for span in ours] == [False, False, True]
    assert [about["http.request.resend_count"] for about in seen] == [0, 1, 2]
    assert {about["slowcall.job.id"] for about in seen} == {job_id}
    assert all("secret-path" not in span.to_json() for span in ours)


async def test_a_burst_tells_what_it_ended(told: Settings, lab: LabModel) -> None:
    own = told.model_copy(update={"ai_url": SecretStr(lab.url)})
    with Endpoint(OK) as endpoint:
        async with store_at(own) as store:
            for n in range(3):
                await store.submit(a_job("chat", f"{n}", callback_url=endpoint.url))
            async with AsyncExitStack() as stack:
                await (await build_worker(own, load_kinds(), stack, burst=True)).async_run()
        assert len(endpoint.requests) == 3


@pytest.mark.parametrize("secret", ["abc", "whsec_", "whsec_%%%", "whsec_c2hvcnQ=", SECRETS[0][6:]])
def test_a_secret_of_another_form_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("SLOWCALL_WEBHOOK_SECRET", secret)
    with pytest.raises(SettingsError, match="SLOWCALL_WEBHOOK_SECRET: write whsec_") as caught:
        load_settings()
    assert secret not in str(caught.value) or secret == "whsec_"
