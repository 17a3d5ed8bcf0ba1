"""Load the Lua scripts and call them by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any, Final
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,
)

from tasks.errors import StoreUnavailable
from tasks.keys import FEED_LENGTH, OP_KEEP_S, TEMPLATES

AWAY: Final = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OutOfMemoryError)
"""What redis-py raises when the store cannot be used now but may be later."""

_LONGEST_PAUSE_S: Final = 1.0

_ONCE: Final = """
local A = {}
for i = 3, #ARGV, 2 do A[ARGV[i]] = ARGV[i + 1] end
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock()
if ARGV[1] == '' then return script(A, now) end
local op = K('op', ARGV[1])
local said = redis.call('GET', op)
if said then return cmsgpack.unpack(said) end
local reply = script(A, now)
redis.call('SET', op, cmsgpack.pack(reply), 'PX', CONFIG.op_keep_ms)
return reply
"""


class Scripts:
    """The scripts of `lua/`, bound to one Redis.

    `patient` waits out an outage for as long as its caller lives (a worker's way); else a call that
    cannot reach Redis raises StoreUnavailable. `clock` answers the time in ms (None: Redis TIME).
    """

    def __init__(
        self, redis: Redis, *, keep_ms: int, patient: bool, clock: Callable[[], float] | None
    ) -> None:
        self._redis = redis
        self._keep_ms = keep_ms
        self._patient = patient
        self._clock = clock
        self._shas: dict[str, str] = {}

    async def call(self, name: str, /, **arguments: str | bytes | float) -> list[Any]:
        """Call a script that is a repeat by nature (its file says why); answers what it returns."""
        return await self._call(name, "", arguments)

    async def call_once(self, name: str, /, **arguments: str | bytes | float) -> list[Any]:
        """Call a script under a new operation id: a resend answers what the first one did."""
        return await self._call(name, uuid4().hex, arguments)

    async def _call(self, name: str, op: str, arguments: dict[str, Any]) -> list[Any]:
        now = "" if self._clock is None else self._clock()
        argv = [op, now, *(part for pair in arguments.items() for part in pair)]
        pause_s = 0.05
        while True:
            try:
                return await self._evaluate(name, argv)
            except AWAY as error:
                if not self._patient:
                    raise StoreUnavailable(f"Redis does not answer: {error}") from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _evaluate(self, name: str, argv: list[Any]) -> list[Any]:
        text = source(name, self._keep_ms)
        sha = self._shas.setdefault(name, sha1(text.encode(), usedforsecurity=False).hexdigest())
        try:
            return await self._redis.evalsha(sha, 0, *argv)  # type: ignore[misc, no-any-return]
        except NoScriptError:
            return await self._redis.eval(text, 0, *argv)  # type: ignore[misc, no-any-return]


@cache
def source(name: str, keep_ms: int) -> str:
    """The whole text of a script: names and settings, what all share, its own body, the wrapper."""
    folder = resources.files("tasks.store") / "lua"
    names = ", ".join(f"{key} = '{value}'" for key, value in TEMPLATES.items())
    config = f"keep_ms = {keep_ms}, op_keep_ms = {OP_KEEP_S * 1000}, feed_length = {FEED_LENGTH}"
    return "\n".join(
        [
            f"local NAMES = {{{names}}}",
            f"local CONFIG = {{{config}}}",
            (folder / "lib.lua").read_text(),
            "local function script(A, now)",
            (folder / f"{name}.lua").read_text(),
            "end",
            _ONCE,
        ]
    )
