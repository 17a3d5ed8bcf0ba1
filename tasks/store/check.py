"""What a start-up asks of Redis before it relies on it: rights, eviction, durability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import redis
from redis.exceptions import NoPermissionError

from tasks.errors import SettingsError, StoreUnavailable
from tasks.keys import PREFIX
from tasks.redis_url import show_redis_url
from tasks.settings import Settings
from tasks.store.outage import meaning_of

_PROBE: Final = f"{PREFIX}probe"
_IN_VAIN: Final[tuple[tuple[str, ...], ...]] = (
    ("FUNCTION", "LOAD", "REPLACE", "no library"),
    ("FUNCTION", "DELETE", "slowcall_probe"),
    ("FCALL", "slowcall_probe", "0"),
)
"""Whoever may give these commands gets an error of another sort than who may not."""
_COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("PING",),
    ("TIME",),
    ("FUNCTION", "LIST", "LIBRARYNAME", "slowcall_probe"),
    ("PUBLISH", _PROBE, ""),
    ("SET", _PROBE, "", "PX", "1000"),
    ("GET", _PROBE),
    ("DEL", _PROBE),
    ("HSET", _PROBE, "a", "b"),
    ("HGETALL", _PROBE),
    ("PEXPIRE", _PROBE, "1000"),
    ("DEL", _PROBE),
    ("ZADD", _PROBE, "1", "a"),
    ("ZRANGE", _PROBE, "0", "-1"),
    ("DEL", _PROBE),
    ("SADD", _PROBE, "a"),
    ("DEL", _PROBE),
    ("XADD", _PROBE, "*", "a", "b"),
    ("XRANGE", _PROBE, "-", "+"),
    ("DEL", _PROBE),
)
"""What our scripts and connections do, on a key of its own that is gone afterwards."""


def check_store(settings: Settings) -> list[str]:
    """Ask the store of `settings` whether it will do; answers a line for each thing to know.

    Raises StoreUnavailable when it is of no use now, SettingsError where its user lacks a right.
    """
    url = settings.redis_url.get_secret_value() if settings.redis_url else ""
    where = show_redis_url(url)
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5) as client:
            _check_rights(client)
            return _advice(client.info(), where)
    except NoPermissionError as error:
        return [f"{where}: cannot see how it keeps its data ({error})"]
    except redis.AuthenticationError as error:
        raise SettingsError(f"REDIS_URL: {where} refuses us: {error}") from None
    except redis.ResponseError as error:
        if isinstance(meaning_of(error), StoreUnavailable):
            raise StoreUnavailable(f"REDIS_URL: {where} takes nothing now: {error}") from None
        raise SettingsError(f"REDIS_URL: {where} refuses us: {error}") from None
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"REDIS_URL: {where} does not answer: {error}") from None


def _check_rights(client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for command in (*_IN_VAIN, *_COMMANDS):
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        replies = pipeline.execute(raise_on_error=False)  # type: ignore[no-untyped-call]
    for command, reply in zip((*_IN_VAIN, *_COMMANDS), replies, strict=True):
        if isinstance(reply, NoPermissionError):
            raise SettingsError(
                f"REDIS_URL: its user may not {command[0]} {' '.join(command[1:2])}; slowcall "
                f"needs +@all -@dangerous +info on the keys {PREFIX}* and channels {PREFIX}*"
            )
        if "unknown command" in str(reply):
            raise SettingsError(
                f"REDIS_URL: it does not know {command[0]}; slowcall needs Redis 7 or Valkey"
            )
        if isinstance(reply, redis.RedisError) and command not in _IN_VAIN:
            raise reply


def _advice(info: Mapping[str, Any], where: str) -> list[str]:
    lines = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        lines.append(
            f"{where}: maxmemory-policy is {policy}: jobs may vanish when it is full; "
            "set noeviction"
        )
    if not info.get("aof_enabled", 1):
        lines.append(
            f"{where}: no append-only file: jobs acknowledged since its last snapshot are lost "
            "when it ends; set appendonly yes"
        )
    return lines
