"""A Redis that is there and refuses: whatever its reason, it is away until it takes commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from tasks.errors import RecordDamaged, StoreUnavailable
from tasks.keys import name
from tasks.settings import Settings
from tasks.store import Store
from tasks.store.check import check_store
from tests.conftest import wait_until
from tests.rig import a_job, store_at
from tests.valkeys import Valkey, valkey

SEVERAL_S = 0.3
"""Within it a patient caller asks several times."""

Reason = Callable[[Valkey], AbstractContextManager[None]]
Verb = Callable[[Store], Coroutine[Any, Any, None]]


def settings_of(store: Valkey) -> Settings:
    return Settings(REDIS_URL=SecretStr(f"redis://127.0.0.1:{store.port}/0"))


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[Valkey]:
    with valkey(tmp_path / "store") as store:
        yield store


@contextmanager
def limited(setting: str, store: Valkey) -> Iterator[None]:
    """A limit of 1, which nothing keeps to; 0 is none."""
    store.client.config_set(setting, "1")
    yield
    store.client.config_set(setting, "0")


no_memory = partial(limited, "maxmemory")
too_few_replicas = partial(limited, "min-replicas-to-write")


@contextmanager
def no_disk(store: Valkey) -> Iterator[None]:
    """Its snapshot cannot be written: a folder has taken its name."""
    store.client.config_set("save", "3600 1")
    taken = store.folder / "dump.rdb"
    taken.mkdir()

    def saved(well: str) -> bool:
        with suppress(redis.ResponseError):  # it is at it
            store.client.bgsave()
        return bool(store.told("rdb_last_bgsave_status") == well)

    wait_until(lambda: saved("err"), "a snapshot fails")
    yield
    taken.rmdir()
    wait_until(lambda: saved("ok"), "a snapshot is written")


@contextmanager
def a_replica(store: Valkey) -> Iterator[None]:
    store.client.replicaof("127.0.0.1", "1")
    yield
    store.client.replicaof("NO", "ONE")


@contextmanager
def a_lost_replica(store: Valkey) -> Iterator[None]:
    store.client.config_set("replica-serve-stale-data", "no")
    with a_replica(store):
        yield


@contextmanager
def a_long_script(store: Valkey) -> Iterator[None]:
    store.client.config_set("busy-reply-threshold", "10")

    def run_on() -> None:
        with redis.Redis(port=store.port) as client, suppress(redis.ResponseError):
            client.eval("while true do end", 0)

    script = threading.Thread(target=run_on)
    script.start()

    def is_busy() -> bool:
        try:
            store.client.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")
        return False

    wait_until(is_busy, "the script runs on")
    yield
    store.client.script_kill()
    script.join()


@contextmanager
def no_right(store: Valkey) -> Iterator[None]:
    store.client.execute_command("ACL", "SETUSER", "default", "-fcall", "-hgetall")  # type: ignore[no-untyped-call]
    yield
    store.client.execute_command("ACL", "SETUSER", "default", "+@all")  # type: ignore[no-untyped-call]


async def post(store: Store) -> None:
    await store.submit(a_job("chat"))


async def look(store: Store) -> None:
    await store.workers()


@pytest.mark.parametrize(
    ("reason", "verb", "said"),
    [
        (no_memory, post, "used memory > 'maxmemory'"),
        (too_few_replicas, post, "NOREPLICAS"),
        (no_disk, post, "MISCONF"),
        (a_replica, post, "read only replica"),
        (a_lost_replica, look, "MASTERDOWN"),
        (a_long_script, post, "BUSY"),
        (a_long_script, look, "BUSY"),
        (no_right, post, "no permissions"),
        (no_right, look, "no permissions"),
    ],
)
async def test_a_refusal_is_an_outage(
    refusing: Valkey, reason: Reason, verb: Verb, said: str
) -> None:
    """Who cannot wait hears that the store is away; who can has it done once it takes commands."""
    settings = settings_of(refusing)
    async with store_at(settings) as server, store_at(settings, patient=True) as worker:
        await post(server)
        with reason(refusing):
            with pytest.raises(StoreUnavailable, match=said):
                await verb(server)
            await server.scripts.load()
            waiting = asyncio.create_task(verb(worker))
            await asyncio.wait([waiting], timeout=SEVERAL_S)
            assert not waiting.done()
        await waiting


@pytest.mark.parametrize("reason", [no_memory, too_few_replicas, no_disk, a_replica, a_long_script])
def test_a_start_waits_for_it(refusing: Valkey, reason: Reason) -> None:
    """Nothing is wrong with the settings."""
    with reason(refusing), pytest.raises(StoreUnavailable):
        check_store(settings_of(refusing))
    check_store(settings_of(refusing))


@pytest.mark.parametrize("patient", [False, True])
async def test_a_value_of_another_type_is_no_outage(refusing: Valkey, patient: bool) -> None:
    """Nobody waits for what will not change."""
    async with store_at(settings_of(refusing), patient=patient) as store:
        refusing.client.set(name("workers"), "not ours")
        with pytest.raises(RecordDamaged):
            await store.workers()
        refusing.client.set(name("job", "j"), "not ours")
        with pytest.raises(RecordDamaged):
            await store.read("j")
