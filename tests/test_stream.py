"""Streams as clients see them: every id once and in order, resumed, and ended cleanly."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import orjson
import pytest
import redis
from pydantic import SecretStr

from server.listen import GONE_S, listen
from server.valkey import EmbeddedStore
from tasks.lifecycle import RETRY
from tasks.settings import Settings
from tasks.store import Store
from tests.crew import crew
from tests.endpoint import Endpoint, Pause, Request, Script, answered
from tests.rig import store_at
from tests.serving import Event, Frames, Hand, ask_plainly, served, stream, submit, until


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def ids(events: list[Event]) -> list[int]:
    return [int(event.id) for event in events]


async def test_the_whole_story_is_told_live(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        async with stream(client, f"/jobs/{job_id}/stream") as frames:
            assert await frames.frame() == b"retry: 2000"
            (queued,) = await frames.events(1)
            assert queued.data == (await client.get(f"/jobs/{job_id}")).json()
            run = await hand.start(job_id)
            await hand.say(run, "The first ")
            await store.requeue(run, RETRY, reason="transient")
            run = await hand.start(job_id)
            await hand.say(run, "one\u2028two\u0085three")
            await hand.finish(run, "one\u2028two\u0085three")
            events = [queued, *await frames.events()]
    assert names(events) == ["queued", "running", "delta", "retrying", "running", "delta", "done"]
    assert ids(events) == [1, 2, 3, 4, 5, 6, 7]
    assert events[3].data["reason"] == "transient"
    assert events[5].data == {"job_id": job_id, "step": "answer", "text": "one\u2028two\u0085three"}
    assert events[6].data["result"]["text"] == "one\u2028two\u0085three"


async def test_a_finished_job_is_replayed_and_a_caught_up_client_sent_away(
    settings: Settings,
) -> None:
    async with served(settings) as client, store_at(settings) as store:
        path = f"/jobs/{await a_done_job(client, store, deltas=3)}/stream"
        async with stream(client, path) as frames:
            assert ids(await frames.events()) == [1, 2, 3, 4, 5, 6]
        for after in ("0", "1", "5"):
            async with stream(client, path, after) as frames:
                assert ids(await frames.events()) == list(range(int(after) + 1, 7))
        for reconnect in (
            client.get(path, headers={"Last-Event-ID": "6"}),
            client.get(f"{path}?after=6"),
            client.get(f"{path}?after=2", headers={"Last-Event-ID": "6"}),
        ):
            assert (await reconnect).status_code == 204
        async with stream(client, f"{path}?after=4", "") as frames:
            assert ids(await frames.events()) == [5, 6]


JUNK = [
    "-1",
    "abc",
    "7",
    "999999999",
    "9" * 40,
    "1.0",
    "1-0",
    "999999999-0",
    "x" * 10_000,
    "\xff\xfe",
]


async def test_a_cursor_that_is_no_place_in_the_log_gets_a_snapshot(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand = Hand(store)
        done = await a_done_job(client, store, deltas=3)
        running = await submit(client)
        run = await hand.start(running)
        for junk in JUNK:
            headers = [(b"Last-Event-ID", junk.encode("latin-1"))]
            response = await client.get(f"/jobs/{done}/stream", headers=headers)
            assert response.status_code == 200, junk
            assert b"id: 6\nevent: snapshot\ndata: {" in response.content, junk
        async with stream(client, f"/jobs/{running}/stream?after=77") as frames:
            (snapshot,) = await frames.events(1)
            assert (snapshot.id, snapshot.name, snapshot.data["status"]) == (
                "2",
                "snapshot",
                "running",
            )
            await hand.finish(run)
            assert ids(await frames.events()) == [3]


@pytest.mark.writes_by_hand
async def test_a_log_that_begins_anew_gets_a_snapshot_a_vanished_one_ends(
    settings: Settings, store_url: str
) -> None:
    """Case B8: everything is lost while a client watches."""
    quick = settings.model_copy(update={"ping_s": 0.2})
    async with served(quick) as client, store_at(settings) as store:
        job_id = await submit(client)
        await Hand(store).start(job_id)
        async with stream(client, f"/jobs/{job_id}/stream") as frames:
            assert ids(await frames.events(2)) == [1, 2]
            with redis.Redis.from_url(store_url) as raw:
                raw.hset(f"slowcall:job:{job_id}", "seq", 1)
                raw.xtrim(f"slowcall:log:{job_id}", maxlen=0)
            (snapshot,) = await frames.events(1)
            assert (snapshot.id, snapshot.name) == ("1", "snapshot")
            with redis.Redis.from_url(store_url) as raw:
                raw.flushall()
            assert await frames.event() is None


async def test_long_logs_are_read_in_pages(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.tails.PAGE", 50)
    async with served(settings) as client, store_at(settings) as store:
        deltas = 97  # with the others exactly two pages
        job_id = await a_done_job(client, store, deltas=deltas)
        async with stream(client, f"/jobs/{job_id}/stream") as frames:
            assert ids(await frames.events()) == list(range(1, deltas + 4))


async def test_a_new_life_is_followed_and_ends_with_its_own_end(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        await hand.fail(await hand.start(job_id))
        assert (await client.post(f"/jobs/{job_id}/retry")).status_code == 202
        async with stream(client, f"/jobs/{job_id}/stream") as frames:
            events = await frames.events(4)
            assert names(events) == ["queued", "running", "failed", "queued"]
            await hand.finish(await hand.start(job_id))
            assert names(await frames.events()) == ["running", "done"]


async def test_every_kind_of_lost_message_is_read_from_the_log(
    settings: Settings, store_url: str
) -> None:
    """Cases B1 and B2: the subscription dies again and again while the job runs and ends."""
    async with served(settings) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        with redis.Redis.from_url(store_url) as raw:
            async with stream(client, f"/jobs/{job_id}/stream") as frames:
                await frames.events(1)
                run = await hand.start(job_id)
                for number in range(30):
                    if number % 3 == 0:
                        raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                    await hand.say(run, f"{number} ")
                raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                await hand.finish(run)
                assert ids(await frames.events()) == list(range(2, 34))


@pytest.mark.writes_by_hand
async def test_a_message_lost_without_a_trace_is_found_by_the_next_ping(
    settings: Settings, store_url: str
) -> None:
    """What the hub never hears of: the log and the record move on, and nothing is published."""
    quick = settings.model_copy(update={"ping_s": 0.3})
    async with served(quick) as client, store_at(settings) as store:
        job_id = await submit(client)
        await Hand(store).start(job_id)
        async with stream(client, f"/jobs/{job_id}/stream") as frames:
            await frames.events(2)
            with redis.Redis.from_url(store_url) as raw:
                block = b'event: done\ndata: {"status": "done"}\n\n'
                raw.xadd(f"slowcall:log:{job_id}", {"b": block}, id="3-0")
                raw.hset(f"slowcall:job:{job_id}", mapping={"seq": 3, "status": '"done"'})
            assert names(await frames.events()) == ["done"]


async def test_a_thousand_streams_opened_right_after_the_202_miss_nothing(
    settings: Settings,
) -> None:
    """Case B1: a real worker and a model that answers within 0 to 5 ms; the jobs run and end while
    their streams are opened."""
    free = settings.model_copy(update={"quota": 0, "ai_model": "m"})
    posting = asyncio.Semaphore(50)
    dice = random.Random(1)

    async def watch(client: httpx.AsyncClient) -> bytes:
        async with posting:
            answer = await ask_plainly(client, "POST /jobs", b'{"input": "hello"}')
        return await ask_plainly(client, f"GET {orjson.loads(answer)['links']['stream']}")

    def quick(request: Request) -> Script:
        return [Pause(dice.random() * 0.005), *answered("text")]

    with Endpoint(quick) as endpoint:
        async with served(free) as client, crew(free, endpoint.url):
            stories = await asyncio.gather(*(watch(client) for _ in range(1000)))
    for story in stories:
        numbers = [int(number) for number in re.findall(rb"^id: (.*)$", story, re.M)]
        assert numbers == list(range(1, len(numbers) + 1))
        words = re.findall(rb"^event: (.*)$", story, re.M)
        assert (len(words), words.count(b"done")) == (len(numbers), 1)
        assert (words[:2], words[-1]) == ([b"queued", b"running"], b"done")


async def test_posted_to_one_server_and_watched_on_another(settings: Settings) -> None:
    async with served(settings) as one, served(settings) as two, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(one)
        path = f"/jobs/{job_id}/stream"
        async with stream(one, path) as here, stream(two, path) as there:
            await hand.finish(await hand.start(job_id))
            assert await here.events() == await there.events()


async def test_the_feed_tells_of_all_jobs_and_resumes(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand = Hand(store)
        old = await submit(client)
        async with stream(client, "/jobs/stream") as frames:
            assert await frames.frame() == b"retry: 2000"
            place = await frames.frame()
            assert place
            assert place.startswith(b"id: "), "a place to resume from, though nothing happened yet"
            run = await hand.start(old)
            await hand.say(run, "no delta is in the feed")
            new = await submit(client, user_id="somebody")
            events = await frames.events(2)
        assert [(e.name, e.data["job_id"]) for e in events] == [("running", old), ("queued", new)]
        await hand.finish(run)
        for after in (place[4:].decode(), events[0].id, events[1].id):
            async with stream(client, "/jobs/stream", after) as frames:
                last = (await frames.events(3 if after == place[4:].decode() else 1))[-1]
                if after == events[0].id:
                    (last,) = await frames.events(1)
                assert (last.name, last.data["job_id"]) == ("done", old)
        async with stream(client, "/jobs/stream?user_id=somebody") as frames:
            await submit(client, user_id="local")
            await submit(client, user_id="somebody")
            (event,) = await frames.events(1)
            assert event.data["user_id"] == "somebody"


async def test_what_is_posted_once_a_stream_is_open_comes_in_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it begins is known before its head is sent, however slow the store is: read after it,
    the place was behind a job that came at once, and nobody heard of that."""
    read = Store.feed_position

    async def read_slowly(store: Store, user_id: str | None) -> str:
        await asyncio.sleep(0.3)
        return await read(store, user_id)

    monkeypatch.setattr(Store, "feed_position", read_slowly)
    async with served(settings) as client, stream(client, "/jobs/stream") as frames:
        job_id = await submit(client)
        (event,) = await frames.events(1)
        assert (event.name, event.data["job_id"]) == ("queued", job_id)


async def test_a_place_that_is_gone_from_the_feed_gets_snapshots(settings: Settings) -> None:
    async with served(settings) as client:
        async with stream(client, "/jobs/stream", "junk") as frames:
            assert await frames.frame() == b"retry: 2000"
            assert await frames.frame() == b"id: 0-0", "no jobs: only a place"
        ids = [await submit(client) for _ in range(3)]
        for junk in ("junk", "99999999999999-0", "1-1", "none"):
            async with stream(client, "/jobs/stream", junk) as frames:
                shown = await frames.events(3)
                assert set(names(shown)) == {"snapshot"}, junk
                assert [event.data["job_id"] for event in shown] == ids
                later = await submit(client, user_id=junk)
                (queued,) = await frames.events(1)
                assert queued.data["job_id"] == later
                await client.post(f"/jobs/{later}/cancel")
                await frames.events(1)
                await client.delete(f"/jobs/{later}")


async def test_discarded_jobs_do_not_hold_up_the_feed(settings: Settings) -> None:
    async with served(settings) as client:
        first = await submit(client)
        async with stream(client, "/jobs/stream", "junk") as frames:
            (start,) = await frames.events(1)
        for _ in range(5):
            gone = await submit(client)
            await client.post(f"/jobs/{gone}/cancel")
            await client.delete(f"/jobs/{gone}")
        await client.post(f"/jobs/{first}/cancel")
        async with stream(client, "/jobs/stream", start.id) as frames:
            (event,) = await frames.events(1)
            assert (event.name, event.data["job_id"]) == ("cancelled", first)


async def test_the_first_bytes_leave_at_once_and_keep_alives_follow(settings: Settings) -> None:
    """Cases B12 and B14: no worker, nothing happens, and the client would take compressed bytes."""
    quick = settings.model_copy(update={"ping_s": 0.3})
    async with served(quick) as client:
        job_id = await submit(client)
        for path in (f"/jobs/{job_id}/stream?after=1", "/jobs/stream"):
            begun = time.monotonic()
            async with stream(client, path) as frames:
                headers = frames.response.headers
                assert await frames.frame(within_s=1) == b"retry: 2000"
                assert headers["content-type"].startswith("text/event-stream")
                assert headers["cache-control"] == "no-store"
                assert headers["x-accel-buffering"] == "no"
                assert "content-encoding" not in headers
                while await frames.frame(within_s=1) != b":":
                    assert time.monotonic() - begun < 2


async def test_a_head_gets_headers_and_leaves_nothing_behind(
    settings: Settings, store_url: str
) -> None:
    async with served(settings) as client:
        path = f"/jobs/{await submit(client)}/stream"
        for _ in range(50):
            response = await client.head(path)
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
        assert (await client.post(path)).status_code == 405
        with redis.Redis.from_url(store_url) as raw:
            assert raw.pubsub_numsub(path.replace("/jobs/", "slowcall:events:")[:-7])[0][1] == 0


async def test_closed_streams_leave_nothing_behind(settings: Settings, store_url: str) -> None:
    """Case B19: closed by the client, half of them by a reset, at every moment of a stream."""
    async with served(settings) as client:
        job_id = await submit(client)
        host, port = client.base_url.host, client.base_url.port
        request = f"GET /jobs/{job_id}/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()

        async def open_and_leave(number: int) -> None:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            if number % 4 > 1:
                await reader.readuntil(b"event: queued")
            if number % 2:
                writer.transport.abort()
            writer.close()

        for start in range(0, 400, 100):
            await asyncio.gather(*(open_and_leave(n) for n in range(start, start + 100)))

        with redis.Redis.from_url(store_url) as raw:

            async def nobody_listens() -> bool:
                return int(raw.pubsub_numsub(f"slowcall:events:{job_id}")[0][1]) == 0

            await until(nobody_listens, "all subscriptions are gone")
            assert len(raw.client_list(_type="pubsub")) <= 1
        streams = (await client.get("/metrics")).text.splitlines()
        assert "slowcall_streams_open 0.0" in streams


async def test_open_streams_take_no_connection_that_a_post_needs(settings: Settings) -> None:
    free = settings.model_copy(update={"quota": 0})
    async with served(free) as client:
        host, port = client.base_url.host, client.base_url.port
        path = f"/jobs/{await submit(client)}/stream"

        async def open_stream() -> asyncio.StreamWriter:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            await reader.readuntil(b"event: queued")
            return writer

        writers = await asyncio.gather(*(open_stream() for _ in range(500)))
        for _ in range(20):
            assert (await client.post("/jobs", json={"input": "a"})).status_code == 202
        for writer in writers:
            writer.transport.abort()


async def test_no_seat_is_a_stream_that_says_so_and_ends(settings: Settings) -> None:
    full = settings.model_copy(update={"max_streams": 1})
    async with served(full) as client:
        path = f"/jobs/{await submit(client)}/stream"
        async with stream(client, path) as frames:
            await frames.events(1)
            refused = await client.get(path)
            assert refused.status_code == 200, "an EventSource gives up for good on anything else"
            assert refused.text.startswith("retry: ")
            assert "SLOWCALL_MAX_STREAMS" in refused.text
            assert "event:" not in refused.text


async def test_a_slow_reader_gets_everything_from_the_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mailbox overflows while its connection takes nothing."""
    monkeypatch.setattr("server.watch.MAILBOX", 20)
    async with served(settings) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        path = f"/jobs/{job_id}/stream"
        async with stream(client, path) as slow:
            await slow.events(1)
            run = await hand.start(job_id)
            text = "x" * 100_000
            for _ in range(200):
                await hand.say(run, text)
            await hand.finish(run)
            assert ids(await slow.events()) == list(range(2, 204))


async def test_a_client_that_stopped_reading_is_let_go(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case B5: it keeps its connection open and takes nothing."""
    monkeypatch.setattr("server.stream.SEND_S", 0.3)
    async with served(settings) as client, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(client)
        host, port = client.base_url.host, client.base_url.port
        request = f"GET /jobs/{job_id}/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        reader, writer = await asyncio.open_connection(host, port, limit=1000)
        writer.write(request.encode())
        await reader.readuntil(b"event: queued")
        run = await hand.start(job_id)
        for _ in range(200):
            await hand.say(run, "x" * 100_000)

        async def let_go() -> bool:
            return "slowcall_streams_open 0.0" in (await client.get("/metrics")).text

        await until(let_go, "the stream is given up")
        writer.transport.abort()


def test_a_peer_that_vanished_is_let_go_by_the_system() -> None:
    """Case B5: no FIN ever comes. Connections have it from the socket that they came in by."""
    with listen("127.0.0.1", 0) as door, socket.create_connection(door.getsockname()):
        accepted, _ = door.accept()
        with accepted:
            if sys.platform == "linux":
                option = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert option == GONE_S * 1000


async def test_streams_outlive_the_store(settings: Settings, tmp_path: Path) -> None:
    """Case B3: Redis is killed and comes back; each stream goes on where it was."""
    with EmbeddedStore(tmp_path / "own") as valkey:
        own = settings.model_copy(update={"redis_url": SecretStr(valkey.url)})
        async with served(own) as client, store_at(own) as store:
            hand, job_id = Hand(store), await submit(client)
            run = await hand.start(job_id)
            path = f"/jobs/{job_id}/stream"
            opened = [client.stream("GET", path) for _ in range(20)]
            responses = await asyncio.gather(*(one.__aenter__() for one in opened))
            readers = [Frames(response) for response in responses]
            for reader in readers:
                assert ids(await reader.events(2)) == [1, 2]
            assert valkey.pid
            os.kill(valkey.pid, signal.SIGKILL)

            async def back() -> bool:
                return (await client.get("/jobs")).status_code == 200

            await until(back, "the store is back")
            await hand.say(run, "text")
            await hand.finish(run)
            for reader in readers:
                assert ids(await reader.events()) == [3, 4]


async def a_done_job(client: httpx.AsyncClient, store: Store, deltas: int) -> str:
    hand, job_id = Hand(store), await submit(client)
    run = await hand.start(job_id)
    for number in range(deltas):
        await hand.say(run, f"{number} ")
    await hand.finish(run)
    return job_id


BY_RUN = "import uvicorn, sys; uvicorn.run('server.app:app', port=int(sys.argv[1]))"
STARTS: dict[str, list[str]] = {
    "uvicorn module:app": ["-m", "uvicorn", "server.app:app", "--port"],
    "uvicorn.run": ["-c", BY_RUN],
    "two processes": ["-m", "uvicorn", "server.app:app", "--workers", "2", "--port"],
}


def started(start: str, port: int, store_url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *STARTS[start], str(port)],
        env={"REDIS_URL": store_url, "PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("start", STARTS)
async def test_a_stopped_server_ends_its_streams_cleanly(
    settings: Settings, store_url: str, start: str
) -> None:
    """Case B6: within 5 s, no cut transfer, no traceback, and nothing is lost by reconnecting."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.to_thread(started, start, port, store_url)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:

            async def answers() -> bool:
                try:
                    return (await client.get("/healthz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(answers, "the server answers", within_s=20)
            path = f"/jobs/{await submit(client)}/stream"
            streams = [client.stream("GET", path) for _ in range(50)]
            responses = await asyncio.gather(*(opened.__aenter__() for opened in streams))
            readers = [Frames(response) for response in responses]
            assert {(await reader.events(1))[0].id for reader in readers} == {"1"}
            wait = {"Prefer": "wait=60"}
            waiting = asyncio.create_task(client.get(path.removesuffix("/stream"), headers=wait))
            await asyncio.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            ends = await asyncio.gather(*(reader.event(within_s=8) for reader in readers))
            assert set(ends) == {None}, "every body ends cleanly"
            assert (await waiting).json()["status"] == "queued"
            output, _ = await asyncio.to_thread(process.communicate, timeout=8)
            assert time.monotonic() - begun < 5
        assert "Traceback" not in output
        assert "ERROR" not in output
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
