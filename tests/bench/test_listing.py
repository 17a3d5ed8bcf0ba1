"""A page of 50 costs the same among 100,000 jobs as among 500."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tasks.keys import name
from tasks.lifecycle import Status
from tasks.settings import Settings
from tasks.store import Store
from tests.rig import a_job, store_at

ROUNDS = 15
FEW, MANY = 500, 100_000
PAGE = 50

FILL = """
-- Jobs in all indexes, each a millisecond older than the one before; the newest have records, too.
local record = redis.call('HGETALL', ARGV[1])
local created = redis.call('HGET', ARGV[1], 'created')
local members = {}
for n = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local id = string.format('%032x', n)
  if n < tonumber(ARGV[4]) then redis.call('HSET', 'slowcall:job:' .. id, unpack(record)) end
  table.insert(members, created - n)
  table.insert(members, id)
end
for i = 1, #KEYS do redis.call('ZADD', KEYS[i], unpack(members)) end
"""


async def fill(store: Store, job_id: str, first: int, last: int) -> None:
    """Make jobs like this one by a script: submitting them would take minutes."""
    indexes = [key async for key in store.redis.scan_iter("slowcall:index:*")]
    step = 2000
    for start in range(first, last, step):
        end = min(start + step, last) - 1
        argv = [name("job", job_id), *map(str, (start, end, FEW))]
        await store.redis.eval(FILL, len(indexes), *indexes, *argv)  # type: ignore[misc]


async def quickest_ms(ask: Callable[[], Awaitable[Any]]) -> float:
    """How long a question takes, when nobody else disturbs it."""
    took = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - started)
    return min(took) * 1000


async def questions(store: Store) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Pages of several kinds; the deep one lies 200 jobs down."""
    cursor: str | None = None
    for _ in range(4):
        _, cursor = await store.list_jobs(user_id=None, limit=PAGE, cursor=cursor)
    return {
        "newest": lambda: store.list_jobs(user_id=None, limit=PAGE),
        "of a user": lambda: store.list_jobs(user_id="local", limit=PAGE),
        "of a status": lambda: store.list_jobs(user_id=None, status=Status.QUEUED, limit=PAGE),
        "of a kind": lambda: store.list_jobs(user_id="local", kind="chat", limit=PAGE),
        "deep": lambda: store.list_jobs(user_id=None, limit=PAGE, cursor=cursor),
    }


@pytest.mark.writes_by_hand
async def test_many_jobs_do_not_slow_a_page(settings: Settings) -> None:
    async with store_at(settings) as store:
        job_id = (await store.submit(a_job("chat"))).job.job_id
        await fill(store, job_id, 1, FEW)
        few = {what: await quickest_ms(ask) for what, ask in (await questions(store)).items()}
        await fill(store, job_id, FEW, MANY)
        many = {what: await quickest_ms(ask) for what, ask in (await questions(store)).items()}
        ratios = {what: round(many[what] / few[what], 2) for what in few}
        assert max(ratios.values()) < 3, f"{ratios}; ms among {MANY}: {many}"


@pytest.mark.writes_by_hand
async def test_a_walk_sees_each_job_once_while_others_come_in(settings: Settings) -> None:
    async with store_at(settings) as store:
        job_id = (await store.submit(a_job("chat"))).job.job_id
        await fill(store, job_id, 1, FEW)
        known = {view.job_id for view in (await store.list_jobs(user_id=None, limit=FEW + 9))[0]}
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page, cursor = await store.list_jobs(user_id=None, limit=PAGE, cursor=cursor)
            seen += [view.job_id for view in page]
            await store.submit(a_job("chat"))
            if cursor is None:
                break
        assert len(seen) == len(set(seen))
        assert set(seen) == known
