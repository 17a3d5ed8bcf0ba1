"""Log lines: one for each transition, whoever made it, all in one form."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tasks.lifecycle import FAIL
from tasks.logs import configure_logging
from tasks.settings import RetryRule, Settings
from tests.conftest import LabModel
from tests.crew import crew, ended
from tests.rig import a_job, store_at
from tests.serving import Hand, served, until

Log = Callable[[], list[dict[str, Any]]]
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def log() -> Iterator[Log]:
    """The lines of this process as a machine reads them; afterwards its logging is as it was."""
    root, lines = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers, root.level
    configure_logging("test", stream=lines)
    yield lambda: [json.loads(line) for line in lines.getvalue().splitlines()]
    root.handlers, root.level = handlers, level


def story(log: Log, job_id: str) -> list[tuple[str, int, str | None]]:
    """The transitions of a job as the log tells them: status, attempt, reason."""
    mine = [line for line in log() if line.get("job_id") == job_id]
    assert {(line["user_id"], line["kind"]) for line in mine} == {("local", "chat")}
    return [(line["status"], line["attempt"], line.get("reason")) for line in mine]


async def test_each_transition_is_one_line_that_says_which_job(
    settings: Settings, lab: LabModel, log: Log
) -> None:
    lab.misbehave({"match": "secret plans", "times": 1, "status": 500, "message": "secret plans"})
    headers = {"traceparent": CALLER}
    async with served(settings) as client, store_at(settings) as store, crew(settings, lab.url):
        body = {"input": "my secret plans"}
        job_id = (await client.post("/jobs", json=body, headers=headers)).json()["job_id"]
        await ended(store, [job_id])
        await client.post(f"/jobs/{job_id}/retry")
    told = story(log, job_id)
    told.remove(("queued", 0, None))  # the server's line, which nobody orders among the worker's
    assert told == [
        ("running", 1, None),
        ("retrying", 1, "transient"),
        ("running", 2, None),
        ("done", 2, None),
    ]
    mine = [line for line in log() if line.get("job_id") == job_id]
    assert {line["trace_id"] for line in mine} == {CALLER[3:35]}
    assert "secret plans" not in json.dumps(log()), "no prompt text"


async def test_what_a_person_decides_is_a_line(settings: Settings, log: Log) -> None:
    async with served(settings) as client, store_at(settings) as store:
        body, headers = {"input": "x"}, {"traceparent": CALLER}
        job_id = (await client.post("/jobs", json=body, headers=headers)).json()["job_id"]
        hand = Hand(store)
        await hand.fail(await hand.start(job_id))
        await client.post(f"/jobs/{job_id}/retry")
        await client.post(f"/jobs/{job_id}/cancel")
    assert story(log, job_id) == [
        ("queued", 0, None),
        ("queued", 0, "retried by a person"),
        ("cancelled", 0, None),
    ]
    mine = [line for line in log() if line.get("job_id") == job_id]
    assert {line["trace_id"] for line in mine} == {CALLER[3:35]}


async def test_what_happens_while_nobody_runs_a_job_is_a_line(
    settings: Settings, lab: LabModel, log: Log
) -> None:
    own = settings.model_copy(
        update={"lease_s": 0.5, "auto_retry": (RetryRule("transient", 0.1, 1),)}
    )
    async with store_at(own) as store:

        async def posted(**more: Any) -> str:
            new = a_job("chat", **more)
            return (await store.submit(new, trace={"traceparent": CALLER})).job.job_id

        once, twice, damaged, ruled = [await posted(max_attempts=n) for n in (1, 2, 3, 4)]
        claimed, _ = await store.claim("dies", ["chat"], 9, 0.01)
        runs = {entry.job_id: entry.run for entry in claimed}
        run = runs[ruled]
        assert run is not None
        await store.conclude(run, FAIL, problem=("transient", "no", None))
        await store.redis.hset(f"slowcall:job:{damaged}", "deaths", "x")  # type: ignore[misc]
        expired = await posted(expires_s=0.01)
        async with crew(own, lab.url):

            async def ruled_is_done() -> bool:
                return (await store.read(ruled)).status == "done"

            await until(ruled_is_done, "the rule's second life ends well")
            jobs = await ended(store, [expired, once, twice, damaged])
    assert [job["status"] for job in jobs] == ["failed", "failed", "done", "failed"]
    assert story(log, expired) == [("failed", 0, "timeout")]
    assert story(log, once) == [("failed", 1, "lost")]
    expected = [("retrying", 2, "lost"), ("running", 2, None), ("done", 2, None)]
    assert story(log, twice) == expected
    assert story(log, damaged)[-1] == ("failed", 1, "permanent")
    assert story(log, ruled)[0] == ("queued", 0, "retried by a rule")
    told = [line for line in log() if "status" in line]
    assert {line.get("trace_id") for line in told} == {CALLER[3:35]}


def test_the_libraries_speak_in_the_same_form(log: Log) -> None:
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("arq.worker").warning("job expired")
    logging.getLogger("uvicorn.access").info("a line for each request says less than ours")
    try:
        raise ValueError("here")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    first, second, third = log()
    assert (first["logger"], first["message"]) == (
        "uvicorn.error",
        "Invalid HTTP request received.",
    )
    assert (second["level"], second["part"]) == ("warning", "test")
    assert second["time"].endswith("Z")
    assert "ValueError: here" in third["traceback"]


class Terminal(io.StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


def test_a_person_reads_plain_lines(log: Log) -> None:
    terminal = Terminal()
    configure_logging("worker-1", stream=terminal)
    about = {"job_id": "j1", "attempt": 2, "status": "running"}
    logging.getLogger("slowcall.job").info("job running", extra=about)
    (line,) = terminal.getvalue().splitlines()
    assert line.endswith("worker-1 INFO job running job_id=j1 attempt=2 status=running")
