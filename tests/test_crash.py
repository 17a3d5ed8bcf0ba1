"""A server killed -9 at each word it has with Redis in a POST: no job is lost, none made twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

import httpx
import pytest

from server.app import create_app
from tasks.settings import Settings
from tasks.store.wire import Wire
from tests.conftest import serving
from tests.crew import crew, ended
from tests.endpoint import Endpoint, answered
from tests.rig import store_at
from tests.serving import served

Moment = Literal["before it is said", "after the answer"]
MOMENTS: Final[tuple[Moment, ...]] = ("before it is said", "after the answer")
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def serve_until(settings: Settings, moment: Moment, nth: int, told: Connection) -> None:
    """Serve until the `nth` word to Redis since a POST came in; the process dies there."""
    words = dict.fromkeys(MOMENTS, 0)
    armed = False

    def deadly(when: Moment, verb: Callable[..., Any]) -> Callable[..., Any]:
        def spoken(*args: Any) -> None:
            if when == MOMENTS[1]:
                verb(*args)
            words[when] += armed
            if when == moment and words[when] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == MOMENTS[0]:
                verb(*args)

        return spoken

    for name, when in (("send", MOMENTS[0]), ("data_received", MOMENTS[1])):
        setattr(Wire, name, deadly(when, getattr(Wire, name)))
    app = create_app(settings)

    async def arming(scope: Any, receive: Any, send: Any) -> None:
        nonlocal armed
        armed = armed or scope.get("method") == "POST"
        await app(scope, receive, send)

    with serving(arming) as url:
        told.send(url)
        time.sleep(60)


def key_of(moment: Moment, nth: int) -> str:
    """The idempotency key of the post that meets this moment."""
    return f"{nth}-{moment}".replace(" ", "-")


def post(settings: Settings, moment: Moment, nth: int) -> bool:
    """Post to a server that dies at that moment; whether it lived to answer."""
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=serve_until, args=(settings, moment, nth, there))
    process.start()
    try:
        assert here.poll(30), "the server starts"
        headers = {"Idempotency-Key": key_of(moment, nth)}
        httpx.post(f"{here.recv()}/jobs", json={"input": "x"}, headers=headers, timeout=20)
        return True
    except httpx.TransportError:
        process.join(20)
        assert process.exitcode == -signal.SIGKILL
        return False
    finally:
        process.kill()
        process.join()


@pytest.mark.timeout(120)
async def test_a_post_that_is_broken_off_can_be_made_again(settings: Settings) -> None:
    """Case D5: the repeat makes the job or finds it; it runs, and counts once."""
    deaths = 0
    keys = []
    for nth in count(1):
        lived = [post(settings, moment, nth) for moment in MOMENTS]
        keys += [key_of(moment, nth) for moment in MOMENTS]
        deaths += lived.count(False)
        if all(lived):
            break
        assert nth < 20, "a POST has few words with Redis"
    assert deaths >= 2, "before and after the one script"

    quota = settings.model_copy(update={"quota": len(keys)})
    async with served(quota) as client, store_at(settings) as store:
        answers = [
            await client.post("/jobs", json={"input": "x"}, headers={"Idempotency-Key": key})
            for key in keys
        ]
        assert {answer.status_code for answer in answers} == {202}
        jobs = {answer.json()["job_id"] for answer in answers}
        assert len(jobs) == len(keys)
        assert (await client.post("/jobs", json={"input": "y"})).status_code == 429
        listed = (await client.get("/jobs")).json()["jobs"]
        assert {job["job_id"] for job in listed} == jobs
        with Endpoint(answered("fine")) as endpoint:
            async with crew(settings.model_copy(update={"ai_model": "m"}), endpoint.url):
                assert {job["status"] for job in await ended(store, jobs)} == {"done"}
            assert len(endpoint.requests) == len(keys)
