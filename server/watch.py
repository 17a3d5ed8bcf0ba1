"""One listener of the hub: the messages for it, and what it is asked to do besides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tasks.lifecycle import FINAL

MAILBOX: Final = 512
MAILBOX_BYTES: Final = 4_194_304
"""Messages that may wait for one slow listener; beyond that it reads them from the log."""
_FINAL_BLOCKS: Final = tuple(f"event: {status}\n".encode() for status in FINAL)


@dataclass(frozen=True, slots=True)
class Message:
    """One published event, made once for all its listeners: `frame` is ready to send, `chunk` is
    the same as HTTP/1.1 sends it (RFC 9112, 7.1)."""

    mark: str
    frame: bytes
    chunk: bytes
    final: bool

    @classmethod
    def read(cls, payload: bytes) -> Message:
        """The message of `b"<mark>\\n" + block`."""
        mark, _, block = payload.partition(b"\n")
        frame = b"id: " + mark + b"\n" + block
        chunk = b"%x\r\n%b\r\n" % (len(frame), frame)
        return cls(mark.decode("ascii", "replace"), frame, chunk, block.startswith(_FINAL_BLOCKS))


Deliver = Callable[[Message], bool]
"""Passes a message on at once; False where its listener has to do it."""


class Watch:
    """One listener's mailbox: messages, and what it is asked to do besides."""

    __slots__ = ("_messages", "_size", "_reread", "_pinged", "_wake", "_deliver", "closed")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._size = 0
        self._reread = False
        self._pinged = False
        self._wake = asyncio.Event()
        self._deliver: Deliver | None = None
        self.closed = False

    async def wait(self, deliver: Deliver | None = None) -> None:
        """Wait until something is there that `deliver` does not take off its hands: to wake a task
        for an event costs more than to send it."""
        if not self._wake.is_set():
            self._deliver = deliver
        await self._wake.wait()

    def take(self) -> tuple[list[Message], bool, bool]:
        """Everything that is there: messages in order, "read your log", "say you are alive"."""
        self._wake.clear()
        taken = self._messages, self._reread, self._pinged
        self._messages, self._size = [], 0
        self._reread = self._pinged = False
        return taken

    def post(self, message: Message) -> None:
        """Put a message in; a full mailbox is emptied and its owner sent to the log."""
        if self._deliver is not None and self._deliver(message):
            return
        if len(self._messages) >= MAILBOX or self._size >= MAILBOX_BYTES:
            self._messages, self._size = [], 0
            self._reread = True
        self._messages.append(message)
        self._size += len(message.frame)
        self._ring()

    def reread(self) -> None:
        """Ask the listener to read its log from where it is."""
        self._reread = True
        self._ring()

    def ping(self) -> None:
        """Ask the listener to say that it is alive, and to look whether it missed anything."""
        self._pinged = True
        self._ring()

    def close(self) -> None:
        """Ask the listener to end."""
        self.closed = True
        self._ring()

    def _ring(self) -> None:
        # From here on the order of messages is that of the mailbox.
        self._deliver = None
        self._wake.set()
