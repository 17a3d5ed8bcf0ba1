"""The terminal client: what it submits, how it follows, what it says and leaves with."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from server import terminal, terminal_client
from server.terminal import request
from server.terminal_client import Event, Refused, Server, events
from server.terminal_view import Streamed, description, printable
from tasks.settings import Settings
from tests.commands import Command, run

JOB = {
    "job_id": "j1", "status": "running", "attempts": 1, "max_attempts": 3, "error": None,
    "queue_position": None, "progress": {"done": 0, "total": None, "note": ""},
    "retry_at": None, "result": None, "ledger": {"paid": 1, "reused": 0},
}  # fmt: skip
DONE = JOB | {"status": "done", "result": {"text": "THE TEXT", "source": "lab"}}
AT = "2026-01-02T12:05:06.789Z"


def frame(number: int, name: str, data: dict[str, Any]) -> str:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("hello", None, {"kind": "chat", "input": "hello"}),
        ("hello", "summarize", {"kind": "summarize", "input": {"text": "hello"}}),
        ("hello", "agent", {"kind": "agent", "input": {"goal": "hello"}}),
        ("hello", "mine", {"kind": "mine", "input": "hello"}),
        ("-", None, {"kind": "chat", "input": "from a pipe"}),
        ("x" * 5000, None, {"kind": "chat", "input": "x" * 5000}),
    ],
)
def test_a_text_becomes_the_input_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, source: str, kind: str | None, expected: dict[str, Any]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert request(source, kind) == {"json": expected}


def test_a_file_is_summarized_unless_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("# Report")
    assert request(str(path), None) == {
        "data": {"kind": "summarize"},
        "files": {"file": ("report.md", b"# Report", "text/markdown")},
    }
    assert request(str(path), "chat") == {"json": {"kind": "chat", "input": "# Report"}}


def test_events_are_read_however_they_are_split() -> None:
    text = ": ping\n\nretry: 2000\n\n" + frame(1, "queued", {"a": "b\u2028c: d"}) + ":\n\n"
    raw = (text + frame(2, "done", {})).encode()
    expected = [Event("1", "queued", {"a": "b\u2028c: d"}), Event("2", "done", {})]
    for size in range(1, len(raw) + 1):
        pieces = (raw[start : start + size] for start in range(0, len(raw), size))
        assert list(events(pieces)) == expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"status": "running"}, "running, attempt 1 of 3"),
        ({"status": "running", "attempts": 2}, "running, attempt 2 of 3"),
        ({"status": "queued"}, "queued"),
        ({"status": "queued", "queue_position": 3}, "queued, number 3"),
        (
            {"status": "retrying", "retry_at": AT, "reason": "lost"},
            "retrying after attempt 1 of 3 (lost), again at 13:05:06",
        ),
        (
            {"status": "retrying", "retry_at": AT, "reason": "rate_limited", "attempts": 0},
            "retrying (rate_limited), again at 13:05:06",
        ),
        (
            {"status": "retrying", "retry_at": AT, "error": {"type": "timeout"}},
            "retrying after attempt 1 of 3 (timeout), again at 13:05:06",
        ),
    ],
)
def test_a_status_in_words(here: None, job: dict[str, Any], expected: str) -> None:
    assert description(JOB | job) == expected


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place an hour before Greenwich."""
    monkeypatch.setenv("TZ", "HERE-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_text_of_one_step_is_shown_at_a_time() -> None:
    streamed = Streamed()
    seen = []
    for name, step, text in (
        ("delta", "one", "a"), ("delta", "two", "x"), ("delta", "one", "b"), ("progress", "", ""),
        ("delta", "two", "y"), ("delta", "one", "c"), ("running", "", ""), ("delta", "one", "d"),
    ):  # fmt: skip
        streamed.hear(Event("1", name, {"step": step, "text": text}))
        seen.append(streamed.shown)
    assert seen == ["a", "a", "ab", "ab", "xy", "xy", "", "d"]


def test_a_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\r\n\tc\x9b") == "a[31mb\n\tc"


class Script:
    """A server that answers each GET of the stream by the next of its scripted parts."""

    def __init__(self, *parts: str | int) -> None:
        self.parts = list(parts)
        self.seen: list[str | None] = []
        self.job = DONE
        self.live_workers = 1
        self.app = Starlette(
            routes=[
                Route("/jobs/j1/stream", self.stream),
                Route("/jobs/j1", self.read),
                Route("/stats", self.stats),
            ]
        )

    async def read(self, _: Request) -> Response:
        return JSONResponse(self.job)

    async def stats(self, _: Request) -> Response:
        return JSONResponse({"live_workers": self.live_workers})

    async def stream(self, request: Request) -> Response:
        self.seen.append(request.headers.get("last-event-id"))
        part = self.parts.pop(0)
        if isinstance(part, int):
            problem = {"title": "No", "detail": "There is no such job."}
            return JSONResponse(problem, status_code=part) if part != 204 else Response(None, 204)
        return Response(part, media_type="text/event-stream")


@pytest.fixture
def server_of(
    serve_app: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Script], Settings]:
    monkeypatch.setattr(terminal_client, "backoff_s", lambda _: 0.0)
    return lambda script: Settings(url=serve_app(script.app))


def test_a_lost_stream_is_taken_up_where_it_ended(
    server_of: Callable[[Script], Settings],
) -> None:
    script = Script(
        frame(1, "queued", JOB) + frame(2, "running", JOB), 503,
        frame(3, "retrying", JOB) + "id: 4\nevent: run", frame(4, "done", DONE), 204,
    )  # fmt: skip
    with Server(server_of(script)) as server:
        seen = [event and event.name for event in server.follow("j1")]
    assert seen == ["queued", "running", None, None, "retrying", None, "done"]
    assert script.seen == [None, "2", "2", "3", "4"]


def test_a_second_life_is_followed_to_its_end(server_of: Callable[[Script], Settings]) -> None:
    lives = [("queued", JOB), ("failed", JOB), ("queued", JOB), ("done", DONE)]
    script = Script("".join(frame(n, *life) for n, life in enumerate(lives, 1)), 204)
    with Server(server_of(script)) as server:
        assert [event.name for event in server.follow("j1") if event] == [n for n, _ in lives]


def test_a_refusal_is_told_in_the_words_of_the_server(
    server_of: Callable[[Script], Settings],
) -> None:
    with (
        Server(server_of(Script(404))) as server,
        pytest.raises(Refused, match="404: There is no such job"),
    ):
        list(server.follow("j1"))


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        (DONE, 0, "done: 1 bought, 0 reused (lab)"),
        (
            JOB | {"status": "failed", "attempts": 3, "error": {"type": "timeout", "message": "m"}},
            1,
            "failed after 3 attempts: timeout: m",
        ),
        (JOB | {"status": "cancelled"}, 3, "cancelled after 1 attempts"),
    ],
)
def test_the_exit_code_is_the_outcome(
    server_of: Callable[[Script], Settings],
    capsys: pytest.CaptureFixture[str],
    job: dict[str, Any],
    code: int,
    said: str,
) -> None:
    script = Script(frame(1, str(job["status"]), job), 204)
    script.job = job
    assert terminal.watch(server_of(script), "j1", as_json=False) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ("THE TEXT\n" if code == 0 else "")


@pytest.mark.parametrize(
    ("status", "workers", "said"),
    [("queued", 0, True), ("retrying", 0, True), ("queued", 1, False), ("done", 0, False)],
)
def test_a_job_that_waits_while_no_worker_lives_says_so(
    server_of: Callable[[Script], Settings],
    capsys: pytest.CaptureFixture[str],
    status: str,
    workers: int,
    said: bool,
) -> None:
    script = Script(frame(1, "done", DONE), 204)
    script.job, script.live_workers = JOB | {"status": status}, workers
    terminal.watch(server_of(script), "j1", as_json=False)
    assert ("no worker is alive" in capsys.readouterr().err) is said


def test_the_end_needs_no_further_question(
    server_of: Callable[[Script], Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    """The server may have gone by then."""
    script = Script(frame(1, "done", DONE), 204)
    script.job = JOB
    assert terminal.watch(server_of(script), "j1", as_json=False) == 0
    assert capsys.readouterr().out == "THE TEXT\n"


def test_the_real_thing(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("\f".join(f"Page {n} begins. It ends." for n in range(3)))
    keys = {"SLOWCALL_API_KEYS": "alice:s3cret"}
    with Command("up", "--port", "0", data_dir=tmp_path, **keys) as command:
        here = {"SLOWCALL_URL": command.url(), "SLOWCALL_KEY": "s3cret"}
        watched = run("submit", "hello", "--watch", data_dir=tmp_path, **here)
        assert (watched.returncode, watched.stdout) == (0, "HELLO\n")
        submitted = run("submit", str(report), data_dir=tmp_path, **here)
        assert submitted.returncode == 0
        again = run("watch", submitted.stdout.strip(), data_dir=tmp_path, **here)
        assert (again.returncode, "Page 2 begins." in again.stdout) == (0, True)
        unknown = run("watch", "nothing", data_dir=tmp_path, **here)
        assert (unknown.returncode, unknown.stderr[:14]) == (2, "slowcall: 404:")
        stranger = run("submit", "hello", data_dir=tmp_path, SLOWCALL_URL=command.url())
        assert stranger.stderr.startswith("slowcall: 401: ")
        command.signal(signal.SIGINT)
        command.ends()
        away = run("submit", "hello", data_dir=tmp_path, **here)
        assert away.returncode == 2
        assert "is slowcall up?" in away.stderr
