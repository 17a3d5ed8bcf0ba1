"""Case B21: several apps in one process, each in an event loop of its own: none breaks another."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx

from tasks.settings import Settings
from tests.bench.parts import free_port
from tests.commands import environment_of
from tests.rig import store_at
from tests.serving import Hand, served, stream, submit, until


async def test_one_ends_and_the_other_goes_on(settings: Settings) -> None:
    """Side by side, each in a thread; others come, stream and end while the first one streams."""
    async with served(settings) as stays, store_at(settings) as store:
        hand, job_id = Hand(store), await submit(stays)
        path = f"/jobs/{job_id}/stream"
        run = await hand.start(job_id)
        async with stream(stays, path) as here:
            await here.events(2)
            for number in range(2):
                async with served(settings) as ends, stream(ends, path) as there:
                    await hand.say(run, f"{number} ")
                    (event,) = await here.events(1)
                    assert (await there.events(3 + number))[-1] == event
            await hand.finish(run)
            assert [event.name for event in await here.events()] == ["done"]


async def test_the_first_ends_first(settings: Settings) -> None:
    """The memory of the process stays settled for as long as any of them runs."""
    before = gc.get_threshold()
    async with store_at(settings) as store, AsyncExitStack() as stack:
        async with served(settings) as first:
            second = await stack.enter_async_context(served(settings))
            job_id = await submit(first)
            settled = gc.get_threshold()
        assert settled == gc.get_threshold() != before
        async with stream(second, f"/jobs/{job_id}/stream") as frames:
            await Hand(store).finish(await Hand(store).start(job_id))
            assert [event.name for event in await frames.events()] == ["queued", "running", "done"]
    assert gc.get_threshold() == before


IN_TURN = """
import sys, uvicorn
from server.app import create_app
from tasks.settings import load_settings
for port in sys.argv[1:]:
    uvicorn.run(create_app(load_settings()), port=int(port))
"""


async def test_one_after_the_other_where_the_signals_come(
    settings: Settings, store_url: str
) -> None:
    """Both in the main thread, each ended by Ctrl-C under an open stream, which ends cleanly."""
    ports = [free_port(), free_port()]
    process = await asyncio.to_thread(serve_in_turn, ports, settings.data_dir, store_url)
    try:
        async with store_at(settings) as store:
            for port in ports:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                    await until(partial(answers, client), "it answers", within_s=20)
                    await stop_under_a_stream(client, Hand(store), process)
        output, _ = await asyncio.to_thread(process.communicate, timeout=10)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert "ERROR" not in output


async def stop_under_a_stream(
    client: httpx.AsyncClient, hand: Hand, process: subprocess.Popen[str]
) -> None:
    """See a job live, and the server end in the middle of it."""
    job_id = await submit(client)
    async with stream(client, f"/jobs/{job_id}/stream") as frames:
        await hand.say(await hand.start(job_id), "hello")
        assert len(await frames.events(3)) == 3
        process.send_signal(signal.SIGINT)
        assert await frames.event() is None


def serve_in_turn(ports: list[int], data_dir: Path, store_url: str) -> subprocess.Popen[str]:
    """The process of it."""
    return subprocess.Popen(
        [sys.executable, "-c", IN_TURN, *map(str, ports)],
        env={**environment_of(data_dir), "REDIS_URL": store_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


async def answers(client: httpx.AsyncClient) -> bool:
    """Whether a server is there."""
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False
