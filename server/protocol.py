"""uvicorn's HTTP protocol, with bounds where it has none: size and time of a request's head."""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S: Final = 30.0
"""As long as a request may take to send its head; so may a connection that says nothing."""
MAX_HEAD: Final = 131_072
"""Bytes of a head that never ends. The gate refuses far smaller ones, with a reason."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: TimerHandle | None = None
        self._size = 0

    def connection_made(self, transport: BaseTransport) -> None:
        """A client has come."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        super().data_received(data)
        if self._awaited is not None:
            self._size += len(data)
            if self._size > MAX_HEAD:
                self._head_is_there()
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """A head has begun."""
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._head_is_there()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_is_there()
        self._size = 0
        self._awaited = self.loop.call_later(HEAD_S, self.transport.close)

    def _head_is_there(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None
