"""Commands that travel together: each caller gets its own reply, its own error, its own end."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ConnectionError, NoScriptError, TimeoutError

from tasks.settings import Settings
from tasks.store import Store
from tests.rig import a_job, store_at
from tests.serving import until


async def connections(store: Store) -> int:
    """How many connections Redis has taken so far."""
    return int((await store.redis.info("stats"))["total_connections_received"])


async def test_a_crowd_of_one_turn_shares_a_connection(settings: Settings) -> None:
    async with store_at(settings) as store:
        before = await connections(store)
        asked = [store.scripts.batches.ask("ECHO", str(number)) for number in range(100)]
        assert await asyncio.gather(*asked) == [str(number).encode() for number in range(100)]
        assert await connections(store) - before <= 1


async def test_an_error_reaches_only_who_asked(settings: Settings) -> None:
    async with store_at(settings) as store:
        ask = store.scripts.batches.ask
        before, wrong, after = ask("ECHO", "a"), ask("EVALSHA", "0" * 40, 0), ask("ECHO", "b")
        with pytest.raises(NoScriptError):
            await wrong
        assert [await before, await after] == [b"a", b"b"]


async def test_who_gives_up_harms_nobody(settings: Settings) -> None:
    async with store_at(settings) as store:
        ask = store.scripts.batches.ask
        given_up, other = ask("ECHO", "a"), ask("ECHO", "b")
        given_up.cancel()
        assert await other == b"b"
        assert await ask("ECHO", "c") == b"c"


async def test_a_large_command_holds_nobody_up(settings: Settings) -> None:
    """It travels on a connection of its own, which is gone afterwards."""
    async with store_at(settings) as store:
        ask = store.scripts.batches.ask
        await ask("PING")
        before = await connections(store)
        large, small = ask("SET", "slowcall:x", b"x" * 1_000_000), ask("ECHO", "b")
        assert await small == b"b"
        assert await large == b"OK"
        assert await ask("STRLEN", "slowcall:x") == 1_000_000
        assert await connections(store) - before == 1
        await ask("DEL", "slowcall:x")
        names = [client["cmd"] for client in await store.redis.client_list()]
        assert "set" not in names


async def test_a_connection_that_was_dropped_is_no_outage(settings: Settings) -> None:
    """Something between the two ends idle connections; a script is sent again at once."""
    async with store_at(settings) as store:
        submitted = await store.submit(a_job("chat"))
        for _ in range(3):
            await store.redis.client_kill_filter(_type="normal", skipme=True)
            assert (await store.read(submitted.job.job_id)).job_id == submitted.job.job_id


async def test_who_is_asked_and_dies_fails_everybody(settings: Settings) -> None:
    async with store_at(settings) as store:
        ask = store.scripts.batches.ask
        await ask("PING")
        waiting = [ask("BLPOP", "slowcall:nothing", "30"), ask("ECHO", "behind it")]

        async def stands() -> bool:
            clients = await store.redis.client_list()
            return any(client["cmd"] == "blpop" for client in clients)

        await until(stands, "the command waits")
        await store.redis.client_kill_filter(_type="normal", skipme=True)
        for one in waiting:
            with pytest.raises(ConnectionError):
                await one
        assert await ask("ECHO", "anew") == b"anew"


async def test_who_waits_for_the_wire_is_served_by_the_next_one(settings: Settings) -> None:
    """The wire is full, all on it have given up, and it is lost: nobody else would look again."""
    async with store_at(settings) as store:
        ask = store.scripts.batches.ask
        on_the_way = [ask("BLPOP", "slowcall:nothing", "30")]
        on_the_way += [ask("ECHO", "behind it") for _ in range(31)]
        waiting = [ask("ECHO", str(number)) for number in range(20)]

        async def stands() -> bool:
            clients = await store.redis.client_list()
            return any(client["cmd"] == "blpop" for client in clients)

        await until(stands, "the command waits")
        for one in on_the_way:
            one.cancel()
        await store.redis.client_kill_filter(_type="normal", skipme=True)
        async with asyncio.timeout(3):
            assert await asyncio.gather(*waiting) == [str(n).encode() for n in range(20)]


async def test_what_can_wait_makes_way(settings: Settings) -> None:
    async with store_at(settings) as store:
        ask, order = store.scripts.batches.ask, list[bytes]()
        asked = [ask("ECHO", "on its way") for _ in range(32)]
        asked += [ask("ECHO", "later", later=True) for _ in range(3)]
        asked += [ask("ECHO", "now") for _ in range(3)]
        for one in asked:
            one.add_done_callback(lambda reply: order.append(reply.result()))
        await asyncio.gather(*asked)
        await asyncio.sleep(0)
        assert order == [b"on its way"] * 32 + [b"now"] * 3 + [b"later"] * 3


async def test_silence_is_not_waited_out(settings: Settings) -> None:
    """A store that hangs is away, too: whoever asked hears of it, and a new wire is dialled."""
    async with store_at(settings) as store:
        store.redis.connection_pool.connection_kwargs["socket_timeout"] = 0.3
        ask = store.scripts.batches.ask
        with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
            await ask("BLPOP", "slowcall:nothing", "30")
        assert await ask("ECHO", "anew") == b"anew"


async def test_nobody_is_left_waiting_at_the_end(settings: Settings) -> None:
    async with store_at(settings) as store:
        asked = [store.scripts.batches.ask("ECHO", "a")]
        await asyncio.sleep(0)  # it dials
    with pytest.raises(ConnectionError):
        await asked[0]
