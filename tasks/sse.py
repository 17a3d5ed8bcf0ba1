"""An incremental decoder of event streams: bytes in, split anywhere; whole events out.

The rules are those of the HTML standard (section 9.2), with three liberties that model endpoints
make necessary: a field the standard does not know is kept (some servers send their failure as
`error: {…}`), an unterminated last event is given out by `close`, and a byte that is no UTF-8
becomes U+FFFD, since the rest of the answer was paid for as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.errors import Unusable

_BOM = b"\xef\xbb\xbf"
_KNOWN = frozenset({"event", "data", "id", "retry"})


@dataclass(slots=True)
class Event:
    """One event: its name, its data, and the fields the standard does not know."""

    name: str = ""
    data: str = ""
    unknown: dict[str, str] = field(default_factory=dict)


class Decoder:
    """Takes the bytes of one stream in any pieces; never holds more than one event.

    `max_line` and `max_event` are bytes; where one is passed, `feed` raises Unusable.
    """

    def __init__(self, *, max_line: int, max_event: int) -> None:
        self._max_line = max_line
        self._max_event = max_event
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True
        self._clear()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        events: list[Event] = []
        # For bytes, unlike str, splitlines knows LF, CR and CRLF only: what the standard says.
        for piece in chunk.splitlines(keepends=True):
            self._line += piece
            if len(self._line) > self._max_line:
                raise _too_long("line", self._max_line, "SLOWCALL_MAX_LINE")
            if piece.endswith((b"\n", b"\r")):
                self._end_line(events)
        return events

    def close(self) -> list[Event]:
        """The event that the end of the stream left without its blank line, if any."""
        events: list[Event] = []
        if self._line:
            self._end_line(events)
        self._end_event(events)
        return events

    def _clear(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._unknown: dict[str, str] = {}
        self._size = 0

    def _end_line(self, events: list[Event]) -> None:
        line = bytes(self._line).rstrip(b"\r\n")
        self._line.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._end_event(events)
        elif not line.startswith(b":"):
            self._field(line)

    def _field(self, line: bytes) -> None:
        self._size += len(line)
        if self._size > self._max_event:
            raise _too_long("event", self._max_event, "SLOWCALL_MAX_EVENT")
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name not in _KNOWN:
            self._unknown[name] = value

    def _end_event(self, events: list[Event]) -> None:
        data = "\n".join(self._data)
        if data or self._unknown:
            events.append(Event(self._name, data, self._unknown))
        self._clear()


def _too_long(what: str, limit: int, setting: str) -> Unusable:
    return Unusable(
        f"The reply holds a {what} of more than {limit} bytes ({setting}).", type="permanent"
    )
