"""One address, and another store behind it: a failover of a managed store, or of Sentinel's."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest

from server.listen import listen
from tests.chaos.conftest import Build, Model, numbers, streamed
from tests.conftest import wait_until
from tests.endpoint import DONE, FIN, HS, C, Pause
from tests.valkeys import valkey

JOBS = 4


class Address:
    """A port of this machine that leads to another one; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._door = listen("127.0.0.1", 0)
        self.port = self._door.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="address")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def lead_to(self, target: int) -> None:
        """From now on to another port; whoever is connected is cut off."""
        self._target = target
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, sock=self._door))
        self._loop.run_forever()
        server.close()
        self._cut()
        while tasks := asyncio.all_tasks(self._loop):
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._open.add(back)
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
            self._open.discard(back)
        self._open.discard(writer)
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize("manner", ["planned", "crash"])
def test_the_store_fails_over(build: Build, model: Model, tmp_path: Path, manner: str) -> None:
    """Calls are out meanwhile; the old primary takes no writes, then it is not there any more."""
    with ExitStack() as stack:
        old = stack.enter_context(valkey(tmp_path / "old", "--repl-diskless-sync-delay", "0"))
        replica_of = ["--replicaof", "127.0.0.1", str(old.port)]
        new = stack.enter_context(valkey(tmp_path / "new", *replica_of))
        wait_until(new.follows, "the replica follows")
        address = stack.enter_context(Address(old.port))
        house = build(REDIS_URL=f"redis://127.0.0.1:{address.port}/0", AI_URL=model.url)
        customer = house.open(workers=2)
        model.teach("slow", HS(C("Paid "), Pause(3), C("once."), FIN(), DONE))
        jobs = [customer.post("slow") for _ in range(JOBS)]
        watchers = [customer.watch(job_id) for job_id in jobs]
        for watcher in watchers:
            watcher.await_event("delta")
        old.client.wait(1, 1000)

        if manner == "planned":
            old.client.execute_command("FAILOVER")  # type: ignore[no-untyped-call]
        else:
            old.kill()
            new.client.replicaof("NO", "ONE")
        wait_until(new.is_primary, "the replica is the primary")
        refused = customer.http.post("/jobs", json={"input": "now"})
        address.lead_to(new.port)

        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        for job_id, watcher in zip(jobs, watchers, strict=True):
            log = watcher.await_end(within_s=30)
            assert numbers(log) == list(range(1, len(log) + 1))
            assert (log[-1].name, log[-1].data["attempts"]) == ("done", 1), watcher.names
            assert streamed(log) == log[-1].data["result"]["text"] == "Paid once."
            assert customer.outcomes(job_id) == ["paid"]
        assert len(model.asked("slow")) == JOBS
        assert customer.await_end(customer.post("later"))["status"] == "done"
        assert all(part.alive for part in (*house.workers, *house.servers))
