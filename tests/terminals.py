"""Commands in a real pseudo terminal, for tests and recordings: what is seen on its screen, and
when it was written."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.conftest import wait_until

ROWS, COLUMNS = 20, 80
TAKE = 'exec "$@" <>"$0" >&0 2>&0'
"""The first terminal that a new session opens is its own: that from which Ctrl-C comes."""


class Terminal:
    """A terminal with one command in it; use it as a context manager."""

    def __init__(
        self, words: Sequence[str], *, environment: Mapping[str, str], folder: Path,
        rows: int = ROWS, columns: int = COLUMNS,
    ) -> None:  # fmt: skip
        self._words, self._folder = words, folder
        self._environment = {**environment, "TERM": "xterm-256color"}
        self._size = (rows, columns)
        self.written: list[tuple[float, bytes]] = []
        """What the command wrote: (seconds since its start, bytes)."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()

    def __enter__(self) -> Terminal:
        self._here, self._there = pty.openpty()
        fcntl.ioctl(self._there, termios.TIOCSWINSZ, struct.pack("HHHH", *self._size, 0, 0))
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            ["sh", "-c", TAKE, os.ttyname(self._there), *self._words], start_new_session=True,
            cwd=self._folder, env=self._environment,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ends()
        os.close(self._here)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self._began

    @property
    def text(self) -> str:
        """What is to be read on the screen now."""
        with self._lock:
            return "\n".join(row.rstrip() for row in self._screen.display).rstrip()

    def press(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C."""
        os.write(self._here, keys.encode())

    def shows(self, words: str, within_s: float = 20) -> str:
        """Wait until these words stand on the screen; answers all that stood there then."""
        screens = [self.text]

        def shown() -> bool:
            screens.append(self.text)
            return words in screens[-1]

        wait_until(shown, f"{words!r} is shown", within_s)
        return screens[-1]

    def ends(self, within_s: float = 20) -> int:
        """The exit code, when all that was written is read; waits for that."""
        code = self.process.wait(within_s)
        if self._reader.is_alive():
            os.close(self._there)
            self._reader.join(10)
        return code

    def _read(self) -> None:
        while piece := read(self._here):
            with self._lock:
                self.written.append((self.elapsed_s, piece))
                self._stream.feed(piece)


def replay(
    written: Sequence[tuple[float, bytes]], *, rows: int, columns: int
) -> Callable[[float], pyte.Screen]:
    """A screen on which all is written once more: it is asked for one moment after the other."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    rest = deque(written)

    def at(moment_s: float) -> pyte.Screen:
        while rest and rest[0][0] <= moment_s:
            stream.feed(rest.popleft()[1])
        return screen

    return at


def read(descriptor: int) -> bytes:
    """What comes next; nothing when the other side has closed."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
