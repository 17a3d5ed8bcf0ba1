"""How the terminal shows a job while it runs: live, as lines where nobody looks, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.spinner import Spinner
from rich.text import Text

from server.terminal_client import Event
from server.words import say
from tasks.lifecycle import FINAL, Status

ROWS: Final = 8
"""So many of the text's last rows are shown as it is written."""
KEPT: Final = 4000
"""Characters of a step's text that are kept for that."""
LOST: Final = "connection lost, coming back"

View = Callable[[Event | None], None]
"""Shows one event; None: the connection was lost."""


@contextmanager
def view(*, as_json: bool) -> Iterator[View]:
    """The way that fits: all goes to standard error, but for JSON."""
    console = Console(stderr=True)
    if as_json:
        yield lines_of_json
    elif sys.stderr.isatty() and not console.is_dumb_terminal:
        shown = Shown()
        with Live(shown, console=console, transient=True, refresh_per_second=10):
            yield shown.hear
    else:
        yield Lines().hear


def lines_of_json(event: Event | None) -> None:
    """Each event as a line of JSON on standard output; the last one has the job as it ended."""
    if event:
        say(json.dumps({"id": event.id, "event": event.name, "data": event.data}))
    else:
        note(LOST)


class Lines:
    """A line for each status before the end and for a lost connection, for logs and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def hear(self, event: Event | None) -> None:
        """Say what is new."""
        if event and event.data.get("status") in {None, *FINAL}:
            return
        line = description(event.data) if event else LOST
        if line != self._last:
            note(line)
        self._last = line


class Shown:
    """What stands on a terminal: the status in words, the bar, the end of the text so far."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots", "…")
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            Elapsed(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._line = self._bar.add_task("", total=None, note="")
        self._status = ""
        self._text = Streamed()

    def hear(self, event: Event | None) -> None:
        """Take in one event."""
        if event and "status" in event.data:
            self._status = description(event.data)
        self._spinner.update(text=Text(self._status if event else LOST))
        if event:
            self._text.hear(event)
            if progress := event.data.get("progress"):
                self._move(**progress)

    def _move(self, done: int, total: int | None, note: str | None = None, **_: Any) -> None:
        words = printable(note or "").replace("\n", " ")
        self._bar.update(self._line, completed=done, total=total, note=words)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._spinner
        yield self._bar
        end = self._text.shown[-ROWS * options.max_width :]
        yield from Text(printable(end)).wrap(console, options.max_width)[-ROWS:]


class Elapsed(ProgressColumn):
    """The time since the watch began. It goes on when the bar is full: the job may not be done."""

    def render(self, task: Task) -> Text:
        """As hours, minutes and seconds."""
        return Text(str(timedelta(seconds=int(task.elapsed or 0))))


class Streamed:
    """The text of one step, the first that writes; when a step is done, the next that writes."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._step: str | None = None
        self.shown = ""

    def hear(self, event: Event) -> None:
        """Take in a piece of text; a new status voids the text before it."""
        if event.name == "delta":
            step = event.data["step"]
            self._texts[step] = (self._texts.get(step, "") + event.data["text"])[-KEPT:]
            self._step = self._step or step
            self.shown = self._texts[self._step]
        elif event.name == "progress":
            self._step = None
        else:
            self._texts, self._step, self.shown = {}, None, ""


def description(job: dict[str, Any]) -> str:
    """The job's status in a few words."""
    status, attempt = job["status"], f"attempt {job['attempts']} of {job['max_attempts']}"
    if status == Status.RUNNING:
        return f"running, {attempt}"
    if status == Status.RETRYING:
        reason = job.get("reason") or (job["error"] or {}).get("type", "")
        after = f" after {attempt}" if job["attempts"] else ""
        return f"retrying{after} ({reason}), again at {clock(job['retry_at'])}"
    if status == Status.QUEUED and job["queue_position"]:
        return f"queued, number {job['queue_position']}"
    return str(status)


def clock(moment: str) -> str:
    """A time of the interface as a clock here shows it."""
    return datetime.fromisoformat(moment).astimezone().strftime("%H:%M:%S")


def note(line: str) -> None:
    """A line beside the result."""
    sys.stderr.write(f"{printable(line)}\n")


def printable(text: str) -> str:
    """Without the control characters by which a model's text could steer a terminal."""
    return "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")
