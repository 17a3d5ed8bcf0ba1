"""The terminal client: submit a job, watch it with a live bar, come away with its result."""

from __future__ import annotations

import json
import mimetypes
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from server.terminal_client import Event, Server
from server.words import say
from tasks.lifecycle import Status
from tasks.settings import Settings

EXIT_CODES: Final = {Status.DONE: 0, Status.FAILED: 1, Status.CANCELLED: 3}
EXIT_LEFT: Final = 130
TEXT_FIELDS: Final = {"summarize": "text", "agent": "goal"}
"""Where the kinds that take no bare string have their text."""


def submit(
    settings: Settings, source: str, *, kind: str | None, follow: bool, as_json: bool
) -> int:
    """Submit a file, a text or standard input (`-`); answers the exit code. Raises Refused."""
    with Server(settings) as server:
        job = server.submit(request(source, kind))
        if follow:
            return _follow(server, job["job_id"], as_json=as_json)
        say(json.dumps(job) if as_json else job["job_id"])
        if sys.stderr.isatty():
            note(f"slowcall watch {job['job_id']}")
        return 0


def watch(settings: Settings, job_id: str, *, as_json: bool) -> int:
    """Watch a job to its end; answers the exit code. Raises Refused."""
    with Server(settings) as server:
        return _follow(server, server.read(job_id)["job_id"], as_json=as_json)


def request(source: str, kind: str | None) -> dict[str, Any]:
    """The body of a submission as httpx takes it. A file is summarized unless `kind` says else."""
    path = Path(source)
    if source != "-" and is_file(path):
        if kind in {None, "summarize"}:
            type_ = mimetypes.guess_type(path.name)[0] or "text/plain"
            upload = (path.name, path.read_bytes(), type_)
            return {"data": {"kind": "summarize"}, "files": {"file": upload}}
        text = path.read_text()
    else:
        text = sys.stdin.read() if source == "-" else source
    kind = kind or "chat"
    field = TEXT_FIELDS.get(kind)
    return {"json": {"kind": kind, "input": {field: text} if field else text}}


def is_file(path: Path) -> bool:
    """Whether there is such a file; a long text is no path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _follow(server: Server, job_id: str, *, as_json: bool) -> int:
    try:
        with bar() as progress:
            show = Show(progress)
            for event in server.follow(job_id):
                show(event)
        job = server.read(job_id)
    except KeyboardInterrupt:
        note(f"the job goes on; come back with: slowcall watch {job_id}")
        return EXIT_LEFT
    report(job, as_json=as_json)
    return EXIT_CODES.get(Status(job["status"]), 1)


def bar() -> Progress:
    """A live bar on standard error; it pulses while the total is unknown."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class Show:
    """Brings each event on the bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._line = progress.add_task("…", total=None, note="")

    def __call__(self, event: Event | None) -> None:
        """Show one event; None: the connection was lost."""
        if event is None:
            self._progress.update(self._line, description="connection lost, coming back")
            return
        if event.name not in {"progress", "delta"}:
            self._progress.update(self._line, description=description(event.data))
        if done := event.data.get("progress"):
            note_ = printable(done.get("note") or "").replace("\n", " ")
            self._progress.update(
                self._line, completed=done["done"], total=done["total"], note=note_
            )


def description(job: dict[str, Any]) -> str:
    """The job's status in a few words."""
    status, attempts = job["status"], job["attempts"]
    if status == Status.RETRYING:
        reason = job.get("reason") or (job["error"] or {}).get("type", "")
        return f"retrying ({reason}), again at {job['retry_at']}"
    if status == Status.QUEUED and job["queue_position"]:
        return f"queued, number {job['queue_position']}"
    return f"{status}, attempt {attempts}" if attempts > 1 else str(status)


def report(job: dict[str, Any], *, as_json: bool) -> None:
    """The outcome: the text on standard output, how it went on standard error."""
    if as_json:
        say(json.dumps(job))
    elif job["status"] == Status.DONE:
        text = str(job["result"].get("text", json.dumps(job["result"])))
        say(printable(text) if sys.stdout.isatty() else text)
        ledger = job["ledger"]
        note(
            f"done: {ledger['paid']} bought, {ledger['reused']} reused ({job['result']['source']})"
        )
    else:
        error = job["error"] or {}
        reason = f": {error['type']}: {error['message']}" if error else ""
        note(f"{job['status']} after {job['attempts']} attempts{reason}")


def note(line: str) -> None:
    """A line beside the result."""
    sys.stderr.write(f"{printable(line)}\n")


def printable(text: str) -> str:
    """Without the control characters by which a model's text could steer a terminal."""
    return "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")
