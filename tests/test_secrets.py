"""No secret leaves by any way, also where the endpoint says back all that it was told."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import redis
from opentelemetry.sdk.trace import ReadableSpan
from pydantic import SecretStr

from tasks.lifecycle import FINAL
from tasks.settings import Settings
from tests.crew import crew
from tests.endpoint import (
    DONE,
    FIN,
    HJ,
    HS,
    RST,
    C,
    Endpoint,
    Request,
    Script,
    delta,
    head,
    reply,
    usage,
)
from tests.invariants import Books
from tests.serving import served, until
from tests.test_alerts import listening_target

AI_KEY = "sk-geheim-0001"
LOGIN = "geheim-0002"
ASKED_WITH = "geheim-and-long-0003"
PASSWORD = "geheim-0004@:/%"
USER_KEY = "geheim-0005"
SIGNING = b"geheim-0006-geheim-0006-geheim-0006"
WEBHOOK = "whsec_" + base64.b64encode(SIGNING).decode()
TOKEN = "geheim-0007"
HIDDEN = (
    "geheim",
    WEBHOOK,
    quote(PASSWORD, safe=""),
    base64.b64encode(f"u:{LOGIN}".encode()).decode(),
)
ALICE = {"Authorization": f"Bearer {USER_KEY}"}


def echo(request: Request) -> str:
    """All that the endpoint was told and must not be told on."""
    return f"{request.headers['authorization']} {LOGIN} {request.path}"


def answer(request: Request) -> Script:
    """A good answer that says everything back, one character after the other, in every field."""
    said = echo(request)
    call = {"id": said, "function": {"name": said, "arguments": json.dumps({"key": said})}}
    chunk = {"id": said, "model": said, "choices": [{"index": 0, "delta": {"reasoning": said}}]}
    return HS(
        b"data: " + json.dumps(chunk).encode() + b"\n\n",
        *(C(character) for character in f"You said: {said}"),
        delta({"tool_calls": [{"index": 0, **call}]}),
        FIN(said),
        usage(3, 2),
        DONE,
        headers=[f"X-Request-Id: {said}"],
    )


def refuse(request: Request) -> Script:
    """A refusal that does so."""
    error = {"message": echo(request), "type": echo(request), "code": "invalid_request_error"}
    return HJ({"error": error}, f"X-Request-Id: {AI_KEY}", status=400)


def page(request: Request) -> Script:
    """A page that does so, which may pass."""
    return reply(502, f"<title>{echo(request)}</title>".encode(), content_type="text/html")


def cut(request: Request) -> Script:
    """A stream that does so, and is cut."""
    return HS(C(echo(request)), C("sk-geheim"), RST)


def error_inside(request: Request) -> Script:
    """An error in the stream that does so."""
    return HS(b"data: " + json.dumps({"error": echo(request)}).encode() + b"\n\n", DONE)


def whole(request: Request) -> Script:
    """A document in place of a stream."""
    return HJ({"choices": [{"message": {"content": echo(request)}, "finish_reason": "stop"}]})


SCRIPTS = (answer, refuse, page, cut, error_inside, whole)
FAILING = (refuse, page, cut, error_inside)


def play(request: Request) -> Script:
    """What the prompt names."""
    if request.path.startswith("/hook"):
        return [head(204, "text/plain", "Content-Length: 0")]
    prompt = request.json["messages"][-1]["content"]
    return next(script for script in SCRIPTS if script.__name__ == prompt)(request)


@pytest.fixture
def with_password(settings: Settings, store_url: str) -> Iterator[Settings]:
    """The same store by an address with a login."""
    with redis.Redis.from_url(store_url) as client:
        client.acl_setuser(
            "u", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], channels=["*"],
            categories=["+@all"],
        )  # fmt: skip
        url = store_url.replace("unix://", f"unix://u:{quote(PASSWORD, safe='')}@")
        yield settings.model_copy(update={"redis_url": SecretStr(url)})
        client.acl_deluser("u")


@asynccontextmanager
async def house(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, list[Any]]]:
    """A server and a worker that hold every kind of secret, and what alerts told."""
    with Endpoint(play) as endpoint, listening_target() as target:
        secrets: dict[str, Any] = {
            "ai_key": SecretStr(AI_KEY),
            "ai_model": "m",
            "api_keys": (("alice", SecretStr(USER_KEY)),),
            "webhook_secret": (SecretStr(WEBHOOK),),
            "webhook_private": True,
            "alert_urls": (SecretStr(f"{target.url}/{TOKEN}"), SecretStr(f"json://127.0.0.1:1/{TOKEN}")),
            "alert_window_s": 0,
            "quota": 0,
            "max_attempts": 2,
        }  # fmt: skip
        settings = settings.model_copy(update=secrets)
        url = endpoint.url.replace("//", f"//u:{LOGIN}@") + f"?code={ASKED_WITH}"
        async with served(settings) as client, crew(settings, url):
            client.headers.update(ALICE)
            callback = {"callback_url": f"{endpoint.url}/hook"}
            for script in SCRIPTS:
                body = {"input": script.__name__, **callback}
                assert (await client.post("/jobs", json=body)).status_code == 202

            async def all_is_told() -> bool:
                jobs = (await client.get("/jobs")).json()["jobs"]
                told = all(job["callback"]["state"] == "delivered" for job in jobs)
                final = all(job["status"] in FINAL for job in jobs)
                return final and told and len(target.told) >= len(FAILING)

            await until(all_is_told, "all jobs have ended and were told of", 30)
            yield client, target.told


def contents(folder: Path) -> str:
    """All that the files of a folder hold."""
    return "".join(file.read_text() for file in folder.rglob("*") if file.is_file())


async def test_no_secret_leaves_the_house(
    with_password: Settings,
    store_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spans: Callable[[], list[ReadableSpan]],
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "apprise")  # as `configure_logging` has it
    told: dict[str, str] = {}
    async with house(with_password) as (client, alerts):
        for path in ("/", "/jobs", "/kinds", "/stats", "/metrics", "/openapi.json", "/readyz"):
            told[path] = (await client.get(path)).text
        jobs = (await client.get("/jobs")).json()["jobs"]
        for job in jobs:
            for part in ("", "/ledger", "/stream"):
                path = f"/jobs/{job['job_id']}{part}"
                told[path] = (await client.get(path)).text
        for answered in (
            await client.get("/jobs", headers={"Authorization": "Bearer geheim-wrong"}),
            await client.post("/session", json={"key": USER_KEY}),
            await client.post("/session", json={"key": "geheim-wrong"}),
            await client.post(f"/jobs/{jobs[0]['job_id']}/share"),
        ):
            told[str(answered.url)] = answered.text + str(answered.headers)
        told["alerts"] = json.dumps(alerts)
    with redis.Redis.from_url(store_url) as client_of_redis:
        told["Redis"] = repr(Books.read(client_of_redis).values)
    told["files"] = contents(tmp_path)
    told["traces"] = "".join(span.to_json() for span in spans())
    told |= {f"log: {line}": line for line in caplog.text.splitlines()}

    statuses = [job["status"] for job in reversed(jobs)]
    assert statuses == ["failed" if script in FAILING else "done" for script in SCRIPTS]
    assert jobs[-1]["result"]["text"].startswith("You said: Bearer *** ")
    assert "/chat/completions?code=***" in jobs[-1]["result"]["text"]
    leaks = {where: secret for where, text in told.items() for secret in HIDDEN if secret in text}
    assert leaks == {}
