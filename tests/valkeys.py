"""A Valkey of a test's own: it can be killed, begun as a replica, made to refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import redis

from server.listen import listen
from server.valkey import find_binary
from tests.conftest import wait_until


class Valkey:
    """A store on a TCP port, its folder, its process and a client of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir()
        with listen("127.0.0.1", 0) as door:
            self.port = door.getsockname()[1]
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *options]
        self.folder = folder
        self.process = subprocess.Popen(
            [str(find_binary()), *words], cwd=folder, stdout=subprocess.DEVNULL
        )
        self.client = redis.Redis(port=self.port)

    def answers(self) -> bool:
        """Whether it is there."""
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def is_primary(self) -> bool:
        """Whether it takes writes."""
        return bool(self.told("role") == "master")

    def follows(self) -> bool:
        """Whether it has a copy of its primary's data, and hears of each write."""
        return bool(self.told("master_link_status") == "up")

    def told(self, fact: str) -> Any:
        """What it says of itself; None for what it does not know."""
        return cast(dict[str, Any], self.client.info()).get(fact)

    def kill(self) -> None:
        """`kill -9`, and see it gone."""
        self.process.kill()
        self.process.wait()


@contextmanager
def valkey(folder: Path, *options: str) -> Iterator[Valkey]:
    """A store that is gone afterwards."""
    store = Valkey(folder, *options)
    try:
        wait_until(store.answers, "the store answers")
        yield store
    finally:
        store.client.close()  # type: ignore[no-untyped-call]
        store.kill()
