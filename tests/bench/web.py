"""Web servers of a bench, each a process of its own: ours, and that of the peers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.bench.parts import Place, cpu_s, free_port, memory_kib, running, until

OURS_APP: Final = "slowcall serve"
PEERS_APP: Final = "tests.bench.peers.web:app"


@dataclass(frozen=True, slots=True)
class Web:
    """A running server."""

    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """Its CPU seconds so far."""
        return cpu_s(self.pid)

    @property
    def memory_kib(self) -> float:
        """Its resident memory."""
        return memory_kib(self.pid)


@contextmanager
def web(here: Place, app: str) -> Iterator[Web]:
    """Serve on a free port: ours as users do, an app of the peers by uvicorn in the same way."""
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop", "--ws", "none"]
    quiet = ["--no-access-log", "--log-level", "warning", "--backlog", "4096"]
    words = ["uvicorn", app, *options, *quiet]
    if app == OURS_APP:
        words = ["server", "serve", "--port", str(port)]
    environment = here.environment(
        REDIS_URL=here.url,
        SLOWCALL_DATA_DIR=str(here.folder),
        SLOWCALL_QUOTA="0",
        SLOWCALL_MAX_STREAMS="100000",
        SLOWCALL_USER_STREAMS="100000",
    )
    with running(sys.executable, "-m", *words, env=environment, cwd=here.folder) as process:
        until(lambda: listens(port) or process.poll() is not None, f"{app} listens")
        yield Web(port, process.pid)


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
