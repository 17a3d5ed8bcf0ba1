"""The scripts as a library of functions: loaded once, loaded again, dropped when out of use."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from tasks.settings import Settings
from tests.rig import a_job, store_at


async def libraries(redis: Redis) -> list[str]:
    """The names of our libraries in Redis."""
    found: list[list[bytes]] = await redis.execute_command(  # type: ignore[no-untyped-call]
        "FUNCTION", "LIST", "LIBRARYNAME", "slowcall_*"
    )
    return [library[1].decode() for library in found]


async def loads(redis: Redis) -> int:
    """How often a library was loaded since Redis counts anew."""
    stats = await redis.info("commandstats")
    return int(stats.get("cmdstat_function|load", {"calls": 0})["calls"])


async def test_who_misses_the_library_loads_it_once_for_all(settings: Settings) -> None:
    """A store that lost it: it was begun anew without its data, or somebody dropped all."""
    async with store_at(settings) as store:
        await store.submit(a_job("chat"))
        await store.redis.execute_command("FUNCTION", "FLUSH")  # type: ignore[no-untyped-call]
        await store.redis.config_resetstat()
        submitted = await asyncio.gather(*(store.submit(a_job("chat")) for _ in range(50)))
        assert len({one.job.job_id for one in submitted}) == 50
        assert await loads(store.redis) == 1


async def test_a_start_drops_the_libraries_of_others_and_they_go_on(settings: Settings) -> None:
    """Each version, and each choice of settings, has a library of its own; none stays for ever."""
    other = settings.model_copy(update={"keep_s": settings.keep_s + 1})
    async with store_at(settings) as store, store_at(other) as old:
        await old.submit(a_job("chat"))
        await store.scripts.load()
        assert len(await libraries(store.redis)) == 1
        job_id = (await old.submit(a_job("chat"))).job.job_id
        assert (await store.read(job_id)).job_id == job_id
        await store.scripts.load()
        assert len(await libraries(store.redis)) == 1


async def test_a_full_store_still_tells_of_its_jobs(settings: Settings) -> None:
    async with store_at(settings) as store:
        job = (await store.submit(a_job("chat"))).job
        await store.redis.config_set("maxmemory", "1")
        try:
            assert await store.read(job.job_id) == job
            assert (await store.list_jobs(user_id=None))[0] == [job]
            assert await store.lanes() == []
        finally:
            await store.redis.config_set("maxmemory", "0")
