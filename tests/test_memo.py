"""Memo: answers of a user's earlier jobs, by request, for who asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tasks.settings import Settings
from tasks.store import Store
from tests.conftest import LabModel
from tests.crew import crew, ended, job
from tests.rig import a_job, data, store_at
from tests.serving import served, submit, until

PAGES = [f"page {n}: the quick brown fox" for n in range(1, 41)]


class Shop:
    """Buys jobs, and says what each cost."""

    def __init__(self, store: Store, lab: LabModel) -> None:
        self.store = store
        self.lab = lab

    async def buy(self, input: Any, *, kind: str = "chat", **more: Any) -> tuple[int, Any]:
        """How many calls were sold for a job, and the job when it is done."""
        before = self.lab.ledger()["sold"]
        job_id = (await self.store.submit(a_job(kind, input, **more))).job.job_id
        (told,) = await ended(self.store, [job_id])
        assert told["status"] == "done", told["error"]
        return self.lab.ledger()["sold"] - before, told


@asynccontextmanager
async def shop(settings: Settings, lab: LabModel) -> AsyncIterator[Shop]:
    async with store_at(settings) as store, crew(settings, lab.url):
        yield Shop(store, lab)


async def test_an_edited_page_costs_itself_and_the_join(settings: Settings, lab: LabModel) -> None:
    async with shop(settings, lab) as customer:
        sold, first = await customer.buy({"pages": PAGES}, kind="summarize", memo=True)
        assert sold == len(PAGES) + 1
        edited = [*PAGES[:11], "page 12: quite another text", *PAGES[12:]]
        sold, second = await customer.buy({"pages": edited}, kind="summarize", memo=True)
        assert sold == 2
        assert second["ledger"]["reused"] == 39
        assert (second["ledger"]["paid"], first["ledger"]["paid"]) == (2, 41)
        assert second["progress"]["done"] == 40
        log = await customer.store.log(second["job_id"])
        told = [data(entry.block)["progress"] for entry in log if entry.name == "progress"]
        done = [progress["done"] for progress in told]
        assert done == sorted(done)
        assert len(done) >= 40, "each page that was known is told, too"


async def test_who_does_not_ask_for_it_buys(settings: Settings, lab: LabModel) -> None:
    async with shop(settings, lab) as customer:
        assert [(await customer.buy("hello", memo=memo))[0] for memo in (True, False)] == [1, 1]
        assert (await customer.buy("hello", memo=True))[0] == 0, "any earlier job will do"


@pytest.mark.parametrize(
    "other",
    [
        {"input": "hello!"},
        {"input": {"messages": [{"role": "user", "content": "hello"}], "model": "other"}},
        {"input": {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}},
        {"user_id": "somebody else"},
        {"user_id": "local:x"},
    ],
)
async def test_another_request_or_user_buys(
    settings: Settings, lab: LabModel, other: dict[str, Any]
) -> None:
    async with shop(settings, lab) as customer:
        await customer.buy("hello", memo=True)
        sold, _ = await customer.buy(**{"input": "hello", "memo": True, **other})
        assert sold == 1


async def test_a_known_answer_is_one_delta_and_the_same_text(
    settings: Settings, lab: LabModel
) -> None:
    async with shop(settings, lab) as customer:
        _, first = await customer.buy("hello there", memo=True)
        sold, second = await customer.buy("hello there", memo=True)
        assert sold == 0
        assert second["result"] == first["result"]
        log = await customer.store.log(second["job_id"])
        deltas = [data(entry.block)["text"] for entry in log if entry.name == "delta"]
        assert deltas == [first["result"]["text"]]
        assert await customer.store.ledger(second["job_id"]) == []


async def test_a_discarded_job_answers_nobody(settings: Settings, lab: LabModel) -> None:
    async with shop(settings, lab) as customer:
        _, first = await customer.buy("hello", memo=True)
        _, second = await customer.buy("hello", memo=True)
        await customer.store.delete(first["job_id"])
        assert (await customer.buy("hello", memo=True))[0] == 1, "nothing of it was left"
        await customer.store.delete(second["job_id"])


async def test_it_is_kept_as_long_as_its_job(settings: Settings, lab: LabModel) -> None:
    own = settings.model_copy(update={"keep_s": 1})
    async with shop(own, lab) as customer:

        async def gone() -> bool:
            return (await customer.store.list_jobs(user_id=None))[0] == []

        for _ in range(2):
            assert (await customer.buy("hello", memo=True))[0] == 1
            await until(gone, "the job is gone")


async def test_a_failure_is_not_remembered(settings: Settings, lab: LabModel) -> None:
    async with shop(settings, lab) as customer:
        lab.misbehave({"status": 400, "times": 1})
        job_id = (await customer.store.submit(a_job("chat", "hello", memo=True))).job.job_id
        await ended(customer.store, [job_id])
        assert (await job(customer.store, job_id))["status"] == "failed"
        assert (await customer.buy("hello", memo=True))[0] == 1


async def test_over_http(settings: Settings, lab: LabModel) -> None:
    async with served(settings) as client, store_at(settings) as store, crew(settings, lab.url):
        for _ in range(2):
            await ended(store, [await submit(client, "hello", memo=True)])
        assert lab.ledger()["sold"] == 1
