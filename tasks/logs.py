"""Log lines: human on a terminal, JSON otherwise, each with its job, attempt and trace."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

from tasks.store import JobView, Moved, Run
from tasks.telemetry import trace_id

_ABOUT: Final = (
    *("job_id", "user_id", "kind", "attempt", "status", "reason"),
    *("wait_s", "upstream_status", "trace_id"),
)
_jobs = logging.getLogger("slowcall.job")
_LIBRARIES: Final = ("httpx", "arq", "apprise")
_UVICORN: Final = ("uvicorn", "uvicorn.error", "uvicorn.access")


def configure_logging(part: str, *, stream: TextIO | None = None, host: bool = False) -> None:
    """Send all lines of this process, ours and the libraries', to `stream` (standard error).

    `part` is named in every line. Libraries speak from WARNING on: arq's own lines about each job
    say less than ours, and so do uvicorn's about each request, unless it is the `host` that was
    started to run us.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanLines(part) if stream.isatty() else JsonLines(part))
    handler.addFilter(_add_trace)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in _LIBRARIES if host else (*_LIBRARIES, *_UVICORN):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not host:  # whose thread or process a line is from is never shown, and costs at each line
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name in _UVICORN:
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True


def log_job(job: JobView | Run, status: str, **about: Any) -> None:
    """The line of a transition: which job entered which status, and what is to say about it."""
    if isinstance(job, Run):
        facts = {"kind": job.kind, "attempt": job.attempt}
    else:
        shown = orjson.loads(job.body)
        facts = {"kind": shown["kind"], "attempt": shown["attempts"]}
    _log(status, facts | {"job_id": job.job_id, "user_id": job.user_id, "status": status, **about})


def log_moved(moved: Moved) -> None:
    """The line of a transition that a script made while nobody ran the job."""
    _log(moved.status, asdict(moved))


def _log(status: str, facts: dict[str, Any]) -> None:
    """In place of `Logger.info`, which walks the stack for a line number that nobody shows: that
    took as long as all the rest of a line."""
    if _jobs.isEnabledFor(logging.INFO):
        line = {"name": _jobs.name, "levelno": logging.INFO, "levelname": "INFO"}
        _jobs.handle(logging.makeLogRecord({**line, "msg": f"job {status}", **facts}))


def _add_trace(record: logging.LogRecord) -> bool:
    if not hasattr(record, "trace_id"):
        record.trace_id = trace_id()
    return True


def _about(record: logging.LogRecord) -> dict[str, Any]:
    facts = vars(record)
    return {name: facts[name] for name in _ABOUT if facts.get(name) is not None}


class HumanLines(logging.Formatter):
    """A line for a person: the time, the part, the level, what happened, to what."""

    def __init__(self, part: str) -> None:
        super().__init__(f"%(asctime)s {part} %(levelname)s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line with the facts of its job behind it."""
        facts = "".join(f" {name}={value}" for name, value in _about(record).items())
        return super().formatMessage(record) + facts


class JsonLines(logging.Formatter):
    """A line for a machine: one JSON object."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; a traceback is one of its values."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "part": self._part,
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()
