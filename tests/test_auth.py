"""Nobody gets in who does not belong: keys, sessions, links, other hosts and other sites."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.routing import Route

from server.app import create_app
from server.auth import Caller, Keyring, session_token, session_user
from server.gate import HideTokens, check_host, check_site
from tasks.errors import Forbidden, Unauthorized
from tasks.settings import Settings
from tests.rig import store_at
from tests.serving import Hand, served, stream

KEYS = (
    ("alice", SecretStr("a-key")),
    ("alice", SecretStr("a-second-key")),
    ("bob", SecretStr("b-key")),
    ("admin", SecretStr("root-key")),
)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


ALICE, BOB, ADMIN = bearer("a-key"), bearer("b-key"), bearer("root-key")


@asynccontextmanager
async def guarded(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings.model_copy(update={"api_keys": KEYS, "quota": 0})) as client:
        yield client


async def submit_as(client: httpx.AsyncClient, who: dict[str, str]) -> str:
    response = await client.post("/jobs", json={"input": "hello"}, headers=who)
    assert response.status_code == 202, response.text
    return str(response.json()["job_id"])


EVERY_ADDRESS: list[tuple[str, str, bool]] = [
    # method, path, whether it is about one job
    ("GET", "/jobs/{}", True),
    ("GET", "/jobs/{}/stream?after=junk", True),
    ("GET", "/jobs/{}/ledger", True),
    ("POST", "/jobs/{}/share", True),
    ("POST", "/jobs/{}/cancel", True),
    ("POST", "/jobs/{}/retry?dry_run=true", True),
    ("POST", "/jobs/{}/retry", True),
    ("POST", "/jobs/{}/cancel", True),
    ("DELETE", "/jobs/{}", True),
    ("GET", "/jobs", False),
    ("GET", "/kinds", False),
    ("GET", "/stats", False),
    ("GET", "/metrics", False),
]
NOBODY: tuple[dict[str, str], ...] = (
    {},
    bearer("wrong"),
    {"Authorization": "Basic YTprZXk="},
    bearer("a-key x"),
)


async def test_every_address_by_everybody(settings: Settings) -> None:
    """No key, a wrong one, another user, the owner, the admin."""
    async with guarded(settings) as client:
        owned = {who: await submit_as(client, ALICE) for who in ("owner", "admin", "bob")}
        for job_id in owned.values():
            if job_id != owned["owner"]:
                await client.post(f"/jobs/{job_id}/cancel", headers=ALICE)
                await client.post(f"/jobs/{job_id}/retry", headers=ALICE)
        for method, path, of_a_job in EVERY_ADDRESS:
            for nobody in NOBODY:
                response = await client.request(method, path.format(owned["bob"]), headers=nobody)
                assert response.status_code == 401, (method, path, nobody)
                assert response.headers["www-authenticate"].startswith("Bearer")
            if "stream" in path:
                continue
            another = await client.request(method, path.format(owned["bob"]), headers=BOB)
            assert another.status_code == (404 if of_a_job else 200), (method, path)
            for who, key in (("owner", ALICE), ("admin", ADMIN)):
                response = await client.request(method, path.format(owned[who]), headers=key)
                assert response.status_code in (200, 202, 204), (method, path, who)
        assert (await client.get(f"/jobs/{owned['bob']}/stream", headers=BOB)).status_code == 404


OPEN = {"/", "/static/{name:path}", "/openapi.json", "/healthz", "/readyz", "/session"}


async def test_no_address_was_forgotten(settings: Settings) -> None:
    """Whatever is added is closed to strangers, and a job to other users."""
    routes = [route for route in create_app(settings).routes if isinstance(route, Route)]
    closed = [route for route in routes if route.path not in OPEN]
    assert len(closed) > 12
    async with guarded(settings) as client:
        job_id = await submit_as(client, ALICE)
        for route in closed:
            path = route.path.format(job_id=job_id)
            for method in route.methods or ():
                for nobody in NOBODY:
                    response = await client.request(method, path, headers=nobody)
                    assert response.status_code == 401, (method, path)
                if path != route.path:
                    response = await client.request(method, path, headers=BOB)
                    assert response.status_code == 404, (method, path)
        assert (await client.get(f"/jobs/{job_id}", headers=ALICE)).json()["status"] == "queued"


async def test_open_addresses_need_no_key(settings: Settings) -> None:
    async with guarded(settings) as client:
        for path in ("/", "/static/app.js", "/openapi.json", "/healthz"):
            assert (await client.get(path)).status_code == 200, path
        assert (await client.get("/readyz")).status_code == 503
        for path in ("/static/../server/auth.py", "/static/%2e%2e/pyproject.toml"):
            assert (await client.get(path)).status_code in (401, 404), path


async def test_each_sees_their_own_and_the_admin_sees_all(settings: Settings) -> None:
    async with guarded(settings) as client:
        alices, bobs = await submit_as(client, ALICE), await submit_as(client, BOB)

        async def listed(who: dict[str, str], query: str = "") -> list[str]:
            response = await client.get(f"/jobs{query}", headers=who)
            assert response.status_code == 200, response.text
            return [job["job_id"] for job in response.json()["jobs"]]

        assert await listed(ALICE) == await listed(bearer("a-second-key")) == [alices]
        assert await listed(BOB) == [bobs]
        assert await listed(ADMIN) == [bobs, alices]
        assert await listed(ADMIN, "?user_id=alice") == [alices]
        assert await listed(ALICE, "?user_id=alice") == [alices]
        for path in ("/jobs?user_id=bob", "/jobs/stream?user_id=bob"):
            assert (await client.get(path, headers=ALICE)).status_code == 403
        other = {"input": "a", "user_id": "bob"}
        assert (await client.post("/jobs", json=other, headers=ALICE)).status_code == 403


async def test_a_key_of_another_user_is_another_key(settings: Settings) -> None:
    """Case D3: the idempotency key counts for its user alone."""
    async with guarded(settings) as client:
        key = {"Idempotency-Key": "same"}
        answers = [
            await client.post("/jobs", json={"input": "a"}, headers=who | key)
            for who in (ALICE, BOB, bearer("a-second-key"))
        ]
        ids = [answer.json()["job_id"] for answer in answers]
        assert ids[0] == ids[2] != ids[1]
        other = await client.post("/jobs", json={"input": "b"}, headers=BOB | key)
        assert other.status_code == 422
        assert ids[0] not in other.text


async def test_a_feed_is_the_callers_own(settings: Settings) -> None:
    async with (
        guarded(settings) as client,
        client.stream("GET", "/jobs/stream", headers=ALICE) as response,
    ):
        content = response.aiter_raw()
        await anext(content)
        bobs, alices = await submit_as(client, BOB), await submit_as(client, ALICE)
        seen = b""
        async for chunk in content:
            seen += chunk
            if alices.encode() in seen:
                break
        assert bobs.encode() not in seen


async def test_the_page_holds_a_session(settings: Settings) -> None:
    async with guarded(settings) as client:
        for body in ({"key": "wrong"}, {"key": 7}, {}):
            assert (await client.post("/session", json=body)).status_code == 401, body
        opened = await client.post("/session", json={"key": "a-key"})
        assert (opened.status_code, opened.json()["user_id"]) == (200, "alice")
        attributes = opened.headers["set-cookie"].lower()
        assert "httponly" in attributes
        assert "samesite=strict" in attributes
        assert "secure" not in attributes, "it is plain HTTP"
        assert (await client.get("/jobs")).status_code == 200
        closed = await client.delete("/session")
        assert closed.status_code == 204
        assert (await client.get("/jobs")).status_code == 401
        secure = await client.post(
            "/session", json={"key": "a-key"}, headers={"X-Forwarded-Proto": "https"}
        )
        assert "secure" in secure.headers["set-cookie"].lower()


async def test_only_a_trusted_proxy_says_how_it_was_reached(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")
    async with guarded(settings) as client:
        opened = await client.post(
            "/session", json={"key": "a-key"}, headers={"X-Forwarded-Proto": "https"}
        )
        assert "secure" not in opened.headers["set-cookie"].lower()


def test_a_session_is_signed_and_ends() -> None:
    keyring, now = Keyring([("alice", "a-key"), ("bob", "b-key")]), int(time.time())
    token = session_token(keyring, "alice", now + 60)
    assert session_user(keyring, token) == "alice"
    same_keys = Keyring([("alice", "a-key"), ("carol", "c-key")])
    assert session_user(same_keys, token) == "alice", "another server takes it, too"
    name, expires_at, signature = token.split(".")
    bobs = session_token(keyring, "bob", now + 60).split(".")[0]
    for junk in (
        session_token(keyring, "alice", now - 1),
        f"{bobs}.{expires_at}.{signature}",
        f"{name}.{int(expires_at) + 1}.{signature}",
        f"{name}.{expires_at}.{signature[:-2]}",
        f"{name}.soon.{signature}",
        f"é.{expires_at}.{signature}",
        "",
        "a.b",
    ):
        with pytest.raises(Unauthorized):
            session_user(keyring, junk)
    for others in (Keyring([("alice", "a-new-key")]), Keyring([("bob", "b-key")])):
        with pytest.raises(Unauthorized):
            session_user(others, token)


async def test_a_link_lets_anybody_read_one_job_for_a_while(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(settings) as client, store_at(settings) as store:
        job_id, other = await submit_as(client, ALICE), await submit_as(client, ALICE)
        link = (await client.post(f"/jobs/{job_id}/share", headers=ALICE)).json()
        token = link["url"].partition("share=")[2]
        assert link["url"].startswith(f"/?job={job_id}&")
        assert (await client.get(link["job"])).json()["job_id"] == job_id
        async with stream(client, link["stream"]) as frames:
            await Hand(store).finish(await Hand(store).start(job_id))
            assert [event.name for event in await frames.events()] == ["queued", "running", "done"]

        tampered = token[:-1] + ("A" if token[-1] != "A" else "B")
        for path in (
            f"/jobs/{other}?share={token}",
            f"/jobs/{job_id}?share={tampered}",
            f"/jobs/{job_id}?share=junk",
            f"/jobs/{job_id}?share=.",
            f"/jobs/{job_id}/ledger?share={token}",
            f"/jobs?share={token}",
            f"/jobs/stream?share={token}",
        ):
            assert (await client.get(path)).status_code == 401, path
        assert (await client.delete(f"/jobs/{job_id}?share={token}")).status_code == 401
        later = time.time() + 8 * 86400
        monkeypatch.setattr("server.auth.time.time", lambda: later)
        assert (await client.get(link["job"])).status_code == 401


def test_a_key_is_known_by_its_hash() -> None:
    keyring = Keyring([("alice", "a-key")])
    assert keyring.user_of("a-key") == "alice"
    assert "a-key" not in repr(vars(keyring))
    for wrong in ("", "a-kez", "a-key ", "alice", "é" * 1000):
        with pytest.raises(Unauthorized):
            keyring.user_of(wrong)


def test_without_keys_everybody_on_loopback_is_trusted() -> None:
    assert Caller().owner(None) == "local"
    assert Caller().owner("anybody") == "anybody"
    assert Caller().scope(None) is None
    assert Caller().scope("anybody") == "anybody"


def test_hosts_that_are_not_loopback_are_refused() -> None:
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.8.9.1:1", "[::1]:8000"):
        check_host(host)
    for host in ("", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "0.0.0.0", "a@b"):
        with pytest.raises(Forbidden):
            check_host(host)


SITES: list[tuple[str, dict[str, str], bool]] = [
    ("POST", {}, True),
    ("POST", {"origin": "http://localhost:8000"}, True),
    ("POST", {"origin": "http://localhost:9000"}, False),
    ("POST", {"origin": "https://evil.example"}, False),
    ("POST", {"origin": "null"}, False),
    ("POST", {"origin": "http://renamed.example", "x-requested-with": "slowcall"}, True),
    ("POST", {"sec-fetch-site": "cross-site", "x-requested-with": "slowcall"}, False),
    ("GET", {"origin": "https://evil.example"}, False),
    ("POST", {"origin": "https://friend.example"}, True),
    ("POST", {"origin": "https://friend.example", "sec-fetch-site": "cross-site"}, True),
    ("POST", {"sec-fetch-site": "same-origin"}, True),
    ("POST", {"sec-fetch-site": "same-origin", "origin": "https://outer.example"}, True),
    ("POST", {"sec-fetch-site": "none"}, True),
    ("POST", {"sec-fetch-site": "same-site"}, False),
    ("POST", {"sec-fetch-site": "cross-site"}, False),
    ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
    ("GET", {"sec-fetch-site": "cross-site"}, False),
    ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
]


def test_another_site_may_link_here_and_nothing_else() -> None:
    for method, headers, allowed in SITES:
        sent = Headers({"host": "localhost:8000", **headers})
        try:
            check_site(method, sent, ["https://friend.example"])
            passed = True
        except Forbidden:
            passed = False
        assert passed is allowed, (method, headers)


async def test_a_form_of_another_site_makes_no_job(settings: Settings) -> None:
    async with served(settings) as client:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            response = await client.post("/jobs", files={"file": ("a", b"a")}, headers=headers)
            assert response.status_code == 403
        assert (await client.get("/jobs")).json()["jobs"] == []


async def test_cors_is_closed_unless_origins_are_named(settings: Settings) -> None:
    """Case B17: on answers, on refusals and on streams; a preflight is answered."""
    friend = {"Origin": "https://friend.example"}
    preflight = friend | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    async with served(settings) as client:
        for response in (
            await client.get("/jobs", headers=friend),
            await client.options("/jobs", headers=preflight),
        ):
            assert response.status_code in (403, 405)
            assert "access-control-allow-origin" not in response.headers

    named = {"cors_origins": ("https://friend.example",), "api_keys": KEYS}
    async with served(settings.model_copy(update=named)) as client:
        job_id = await submit_as(client, ALICE)
        await client.post(f"/jobs/{job_id}/cancel", headers=ALICE)
        for response in (
            await client.options("/jobs", headers=preflight),
            await client.get("/jobs", headers=friend | ALICE),
            await client.get("/jobs", headers=friend),
            await client.get("/jobs/nothing", headers=friend | ALICE),
            await client.get(f"/jobs/{job_id}/stream", headers=friend | ALICE),
        ):
            assert response.headers["access-control-allow-origin"] == "https://friend.example"
        evil = await client.get("/jobs", headers=ALICE | {"Origin": "https://evil.example"})
        assert evil.status_code == 403
        assert "access-control-allow-origin" not in evil.headers


async def test_every_answer_keeps_a_browser_from_harm(settings: Settings) -> None:
    async with guarded(settings) as client:
        for response in (
            await client.get("/"),
            await client.get("/static/app.js"),
            await client.get("/jobs"),
            await client.get("/nothing", headers=ALICE),
            await client.get("/jobs", headers=ALICE),
        ):
            policy = response.headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["cache-control"] in ("no-store", "no-cache")


async def test_a_file_may_be_kept_and_is_asked_for_anew(settings: Settings) -> None:
    async with guarded(settings) as client:
        first = await client.get("/static/app.js")
        assert first.headers["cache-control"] == "no-cache"
        same = {"If-None-Match": first.headers["etag"]}
        again = await client.get("/static/app.js", headers=same)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["cache-control"] == "no-cache"
        changed = await client.get("/static/app.js", headers={"If-None-Match": '"another"'})
        assert (changed.status_code, changed.content) == (200, first.content)
        assert (await client.get("/")).headers["cache-control"] == "no-cache"
        for path in ("/static/nothing.js", "/jobs", "/openapi.json"):
            answer = await client.get(path, headers=ALICE)
            assert answer.headers["cache-control"] == "no-store", path


async def test_endless_headers_are_refused(settings: Settings) -> None:
    async with served(settings) as client:
        response = await client.get("/jobs", headers={"X-Long": "x" * 40_000})
        assert response.status_code == 431


async def test_no_secret_is_told_or_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(settings) as client:
        answers = [
            await client.get(path, headers=ALICE)
            for path in ("/jobs", "/kinds", "/stats", "/metrics", "/openapi.json", "/nothing")
        ]
        answers.append(await client.post("/session", json={"key": "a-key"}))
        answers.append(await client.get("/jobs", headers=bearer("wr0ng-key")))
    told = "".join(answer.text for answer in answers)
    logged = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("http"))
    for secret in ("a-key", "b-key", "root-key", "wr0ng-key"):
        assert secret not in told
        assert secret not in logged


def test_links_are_blanked_in_the_access_log() -> None:
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s %s", (), None)
    record.args = ("GET", "/jobs/1/stream?share=12.secret&after=3")
    assert HideTokens().filter(record)
    assert record.getMessage() == "GET /jobs/1/stream?share=…&after=3"
