"""Load the Lua scripts and call them by name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
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
    ResponseError,
    TimeoutError,
)

from tasks.errors import RecordDamaged, StoreUnavailable
from tasks.keys import FEED_LENGTH, OP_KEEP_S, TEMPLATES
from tasks.settings import Concurrency, RetryRule, Settings, name_of_target
from tasks.store.batch import Batches

AWAY: Final = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OutOfMemoryError)
"""What redis-py raises when the store cannot be used now but may be later."""

BUCKETS_MS: Final = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000),
    *(10_000, 30_000, 60_000, 120_000, 300_000, 600_000),
)
"""The upper bounds of every histogram that the scripts count."""

_CODE: Final = re.compile(r"(?!WRONGTYPE)[A-Z]{3,} ")
_LONGEST_PAUSE_S: Final = 1.0
_SHARED: Final = ("lib", "lanes", "outbox", "ends")

_DEFINITION: Final = re.compile(r"^(?=local )", re.MULTILINE)
_DEFINED: Final = re.compile(r"local (?:function )?(\w+)")

_ONCE: Final = """
local A = {}
for i = 3, #ARGV, 2 do A[ARGV[i]] = ARGV[i + 1] end
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock()
NOW = now
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
        self, redis: Redis, *, config: str, patient: bool, clock: Callable[[], float] | None
    ) -> None:
        self.batches = Batches(redis)
        self._config = config
        self._patient = patient
        self._clock = clock

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
            except ResponseError as error:
                raise_damage(error)
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _evaluate(self, name: str, argv: list[Any]) -> list[Any]:
        sha = digest(name, self._config)
        try:
            return await self.batches.ask("EVALSHA", sha, 0, *argv)  # type: ignore[no-any-return]
        except NoScriptError:
            text = source(name, self._config)
            return await self.batches.ask("EVAL", text, 0, *argv)  # type: ignore[no-any-return]


def raise_damage(error: ResponseError) -> None:
    """Raises RecordDamaged where a command met a value of another type, no number, no JSON.

    What else Redis refuses begins with a code (MISCONF, BUSY …) or has a class of its own.
    """
    if type(error) is ResponseError and not _CODE.match(str(error)):
        raise RecordDamaged from error


@cache
def digest(name: str, config: str) -> str:
    """What Redis calls a script that it has seen before: the SHA-1 of its text."""
    return sha1(source(name, config).encode(), usedforsecurity=False).hexdigest()


@cache
def source(name: str, config: str) -> str:
    """The whole text of a script: names and settings, what it uses of what all share, its own body,
    the wrapper."""
    folder = resources.files("tasks.store") / "lua"
    shared = "".join((folder / f"{part}.lua").read_text() for part in _SHARED)
    body = f"local function script(A, now)\n{(folder / f'{name}.lua').read_text()}\nend\n{_ONCE}"
    body = _link(shared, body)
    names = ", ".join(
        f"{key} = '{value.partition('{')[0]}'"
        for key, value in TEMPLATES.items()
        if f"'{key}'" in body
    )
    return f"local NAMES = {{{names}}}\nlocal CONFIG = {{{config}}}\n{body}"


def _link(shared: str, body: str) -> str:
    """`body` behind those definitions of `shared` that it uses, directly or not.

    Redis runs the whole text at each call: to make what no one uses took a third of a short
    script's time (measured). Lua's locals are defined before they are used, so one pass back does.
    """
    for definition in reversed(_DEFINITION.split(shared)[1:]):
        match = _DEFINED.match(definition)
        if match and re.search(rf"\b{match[1]}\b", body):
            body = definition + body
    return body


def lua_config(settings: Settings) -> str:
    """What the scripts know of the settings, as the fields of a Lua table."""
    fields = {
        "keep_ms": str(round(settings.keep_s * 1000)),
        "op_keep_ms": str(OP_KEEP_S * 1000),
        "feed_length": str(FEED_LENGTH),
        "max_wait_ms": str(round(settings.max_wait_s * 1000)),
        "lease_ms": str(round(settings.lease_s * 1000)),
        "longest_ms": str(round(settings.backoff_max_s * 1000)),
        "buckets": f"{{{', '.join(map(str, BUCKETS_MS))}}}",
        "alert_ms": str(round(settings.alert_window_s * 1000)),
        "alert_targets": _lua_list(map(name_of_target, settings.alert_urls)),
        "quota": str(settings.quota),
        "rules": _lua_rules(settings.auto_retry),
        "models": _lua_limits(settings.model_concurrency),
        "kinds": _lua_limits(settings.kind_concurrency),
    }
    return ", ".join(f"{name} = {value}" for name, value in fields.items())


def _lua_list(texts: Iterable[str]) -> str:
    return f"{{{', '.join(map(_lua_text, texts))}}}"


def _lua_limits(limits: Concurrency) -> str:
    single = ", ".join(f"[{_lua_text(name)}] = {most}" for name, most in limits.single)
    return f"{{default = {limits.default}, single = {{{single}}}}}"


def _lua_rules(rules: Iterable[RetryRule]) -> str:
    entries = (
        f"{rule.type} = {{after_ms = {round(rule.after_s * 1000)}, times = {rule.times}}}"
        for rule in rules
    )
    return f"{{{', '.join(entries)}}}"


def _lua_text(text: str) -> str:
    """A Lua string of any bytes: each as its number, so that none can end it."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'
