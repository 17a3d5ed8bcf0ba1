"""Bring every settlement to the store, through an outage and over the end of the process."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, Final

import orjson

from tasks.errors import Stopped
from tasks.store import Run, Settlement, Store
from tasks.store.run_verbs import settle_arguments

log = logging.getLogger("slowcall.settle")

_PROMPT_S: Final = 0.5
"""A settlement that takes longer is put on disk: the store is away."""


class Spool:
    """A folder of settlements that the store has not taken yet, one file for each call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, arguments: dict[str, Any]) -> Path:
        """Keep a settlement on disk, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{arguments['call']}.json"
        draft = path.with_suffix(".draft")
        with open(draft, "wb") as file:
            file.write(orjson.dumps(arguments))
            file.flush()
            os.fsync(file.fileno())
        return draft.rename(path)

    def take(self) -> list[tuple[Path, dict[str, Any]]]:
        """What earlier processes left. Taken by rename, so that two starts never share a file;
        a taker that died left its own behind, and the store takes a settlement twice as once."""
        taken = []
        for path in sorted(self._folder.glob("*.json*")):
            mine = path.with_name(f"{path.name.partition('.')[0]}.json.{os.getpid()}")
            try:
                path.rename(mine)
                taken.append((mine, orjson.loads(mine.read_bytes())))
            except FileNotFoundError:
                continue
            except orjson.JSONDecodeError:
                log.error("the spool holds a file that is no settlement: %s", mine)
        return taken


class Settler:
    """Settles calls: each reaches the store, or lies in the spool for the next start."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._spool = Spool(folder)
        self._under_way: set[asyncio.Task[None]] = set()

    async def settle(self, run: Run, end: Settlement) -> None:
        """Settle a call, also when the caller is cancelled. Raises RunLost when the run is over."""
        await self._bring(settle_arguments(run, end))

    async def offer_spooled(self) -> int:
        """Settle what earlier processes left behind; answers how many there were."""
        left = self._spool.take()
        for path, arguments in left:
            try:
                await self._store.settle_spooled(arguments)
            except Stopped:
                log.info("a spooled answer of job %s was booked late", arguments["job"])
            except Exception:
                # It must not keep this worker from its work; it stays for a person to look at.
                log.exception("a spooled answer cannot be booked: %s", path)
                continue
            path.unlink(missing_ok=True)
        return len(left)

    async def close(self, patience_s: float) -> None:
        """Give what is under way a last chance; the rest lies in the spool."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=patience_s)
        for task in self._under_way:
            task.cancel()

    async def _bring(self, arguments: dict[str, Any]) -> None:
        task = asyncio.create_task(self._bring_or_spool(arguments))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.shield(task)

    async def _bring_or_spool(self, arguments: dict[str, Any]) -> None:
        attempt = asyncio.create_task(self._store.settle_spooled(arguments))
        done, _ = await asyncio.wait([attempt], timeout=_PROMPT_S)
        path = None if done else self._spool.put(arguments)
        try:
            await attempt
        finally:
            if path is not None and attempt.done() and not attempt.cancelled():
                path.unlink(missing_ok=True)
