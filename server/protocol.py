"""uvicorn's HTTP protocol with bounds on a request's head, and a port for bytes that are ready."""

from __future__ import annotations

import weakref
from asyncio import AbstractEventLoop, BaseTransport, Handle, TimerHandle
from typing import Any, Final, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

_EXTENSION: Final = "slowcall.protocol"
HEAD_S: Final = 30.0
"""As long as a request may take to send its head; so may a connection that says nothing."""
MAX_HEAD: Final = 131_072
"""Bytes of a head that never ends. The gate refuses far smaller ones, with a reason."""


class _Heads:
    """The connections that wait for a head, in the order in which it is due: one clock for all of
    a server. Each with its own would have to set one anew for every request."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._due_s: dict[Protocol, float] = {}
        self._clock: TimerHandle | None = None

    def __contains__(self, connection: Protocol) -> bool:
        return connection in self._due_s

    def expect(self, connection: Protocol) -> None:
        self._due_s.pop(connection, None)
        self._due_s[connection] = self._loop.time() + HEAD_S
        if self._clock is None:
            self._clock = self._loop.call_later(HEAD_S, self._look)

    def drop(self, connection: Protocol) -> None:
        self._due_s.pop(connection, None)

    def _look(self) -> None:
        self._clock = None
        now_s = self._loop.time()
        while self._due_s:
            connection, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                self._clock = self._loop.call_later(due_s - now_s, self._look)
                return
            self.drop(connection)
            connection.transport.close()


_heads: Final = weakref.WeakKeyDictionary[ServerState, _Heads]()


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._size = 0
        if self.server_state not in _heads:
            _heads[self.server_state] = _Heads(self.loop)
        self._heads = _heads[self.server_state]
        # A strong one would be a circle, which stays until somebody collects garbage.
        self._itself = weakref.ref(self)

    def connection_made(self, transport: BaseTransport) -> None:
        """A client has come."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._heads.expect(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._heads.drop(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        super().data_received(data)
        if self in self._heads:
            self._size += len(data)
            if self._size > MAX_HEAD:
                self._heads.drop(self)
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """A head has begun."""
        self._heads.expect(self)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._heads.drop(self)
        self._size = 0
        self.scope["extensions"] = {_EXTENSION: self._itself}  # type: ignore[dict-item]
        super().on_headers_complete()
        self.cycle.transport = cast(Any, _Beginning(self.cycle, self.loop))


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
