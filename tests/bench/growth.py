"""Finished jobs in the store: what submit, status and list cost then, and what each job takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import redis
from pydantic import SecretStr

from tasks.lifecycle import FINISH
from tasks.settings import Settings
from tasks.store import NewJob, Store
from tests.bench.parts import place
from tests.bench.table import OURS, Table, quantile

ASKED: Final = 1_000
_COPIES: Final = 2_000
"""Copies made by one script."""

_COPY: Final = """
-- Copies a finished job under new ids, with its places in the indexes.
-- KEYS: its keys, then indexes.
-- ARGV: its id, how many keys, the first number, how many copies, the score of all
local keys = tonumber(ARGV[2])
for number = ARGV[3], ARGV[3] + ARGV[4] - 1 do
  local id = string.format('%032x', number)
  for i = 1, keys do redis.call('COPY', KEYS[i], (string.gsub(KEYS[i], ARGV[1], id))) end
  for i = keys + 1, #KEYS do redis.call('ZADD', KEYS[i], ARGV[5] - number, id) end
end
"""


def bench(runs: int, quick: bool) -> list[Table]:
    """One table, a row for each size."""
    table = Table("With so many finished jobs in the store", "Medians of 1,000 questions.")
    for _ in range(runs):
        for size in (0, 1_000) if quick else (0, 10_000, 100_000, 1_000_000):
            _measure(table, size)
    return [table]


def _measure(table: Table, size: int) -> None:
    with place() as here:
        settings = Settings(REDIS_URL=SecretStr(here.url))
        with here.redis() as client:
            pattern = asyncio.run(_finished_job(settings))
            before = client.info("memory")["used_memory"]
            _fill(client, pattern, size)
            grown = client.info("memory")["used_memory"] - before
        asked_ms = asyncio.run(_ask(settings, pattern))
    name = OURS if size == 0 else f"{size:,}"
    for measure, took_ms in asked_ms.items():
        table.add("none" if size == 0 else name, f"{measure} ms", took_ms)
    if size:
        table.add(name, "bytes for each job", grown / size)


async def _finished_job(settings: Settings) -> str:
    """A `chat` job as it is after its end; answers its id."""
    store = Store.connect(settings)
    await store.submit(NewJob("chat", "Why is the sky blue?", "local", 3, 600))
    claimed, _ = await store.claim("bench", ["chat"], 1, 3600)
    run = claimed[0].run
    assert run is not None
    for number in range(1, 11):
        await store.tell_delta(run, number, "answer", "Because of the way light scatters. ")
    await store.conclude(run, FINISH, result={"text": "Because of the way light scatters. " * 10})
    await store.aclose()
    return run.job_id


def _fill(client: redis.Redis, job_id: str, size: int) -> None:
    """Copy the finished job with every index that it stands in."""
    own, indexes, score = [], [], 0.0
    for key in client.scan_iter(count=1000):
        if job_id.encode() in key:
            own.append(key)
        elif client.type(key) == b"zset" and client.zscore(key, job_id) is not None:
            indexes.append(key)
            score = float(str(client.zscore(key, job_id)))
    copy = client.register_script(_COPY)
    for first in range(0, size, _COPIES):
        arguments: list[Any] = [job_id, len(own), first + 1, min(_COPIES, size - first), score]
        copy(keys=[*own, *indexes], args=arguments)


async def _ask(settings: Settings, job_id: str) -> dict[str, float]:
    """The median time (ms) of each question."""
    store = Store.connect(settings)

    async def submit() -> Any:
        return await store.submit(NewJob("chat", "hello", "local", 3, 600))

    async def status() -> Any:
        return await store.read(job_id)

    async def first_page() -> Any:
        return await store.list_jobs(user_id="local", limit=50)

    asked = {"submit": submit, "status": status, "first page of the list": first_page}
    took_ms = {name: await _median_ms(question) for name, question in asked.items()}
    await store.aclose()
    return took_ms


async def _median_ms(question: Callable[[], Awaitable[Any]]) -> float:
    took_ms = []
    for _ in range(ASKED):
        began = time.perf_counter()
        await question()
        took_ms.append(1000 * (time.perf_counter() - began))
    return quantile(took_ms, 0.5)
