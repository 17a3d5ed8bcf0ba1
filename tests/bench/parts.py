"""The processes of a bench: a store that does not wait for the disk, peers, and what they cost."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import redis

from server.valkey import find_binary

ROOT: Final = Path(__file__).parent.parent.parent
PEERS: Final = Path(os.environ.get("BENCH_PEERS", ROOT / ".venv-peers/bin/python"))
"""The Python of the peers: some need another redis-py than ours."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens: an empty store and a folder."""

    url: str
    folder: Path

    def redis(self) -> redis.Redis:
        """A client of the store."""
        return redis.Redis.from_url(self.url)

    def environment(self, **more: str) -> dict[str, str]:
        """What a process of this run is told."""
        mine = {"BENCH_REDIS": self.url, "BENCH_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("SLOWCALL_")
        }
        return kept | mine | more


@contextmanager
def place() -> Iterator[Place]:
    """A Valkey of the bench's own on a free port of this machine; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="slowcall-bench-") as folder:
        port = free_port()
        words = ["--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        with running(str(find_binary()), *words, cwd=folder):
            here = Place(f"redis://127.0.0.1:{port}/0", Path(folder))
            with here.redis() as client:
                until(lambda: _answers(client), "the store answers")
            yield here


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def running(*words: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block; its last words go to a file and are told if it died."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **how
        )
        try:
            yield process
        finally:
            died = process.poll()
            end(process)
            if died:
                output.seek(0)
                print(f"{' '.join(words[1:5])} ended with {died}:\n{tail(output.read())}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to leave, and soon end it."""
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(output: bytes) -> str:
    """The last words of a process."""
    return output.decode(errors="replace")[-2000:]


@cache
def has(package: str) -> bool:
    """Whether the Python of the peers has a package."""
    if package in ("tasks", "arq"):
        return find_spec(package) is not None
    words = [str(PEERS), "-c", f"import {package}"]
    return (
        PEERS.exists() and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


def until(condition: Callable[[], object], what: str, within_s: float = 30) -> None:
    """Wait for a condition; fail with `what` was waited for."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s:g} s in vain: {what}")
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_kib(pid: int) -> float:
    """The resident memory of a process (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024
