"""Dead letters: what they show, what a retry costs, retries with changes, of a kind, by rule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tasks.errors import SettingsError
from tasks.lifecycle import FAIL
from tasks.settings import RetryRule, Settings, load_settings
from tasks.store import Run, Store
from tests.conftest import LabModel
from tests.crew import calls, crew, ended, job
from tests.rig import Clock, a_job, store_at
from tests.serving import served, submit, until

PAGES = [f"page {n}: the quick brown fox" for n in range(1, 7)]
FAILS = {"status": 400, "message": "no such thing"}


@asynccontextmanager
async def house(
    settings: Settings, lab: LabModel
) -> AsyncIterator[tuple[httpx.AsyncClient, Store]]:
    """A server, a worker, and the store they share."""
    async with served(settings) as client, store_at(settings) as store, crew(settings, lab.url):
        yield client, store


async def failed(client: httpx.AsyncClient, store: Store, **more: Any) -> dict[str, Any]:
    """A job that failed for good."""
    (told,) = await ended(store, [await submit(client, **more)])
    assert told["status"] == "failed"
    return told


async def priced(client: httpx.AsyncClient, job_id: str, **changes: Any) -> tuple[int, int | None]:
    """Steps kept and calls at most, by a dry run."""
    answer = await client.post(f"/jobs/{job_id}/retry?dry_run=true", json=changes)
    assert answer.status_code == 200, answer.text
    return answer.json()["steps_kept"], answer.json()["calls_at_most"]


async def retried(
    client: httpx.AsyncClient, store: Store, job_id: str, **changes: Any
) -> dict[str, Any]:
    """The job after a retry with these changes."""
    answer = await client.post(f"/jobs/{job_id}/retry", json=changes)
    assert answer.status_code == 202, answer.text
    (told,) = await ended(store, [job_id])
    return told


async def test_a_dead_letter_says_what_a_person_needs(settings: Settings, lab: LabModel) -> None:
    async with house(settings, lab) as (client, store):
        lab.misbehave({"status": 503, "message": "busy"})
        told = await failed(client, store, max_attempts=2)
        page = (await client.get("/jobs?status=failed")).json()["jobs"]
        assert [letter["job_id"] for letter in page] == [told["job_id"]]
        error = page[0]["error"]
        assert (error["type"], error["attempt"], error["upstream_status"]) == ("transient", 2, 503)
        assert "busy" in error["message"]
        assert (page[0]["attempts"], page[0]["ledger"]["rejected"]) == (2, 2)
        lines = (await client.get(f"/jobs/{told['job_id']}/ledger")).json()
        assert [(line["outcome"], line["status"]) for line in lines] == [("rejected", 503)] * 2


async def test_a_retry_keeps_what_is_paid(settings: Settings, lab: LabModel) -> None:
    async with house(settings, lab) as (client, store):
        lab.misbehave({"match": "page 5", **FAILS})
        told = await failed(client, store, input={"pages": PAGES}, kind="summarize")
        job_id = told["job_id"]
        kept, at_most = await priced(client, job_id)
        assert kept == told["ledger"]["paid"]
        assert at_most == len(PAGES) - kept + 1, "the pages that are missing, and the join"
        assert (await job(store, job_id))["status"] == "failed", "a dry run moves nothing"

        lab.misbehave()
        sold = lab.ledger()["sold"]
        told = await retried(client, store, job_id)
        assert (told["status"], told["attempts"], told["error"]) == ("done", 1, None)
        assert lab.ledger()["sold"] - sold == at_most, "the dry run told the truth"
        assert told["ledger"]["reused"] == kept


async def test_an_edited_page_alone_is_bought_anew(settings: Settings, lab: LabModel) -> None:
    async with house(settings, lab) as (client, store):
        lab.misbehave({"match": "from the summaries", **FAILS})
        told = await failed(client, store, input={"pages": PAGES}, kind="summarize")
        edited = {"pages": [*PAGES[:2], "quite another page", *PAGES[3:]]}
        assert await priced(client, told["job_id"]) == (6, 1)
        assert await priced(client, told["job_id"], input=edited) == (5, 2)
        lab.misbehave()
        sold = lab.ledger()["sold"]
        told = await retried(client, store, told["job_id"], input=edited)
        assert told["status"] == "done"
        assert lab.ledger()["sold"] - sold == 2, "the edited page and the join"
        assert "quite another page" in told["result"]["text"]


@pytest.mark.parametrize("input", ["a prompt", {"messages": [{"role": "user", "content": "hi"}]}])
async def test_another_model(settings: Settings, lab: LabModel, input: Any) -> None:
    async with house(settings, lab) as (client, store):
        lab.misbehave(FAILS)
        told = await failed(client, store, input=input)
        lab.misbehave()
        told = await retried(client, store, told["job_id"], model="better")
        assert told["status"] == "done"
        assert [line["model"] for line in await calls(store, [told["job_id"]])] == ["lab", "better"]


async def test_another_model_buys_every_step_anew(settings: Settings, lab: LabModel) -> None:
    async with house(settings, lab) as (client, store):
        lab.misbehave({"match": "from the summaries", **FAILS})
        told = await failed(client, store, input={"text": "\f".join(PAGES)}, kind="summarize")
        assert await priced(client, told["job_id"], model="better") == (0, 7)
        assert await priced(client, told["job_id"], model="lab") == (6, 1)


@pytest.mark.parametrize(
    "changes", [{"input": 7}, {"model": ""}, {"model": 7}, {"input": {"messages": []}}, {"mode": 1}]
)
async def test_a_change_is_checked(settings: Settings, changes: dict[str, Any]) -> None:
    async with served(settings) as client:
        job_id = await submit(client)
        await client.post(f"/jobs/{job_id}/cancel")
        for query in ("", "?dry_run=true"):
            answer = await client.post(f"/jobs/{job_id}/retry{query}", json=changes)
            assert answer.status_code == 422
            assert answer.json()["errors"]


async def test_a_dry_run_says_what_it_cannot_know(settings: Settings, lab: LabModel) -> None:
    """The plan of an agent that has none yet decides how much it buys."""
    async with house(settings, lab) as (client, store):
        lab.misbehave(FAILS)
        told = await failed(client, store, input={"goal": "rest"}, kind="agent")
        assert await priced(client, told["job_id"]) == (0, None)


async def test_only_what_a_retry_may_touch_has_a_price(settings: Settings, lab: LabModel) -> None:
    async with house(settings, lab) as (client, store):
        job_id = await submit(client)
        await ended(store, [job_id])
        for query in ("", "?dry_run=true"):
            assert (await client.post(f"/jobs/{job_id}/retry{query}")).status_code == 409


async def test_all_of_a_kind_as_far_as_the_quota_allows(settings: Settings, lab: LabModel) -> None:
    own = settings.model_copy(update={"quota": 2})
    async with served(own) as client, store_at(own) as store:
        async with crew(own, lab.url):
            lab.misbehave(FAILS)
            letters = [(await failed(client, store))["job_id"] for _ in range(3)]
            other = await failed(client, store, input={"goal": "x"}, kind="agent")
        assert (await client.post("/jobs/retry")).status_code == 422
        assert (await client.post("/jobs/retry?kind=nothing")).status_code == 202
        answer = await client.post("/jobs/retry?kind=chat")
        assert answer.status_code == 202
        assert answer.json() == {"retried": letters[:2], "left": 1}, "the oldest come first"
        statuses = [(await job(store, job_id))["status"] for job_id in [*letters, other["job_id"]]]
        assert statuses == ["queued", "queued", "failed", "failed"]


async def test_all_means_the_callers_own(settings: Settings) -> None:
    keys = Settings.model_validate({"api_keys": "alice:a,bob:b"}).api_keys
    own = settings.model_copy(update={"api_keys": keys})
    async with served(own) as client, store_at(own) as store:
        for user in ("alice", "bob"):
            await dead(store, "transient", user)
        answer = await client.post("/jobs/retry?kind=chat", headers={"Authorization": "Bearer a"})
        assert len(answer.json()["retried"]) == 1
        jobs, _ = await store.list_jobs(user_id="bob")
        assert [view.status for view in jobs] == ["failed"]


async def start(store: Store) -> Run:
    """A run of whatever is due."""
    claimed, _ = await store.claim("w", ["chat"], 1, 600)
    assert len(claimed) == 1, "something is due"
    run = claimed[0].run
    assert run is not None
    return run


async def dead(store: Store, type: Any, user: str = "ann") -> str:
    """A job that failed with an error of that type."""
    job_id = (await store.submit(a_job("chat", user_id=user))).job.job_id
    await store.conclude(await start(store), FAIL, problem=(type, "no", None))
    return job_id


def ruled(settings: Settings, *rules: RetryRule, quota: int = 0) -> Settings:
    return settings.model_copy(update={"auto_retry": rules, "quota": quota})


async def test_a_rule_decides_instead_of_a_person(settings: Settings) -> None:
    clock = Clock()
    async with store_at(ruled(settings, RetryRule("transient", 600, 2)), clock) as store:
        job_id = await dead(store, "transient")
        for _ in range(2):
            clock.forward(599)
            await store.sweep()
            assert (await job(store, job_id))["status"] == "failed"
            clock.forward(1)
            await store.sweep()
            told = await job(store, job_id)
            assert (told["status"], told["attempts"], told["error"]) == ("queued", 0, None)
            await store.conclude(await start(store), FAIL, problem=("transient", "no", None))
        clock.forward(10_000)
        await store.sweep()
        assert (await job(store, job_id))["status"] == "failed", "so often, and no more"

        await store.revive(job_id)
        await store.conclude(await start(store), FAIL, problem=("transient", "no", None))
        clock.forward(600)
        await store.sweep()
        assert (await job(store, job_id))["status"] == "queued", "a person began the count anew"


@pytest.mark.parametrize("decided", ["retried", "discarded", "cancelled", "another type"])
async def test_a_rule_leaves_alone_what_is_not_its_own(settings: Settings, decided: str) -> None:
    clock = Clock()
    async with store_at(ruled(settings, RetryRule("transient", 60, 9)), clock) as store:
        job_id = await dead(store, "permanent" if decided == "another type" else "transient")
        expected = {"retried": "running", "another type": "failed"}.get(decided, "cancelled")
        if decided == "discarded":
            await store.delete(job_id)
        elif decided != "another type":
            await store.revive(job_id)
        if decided == "retried":
            await start(store)
        elif decided == "cancelled":
            await store.cancel(job_id)
        clock.forward(60)
        await store.sweep()
        jobs, _ = await store.list_jobs(user_id=None)
        assert [view.status for view in jobs] == ([] if decided == "discarded" else [expected])


async def test_a_rule_asks_the_quota(settings: Settings) -> None:
    clock = Clock()
    async with store_at(ruled(settings, RetryRule("lost", 60, 1), quota=1), clock) as store:
        job_id = await dead(store, "lost")
        other = (await store.submit(a_job("chat", user_id="ann"), quota=1)).job.job_id
        clock.forward(60)
        await store.sweep()
        assert (await job(store, job_id))["status"] == "failed", "the user's quota is full"
        await store.cancel(other)
        clock.forward(60)
        await store.sweep()
        assert (await job(store, job_id))["status"] == "queued"


async def test_a_worker_obeys_the_rules(
    settings: Settings, serve_lab: Callable[[Settings], LabModel]
) -> None:
    own = ruled(settings, RetryRule("permanent", 0.1, 1))
    lab = serve_lab(own)
    async with store_at(own) as store, crew(own, lab.url):
        lab.misbehave({"times": 1, **FAILS})
        job_id = (await store.submit(a_job("chat"))).job.job_id

        async def done() -> bool:
            return bool((await job(store, job_id))["status"] == "done")

        await until(done, "the rule gave it a new life")
        names = [entry.name for entry in await store.log(job_id)]
        assert names.index("failed") < names.index("done")


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("transient=600x3", (RetryRule("transient", 600, 3),)),
        ("timeout=1.5x1, lost=0x2", (RetryRule("timeout", 1.5, 1), RetryRule("lost", 0, 2))),
        ("transient", None),
        ("other=1x1", None),
        ("transient=-1x1", None),
        ("transient=1x", None),
    ],
)
def test_the_setting(
    monkeypatch: pytest.MonkeyPatch, text: str, rules: tuple[RetryRule, ...] | None
) -> None:
    monkeypatch.setenv("SLOWCALL_AUTO_RETRY", text)
    if rules is not None:
        assert load_settings().auto_retry == rules
    else:
        with pytest.raises(SettingsError, match="SLOWCALL_AUTO_RETRY: write type=SECONDSxTIMES"):
            load_settings()
