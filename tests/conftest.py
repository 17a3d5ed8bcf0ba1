"""The fixtures that all tests share: one real Valkey for the session, emptied between tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from server.valkey import EmbeddedStore
from tasks.settings import Settings


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedStore]:
    """The session's Valkey, as users get it embedded; it is gone afterwards with its folder."""
    with tempfile.TemporaryDirectory(prefix="slowcall-") as folder, EmbeddedStore(Path(folder)) as store:
        yield store


@pytest.fixture
def store_url(valkey: EmbeddedStore) -> Iterator[str]:
    """The address of an empty store."""
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        yield valkey.url


@pytest.fixture
def settings(store_url: str, tmp_path: Path) -> Settings:
    """Settings on the empty store, quick to fail, with a data folder of the test's own.

    Change some with `settings.model_copy(update={"quota": 0})`.
    """
    return Settings(
        REDIS_URL=SecretStr(store_url), data_dir=tmp_path, backoff_s=0.05, jitter=0, lease_s=2
    )


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings or the proxies of whoever runs it."""
    import os

    for name in list(os.environ):
        if name.startswith("SLOWCALL_") or name in {"REDIS_URL", "AI_URL", "AI_KEY", "AI_MODEL"}:
            monkeypatch.delenv(name)
        elif name.lower() in {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}:
            monkeypatch.delenv(name)
