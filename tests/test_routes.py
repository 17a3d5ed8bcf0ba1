"""The jobs over HTTP: what is taken, what is refused and how, what an answer says."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send

from server.app import create_app
from tasks.keys import name
from tasks.lifecycle import RETRY
from tasks.settings import Settings
from tasks.store import Settlement
from tests.conftest import serving
from tests.rig import store_at
from tests.serving import Hand, served, submit, until

JSON = {"Content-Type": "application/json"}


async def test_a_job_is_stored_and_says_where_it_is(settings: Settings) -> None:
    async with served(settings) as client:
        response = await client.post("/jobs", json={"input": "hello", "metadata": {"a": 1}})
        job = response.json()
        assert response.status_code == 202
        assert response.headers["location"] == job["links"]["self"] == f"/jobs/{job['job_id']}"
        assert (job["kind"], job["status"], job["user_id"]) == ("chat", "queued", "local")
        assert (job["attempts"], job["max_attempts"], job["metadata"]) == (0, 3, {"a": 1})
        assert job["queue_position"] == 1

        read = await client.get(response.headers["location"])
        assert read.json() == job
        assert int(read.headers["retry-after"]) >= 1


NESTED = '{"input": ' + "[" * 70 + "]" * 70 + "}"
MALFORMED: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("no JSON", b"{"),
    ("no object", b'["input"]'),
    ("a key twice", b'{"input": "a", "input": "b"}'),
    ("a key twice, deep", b'{"input": {"a": {"b": 1, "b": 2}}}'),
    ("NaN", b'{"input": "a", "timeout_s": NaN}'),
    ("infinity", b'{"input": "a", "timeout_s": -Infinity}'),
    ("overflow", b'{"input": "a", "timeout_s": 1e999}'),
    ("a long integer", b'{"input": "a", "timeout_s": ' + b"9" * 5000 + b"}"),
    ("not UTF-8", b'{"input": "\xff\xfe"}'),
    ("half a surrogate pair", b'{"input": "\\ud800"}'),
    ("half a pair as a key", b'{"input": {"\\udfff": 1}}'),
    ("deep nesting", NESTED.encode()),
    ("very deep nesting", b'{"input": ' + b"[" * 200_000),
]


async def test_malformed_bodies_are_refused(settings: Settings) -> None:
    async with served(settings) as client:
        for what, body in MALFORMED:
            response = await client.post("/jobs", content=body, headers=JSON)
            assert response.status_code == 400, (what, response.text)
            assert response.json()["detail"], what
        assert (await client.get("/jobs")).json()["jobs"] == []


WRONG: list[tuple[Any, str]] = [
    ({}, "/input"),
    ({"input": "a", "unknown": 1}, "/unknown"),
    ({"input": "a", "un/kn~own": 1}, "/un~1kn~0own"),
    ({"input": "a", "kind": "nonsense"}, "/kind"),
    ({"input": "a", "kind": 7}, "/kind"),
    ({"input": "a", "kind": None}, "/kind"),
    ({"input": "a", "max_attempts": 0}, "/max_attempts"),
    ({"input": "a", "max_attempts": "3"}, "/max_attempts"),
    ({"input": "a", "timeout_s": 0}, "/timeout_s"),
    ({"input": "a", "deadline_s": -1}, "/deadline_s"),
    ({"input": "a", "expires_s": True}, "/expires_s"),
    ({"input": "a", "on_unknown": "guess"}, "/on_unknown"),
    ({"input": "a", "memo": "yes"}, "/memo"),
    ({"input": "a", "metadata": []}, "/metadata"),
    ({"input": "a", "metadata": {"a": "x" * 20_000}}, "/metadata"),
    ({"input": "a", "user_id": ""}, "/user_id"),
    ({"input": "a", "user_id": "a\nb"}, "/user_id"),
    ({"input": "a", "callback_url": "file:///etc/passwd"}, "/callback_url"),
]


async def test_wrong_bodies_are_refused_with_a_pointer(settings: Settings) -> None:
    async with served(settings) as client:
        for body, pointer in WRONG:
            response = await client.post("/jobs", json=body)
            assert response.status_code == 422, (body, response.text)
            pointers = [fault["pointer"] for fault in response.json()["errors"]]
            assert pointer in pointers, (body, pointers)
        for body in ({"input": None}, {"input": {"other": 1}, "kind": "summarize"}):
            assert (await client.post("/jobs", json=body)).status_code == 422, body
        assert (await client.get("/jobs")).json()["jobs"] == []


async def test_null_is_what_the_setting_says(settings: Settings) -> None:
    body = {"input": "a", "max_attempts": None, "timeout_s": None, "on_unknown": None}
    async with served(settings) as client:
        job = (await client.post("/jobs", json=body)).json()
    assert (job["kind"], job["max_attempts"], job["metadata"]) == ("chat", 3, {})


async def test_other_content_types_are_refused(settings: Settings) -> None:
    async with served(settings) as client:
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/xml"):
            headers = {"Content-Type": content_type}
            response = await client.post("/jobs", content=b"input=a", headers=headers)
            assert response.status_code == 415, content_type
            assert "application/json" in response.json()["detail"]
        assert (await client.post("/jobs", content=b'{"input": "a"}')).status_code == 415
        packed = gzip.compress(json.dumps({"input": "a" * 1_000_000}).encode())
        for headers in (JSON, {"Content-Type": "multipart/form-data; boundary=a"}):
            headers = headers | {"Content-Encoding": "gzip"}
            response = await client.post("/jobs", content=packed, headers=headers)
            assert response.status_code == 415
            assert "Content-Encoding" in response.json()["detail"]


async def test_large_bodies_are_refused(settings: Settings) -> None:
    small = settings.model_copy(update={"max_body": 1000})
    large = json.dumps({"input": "x" * 2000}).encode()

    async def chunks() -> Any:
        for start in range(0, len(large), 100):
            yield large[start : start + 100]

    async with served(small) as client:
        announced = await client.post("/jobs", content=large, headers=JSON)
        chunked = await client.post("/jobs", content=chunks(), headers=JSON)
        form = await client.post("/jobs", files={"file": ("a.txt", large)})
    for response in (announced, chunked, form):
        assert response.status_code == 413
        assert "SLOWCALL_MAX_BODY" in response.json()["detail"]


KEYS: list[tuple[list[bytes], int]] = [
    ([b"plain"], 202),
    ([b'"quoted"'], 202),
    ([b'"with \\" and \\\\"'], 400),
    ([b'"with\\"quote"'], 202),
    ([b"*"], 202),
    ([b"{}"], 202),
    ([b"a:b"], 202),
    ([b"k" * 255], 202),
    ([b"k" * 256], 400),
    ([b"k" * 10_000], 400),
    ([b""], 400),
    ([b'""'], 400),
    ([b'"'], 400),
    ([b'"open'], 400),
    ([b'"a"; b=1'], 400),
    ([b"two words"], 400),
    ([b"\xc3\xa9"], 400),
    ([b"one", b"two"], 400),
    ([b"same", b"same"], 400),
]


async def test_idempotency_keys_are_checked(settings: Settings) -> None:
    async with served(settings.model_copy(update={"quota": 0})) as client:
        for keys, status in KEYS:
            headers = [(b"Idempotency-Key", key) for key in keys]
            response = await client.post("/jobs", json={"input": "a"}, headers=headers)
            assert response.status_code == status, (keys, response.text)


async def test_a_repeat_answers_the_job_that_came_before(settings: Settings) -> None:
    bare, quoted = {"Idempotency-Key": "key"}, {"Idempotency-Key": '"key"'}
    same = b'{ "timeout_s" : 60.0 ,\n "input":"a" }'
    async with served(settings) as client, store_at(settings) as store:
        first = await client.post("/jobs", json={"input": "a", "timeout_s": 60}, headers=bare)
        again = await client.post("/jobs?other=query", content=same, headers=quoted | JSON)
        assert again.status_code == 202
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json()["job_id"] == first.json()["job_id"]
        assert "idempotent-replayed" not in first.headers

        other = await client.post("/jobs", json={"input": "b", "timeout_s": 60}, headers=bare)
        assert other.status_code == 422
        mine = {"input": "a", "timeout_s": 60, "user_id": "somebody"}
        theirs = await client.post("/jobs", json=mine, headers=bare)
        assert theirs.json()["job_id"] != first.json()["job_id"]

        hand = Hand(store)
        await hand.finish(await hand.start(first.json()["job_id"]))
        final = await client.post("/jobs", content=same, headers=quoted | JSON)
        assert final.status_code == 200
        assert final.json()["status"] == "done"


async def test_a_hundred_of_the_same_at_once_are_one_job(settings: Settings) -> None:
    async with served(settings) as one, served(settings) as two:
        posts = [
            client.post("/jobs", json={"input": "a"}, headers={"Idempotency-Key": "key"})
            for client in (one, two)
            for _ in range(50)
        ]
        answers = await asyncio.gather(*posts)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["job_id"] for answer in answers}) == 1
        assert len((await one.get("/jobs")).json()["jobs"]) == 1


async def test_the_sixth_post_says_which_setting_lifts_the_limit(settings: Settings) -> None:
    async with served(settings) as client:
        for used in range(1, 6):
            response = await client.post("/jobs", json={"input": "a"})
            assert response.headers["ratelimit"] == f'"inflight";r={5 - used}'
            policy = response.headers["ratelimit-policy"]
            assert policy == '"inflight";q=5;qu="concurrent-requests"'
        full = await client.post("/jobs", json={"input": "a"})
        assert full.status_code == 429
        assert "SLOWCALL_QUOTA" in full.json()["detail"]
        assert int(full.headers["retry-after"]) >= 1
        assert full.headers["ratelimit"] == '"inflight";r=0'
        wrong = await client.post("/jobs", json={})
        assert "ratelimit-policy" in wrong.headers

    async with served(settings.model_copy(update={"quota": 0})) as client:
        response = await client.post("/jobs", json={"input": "a"})
        assert response.status_code == 202
        assert "ratelimit" not in response.headers


async def test_a_preferred_wait_ends_with_the_job(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand = Hand(store)
        headers = {"Prefer": 'respond-async, wait="30"', "Idempotency-Key": "key"}
        post = asyncio.create_task(client.post("/jobs", json={"input": "a"}, headers=headers))
        await until(lambda: _queued(client), "the job is stored")
        job_id = (await client.get("/jobs")).json()["jobs"][0]["job_id"]
        get = asyncio.create_task(client.get(f"/jobs/{job_id}", headers={"Prefer": "wait"}))
        run = await hand.start(job_id)
        await hand.finish(run, "so")
        posted, got = await post, await get
    assert posted.status_code == 200
    assert posted.headers["preference-applied"] == "wait=30"
    assert posted.json()["result"]["text"] == "so"
    assert got.json()["status"] == "done"
    assert got.headers["preference-applied"] == "wait=60"


async def _queued(client: httpx.AsyncClient) -> bool:
    return bool((await client.get("/jobs")).json()["jobs"])


async def test_a_wait_in_vain_answers_the_job_as_it_stands(settings: Settings) -> None:
    async with served(settings) as client:
        response = await client.post("/jobs", json={"input": "a"}, headers={"Prefer": "wait=0"})
        assert response.status_code == 202
        assert response.headers["preference-applied"] == "wait=0"
        for junk in ("wait=soon", "wait=-1", "waiting=3"):
            response = await client.post("/jobs", json={"input": "a"}, headers={"Prefer": junk})
            assert "preference-applied" not in response.headers, junk


async def test_a_wait_asks_nothing_meanwhile_and_one_that_is_cut_cancels_nothing(
    settings: Settings,
) -> None:
    quiet = settings.model_copy(update={"ping_s": 3600.0})  # a ping is another reason to look
    async with served(quiet) as client, store_at(settings) as store:
        job_id = await submit(client)
        channel = name("job_channel", job_id)

        async def listeners() -> int:
            return int((await store.redis.pubsub_numsub(channel))[0][1])

        async def asked() -> int:
            return int((await store.redis.info("commandstats"))["cmdstat_fcall"]["calls"])

        wait = asyncio.create_task(
            client.get(f"/jobs/{job_id}", headers={"Prefer": "wait=30"}, timeout=30)
        )
        await until(listeners, "it is told by the hub")
        before = await asked()
        done, _ = await asyncio.wait([wait], timeout=1)
        assert done == set()
        assert await asked() - before <= 1, "no more than a look when it is subscribed"
        wait.cancel()

        async def nobody_listens() -> bool:
            return await listeners() == 0

        await until(nobody_listens, "the server sees that the client has left")
        assert (await client.get(f"/jobs/{job_id}")).json()["status"] == "queued"


async def test_lists_are_pages_newest_first(settings: Settings) -> None:
    free = settings.model_copy(update={"quota": 0})
    async with served(free) as client:
        ids = [await submit(client, f"job {n}", user_id=f"user{n % 2}") for n in range(7)]
        seen: list[str] = []
        cursor = ""
        while True:
            page = (await client.get("/jobs", params={"limit": 3, "cursor": cursor})).json()
            seen += [job["job_id"] for job in page["jobs"]]
            await submit(client, "a job that comes in meanwhile", user_id="late")
            if not (cursor := page["next_cursor"]):
                break
        assert seen == ids[::-1]
        mine = (await client.get("/jobs", params={"user_id": "user1"})).json()["jobs"]
        assert [job["job_id"] for job in mine] == ids[5::-2]
        await client.post(f"/jobs/{ids[0]}/cancel")
        ended = (await client.get("/jobs", params={"status": "cancelled"})).json()["jobs"]
        assert [job["job_id"] for job in ended] == ids[:1]
        assert (await client.get("/jobs", params={"kind": "summarize"})).json()["jobs"] == []


QUERIES: list[tuple[str, int]] = [
    ("status=lost", 422),
    ("limit=0", 422),
    ("limit=1000", 422),
    ("limit=ten", 422),
    ("cursor=junk", 400),
    ("cursor=%00", 400),
    ("kind=nonsense", 200),
    ("user_id=*", 200),
]


async def test_foreign_questions_of_a_list(settings: Settings) -> None:
    async with served(settings) as client:
        for query, status in QUERIES:
            assert (await client.get(f"/jobs?{query}")).status_code == status, query


async def test_cancel_retry_discard_by_status(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand, job = Hand(store), f"/jobs/{await submit(client)}"
        assert (await client.delete(job)).status_code == 409
        assert (await client.post(f"{job}/retry")).status_code == 409
        cancelled = await client.post(f"{job}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert (await client.post(f"{job}/cancel")).status_code == 409

        price = await client.post(f"{job}/retry?dry_run=true")
        assert (price.status_code, price.json()["steps_kept"]) == (200, 0)
        revived = await client.post(f"{job}/retry", json={"input": "another"})
        assert (revived.status_code, revived.json()["status"]) == (202, "queued")
        await hand.finish(await hand.start(revived.json()["job_id"]))
        assert (await client.post(f"{job}/retry")).status_code == 409
        assert (await client.delete(job)).status_code == 204
        for gone in (client.get(job), client.delete(job), client.post(f"{job}/cancel")):
            assert (await gone).status_code == 404


async def test_a_retry_is_checked_like_a_submission(settings: Settings) -> None:
    async with served(settings) as client:
        job = f"/jobs/{await submit(client)}"
        await client.post(f"{job}/cancel")
        for body, status in (
            (b'{"input": 7}', 422),
            (b'{"other": 7}', 422),
            (b"[]", 400),
            (b"{", 400),
        ):
            response = await client.post(f"{job}/retry", content=body, headers=JSON)
            assert response.status_code == status, body
        assert (await client.post(f"{job}/retry", content=b"x")).status_code == 415


async def test_a_waiting_attempt_says_when_to_ask_again(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        job_id = await submit(client)
        run = await Hand(store).start(job_id)
        await store.requeue(run, RETRY, wait_s=30, reason="transient")
        response = await client.get(f"/jobs/{job_id}")
        assert response.json()["status"] == "retrying"
        assert 25 <= int(response.headers["retry-after"]) <= 30


async def test_unknown_jobs_are_not_found(settings: Settings) -> None:
    async with served(settings) as client:
        for job_id in ("0" * 32, "x", "%2e%2e", "a%2fb", "é", "a" * 5000, "%00", "*"):
            for method, path in (
                ("GET", ""),
                ("DELETE", ""),
                ("GET", "/stream"),
                ("GET", "/ledger"),
                ("POST", "/cancel"),
                ("POST", "/retry"),
                ("POST", "/share"),
            ):
                response = await client.request(method, f"/jobs/{job_id}{path}")
                assert response.status_code == 404, (job_id, method, path)


async def test_a_text_file_becomes_the_text(settings: Settings) -> None:
    pages = "\f".join(f"Page {n}." for n in range(3))
    for content in (pages.encode(), b"\xef\xbb\xbf" + pages.encode(), pages.encode("utf-16")):
        async with served(settings) as client, store_at(settings) as store:
            response = await client.post(
                "/jobs",
                data={"kind": "summarize", "instructions": "short", "max_attempts": "2"},
                files={"file": ("../report.txt", content)},
            )
            assert response.status_code == 202, response.text
            assert response.json()["max_attempts"] == 2
            run = await Hand(store).start(response.json()["job_id"])
            assert run.input == {"instructions": "short", "text": pages}
            await Hand(store).finish(run)


FORMS: list[tuple[dict[str, str], dict[str, tuple[str, bytes]], int]] = [
    ({"kind": "summarize"}, {"file": ("a.bin", b"\x00\x01\x02")}, 415),
    ({"kind": "summarize"}, {"file": ("a.txt", b"caf\xe9 in Latin-1")}, 415),
    ({"kind": "summarize"}, {"file": ("a.txt", b" \n ")}, 422),
    ({"kind": "summarize"}, {"other": ("a.txt", b"text")}, 400),
    ({"kind": "summarize", "text": "a"}, {"file": ("a.txt", b"text")}, 422),
    ({"kind": "summarize", "max_attempts": "many"}, {"file": ("a.txt", b"text")}, 422),
    ({"kind": "summarize", "nonsense": "1"}, {"file": ("a.txt", b"text")}, 422),
    ({"kind": "chat", "input": "a"}, {"file": ("a.txt", b"text")}, 422),
    ({"kind": "chat"}, {"file": ("a.txt", b"text")}, 422),
]


async def test_forms_are_checked(settings: Settings) -> None:
    async with served(settings) as client:
        for data, files, status in FORMS:
            response = await client.post("/jobs", data=data, files=files)
            assert response.status_code == status, (data, files, response.text)
        two = [("file", ("a.txt", b"a")), ("file", ("b.txt", b"b"))]
        assert (await client.post("/jobs", files=two)).status_code == 400
        many = {f"field {number}": "a" for number in range(1000)}
        refused = await client.post("/jobs", data=many, files=two[:1])
        assert (refused.status_code, "fields" in refused.json()["detail"]) == (400, True)
        endless = b"--a\r\nContent-Disposition: form-data; name=" + b"a" * 100_000
        form = {"Content-Type": "multipart/form-data; boundary=a"}
        assert (await client.post("/jobs", content=endless, headers=form)).status_code == 400
        broken = {"Content-Type": "multipart/form-data; boundary=x"}
        response = await client.post("/jobs", content=b"--y\r\n", headers=broken)
        assert response.status_code == 400
        no_boundary = {"Content-Type": "multipart/form-data"}
        response = await client.post("/jobs", content=b"--y\r\n", headers=no_boundary)
        assert response.status_code == 400
        assert (await client.get("/jobs")).json()["jobs"] == []


async def test_the_same_form_is_the_same_job(settings: Settings) -> None:
    async with served(settings) as client:
        answers = [
            await client.post(
                "/jobs",
                data={"kind": "summarize"},
                files={"file": ("a.txt", content)},
                headers={"Idempotency-Key": "key"},
            )
            for content in (b"one", b"one", b"two")
        ]
    assert [answer.status_code for answer in answers] == [202, 202, 422]


async def test_an_outage_is_a_503_and_nothing_was_promised(
    settings: Settings, tmp_path: Path
) -> None:
    nobody = settings.model_copy(update={"redis_url": SecretStr(f"unix://{tmp_path}/no.sock")})
    async with served(nobody) as client:
        for response in (
            await client.post("/jobs", json={"input": "a"}),
            await client.get("/jobs"),
            await client.get("/readyz"),
        ):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert str(tmp_path) not in response.text
        assert (await client.get("/healthz")).status_code == 200
        stream = await client.get(f"/jobs/{'0' * 32}/stream")
        assert stream.status_code == 200, "an EventSource gives up for good on anything else"
        assert "retry: " in stream.text


async def test_a_server_is_ready_when_a_worker_lives(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        idle = await client.get("/readyz")
        assert idle.status_code == 503
        assert "slowcall worker" in idle.json()["detail"]
        await store.renew("hand", [], 60, {"lease_s": 60, "since": "now"})
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["live_workers"]) == (200, 1)
        stats = (await client.get("/stats")).json()
        assert stats["live_workers"] == 1
        metrics = (await client.get("/metrics")).text
        assert "slowcall_live_workers 1.0" in metrics
        kinds = (await client.get("/kinds")).json()["kinds"]
        assert {"chat", "summarize"} <= {kind["name"] for kind in kinds}
        assert all(kind["description"] and kind["input_schema"] for kind in kinds)


async def test_a_body_that_does_not_arrive_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.bodies.BODY_S", 0.2)

    async with served(settings) as client:
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = "POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f'{head}Content-Length: 99\r\n\r\n{{"input": '.encode())
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"}")
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"did not arrive" in answer
        assert (await client.get("/jobs")).json()["jobs"] == []


async def test_a_server_below_a_path_says_where_things_are(settings: Settings) -> None:
    app = create_app(settings.model_copy(update={"api_keys": (("alice", SecretStr("a-key")),)}))

    async def below(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "root_path": "/below", "path": "/below" + scope["path"]}
        await app(scope, receive, send)

    with serving(below) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/jobs")).status_code == 401
            session = await client.post("/session", json={"key": "a-key"})
            assert "Path=/below" in session.headers["set-cookie"]
            key = {"Authorization": "Bearer a-key"}
            job = await client.post("/jobs", json={"input": "a"}, headers=key)
            assert job.headers["location"] == f"/below/jobs/{job.json()['job_id']}"
            missing = await client.get("/jobs/nothing", headers=key)
            assert missing.json()["type"].startswith("/below/openapi.json#")


async def test_a_client_that_leaves_in_a_post_leaves_a_whole_job_or_none(
    settings: Settings,
) -> None:
    """Case B18: each key has no job or a whole one, however early its sender went away."""
    free = settings.model_copy(update={"quota": 0})
    async with served(free) as client:
        body = json.dumps({"input": "a"}).encode()
        host, port = client.base_url.host, client.base_url.port
        assert port

        async def post_and_leave(number: int) -> None:
            head = (
                f"POST /jobs HTTP/1.1\r\nHost: {host}:{port}\r\nIdempotency-Key: key{number}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            _, writer = await asyncio.open_connection(host, port)
            writer.write(head.encode() + body)
            if number % 2:
                await writer.drain()
                await asyncio.sleep(0)
            writer.transport.abort()

        for start in range(0, 200, 50):
            await asyncio.gather(*(post_and_leave(n) for n in range(start, start + 50)))
        answers = [
            await client.post("/jobs", content=body, headers=JSON | {"Idempotency-Key": f"key{n}"})
            for n in range(200)
        ]
        assert {answer.status_code for answer in answers} == {202}
        ids = {answer.json()["job_id"] for answer in answers}
        assert len(ids) == 200
        listed: set[str] = set()
        cursor = ""
        while True:
            page = (await client.get("/jobs", params={"limit": 200, "cursor": cursor})).json()
            listed |= {job["job_id"] for job in page["jobs"]}
            if not (cursor := page["next_cursor"]):
                break
        assert listed == ids


async def test_a_line_of_the_ledger_says_what_was_bought_and_when(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        job_id = await submit(client)
        hand = Hand(store)
        run = await hand.start(job_id)
        await store.begin(run, call="one", step="answer", model="m", hash="h")
        (line,) = (await client.get(f"/jobs/{job_id}/ledger")).json()
        assert (line["outcome"], line["ended_at"], line["request_id"]) == ("open", None, None)
        await store.settle(
            run, Settlement("one", "answer", "h", "paid", 200, 3, 4, "req-1", value={"text": "x"})
        )
        (line,) = (await client.get(f"/jobs/{job_id}/ledger")).json()
        times = [datetime.fromisoformat(line.pop(name)) for name in ("started_at", "ended_at")]
        assert times == sorted(times)
        assert line == {
            "call": "one",
            "step": "answer",
            "attempt": 1,
            "model": "m",
            "outcome": "paid",
            "status": 200,
            "input_tokens": 3,
            "output_tokens": 4,
            "request_id": "req-1",
            "message": None,
            "idempotency_key": f"{job_id}:answer:h:0",
        }
        await hand.finish(run)
