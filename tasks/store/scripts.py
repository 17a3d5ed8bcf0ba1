"""Load the Lua scripts and call them by name."""

from __future__ import annotations

import asyncio
import re
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
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from tasks.errors import RecordDamaged, StoreUnavailable
from tasks.keys import TEMPLATES
from tasks.store.batch import Batches

AWAY: Final = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OutOfMemoryError)
"""What redis-py raises when the store cannot be used now but may be later."""

_Word = str | bytes | float

_CODE: Final = re.compile(r"(?!WRONGTYPE)[A-Z]{3,} ")
_LONGEST_PAUSE_S: Final = 1.0
_FOLDER: Final = resources.files("tasks.store") / "lua"
_LATER: Final = {"conclude"}
"""A worker's next job is begun before the end of its last one is told."""
_SHARED: Final = ("lib", "lanes", "outbox", "ends")

_DEFINITION: Final = re.compile(r"^(?=local )", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
_DEFINED: Final = re.compile(r"local (?:function )?(\w+)")

_GLOBALS: Final = (
    "local redis, ARGV = redis, ARGV -- sooner found than what is global\nlocal REST\n"
)
_ONCE: Final = """
local A = {}
for i = 3, #ARGV, 2 do
  if ARGV[i] == '' then
    REST = i + 1
    break
  end
  A[ARGV[i]] = ARGV[i + 1]
end
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock()
NOW = now
if ARGV[1] == '' then return script(A, now) end
local op = K('op', ARGV[1])
local said = redis.call('GET', op)
if said then return cmsgpack.unpack(said) end
local reply = script(A, now)
redis.call('SET', op, cmsgpack.pack(reply), 'PX', OP_KEEP_MS)
return reply
"""


class Scripts:
    """The scripts of `lua/`, bound to one Redis.

    `patient` waits out an outage for as long as its caller lives (a worker's way); else a call that
    cannot reach Redis raises StoreUnavailable. `clock` answers the time in ms (None: Redis TIME).
    """

    def __init__(
        self, redis: Redis, *, constants: str, patient: bool, clock: Callable[[], float] | None
    ) -> None:
        self.batches = Batches(redis)
        self._constants = constants
        self._patient = patient
        self._clock = clock

    async def load(self) -> None:
        """Let Redis read all scripts before the first job needs them, which would wait for that. A
        store that is away gets them as they are called."""
        texts = [source(name, self._constants) for name in _names()]
        with suppress(*AWAY):
            await asyncio.gather(*(self.batches.ask("SCRIPT", "LOAD", text) for text in texts))

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
            except AWAY as error:
                # A connection that was dropped while it was idle is no outage: once more, at once.
                if not self._patient and not again and isinstance(error, ConnectionError):
                    again = True
                    continue
                if not self._patient:
                    raise StoreUnavailable(f"Redis does not answer: {error}") from error
            except ResponseError as error:
                raise_damage(error)
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _evaluate(self, name: str, argv: list[Any]) -> list[Any]:
        sha = digest(name, self._constants)
        try:
            return await self.batches.ask("EVALSHA", sha, 0, *argv, later=name in _LATER)  # type: ignore[no-any-return]
        except NoScriptError:
            text = source(name, self._constants)
            return await self.batches.ask("EVAL", text, 0, *argv)  # type: ignore[no-any-return]


def raise_damage(error: ResponseError) -> None:
    """Raises RecordDamaged where a command met a value of another type, no number, no JSON.

    What else Redis refuses begins with a code (MISCONF, BUSY …) or has a class of its own.
    """
    if type(error) is ResponseError and not _CODE.match(str(error)):
        raise RecordDamaged from error


@cache
def _names() -> list[str]:
    stems = {Path(file.name).stem for file in _FOLDER.iterdir()}
    return sorted(stems - set(_SHARED))


@cache
def digest(name: str, constants: str) -> str:
    """What Redis calls a script that it has seen before: the SHA-1 of its text."""
    return sha1(source(name, constants).encode(), usedforsecurity=False).hexdigest()


@cache
def source(name: str, constants: str) -> str:
    """The whole text of a script: names, what it uses of the constants and of what all share, its
    own body, the wrapper."""
    shared = "".join((_FOLDER / f"{part}.lua").read_text() for part in _SHARED)
    body = f"local function script(A, now)\n{(_FOLDER / f'{name}.lua').read_text()}\nend\n{_ONCE}"
    body = _link(constants + shared, body)
    names = ", ".join(
        f"{key} = '{value.partition('{')[0]}'"
        for key, value in TEMPLATES.items()
        if f"'{key}'" in body
    )
    return f"{_GLOBALS}local NAMES = {{{names}}}\n{body}"


def _link(shared: str, body: str) -> str:
    """`body` behind those definitions of `shared` that it uses, directly or not.

    Redis runs the whole text at each call: to make what no one uses took a third of a short
    script's time (measured). Lua's locals are defined before they are used, so one pass back does.
    """
    used = set(_WORD.findall(body))
    for definition in reversed(_DEFINITION.split(shared)[1:]):
        match = _DEFINED.match(definition)
        if match and match[1] in used:
            body = definition + body
            used.update(_WORD.findall(definition))
    return body
