"""Load the Lua scripts as a library of Redis functions, and call them by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha1
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, ResponseError

from tasks.errors import RecordDamaged, StoreUnavailable
from tasks.keys import TEMPLATES
from tasks.store.batch import Batches
from tasks.store.outage import FAILED, meaning_of

_Word = str | bytes | float

_LONGEST_PAUSE_S: Final = 1.0
_FOLDER: Final = resources.files("tasks.store") / "lua"
_NOW: Final = {"claim"}
"""Its worker has the jobs of the last one to begin meanwhile."""
_LATER: Final = {"conclude"}
"""A worker's next job is begun before the end of its last one is told."""
_SHARED: Final = ("lib", "lanes", "outbox", "ends")
_READS: Final = {"read", "list", "look_at_lanes"}
"""They write nothing, so that a full store answers them."""
_UNKNOWN: Final = "Function not found"
_TRIES: Final = 3
_PREFIX: Final = "slowcall_"


class Scripts:
    """The scripts of `lua/`, bound to one Redis as a library of functions.

    `patient` waits out an outage for as long as its caller lives (a worker's way); else a call that
    cannot reach Redis raises StoreUnavailable. `clock` answers the time in ms (None: Redis TIME).
    """

    def __init__(
        self, redis: Redis, *, constants: str, patient: bool, clock: Callable[[], float] | None
    ) -> None:
        self.batches = Batches(redis)
        self._library, self._text = library(constants)
        self._patient = patient
        self._clock = clock
        self._loading: asyncio.Future[Any] | None = None

    async def load(self) -> None:
        """Let Redis read the library before the first job needs it, which would wait for that, and
        drop those of other versions and settings: whoever still uses one loads it again.

        A store that is away gets it with the first call.
        """
        try:
            await self._load(self._loading)
            for found in await self.batches.ask("FUNCTION", "LIST", "LIBRARYNAME", f"{_PREFIX}*"):
                if (name := found[1].decode()) != self._library:
                    with suppress(ResponseError):  # somebody else was quicker
                        await self.batches.ask("FUNCTION", "DELETE", name)
        except FAILED as error:
            if not isinstance(meaning_of(error), StoreUnavailable):
                raise

    async def call(self, name: str, /, *rest: _Word, **arguments: _Word) -> list[Any]:
        """Call a script that is a repeat by nature (its file says why); answers what it returns."""
        return await self._call(name, "", rest, arguments)

    async def call_once(self, name: str, /, **arguments: _Word) -> list[Any]:
        """Call a script under a new operation id: a resend answers what the first one did."""
        return await self._call(name, uuid4().hex, (), arguments)

    async def _call(
        self, name: str, op: str, rest: tuple[_Word, ...], arguments: dict[str, _Word]
    ) -> list[Any]:
        now = "" if self._clock is None else self._clock()
        argv = [op, now, *chain.from_iterable(arguments.items()), *(("", *rest) if rest else ())]
        pause_s, again = 0.05, False
        while True:
            try:
                return await self._evaluate(name, argv)
            except FAILED as error:
                # A connection that was dropped while it was idle is no outage: once more, at once.
                if not self._patient and not again and isinstance(error, ConnectionError):
                    again = True
                    continue
                meaning = meaning_of(error)
                if not self._patient or isinstance(meaning, RecordDamaged):
                    raise meaning from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _evaluate(self, name: str, argv: list[Any]) -> list[Any]:
        command = ("FCALL", f"{self._library}_{name}", 0, *argv)
        for _ in range(_TRIES):
            newest = self._loading
            try:
                asked = self.batches.ask(*command, now=name in _NOW, later=name in _LATER)
                return await asked  # type: ignore[no-any-return]
            except ResponseError as error:
                if str(error) != _UNKNOWN:
                    raise
            await self._load(newest)
        raise ConnectionError("Somebody drops our functions again and again.")

    async def _load(self, newest: asyncio.Future[Any] | None) -> None:
        """Once for all who miss it at the same time: not again where one began after `newest`."""
        if self._loading is None or (self._loading is newest and newest.done()):
            self._loading = self.batches.ask("FUNCTION", "LOAD", "REPLACE", self._text)
        await asyncio.shield(self._loading)


@cache
def library(constants: str) -> tuple[str, str]:
    """The name of the library and its text: constants, names of keys, what all scripts share, the
    scripts.

    Functions are made once. As a text of its own (EVALSHA) a script made all that it shares with
    the others at each call, and every fiftieth paid for the garbage: it took three times as long.
    """
    names = ", ".join(f"{key} = '{value.partition('{')[0]}'" for key, value in TEMPLATES.items())
    shared = "".join(_read(part) for part in _SHARED)
    stems = {Path(file.name).stem for file in _FOLDER.iterdir()} - {*_SHARED, "wrap"}
    body = f"{constants}local NAMES = {{{names}}}\n{shared}{_read('wrap')}"
    body += "".join(_registered(name) for name in sorted(stems))
    name = _PREFIX + sha1(body.encode(), usedforsecurity=False).hexdigest()[:16]
    return name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}"


def _registered(name: str) -> str:
    flags = "'no-writes'" if name in _READS else ""
    return (
        f"do\nlocal function script(A, now, args, rest)\n{_read(name)}\nend\n"
        f"register('{name}', script, {{{flags}}})\nend\n"
    )


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()
