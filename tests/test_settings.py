"""The settings: defaults, spellings, and one readable line for each that is wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.asyncio.connection import parse_url

from tasks.errors import SettingsError
from tasks.redis_url import check_redis_url, show_redis_url
from tasks.settings import Settings, is_loopback, load_settings, misspelt, variables

SECRET = "hunter2"


def load(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def test_without_an_environment_the_defaults_of_the_contract_hold() -> None:
    settings = load_settings()
    assert (settings.redis_url, settings.ai_url, settings.ai_model) == (None, None, None)
    assert (settings.host, settings.port, settings.quota, settings.keep_s) == (
        "127.0.0.1", 8000, 5, 86400,
    )  # fmt: skip
    assert (settings.max_attempts, settings.backoff_s, settings.jitter) == (3, 5, 0.1)
    assert settings.model_concurrency.limit("any") == 0


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, REDIS_URL="", SLOWCALL_QUOTA="") == Settings()


def test_lists_are_separated_by_commas_or_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        monkeypatch, SLOWCALL_KINDS="my.kinds, more", SLOWCALL_ALERT_URLS="json://a tgram://b/c"
    )
    assert settings.kinds == ("my.kinds", "more")
    assert [url.get_secret_value() for url in settings.alert_urls] == ["json://a", "tgram://b/c"]


def test_keys_are_pairs_and_stay_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, SLOWCALL_API_KEYS=f"alice:{SECRET}, bob:b:c,alice:second")
    pairs = [(user, key.get_secret_value()) for user, key in settings.api_keys]
    assert pairs == [("alice", SECRET), ("bob", "b:c"), ("alice", "second")]
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("4", {"a": 4, "b": 4}),
        ("a=2,b=3", {"a": 2, "b": 3, "c": 0}),
        ("9,org/a=2", {"org/a": 2, "b": 9}),
    ],
)
def test_limits_by_model(
    monkeypatch: pytest.MonkeyPatch, text: str, limits: dict[str, int]
) -> None:
    found = load(monkeypatch, SLOWCALL_MODEL_CONCURRENCY=text).model_concurrency
    assert {model: found.limit(model) for model in limits} == limits


def test_the_data_folder_is_a_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, SLOWCALL_DATA_DIR="~/jobs").data_dir == Path.home() / "jobs"
    assert load(monkeypatch, SLOWCALL_DATA_DIR="jobs").data_dir == Path.cwd() / "jobs"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLOWCALL_PORT", "eighty"),
        ("SLOWCALL_PORT", "70000"),
        ("SLOWCALL_MAX_ATTEMPTS", "0"),
        ("SLOWCALL_BACKOFF_S", "-1"),
        ("SLOWCALL_TIMEOUT_S", "inf"),
        ("SLOWCALL_TIMEOUT_S", "nan"),
        ("SLOWCALL_LEASE_S", "0"),
        ("SLOWCALL_KEEP_S", "1e20"),
        ("SLOWCALL_KEEP_S", "0.0001"),
        ("SLOWCALL_BACKOFF_S", "1e300"),
        ("SLOWCALL_QUOTA", "1.5"),
        ("SLOWCALL_ON_UNKNOWN", "shrug"),
        ("SLOWCALL_MODEL_CONCURRENCY", "many"),
        ("SLOWCALL_MODEL_CONCURRENCY", "a=-1"),
        ("SLOWCALL_API_KEYS", SECRET),
        ("SLOWCALL_API_KEYS", f":{SECRET}"),
        ("SLOWCALL_API_KEYS", f"alice:{SECRET},bob:{SECRET}"),
        ("SLOWCALL_CORS_ORIGINS", "example.org"),
        ("SLOWCALL_HOST", "0.0.0.0"),
        ("SLOWCALL_HOST", "example.org"),
        ("REDIS_URL", f"redis://:{SECRET}#@h:6379"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(monkeypatch, **{name: value})
    line = str(caught.value)
    assert line.startswith(f"{name}: ")
    assert "\n" not in line
    assert SECRET not in line


def test_an_open_host_says_how_to_set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"set SLOWCALL_API_KEYS=alice:secret"):
        load(monkeypatch, SLOWCALL_HOST="0.0.0.0")
    assert load(monkeypatch, SLOWCALL_API_KEYS="a:b").host == "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("SLOWCALL_QOUTA", "SLOWCALL_QOUTA is not a setting; did you mean SLOWCALL_QUOTA?"),
        ("SLOWCALL_TIMEOUT", "SLOWCALL_TIMEOUT is not a setting; did you mean SLOWCALL_TIMEOUT_S?"),
        ("REDIS_URI", "REDIS_URI is not a setting; did you mean REDIS_URL?"),
        ("SLOWCALL_XYZZY", "SLOWCALL_XYZZY is not a setting"),
        ("REDIS_HOST", None),
        ("PATH", None),
        ("slowcall_quota", None),
    ],
)
def test_a_misspelt_name_is_pointed_out(name: str, line: str | None) -> None:
    assert misspelt([name]) == ([line] if line else [])


def test_the_start_warns_of_a_misspelt_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load(monkeypatch, SLOWCALL_QOUTA="9")
    assert "did you mean SLOWCALL_QUOTA?" in caplog.text


def test_no_setting_is_taken_for_another() -> None:
    assert misspelt(variables()) == []


def test_the_readme_names_every_setting() -> None:
    told = Path(__file__).parents[1].joinpath("README.md").read_text()
    assert [name for name in variables() if f"`{name}`" not in told] == []


PASSWORD = "p@ss#w/rd%:+=é?"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("redis://h", {"host": "h", "db": 0}),
        ("redis://h:6380/", {"host": "h", "port": 6380, "db": 0}),
        (" redis://h/15\n", {"host": "h", "db": 15}),
        ("redis://h?db=3", {"host": "h", "db": 3}),
        ("redis://h/3?db=3", {"host": "h", "db": 3}),
        ("redis://[::1]:6379/1", {"host": "::1", "port": 6379, "db": 1}),
        (f"redis://:{quote(PASSWORD, safe='')}@h", {"host": "h", "password": PASSWORD}),
        (f"redis://u:{quote(PASSWORD, safe='')}@h", {"username": "u", "password": PASSWORD}),
        ("redis://:YmFzZTY0PQ==@h", {"host": "h", "password": "YmFzZTY0PQ=="}),
        ("redis://:a:b+c@h", {"password": "a:b+c"}),
        ("rediss://h?ssl_cert_reqs=none", {"host": "h", "ssl_cert_reqs": "none"}),
        ("unix:///tmp/r.sock", {"path": "/tmp/r.sock", "db": 0}),
        ("unix:///tmp/r%20s.sock?db=2", {"path": "/tmp/r s.sock", "db": 2}),
        ("unix://:pw@/tmp/r.sock", {"path": "/tmp/r.sock", "password": "pw"}),
    ],
)
def test_an_address_means_the_same_in_every_part(written: str, meant: dict[str, object]) -> None:
    understood = dict(parse_url(check_redis_url(written)))
    assert {name: understood.get(name) for name in meant} == meant


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        (f"redis://:{SECRET}#x@h:6379/0", "percent-encoded"),
        (f"redis://:{SECRET}/x@h:6379/0", "percent-encoded"),
        (f"redis://:{SECRET}@x@h:6379/0", "percent-encoded"),
        (f"redis://:{SECRET}?x@h:6379/0", "percent-encoded"),
        (f"redis://:{SECRET}%zz@h:6379/0", "percent-encoded"),
        (f"redis://:{SECRET} x@h:6379/0", "percent-encoded"),
        ("h:6379", "redis://"),
        ("localhost", "redis://"),
        ("http://h:6379", "redis://"),
        ("valkey://h/0", "write redis:// for valkey://"),
        ("valkeys://h/0", "write rediss:// for valkeys://"),
        (f"redis+sentinel://:{SECRET}@h:26379/mymaster", "Sentinel"),
        ("redis-cluster://h", "Cluster"),
        ("redis://", "host is missing"),
        ("redis://:6379/0", "host is missing"),
        ("redis://h:port/0", "port"),
        ("redis://h:99999/0", "port"),
        ("redis://h:0/0", "port"),
        ("redis://h/x", "database"),
        ("redis://h/-1", "database"),
        ("redis://h/1/2", "database"),
        ("redis://h/2?db=1", "two databases"),
        ("redis://h?decode_responses=true", "only db"),
        ("unix://tmp/r.sock", "three slashes"),
        ("unix://", "three slashes"),
        ("", "redis://"),
    ],
)
def test_a_wrong_address_is_refused_with_what_to_write(written: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice) as caught:
        check_redis_url(written)
    assert SECRET not in str(caught.value)


def test_an_address_is_shown_without_its_password() -> None:
    assert show_redis_url(f"rediss://u:{SECRET}@h:1/2?ssl_cert_reqs=none") == "rediss://h:1/2"
    assert show_redis_url("unix:///tmp/r.sock?db=2") == "unix:///tmp/r.sock"
