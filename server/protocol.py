"""uvicorn's HTTP protocol with bounds on a request's head, and a port for bytes that are ready."""

from __future__ import annotations

import weakref
from asyncio import AbstractEventLoop, BaseTransport, Handle, TimerHandle
from typing import Any, Final, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_EXTENSION: Final = "slowcall.protocol"
HEAD_S: Final = 30.0
"""As long as a request may take to send its head; so may a connection that says nothing."""
MAX_HEAD: Final = 131_072
"""Bytes of a head that never ends. The gate refuses far smaller ones, with a reason."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._due_s: float | None = None
        self._clock: TimerHandle | None = None
        self._size = 0
        # A strong one would be a circle, which stays until somebody collects garbage.
        self._itself = weakref.ref(self)

    def connection_made(self, transport: BaseTransport) -> None:
        """A client has come."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        if self._clock is not None:
            self._clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        super().data_received(data)
        if self._due_s is not None:
            self._size += len(data)
            if self._size > MAX_HEAD:
                self._due_s = None
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """A head has begun."""
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._due_s = None
        self.scope["extensions"] = {_EXTENSION: self._itself}  # type: ignore[dict-item]
        super().on_headers_complete()
        self.cycle.transport = cast(Any, _Beginning(self.cycle, self.loop))

    def _await_head(self) -> None:
        self._due_s = self.loop.time() + HEAD_S
        self._size = 0
        if self._clock is None:  # one for all requests of a connection: to set it costs more
            self._clock = self.loop.call_later(HEAD_S, self._look)

    def _look(self) -> None:
        self._clock = None
        if self._due_s is None:
            return
        left_s = self._due_s - self.loop.time()
        if left_s > 0:
            self._clock = self.loop.call_later(left_s, self._look)
        else:
            self.transport.close()


class _Beginning:
    """In place of an answer's transport: holds its head until the body begins or the turn is over.

    uvicorn writes them apart, and a client that is woken twice has its answer a tenth later.
    """

    __slots__ = ("_cycle", "_head", "_loop", "_soon", "_transport")

    def __init__(self, cycle: RequestResponseCycle, loop: AbstractEventLoop) -> None:
        self._cycle, self._transport, self._loop = cycle, cycle.transport, loop
        self._head = b""
        self._soon: Handle | None = None

    def write(self, data: bytes) -> None:
        if self._soon is None:
            self._head = data
            self._soon = self._loop.call_soon(self._pass, b"")
        else:
            self._pass(data)

    def close(self) -> None:
        self._pass(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _pass(self, data: bytes) -> None:
        """Send what there is and step out of the way."""
        if self._soon is not None:
            self._soon.cancel()
        self._cycle.transport = self._transport
        self._transport.write(self._head + data)


class Port:
    """The way of one answer to its connection, past ASGI.

    Nothing may be in between that changes what is sent (case B12): it is there only where this
    protocol serves our app and nothing around it, as `slowcall serve` does.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, scope: Scope) -> Port | None:
        """The port of a request; None under another server, in another app, and for one that came
        before the answer to the one before it."""
        protocol = scope.get("extensions", {}).get(_EXTENSION, lambda: None)()
        if protocol is None or protocol.config.app is not scope["app"]:
            return None
        cycle = protocol.cycle
        return cls(cycle) if cycle is not None and cycle.scope is scope else None

    def is_free(self) -> bool:
        """Whether a chunk may be written now: the answer is under way, its client takes it."""
        cycle = self._cycle
        return bool(
            cycle.chunked_encoding
            and not (cycle.disconnected or cycle.response_complete or cycle.flow.write_paused)
        )

    def write(self, chunk: bytes) -> None:
        """Send a chunk in the form of RFC 9112, 7.1."""
        self._cycle.transport.write(chunk)
