"""What the start asks of a Redis: rights, eviction, durability."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from pydantic import SecretStr

from server.valkey import find_binary
from tasks.errors import SettingsError, StoreUnavailable
from tasks.settings import Settings
from tasks.store import Store
from tasks.store.check import check_store
from tests.conftest import wait_until

ENOUGH = ("+@all", "-@dangerous", "+info", "~slowcall:*", "&slowcall:*")


@pytest.fixture
def admin(store_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(store_url) as client:
        yield client
        client.acl_deluser("limited")
        client.config_set("maxmemory-policy", "noeviction")


def of_user(admin: redis.Redis, store_url: str, rules: tuple[str, ...]) -> Settings:
    admin.execute_command("ACL", "SETUSER", "limited", "on", ">pw", *rules)  # type: ignore[no-untyped-call]
    return at(store_url.replace("unix://", "unix://limited:pw@"))


def rewriting(admin: redis.Redis) -> bool:
    info = admin.info("persistence")
    assert isinstance(info, dict)
    return bool(info["aof_rewrite_in_progress"])


def at(url: str) -> Settings:
    return Settings(REDIS_URL=SecretStr(url))


def test_the_embedded_store_needs_no_advice_and_keeps_no_trace(
    admin: redis.Redis, store_url: str
) -> None:
    assert check_store(at(store_url)) == []
    assert admin.dbsize() == 0


def test_a_user_with_the_rights_that_we_name_will_do(admin: redis.Redis, store_url: str) -> None:
    assert check_store(of_user(admin, store_url, ENOUGH)) == []


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ((*ENOUGH, "-publish"), "PUBLISH"),
        ((*ENOUGH, "-fcall"), "FCALL"),
        ((*ENOUGH, "-function"), "FUNCTION LOAD"),
        ((*ENOUGH, "-xadd"), "XADD"),
        ((*ENOUGH[:-1], "resetchannels"), "PUBLISH"),
        ((*ENOUGH[:3], "~another:*", "&slowcall:*"), "SET slowcall:"),
    ],
)
def test_a_missing_right_is_named(
    admin: redis.Redis, store_url: str, rules: tuple[str, ...], missing: str
) -> None:
    with pytest.raises(SettingsError, match=f"REDIS_URL: its user may not {missing}"):
        check_store(of_user(admin, store_url, rules))


def test_a_redis_without_functions_is_told_what_is_needed(tmp_path: Path) -> None:
    """As before Redis 7."""
    words = ["--port", "0", "--unixsocket", "old.sock", "--rename-command", "FUNCTION", ""]
    url = f"unix://{tmp_path}/old.sock"
    with subprocess.Popen(
        [str(find_binary()), *words], cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_until((tmp_path / "old.sock").exists, "it listens")
            with pytest.raises(SettingsError, match="know FUNCTION; slowcall needs Redis 7"):
                check_store(at(url))
        finally:
            process.terminate()


def test_without_info_the_start_goes_on_and_says_so(admin: redis.Redis, store_url: str) -> None:
    (line,) = check_store(of_user(admin, store_url, (*ENOUGH, "-info")))
    assert "cannot see how it keeps its data" in line


def test_a_store_that_evicts_is_warned_of(admin: redis.Redis, store_url: str) -> None:
    admin.config_set("maxmemory-policy", "allkeys-lru")
    (line,) = check_store(at(store_url))
    assert "allkeys-lru" in line
    assert "noeviction" in line


def test_a_store_that_keeps_nothing_is_warned_of(admin: redis.Redis, store_url: str) -> None:
    admin.config_set("appendonly", "no")
    try:
        (line,) = check_store(at(store_url))
        assert "appendonly" in line
    finally:
        admin.config_set("appendonly", "yes")
        wait_until(lambda: not rewriting(admin), "the file is written anew")


@pytest.mark.parametrize("password", ["p@ss#w/rd%:+=é?", "YmFzZTY0PQ==", "a b"])
async def test_a_password_of_any_signs_means_the_same_to_every_part(
    admin: redis.Redis, store_url: str, password: str
) -> None:
    of_user(admin, store_url, (*ENOUGH, f">{password}"))
    written = store_url.replace("unix://", f"unix://limited:{quote(password, safe='')}@")
    assert check_store(at(written)) == []
    store = Store.connect(at(written))
    try:
        await store.ping()
    finally:
        await store.aclose()


def test_a_wrong_password_is_a_wrong_setting(admin: redis.Redis, store_url: str) -> None:
    settings = of_user(admin, store_url, ENOUGH)
    admin.execute_command("ACL", "SETUSER", "limited", "resetpass", ">other")  # type: ignore[no-untyped-call]
    with pytest.raises(SettingsError, match=r"REDIS_URL: .* refuses us") as caught:
        check_store(settings)
    assert "limited:pw" not in str(caught.value)


def test_a_store_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(
        StoreUnavailable, match=r"redis://127\.0\.0\.1:1/0 does not answer"
    ) as caught:
        check_store(at("redis://:hunter2@127.0.0.1:1/0"))
    assert "hunter2" not in str(caught.value)
