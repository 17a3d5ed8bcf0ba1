"""Two servers behind an nginx as it is installed: live, resumed, and alive when a server dies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from tasks.settings import Settings
from tests.bench.parts import free_port
from tests.bench.web import listens
from tests.commands import Command
from tests.conftest import wait_until
from tests.rig import store_at
from tests.serving import Event, Frames, Hand, stream, submit

CUT_S: Final = 60.0
"""nginx's default for `proxy_read_timeout`: a stream that is silent for longer is cut."""
KEY: Final = {"Authorization": "Bearer secret"}
PING_S: Final = 0.3
OPEN: Final = "slowcall_streams_open "

# What nginx needs to run in a folder of its own (whose it is, where root runs this), and how a
# stream finds a server: nothing else.
CONFIG: Final = """
user root;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  {more}
  upstream slowcall {{ {servers} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://slowcall; }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, urls: Sequence[str], more: str = "") -> Iterator[str]:
    """An nginx before the servers at `urls`; the block gets its own."""
    binary = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert binary, "no nginx: install it (Debian: apt install nginx), no need to start it"
    port = free_port()
    named = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
    (folder / "nginx.conf").write_text(CONFIG.format(more=more, servers=named, port=port))
    log = folder / "nginx.log"
    words = [binary, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"]
    with log.open("w") as errors, subprocess.Popen(words, stderr=errors) as process:
        try:
            wait_until(lambda: listens(port) or process.poll() is not None, "nginx listens")
            assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture
def servers(store_url: str, tmp_path: Path) -> Iterator[list[Command]]:
    """Two servers on one store."""
    given = {
        "REDIS_URL": store_url,
        "SLOWCALL_API_KEYS": "admin:secret",
        "SLOWCALL_PING_S": str(PING_S),
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(Command("serve", "--port", "0", data_dir=tmp_path, **given))
            for _ in range(2)
        ]


@asynccontextmanager
async def proxied(
    settings: Settings, servers: Sequence[Command], more: str = ""
) -> AsyncIterator[tuple[httpx.AsyncClient, Hand]]:
    """A client of the servers by way of nginx, and a worker behind them, played by hand."""
    with nginx(settings.data_dir, [server.url() for server in servers], more) as url:
        async with (
            httpx.AsyncClient(base_url=url, headers=KEY, timeout=15) as client,
            store_at(settings) as store,
        ):
            yield client, Hand(store)


async def streams_of(client: httpx.AsyncClient, servers: Sequence[Command]) -> list[int]:
    """How many streams each server serves."""
    found = []
    for server in servers:
        metrics = (await client.get(f"{server.url()}/metrics")).text
        (line,) = [line for line in metrics.splitlines() if line.startswith(OPEN)]
        found.append(int(float(line.removeprefix(OPEN))))
    return found


async def one_event(frames: Frames) -> Event:
    (event,) = await frames.events(1)
    return event


async def test_each_event_comes_before_the_next_is_caused(
    settings: Settings, servers: list[Command]
) -> None:
    """Case B13: buffering is on by default; posted to one server, watched on both."""
    async with proxied(settings, servers) as (client, hand):
        job_id = await submit(client)
        path = f"/jobs/{job_id}/stream"
        async with stream(client, path) as here, stream(client, path) as there:
            assert await streams_of(client, servers) == [1, 1]
            both = (here, there)
            assert [(await one_event(frames)).name for frames in both] == ["queued"] * 2
            run = await hand.start(job_id)
            assert [(await one_event(frames)).name for frames in both] == ["running"] * 2
            for number in range(20):
                await hand.say(run, f"{number} ")
                for frames in both:
                    assert (await one_event(frames)).data["text"] == f"{number} "
            await hand.finish(run)
            for frames in both:
                assert [event.name for event in await frames.events()] == ["done"]


async def test_the_feed_comes_live_too(settings: Settings, servers: list[Command]) -> None:
    """Posts go to either server, the feed comes from one."""
    async with (
        proxied(settings, servers) as (client, _),
        stream(client, "/jobs/stream") as frames,
    ):
        for _ in range(4):
            job_id = await submit(client)
            event = await one_event(frames)
            assert (event.name, event.data["job_id"]) == ("queued", job_id)


async def test_reconnecting_loses_nothing(settings: Settings, servers: list[Command]) -> None:
    """Whoever leaves after every second event, while the job goes on, comes to the other server."""
    seen: list[Event] = []
    async with proxied(settings, servers) as (client, hand):
        job_id = await submit(client)
        path = f"/jobs/{job_id}/stream"
        run = await hand.start(job_id)
        for _ in range(8):
            await hand.say(run, "before ")
            async with stream(client, path, seen[-1].id if seen else None) as frames:
                seen += await frames.events(2)
            await hand.say(run, "between ")
        await hand.finish(run)
        async with stream(client, path, seen[-1].id) as frames:
            seen += await frames.events()
        caught_up = await client.get(path, headers={"Last-Event-ID": seen[-1].id})
        assert caught_up.status_code == 204
    assert [int(event.id) for event in seen] == list(range(1, 20))
    assert [event.name for event in seen] == ["queued", "running", *["delta"] * 16, "done"]


async def test_a_server_dies_and_the_client_goes_on(
    settings: Settings, servers: list[Command]
) -> None:
    """The one that a terminal watches by is killed -9; the other one serves it, and all posts."""
    async with proxied(settings, servers) as (client, hand):
        job_id = await submit(client)
        run = await hand.start(job_id)
        asked = {"SLOWCALL_URL": str(client.base_url), "SLOWCALL_KEY": "secret"}
        with Command("watch", job_id, "--json", data_dir=settings.data_dir, **asked) as terminal:
            await said(terminal, "running")
            streams = await streams_of(client, servers)
            serving = servers[streams.index(1)]
            await hand.say(run, "before it dies")
            await said(terminal, "before it dies")
            serving.signal(signal.SIGKILL)
            serving.ends()
            await hand.say(run, "after it died")
            await said(terminal, "after it died")
            for _ in range(4):
                await submit(client)
            await hand.finish(run)
            assert await asyncio.to_thread(terminal.ends) == 0
    names = [json.loads(line)["event"] for line in terminal.lines if line.startswith("{")]
    assert names == ["queued", "running", "delta", "delta", "done"]


async def said(terminal: Command, text: str) -> None:
    """Wait until the terminal says it."""
    await asyncio.to_thread(terminal.find, text)


async def test_a_stream_on_which_nothing_happens_is_kept(
    settings: Settings, servers: list[Command]
) -> None:
    """nginx cuts a silent one after a minute; here after a second."""
    assert settings.ping_s <= CUT_S / 4
    async with proxied(settings, servers, "proxy_read_timeout 1s;") as (client, hand):
        job_id = await submit(client)
        async with stream(client, f"/jobs/{job_id}/stream?after=1") as frames:
            begun = time.monotonic()
            while time.monotonic() - begun < 3:
                assert await frames.frame(within_s=1) in (b"retry: 2000", b":")
            await hand.finish(await hand.start(job_id))
            assert [event.id for event in await frames.events()] == ["2", "3"]


async def test_a_document_of_some_megabytes_passes(
    settings: Settings, servers: list[Command]
) -> None:
    """With the one setting that the README names for it; nginx keeps it in a file on its way."""
    document = b"A line of a long document.\n" * 100_000
    async with proxied(settings, servers, "client_max_body_size 20m;") as (client, _):
        posted = await client.post(
            "/jobs", files={"file": ("long.txt", document)}, data={"kind": "summarize"}
        )
        assert posted.status_code == 202, posted.text
