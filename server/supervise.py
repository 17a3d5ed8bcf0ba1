"""Child processes that come back when they die, and that leave when their parent does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tasks.errors import SlowcallError

log = logging.getLogger("slowcall.up")

EARLY_S: Final = 3.0
"""A part that ends sooner after its start is given more and more time before the next."""
BACKOFF_MAX_S: Final = 10.0
_ROOT: Final = str(Path(__file__).resolve().parent.parent)


class PartFailed(SlowcallError):
    """A part ended before all were ready; it has said why itself."""


class Part:
    """One child process, `python -m server …`, started again whenever it ends by itself.

    Its standard input is a pipe that ends with this process (see `leave_with_parent`). It has a
    session of its own: Ctrl-C in the terminal reaches the supervisor alone, which stops in order.
    """

    def __init__(
        self,
        name: str,
        command: str,
        *,
        lifeline: int,
        environment: Mapping[str, str],
        door: socket.socket | None = None,
    ) -> None:
        self.name = name
        self.settled = False
        """Set once all parts are ready: from then on it is started again, however it ends."""
        self._words = [command, "--part", name]
        self._words += ["--listen-fd", str(door.fileno())] if door else []
        self._descriptors = [door.fileno()] if door else []
        self._lifeline = lifeline
        self._environment = {**environment, "PYTHONPATH": python_path()}
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The id of its present process."""
        return self._process.pid if self._process else None

    async def start(self) -> asyncio.Task[None]:
        """Start it and look after it; the task ends by `stop`, or with PartFailed."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name=self.name)
        return self._keeper

    async def stop(self, within_s: float) -> None:
        """Ask it to end; after `within_s` it is killed."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._keeper and not self._keeper.done():
            done, _ = await asyncio.wait([self._keeper], timeout=within_s)
            if not done:
                log.warning("%s did not end within %g s and is killed", self.name, within_s)
                self.kill()
                await asyncio.wait([self._keeper])

    def kill(self) -> None:
        """End it at once."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.returncode is None:
            self._process.send_signal(number)

    async def _spawn(self) -> None:
        # -P: no file of the folder we were started in stands in the way of our own modules.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "server", *self._words,
            stdin=self._lifeline, env=self._environment, pass_fds=self._descriptors,
            start_new_session=True,
        )  # fmt: skip

    async def _keep(self) -> None:
        deaths = 0
        while True:
            assert self._process is not None
            began = time.monotonic()
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            if not self.settled and code >= 0:
                raise PartFailed(f"{self.name} did not start ({ending(code)})")
            deaths = deaths + 1 if time.monotonic() - began < EARLY_S else 0
            log.warning("%s ended (%s); starting it anew", self.name, ending(code))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(BACKOFF_MAX_S, 0.1 * 2**deaths))
                return
            await self._spawn()


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    return f"by {signal.Signals(-code).name}"


def leave_with_parent(grace_s: float) -> None:
    """In a child: end in order when the supervisor is gone, however it went; at the latest after
    `grace_s`. The pipe on standard input says so on every platform."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 64):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="leave-with-parent", daemon=True).start()


def python_path() -> str:
    """The PYTHONPATH with which a child finds our own modules."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([_ROOT, inherited] if inherited else [_ROOT])
