"""Run an ASGI app under uvicorn on a socket that is bound already."""

from __future__ import annotations

import socket
from typing import Any, Final

import uvicorn

from server.listen import url_of
from server.protocol import Protocol
from server.words import say
from tasks.settings import Settings

STOP_S: Final = 4
"""Open connections are given so long at the end."""


class Server(uvicorn.Server):
    """Says where it serves once it does."""

    def __init__(self, config: uvicorn.Config, *, ready_line: str) -> None:
        super().__init__(config)
        self._ready_line = ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; then say so."""
        await super().startup(sockets)
        if self.started and self._ready_line:
            say(self._ready_line)


def serve(app: Any, settings: Settings, *, door: socket.socket, quiet: bool) -> None:
    """Serve `app` on the socket until a signal comes; not `quiet`: say when it is ready."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        loop="uvloop",
        ws="none",
        lifespan="auto",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )
    ready_line = "" if quiet else f"slowcall serves on {url_of(door)}; Ctrl-C stops it"
    server = Server(config, ready_line=ready_line)
    with door:
        server.run(sockets=[door])
    if not server.started:
        raise SystemExit(3)
