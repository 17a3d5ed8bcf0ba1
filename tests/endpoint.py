"""A model endpoint that does what a script says: bytes as given, split as given, over real sockets.

    with Endpoint(HS(C("Hel"), C("lo"), FIN("stop"), DONE)) as endpoint:
        …  # endpoint.url; endpoint.requests

A script is a list of steps: bytes to send (each in a write of its own), `Pause(seconds)`, and one
of `RST` (reset the connection), `HOLD` (say nothing until the client leaves), `SHUT` (close it
without a word). Without one of these the connection stays open for the next request. The n-th
request gets the n-th script, the last one serves for all that follow; a script may be a function
of the request.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait some seconds before the next step."""

    seconds: float


class _End:
    """How a connection ends."""


RST: Final = _End()
HOLD: Final = _End()
SHUT: Final = _End()

Step = bytes | Pause | _End
Script = list[Step]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


def chunked(*parts: bytes | Step) -> Script:
    """Each of `parts` that is bytes as one chunk of a chunked body."""
    return [_chunk(part) if isinstance(part, bytes) else part for part in parts]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def head(status: int, content_type: str, *lines: str) -> bytes:
    """The head of a reply, up to and with the blank line."""
    fields = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {content_type}", *lines, "", ""]
    return "\r\n".join(fields).encode()


def HS(*parts: bytes | Step, headers: Iterable[str] = ()) -> Script:
    """A 200 event stream, chunked; it ends cleanly unless its last part is an end."""
    whole = not (parts and isinstance(parts[-1], _End))
    start = head(200, "text/event-stream", "Transfer-Encoding: chunked", *headers)
    return [start, *chunked(*parts), *([b"0\r\n\r\n"] if whole else [])]


def reply(
    status: int,
    body: bytes = b"",
    *headers: str,
    content_type: str = "application/json",
) -> Script:
    """A reply with its whole body at once."""
    return [head(status, content_type, f"Content-Length: {len(body)}", *headers) + body]


def HJ(value: Any, *headers: str, status: int = 200) -> Script:
    """A reply that is one JSON document."""
    return reply(status, json.dumps(value).encode(), *headers)


def data(value: Any) -> bytes:
    """One event with `value` as JSON, its characters unescaped."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(delta: Any, **choice: Any) -> bytes:
    """One chunk of a chat completion with that delta."""
    return data({"id": "c-1", "choices": [{"index": 0, "delta": delta, **choice}]})


def C(text: str) -> bytes:
    """One chunk with that content."""
    return delta({"content": text})


def FIN(reason: str = "stop") -> bytes:
    """An empty delta with that finish reason."""
    return delta({}, finish_reason=reason)


def usage(prompt: int, completion: int) -> bytes:
    """The chunk that tells the usage."""
    return data(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    )


DONE: Final = b"data: [DONE]\n\n"


def answered(text: str, *, finish: str = "stop") -> Script:
    """A whole, well-behaved streamed answer."""
    return HS(C(text), FIN(finish), usage(3, 2), DONE)


def completion(text: Any, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A whole chat completion that was not streamed."""
    said = {"role": "assistant", "content": text, **message}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "model": "scripted",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


class Endpoint:
    """The server; a context manager. It runs in a thread of its own, so anybody can ask it.

    `requests` are those that came whole, `connections` those that were made, `left` those that
    the client closed in the middle of a script.
    """

    def __init__(
        self,
        *scripts: Script | Callable[[Request], Script],
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.scripts = list(scripts)
        self.requests: list[Request] = []
        self.connections = 0
        self.left = 0
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=4096
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port: int = self._listener.getsockname()[1]
        where = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{where}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the endpoint ends"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serve = self._loop.create_server(self._protocol, sock=self._listener, ssl=self._tls)
        server = self._loop.run_until_complete(serve)
        self._loop.run_forever()
        server.close()
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for writer in self._writers:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = _Reader()
        return asyncio.StreamReaderProtocol(
            reader, lambda _, writer: self._connection(reader, writer)
        )

    async def _connection(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with suppress(ConnectionError, EOFError, ssl.SSLError, asyncio.CancelledError):
            while request := await _read(reader):
                number = len(self.requests)
                self.requests.append(request)
                script = self.scripts[min(number, len(self.scripts) - 1)]
                steps = script(request) if callable(script) else script
                if not await self._play(steps, reader, writer):
                    break
        self._writers.discard(writer)
        writer.close()

    async def _play(self, steps: Script, reader: _Reader, writer: asyncio.StreamWriter) -> bool:
        """Do the steps; whether the connection goes on. A client that leaves ends it."""
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif step is RST:
                _reset(writer)
                return False
            elif step is SHUT:
                return False
            elif await reader.left(step.seconds if isinstance(step, Pause) else None):
                self.left += 1
                return False
            await asyncio.sleep(0)
        return True


class _Reader(asyncio.StreamReader):
    """A reader that tells when the client has left, also while nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self._left = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self._left.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._left.set()

    async def left(self, within_s: float | None) -> bool:
        """Wait some seconds (None: for ever); whether the client leaves before they are over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), within_s)
        return self._left.is_set()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once with a reset; what was written before is given time to arrive."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request, or None when the client is done."""
    try:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = start.split(" ", 2)
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)
