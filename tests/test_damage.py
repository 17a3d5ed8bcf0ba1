"""Redis content is data: a record that holds what is not ours fails its job and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.errors import JobNotFound, RecordDamaged
from tasks.keys import name
from tasks.lifecycle import RETRY
from tasks.settings import Settings
from tasks.store import Store
from tests.crew import crew, ended, job
from tests.endpoint import HJ, Endpoint, Request, Script, answered
from tests.rig import NOWHERE, a_job, a_kind, store_at
from tests.serving import Hand, served, stream, until
from tests.test_alerts import listening_target

Redis = Any
Blow = Callable[[Redis, str], Awaitable[Any]]

pytestmark = pytest.mark.writes_by_hand


def field(field: str, value: bytes | None) -> Blow:
    """Another value in a field of the record; None: the field is gone."""
    if value is None:
        return lambda redis, job_id: redis.hdel(name("job", job_id), field)
    return lambda redis, job_id: redis.hset(name("job", job_id), field, value)


def input_of(value: bytes | None) -> Blow:
    """Another input; None: it is gone."""
    if value is None:
        return lambda redis, job_id: redis.delete(name("input", job_id))
    return lambda redis, job_id: redis.set(name("input", job_id), value)


def instead(key: str) -> Blow:
    """A value of another type in the place of one of the job's keys."""

    async def blow(redis: Redis, job_id: str) -> None:
        await redis.delete(name(key, job_id))
        await redis.rpush(name(key, job_id), b"not", b"ours")

    return blow


async def junk_step(redis: Redis, job_id: str) -> None:
    await redis.hset(name("steps", job_id), "answer", b"hash\n\x80\x04pickle")


async def junk_line(redis: Redis, job_id: str) -> None:
    await redis.hset(name("ledger", job_id), "c:0", b"{half")
    await redis.hset(name("job", job_id), "open", 1)


BLOWS = [
    pytest.param(input_of(b"\x80\x04\x95pickle"), id="input: pickle"),
    pytest.param(input_of(None), id="input: gone"),
    pytest.param(field("options", b"{"), id="options: half a JSON"),
    pytest.param(field("attempts", b"many"), id="attempts: a word"),
    pytest.param(field("run", b"1.5"), id="run: a fraction"),
    pytest.param(field("max_attempts", b""), id="max_attempts: nothing"),
    pytest.param(field("seq", b"x"), id="seq: a letter"),
    pytest.param(field("life", b"x"), id="life: a letter"),
    *(pytest.param(field(gone, None), id=f"{gone}: gone")
      for gone in ("life", "kind", "user", "status", "finished_at", "created")),
    pytest.param(instead("job"), id="another record"),
    pytest.param(instead("input"), id="another input"),
    pytest.param(instead("steps"), id="other steps"),
    pytest.param(instead("ledger"), id="another ledger"),
]  # fmt: skip
LATER = [
    pytest.param(junk_step, id="a step: pickle"),
    pytest.param(junk_line, id="a line: half a JSON"),
    pytest.param(instead("steps"), id="other steps"),
    pytest.param(field("deaths", b"x"), id="deaths: a letter"),
]


async def submit(store: Store, prompt: str, user: str = "ann", quota: int = 0) -> str:
    new = a_job("chat", prompt, user_id=user)
    return (await store.submit(new, quota=quota)).job.job_id


async def assert_condemned(settings: Settings, store: Store, broken: str, sound: list[str]) -> None:
    """The broken job fails and says why; the sound ones are done, listed, told of, counted."""
    with Endpoint(answered("fine")) as endpoint:
        named = settings.model_copy(update={"ai_model": "m"})
        async with crew(named, endpoint.url) as (worker,):
            assert {end["status"] for end in await ended(store, sound)} == {"done"}

            async def failed() -> bool:
                return (await store.read(broken)).status == "failed"

            await until(failed, "the broken job fails")
            assert worker.allow_pick_jobs, "the worker goes on"
    error = (await job(store, broken))["error"]
    assert error["type"] == "permanent"
    assert "holds what is not ours" in error["message"]
    assert (await store.log(broken))[-1].name == "failed"
    listed, _ = await store.list_jobs(user_id=None)
    assert {view.job_id for view in listed} == {broken, *sound}
    failures, _ = await store.list_jobs(user_id=None, status=(await store.read(broken)).status)
    assert [view.job_id for view in failures] == [broken]
    assert (await store.stats())["queue_depth"] == 0
    quota = 3
    for _ in range(quota):
        await submit(store, "more", quota=quota)


@pytest.mark.parametrize("blow", BLOWS)
async def test_a_waiting_job_fails_and_nobody_else(settings: Settings, blow: Blow) -> None:
    async with store_at(settings) as store:
        broken = await submit(store, "broken")
        sound = [await submit(store, "same user"), await submit(store, "another", "bob")]
        await blow(store.redis, broken)
        await assert_condemned(settings, store, broken, sound)


@pytest.mark.parametrize("blow", LATER)
async def test_what_an_earlier_run_left(settings: Settings, blow: Blow) -> None:
    """Also where its worker died."""
    async with store_at(settings) as store:
        broken = await submit(store, "broken")
        await Hand(store).start(broken)
        sound = [await submit(store, "same user")]
        await blow(store.redis, broken)
        await store.redis.zadd(name("queue", "chat"), {f"{broken}:1": 0})
        await assert_condemned(settings, store, broken, sound)


async def test_another_log_begins_anew(settings: Settings) -> None:
    async with store_at(settings) as store:
        job_id = await submit(store, "x")
        await instead("log")(store.redis, job_id)
        run = await Hand(store).start(job_id)
        await store.requeue(run, RETRY, problem=("transient", "no", None))
        assert [entry.name for entry in await store.log(job_id)] == ["running", "retrying"]


async def test_a_damaged_job_is_a_clear_refusal_and_breaks_no_list(settings: Settings) -> None:
    async with served(settings) as client, store_at(settings) as store:
        hand, broken, sound = Hand(store), await submit(store, "x"), await submit(store, "y")
        await hand.finish(await hand.start(broken))
        await field("result", b"{half")(store.redis, broken)
        refused = await client.get(f"/jobs/{broken}")
        assert (refused.status_code, refused.headers["content-type"]) == (
            500, "application/problem+json",
        )  # fmt: skip
        listed = (await client.get("/jobs")).json()["jobs"]
        assert [entry["job_id"] for entry in listed] == [sound]
        await instead("log")(store.redis, broken)
        async with stream(client, "/jobs/stream", "1-1") as frames:
            assert [event.data["job_id"] for event in await frames.events(1)] == [sound]


async def test_a_condemned_job_can_be_tried_again(settings: Settings) -> None:
    """What was sound is kept: here all but one step."""
    async with store_at(settings) as store:
        job_id = await submit(store, "x")
        await Hand(store).start(job_id)
        await junk_step(store.redis, job_id)
        await store.redis.zadd(name("queue", "chat"), {f"{job_id}:1": 0})
        await assert_condemned(settings, store, job_id, [await submit(store, "sound")])
        await store.revive(job_id)
        with Endpoint(answered("fine")) as endpoint:
            async with crew(settings.model_copy(update={"ai_model": "m"}), endpoint.url):
                (again,) = await ended(store, [job_id])
    assert (again["status"], again["result"]["text"]) == ("done", "fine")


@pytest.mark.parametrize("key", ["job", "steps", "ledger"])
async def test_a_job_that_runs(settings: Settings, key: str) -> None:
    """Its worker goes on with its other jobs, and fails this one when its lease has lapsed."""
    gate = asyncio.Event()

    async def wait(context: Any, given: Any) -> dict[str, Any]:
        await gate.wait()
        return {"text": await context.step("one", echo)}

    async def echo() -> str:
        return "one"

    quick = settings.model_copy(update={"lease_s": 0.5})
    async with store_at(quick) as store, crew(quick, NOWHERE, kinds={"work": a_kind("work", wait)}):
        broken, sound = [
            (await store.submit(a_job("work", user_id=user))).job.job_id for user in ("ann", "bob")
        ]

        async def both_run() -> bool:
            return bool((await store.stats())["running"] == 2)

        await until(both_run, "both run")
        await instead(key)(store.redis, broken)
        gate.set()
        (end,) = await ended(store, [sound])
        assert end["status"] == "done"

        async def is_final() -> bool:
            with suppress(RecordDamaged, JobNotFound):
                return bool((await store.read(broken)).final)
            return False

        await until(is_final, "the broken one ends")
        # A ledger that nobody writes to any more is no matter of the job.
        assert (await job(store, broken))["status"] == ("done" if key == "ledger" else "failed")


async def test_letters_and_messages_that_are_not_ours_stop_nobody(settings: Settings) -> None:
    """An alert of a damaged job tells nobody anything; a channel may say anything."""

    def play(request: Request) -> Script:
        refused = request.json["messages"][-1]["content"] == "refused"
        return HJ({"error": "no"}, status=400) if refused else answered("fine")

    with Endpoint(play) as endpoint, listening_target() as target:
        told = {"alert_window_s": 0, "alert_urls": (SecretStr(target.url),)}
        alerting = settings.model_copy(update={"ai_model": "m", "quota": 0, **told})
        async with (
            served(alerting) as client,
            store_at(alerting) as store,
            stream(client, "/jobs/stream") as frames,
        ):
            await field("metadata", b"{half")(store.redis, await submit(store, "refused"))
            whole = await submit(store, "refused")
            async with crew(alerting, endpoint.url) as (worker,):

                async def all_told() -> bool:
                    left = [key async for key in store.redis.scan_iter(name("outbox", "*"))]
                    return bool(target.told) and not left

                await until(all_told, "the letters are gone")
                for channel in ("control_channel", "wake_channel"):
                    await store.redis.publish(name(channel), b"\xff\xfe")
                await store.redis.publish(name("feed_channel", "*"), b"\xffjunk\nevent: x\n\n")
                sound = await submit(store, "sound")
                assert (await ended(store, [sound]))[0]["status"] == "done"
                assert worker.allow_pick_jobs, "the worker goes on"
            assert [whole in alert["message"] for alert in target.told] == [True]
            while frame := await frames.frame():
                if sound.encode() in frame and b"event: done" in frame:
                    break
            assert frame, "the stream goes on"
