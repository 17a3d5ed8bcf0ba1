"""The terminal client: submit a job, watch it to its end, come away with its result."""

from __future__ import annotations

import json
import mimetypes
import sys
from pathlib import Path
from typing import Any, Final

from server.terminal_client import Server
from server.terminal_view import note, printable, view
from server.words import say
from tasks.lifecycle import WAITING, Status
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
        _say_whether_anybody_works(server, job)
        if follow:
            return _follow(server, job["job_id"], as_json=as_json)
        say(json.dumps(job) if as_json else job["job_id"])
        if sys.stderr.isatty():
            note(f"slowcall watch {job['job_id']}")
        return 0


def watch(settings: Settings, job_id: str, *, as_json: bool) -> int:
    """Watch a job to its end; answers the exit code. Raises Refused."""
    with Server(settings) as server:
        job = server.read(job_id)
        _say_whether_anybody_works(server, job)
        return _follow(server, job["job_id"], as_json=as_json)


def _say_whether_anybody_works(server: Server, job: dict[str, Any]) -> None:
    if job["status"] in WAITING and server.live_workers() == 0:
        note("no worker is alive: the job waits until one is started (slowcall worker)")


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
    job: dict[str, Any] = {}
    try:
        with view(as_json=as_json) as show:
            for event in server.follow(job_id):
                show(event)
                if event and "status" in event.data:
                    job = event.data
        job = job or server.read(job_id)
    except KeyboardInterrupt:
        note(f"the job goes on; come back with: slowcall watch {job_id}")
        return EXIT_LEFT
    if not as_json:
        report(job)
    return EXIT_CODES.get(Status(job["status"]), 1)


def report(job: dict[str, Any]) -> None:
    """The outcome: the text on standard output, how it went on standard error."""
    if job["status"] == Status.DONE:
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
