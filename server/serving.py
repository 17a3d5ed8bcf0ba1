"""Run an ASGI app under uvicorn on a socket that is bound already."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import uvicorn

from server.listen import url_of
from server.protocol import Protocol
from server.words import say
from tasks.settings import Settings

STOP_S: Final = 4
"""What goes on is given so long at the end; uvicorn calls it an error then."""
HANG_UP_S: Final = 3
"""A client that takes nothing is hung up on before that."""


class Server(uvicorn.Server):
    """Says where it serves once it does, and waits for nobody at its end."""

    def __init__(self, config: uvicorn.Config, *, ready_line: str) -> None:
        super().__init__(config)
        self._ready_line = ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; then say so."""
        await super().startup(sockets)
        if self.started and self._ready_line:
            say(self._ready_line)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; hang up on those who do not let their answer end."""
        late = asyncio.get_running_loop().call_later(HANG_UP_S, self._hang_up)
        await super().shutdown(sockets)
        late.cancel()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


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
