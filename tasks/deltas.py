"""Publish streamed text in time slices, so that its cost grows with time and not with tokens."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from tasks.errors import RunLost
from tasks.store import Run, Store

SLICE_S: Final = 0.05


class DeltaLog:
    """The deltas of one run, numbered and told one after the other, whoever streams."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run
        self._number = 0
        self._turn = asyncio.Lock()

    async def tell(self, step: str, text: str) -> None:
        """Publish a piece of text. Raises RunLost."""
        async with self._turn:
            self._number += 1
            await self._store.tell_delta(self._run, self._number, step, text)


class Deltas:
    """The streamed text of one step: `add` it inside `async with`, then `complete` it.

    The block does not wait for the store: what was answered is settled first.
    """

    def __init__(self, log: DeltaLog, step: str) -> None:
        self._log = log
        self._step = step
        self._sent = 0
        self._waiting: list[str] = []
        self._more = asyncio.Event()
        self._ended: asyncio.Future[None] | None = None
        self._teller: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Text as it came from the model."""
        self._waiting.append(text)
        self._more.set()

    async def __aenter__(self) -> Deltas:
        self._ended = asyncio.get_running_loop().create_future()
        self._teller = asyncio.create_task(self._tell_slices(self._ended))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._ended is not None
        assert self._teller is not None
        self._ended.set_result(None)
        self._more.set()
        if error is not None:
            self._teller.cancel()
            await asyncio.wait([self._teller])

    async def complete(self, text: str) -> None:
        """Publish what of the whole `text` has not been published. Raises RunLost."""
        if self._teller is not None:
            await self._teller
        rest = text[self._sent :]
        if rest:
            await self._log.tell(self._step, rest)

    async def _tell_slices(self, ended: asyncio.Future[None]) -> None:
        while not ended.done():
            await self._more.wait()
            self._more.clear()
            text = "".join(self._waiting)
            self._waiting.clear()
            if text:
                try:
                    await self._log.tell(self._step, text)
                except RunLost:
                    return  # nobody listens; but the call goes on, for its answer is paid
                self._sent += len(text)
            await asyncio.wait([ended], timeout=SLICE_S)
