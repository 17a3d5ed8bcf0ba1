"""Real parts, each a process of its own, that can be killed, frozen, asked to leave, begun anew."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from server.listen import listen, url_of
from server.supervise import python_path
from server.valkey import answers, find_binary, launch, options, prepare, socket_path
from tasks.errors import SlowcallError
from tasks.settings import variables

READY_S: Final = 30.0
_POLL_S: Final = 0.01


class NotReady(SlowcallError):
    """A part did not come to be what was waited for."""


def await_that(condition: Callable[[], object], what: str, within_s: float = READY_S) -> None:
    """Wait for a condition. Raises NotReady, which says what was waited for."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise NotReady(f"waited {within_s:g} s in vain: {what}")
        time.sleep(_POLL_S)


class Child(ABC):
    """A process that a proof may do anything to. `log` is the file with its standard error."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin it (anew)."""

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (or is frozen)."""
        return self.process is not None and self.process.poll() is None

    @property
    def said(self) -> str:
        """What it wrote to its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        """`kill -9`, and see it gone."""
        self._signal(signal.SIGKILL)
        self.wait()

    def ask_to_leave(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def leave(self, within_s: float = READY_S) -> int:
        """SIGTERM, and its exit code. Raises NotReady."""
        self.ask_to_leave()
        return self.wait(within_s)

    def freeze(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait(self, within_s: float = READY_S) -> int:
        """Its exit code. Raises NotReady."""
        assert self.process is not None
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise NotReady(f"{self.name} did not end within {within_s:g} s") from None

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)


class Store(Child):
    """An embedded Valkey with its usual options, which nobody starts anew behind our back."""

    def __init__(self, folder: Path) -> None:
        super().__init__("store", folder / "store" / "valkey.log")
        self._folder = folder / "store"
        self._socket = socket_path(self._folder)
        self.url = f"unix://{quote(str(self._socket))}"

    def start(self) -> None:
        """Start it and wait until it answers, its data read in."""
        prepare(self._folder, self._socket.parent)
        self._socket.unlink(missing_ok=True)
        with (self._folder / "lock").open("w") as lock:
            words = options(self._folder, self._socket)
            self.process = launch(find_binary(), words, self._folder, lock)
        await_that(lambda: answers(self._socket), "the store answers")


class Part(Child):
    """`python -m server …` with these settings. It ends with us: its standard input is our pipe."""

    def __init__(
        self,
        name: str,
        words: list[str],
        *,
        house: House,
        door: socket.socket | None = None,
    ) -> None:
        super().__init__(name, house.folder / f"{name}.log")
        self.door = door
        self._house = house
        self._words = [*words, "--part", name]
        self._words += ["--listen-fd", str(door.fileno())] if door else []

    @property
    def url(self) -> str:
        """Where it serves."""
        assert self.door is not None, f"{self.name} does not serve"
        return url_of(self.door)

    def start(self) -> None:
        """Start it; `await_ready` waits until it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "server", *self._words],
                stdin=self._house.lifeline,
                stdout=log,
                stderr=log,
                env=self._house.environment,
                pass_fds=[self.door.fileno()] if self.door else [],
                start_new_session=True,
            )

    def await_ready(self, path: str = "/healthz", within_s: float = READY_S) -> None:
        """Wait until it serves. Raises NotReady."""
        await_that(lambda: _answers(self.url + path), f"{self.name}{path} answers", within_s)

    def await_word(self, word: str, times: int = 1, within_s: float = READY_S) -> None:
        """Wait until its log holds this text so often. Raises NotReady."""
        await_that(lambda: self.said.count(word) >= times, f"{self.name} says {word!r}", within_s)


class House:
    """A store, a metered model, servers and workers in a folder; a context manager that ends all.

    `settings` are variables of the environment for all parts; those of whoever runs us are not
    passed on.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.store = Store(folder)
        self.lab: Part | None = None
        self.workers: list[Part] = []
        self.servers: list[Part] = []
        self._stack = ExitStack()
        self.lifeline, our_end = os.pipe()
        self._stack.callback(os.close, self.lifeline)
        self._stack.callback(os.close, our_end)
        self.environment = {
            **_without_settings(os.environ),
            "REDIS_URL": self.store.url,
            "SLOWCALL_DATA_DIR": str(folder),
            "PYTHONPATH": python_path(),
            **(settings or {}),
        }

    def __enter__(self) -> Self:
        self.store.start()
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self.workers, *self.servers, *([self.lab] if self.lab else []), self.store]:
            child.kill()
        self._stack.close()

    def add_lab(self) -> Part:
        """A lab model, which all workers that come later ask."""
        self.lab = self._serving("lab", ["lab"])
        self.lab.await_ready()
        self.environment["AI_URL"] = self.lab.url
        return self.lab

    def add(self, *, workers: int = 0, servers: int = 0) -> None:
        """More workers and servers, started side by side, all ready in the end."""
        begun = [self._worker() for _ in range(workers)]
        serving = [self._server() for _ in range(servers)]
        for worker in begun:
            worker.await_word("worker ready")
        for server in serving:
            server.await_ready()

    def add_worker(self) -> Part:
        """One more worker, ready."""
        self.add(workers=1)
        return self.workers[-1]

    def _worker(self) -> Part:
        worker = Part(f"worker-{len(self.workers) + 1}", ["worker"], house=self)
        self.workers.append(worker)
        worker.start()
        return worker

    def _server(self) -> Part:
        server = self._serving(f"server-{len(self.servers) + 1}", ["serve"])
        self.servers.append(server)
        return server

    def _serving(self, name: str, words: list[str]) -> Part:
        door = self._stack.enter_context(listen("127.0.0.1", 0))
        part = Part(name, words, house=self, door=door)
        part.start()
        return part


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    ours = set(variables())
    return {
        name: value
        for name, value in environment.items()
        if name not in ours and not name.lower().endswith("_proxy")
    }


def _answers(url: str) -> bool:
    try:
        return bool(httpx.get(url, timeout=2, trust_env=False).is_success)
    except httpx.TransportError:
        return False


def meter(lab: Part) -> dict[str, Any]:
    """The books of a lab model: what it sold."""
    books: dict[str, Any] = httpx.get(f"{lab.url}/ledger", timeout=10, trust_env=False).json()
    return books


def misbehave(lab: Part, *rules: Mapping[str, Any]) -> None:
    """Put these rules (lab_faults.py) in force instead of the old ones."""
    answer = httpx.post(f"{lab.url}/faults", json=list(rules), timeout=10, trust_env=False)
    answer.raise_for_status()
