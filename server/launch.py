"""`slowcall up`: store, lab model, workers and server, started, supervised, stopped in order.

Parts find each other by the settings in their environment: REDIS_URL is the embedded store's,
AI_URL the lab's, where the user gave none.
"""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from server.listen import listen, url_of
from server.supervise import Part
from server.valkey import join_store, prepare
from server.words import greeting, waiting
from tasks.errors import SettingsError, SlowcallError
from tasks.lifecycle import Status
from tasks.settings import Settings
from tasks.store import Store
from tasks.store.check import check_store

log = logging.getLogger("slowcall.up")

READY_S: Final = 60.0
"""As long as all parts together may take to be ready."""
STOP_S: Final = 6.0
"""As long as a part without jobs may take to end; a worker has SLOWCALL_DRAIN_S on top."""

Say = Callable[[str], None]


class StoppedEarly(SlowcallError):
    """A signal came before all parts were ready."""


async def up(settings: Settings, *, workers: int, say: Say) -> None:
    """Run everything until a signal comes; `say` prints a line for the person who started it.

    Raises SlowcallError when it cannot start; nothing is left running then.
    """
    with ExitStack() as stack:
        lock = stack.enter_context(one_per_folder(settings.data_dir))
        door = stack.enter_context(listen(settings.host, settings.port))
        lock.write(f"{os.getpid()} {url_of(door)}")
        lock.flush()
        joined = stack.enter_context(join_store(settings))
        for line in check_store(joined) if settings.redis_url else []:
            log.warning(line)
        house = House(joined, say)
        try:
            await house.run(workers, door, embedded=settings.redis_url is None)
        except StoppedEarly:
            pass
        finally:
            await house.stop()
    say("stopped")


class House:
    """The parts that run."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._lab: list[Part] = []
        self._workers: list[Part] = []
        self._server: list[Part] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._signals = 0
        self._asked = asyncio.Event()
        self._held = ExitStack()
        self._environment = dict(os.environ)
        if settings.redis_url:
            self._environment["REDIS_URL"] = settings.redis_url.get_secret_value()
        self._lifeline, our_end = os.pipe()
        self._held.callback(os.close, our_end)
        self._held.callback(os.close, self._lifeline)

    async def run(self, workers: int, door: socket.socket, *, embedded: bool) -> None:
        """Start all, say so, wait for a signal. Raises PartFailed, StoppedEarly."""
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(name, self._on_signal)
        lab = None if self._settings.ai_url else await self._start_lab()
        for number in range(1, workers + 1):
            self._workers.append(await self._start(f"worker-{number}", "worker"))
        self._server.append(await self._start("server", "serve", door))
        if lab:
            await self._until(ready(lab, "/healthz"))
        await self._until(ready(door, "/readyz" if workers else "/healthz"))
        for part in self._parts:
            part.settled = True
        lab_url = url_of(lab) if lab else None
        for line in greeting(
            self._settings, url=url_of(door), lab=lab_url, workers=workers, embedded=embedded
        ):
            self._say(line)
        await self._until(self._asked.wait())

    async def stop(self) -> None:
        """The server first, so that nothing new comes in; then the workers, which finish their
        calls; then the lab, which answers these."""
        await stop_all(self._server, STOP_S)
        if self._workers and self._signals == 1:
            self._say(waiting(await self._running(), self._settings.drain_s))
        await stop_all(self._workers, self._settings.drain_s + STOP_S)
        await stop_all(self._lab, STOP_S)
        self._held.close()

    @property
    def _parts(self) -> list[Part]:
        return [*self._lab, *self._workers, *self._server]

    async def _start_lab(self) -> socket.socket:
        """Who comes before it is ready waits at its door."""
        door = self._held.enter_context(listen("127.0.0.1", 0))
        self._environment["AI_URL"] = f"{url_of(door)}/v1"
        self._lab.append(await self._start("lab", "lab", door))
        return door

    async def _start(self, name: str, command: str, door: socket.socket | None = None) -> Part:
        part = Part(
            name, command, lifeline=self._lifeline, environment=self._environment, door=door
        )
        self._keepers.append(await part.start())
        return part

    def _on_signal(self) -> None:
        self._signals += 1
        self._asked.set()
        if self._signals > 1:
            for part in self._parts:
                part.kill()

    async def _until(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Wait for it, unless a part cannot start or a signal comes first."""
        wanted = asyncio.create_task(coroutine)
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait([wanted, asked, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
            for keeper in self._keepers:
                if keeper.done():
                    keeper.result()
            if not wanted.done() and asked.done():
                raise StoppedEarly("stopped before all parts were ready")
            await wanted
        finally:
            wanted.cancel()
            asked.cancel()

    async def _running(self) -> int:
        """How many jobs run (up to 200 are counted); 0 when the store is away."""
        store = Store.connect(self._settings)
        try:
            jobs, _ = await store.list_jobs(
                user_id=None, status=Status.RUNNING, kind=None, limit=200, cursor=None
            )
        except SlowcallError:
            return 0
        finally:
            await store.aclose()
        return len(jobs)


async def stop_all(parts: list[Part], within_s: float) -> None:
    """Stop parts of one sort side by side."""
    await asyncio.gather(*(part.stop(within_s) for part in parts))


async def ready(door: socket.socket, path: str) -> None:
    """Wait until a GET of `path` answers 200. Raises SlowcallError after READY_S."""
    deadline = time.monotonic() + READY_S
    while (seen := await asyncio.to_thread(get_status, door, path)) != 200:
        if time.monotonic() > deadline:
            raise SlowcallError(f"{url_of(door)}{path} was not ready in {READY_S:g} s: {seen}")
        await asyncio.sleep(0.05)


def get_status(door: socket.socket, path: str) -> int | str:
    """The status of a GET of this path, or what came instead."""
    host, port = url_of(door).removeprefix("http://").rsplit(":", 1)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


@contextmanager
def one_per_folder(data_dir: Path) -> Iterator[TextIO]:
    """Hold the data folder for this `up`; raises SettingsError where another one has it."""
    prepare(data_dir)
    with (data_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid, _, url = lock.read().partition(" ")
            raise SettingsError(
                f"SLOWCALL_DATA_DIR: slowcall is up already on {data_dir} (process {pid}, {url}); "
                "stop it, or start with another folder"
            ) from None
        lock.truncate(0)
        yield lock
