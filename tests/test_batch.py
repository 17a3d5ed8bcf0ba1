"""Commands that travel together: each caller gets its own reply, its own error, its own end."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import NoScriptError

from tasks.settings import Settings
from tasks.store import Store
from tests.serving import store_of


async def connections(store: Store) -> int:
    """How many connections Redis has taken so far."""
    return int((await store.redis.info("stats"))["total_connections_received"])


async def test_a_crowd_of_one_turn_shares_a_connection(settings: Settings) -> None:
    async with store_of(settings) as store:
        before = await connections(store)
        asked = [store.scripts.batches.ask("ECHO", str(number)) for number in range(100)]
        assert await asyncio.gather(*asked) == [str(number).encode() for number in range(100)]
        assert await connections(store) - before <= 1


async def test_an_error_reaches_only_who_asked(settings: Settings) -> None:
    async with store_of(settings) as store:
        ask = store.scripts.batches.ask
        before, wrong, after = ask("ECHO", "a"), ask("EVALSHA", "0" * 40, 0), ask("ECHO", "b")
        with pytest.raises(NoScriptError):
            await wrong
        assert [await before, await after] == [b"a", b"b"]


async def test_who_gives_up_harms_nobody(settings: Settings) -> None:
    async with store_of(settings) as store:
        ask = store.scripts.batches.ask
        given_up, other = ask("ECHO", "a"), ask("ECHO", "b")
        given_up.cancel()
        assert await other == b"b"
        assert await ask("ECHO", "c") == b"c"
