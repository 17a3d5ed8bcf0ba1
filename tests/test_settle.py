"""A paid answer reaches the store: through an outage, over the end of the process, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tasks import settle
from tasks.errors import RunLost
from tasks.settings import Settings
from tasks.settle import Settler, Spool
from tasks.store import Run, Settlement, Store
from tasks.store.run_verbs import settle_arguments
from tests.rig import NOWHERE, a_job, seen
from tests.serving import until

END = Settlement("call", "answer", "h", "paid", status=200, value={"text": "paid for"})


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """The store."""
    store = Store.connect(settings)
    yield store
    await store.aclose()


@pytest.fixture
async def away(settings: Settings) -> AsyncIterator[Store]:
    """A worker's store that never answers."""
    url = SecretStr(NOWHERE.replace("http", "redis"))
    store = Store.connect(settings.model_copy(update={"redis_url": url}), patient=True)
    yield store
    await store.aclose()


@pytest.fixture
async def run(store: Store) -> Run:
    """A run with one call open."""
    await store.submit(a_job("chat"))
    (claimed,), _ = await store.claim("one", ["chat"], 1, 60)
    run = claimed.run
    assert run is not None
    await store.begin(run, call="call", step="answer", model="m", hash="h")
    return run


async def test_an_answer_that_the_store_does_not_take_lies_on_disk(
    store: Store, away: Store, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends while the store is away; the next start brings the answer, once."""
    monkeypatch.setattr(settle, "_PROMPT_S", 0.02)
    spool = tmp_path / "spool"
    last = Settler(away, spool)
    settling = asyncio.create_task(last.settle(run, END))

    async def lies_there() -> bool:
        return spool.exists() and len(list(spool.glob("*.json"))) == 1

    await until(lies_there, "the settlement is on disk")
    settling.cancel()
    await last.close(0)

    assert await Settler(store, spool).offer_spooled() == 1
    assert (await store.steps(run.job_id))["answer"].value == {"text": "paid for"}
    assert seen(await store.read(run.job_id))["ledger"]["paid"] == 1
    assert await Settler(store, spool).offer_spooled() == 0
    assert list(spool.iterdir()) == []


async def test_a_prompt_store_leaves_nothing_on_disk(
    store: Store, run: Run, tmp_path: Path
) -> None:
    await Settler(store, tmp_path / "spool").settle(run, END)
    assert not (tmp_path / "spool").exists()
    assert (await store.steps(run.job_id)).keys() == {"answer"}


async def test_a_settlement_of_a_run_that_is_over_says_so(
    store: Store, run: Run, tmp_path: Path
) -> None:
    await store.cancel(run.job_id)
    with pytest.raises(RunLost):
        await Settler(store, tmp_path / "spool").settle(run, END)
    assert seen(await store.read(run.job_id))["ledger"]["paid"] == 1, "booked all the same"


async def test_what_comes_too_late_is_let_go(store: Store, run: Run, tmp_path: Path) -> None:
    """The job was deleted meanwhile: the spool does not offer its answer for ever."""
    spool = Spool(tmp_path / "spool")
    spool.put(settle_arguments(run, END))
    await store.cancel(run.job_id)
    await store.delete(run.job_id)
    settler = Settler(store, tmp_path / "spool")
    assert await settler.offer_spooled() == 1
    assert await settler.offer_spooled() == 0


def test_two_starts_never_share_a_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for call in ("one", "two"):
        spool.put({"call": call})
    first = spool.take()
    assert sorted(arguments["call"] for _, arguments in first) == ["one", "two"]
    assert all(path.exists() for path, _ in first), "kept until the store has it"


def test_a_half_written_file_harms_nobody(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put({"call": "whole"})
    (tmp_path / "half.json").write_bytes(b'{"call": "ha')
    (tmp_path / "draft.draft").write_bytes(b"{")
    assert [arguments["call"] for _, arguments in spool.take()] == ["whole"]
