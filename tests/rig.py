"""One worker's parts on a real store, with a clock that the test moves: jobs run one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, RootModel

from tasks.kinds import Kind
from tasks.lease import Leases
from tasks.model import ModelClient
from tasks.runner import Runner
from tasks.settings import Settings
from tasks.settle import Settler
from tasks.store import JobView, NewJob, Store

NOWHERE = "http://127.0.0.1:9"
"""The address of a model that a test never asks."""
LONG_S = 3600.0
Perform = Callable[[Any, Any], Awaitable[dict[str, Any]]]


class Clock:
    """The time that a store is given in place of Redis's own; it moves when a test says so."""

    def __init__(self, start_s: float = 1_700_000_000) -> None:
        self._start_s = start_s
        self._s = start_s

    def __call__(self) -> float:
        """Milliseconds, as the store wants them."""
        return self._s * 1000

    @property
    def passed_s(self) -> float:
        """Seconds since the test began."""
        return self._s - self._start_s

    def forward(self, seconds: float) -> None:
        """Let some time pass."""
        self._s += seconds


class Text(RootModel[str]):
    """The input of a test's kind: a text."""


@asynccontextmanager
async def store_at(
    settings: Settings, clock: Clock | None = None, *, patient: bool = False
) -> AsyncIterator[Store]:
    """The store of `settings`, by a clock of the test's own if there is one; as a server has it, or
    `patient` as a worker."""
    store = Store.connect(settings, clock=clock, patient=patient)
    try:
        yield store
    finally:
        await store.aclose()


def a_kind(name: str, perform: Perform, input: type[BaseModel] = Text) -> Kind:
    """A kind whose work is `perform(context, input)`."""
    return Kind(name, "A kind of a test.", input, perform)


def a_job(kind: str, input: Any = "hello", **more: Any) -> NewJob:
    """A job as a server would submit it, with the defaults of the contract."""
    return NewJob(
        **{
            "kind": kind,
            "input": input,
            "user_id": "local",
            "max_attempts": 3,
            "timeout_s": 600,
            "fingerprint": repr((kind, input)),
            **more,
        }
    )


def seen(view: JobView) -> dict[str, Any]:
    """The job as a client sees it."""
    return dict(orjson.loads(view.body))


class Rig:
    """A worker reduced to its runner: `work` runs what is due, by the given clock."""

    def __init__(self, store: Store, runner: Runner, leases: Leases, kinds: list[str]) -> None:
        self.store = store
        self.runner = runner
        self.leases = leases
        self.kinds = kinds

    async def submit(self, kind: str, input: Any = "hello", **more: Any) -> str:
        """Submit a job; answers its id."""
        return (await self.store.submit(a_job(kind, input, **more))).job.job_id

    async def read(self, job_id: str) -> dict[str, Any]:
        """The job as a client sees it now."""
        return seen(await self.store.read(job_id))

    async def run_due(self) -> tuple[int, float | None]:
        """Run all that is due, one job after the other; how many, and seconds to the next one."""
        runs = 0
        while True:
            claimed, next_s = await self.store.claim("worker", self.kinds, 1, LONG_S)
            if not claimed:
                return runs, next_s
            await self.runner.run(claimed[0])
            runs += 1

    async def work(self, wait: Callable[[float], Awaitable[None]]) -> int:
        """Run until nothing is left to run; `wait` lets the time pass until something is due."""
        runs, next_s = await self.run_due()
        while next_s is not None:
            await wait(next_s)
            more, next_s = await self.run_due()
            runs += more
        return runs

    async def events(self, job_id: str) -> list[tuple[str, dict[str, Any]]]:
        """The job's log: name and data of each event."""
        return [(entry.name, data(entry.block)) for entry in await self.store.log(job_id)]


def data(block: bytes) -> dict[str, Any]:
    """The data of an event as it is sent."""
    return dict(orjson.loads(block.partition(b"\ndata: ")[2]))


@asynccontextmanager
async def rigged(
    settings: Settings,
    kinds: Mapping[str, Kind],
    *,
    clock: Clock | None = None,
    model_url: str = NOWHERE,
) -> AsyncIterator[Rig]:
    """A rig for these kinds; without a clock it goes by Redis's."""
    async with AsyncExitStack() as stack:
        store = Store.connect(settings, clock=clock)
        stack.push_async_callback(store.aclose)
        model = ModelClient(settings, base_url=model_url)
        stack.push_async_callback(model.aclose)
        settler = Settler(store, Path(settings.data_dir) / "spool")
        leases = Leases(store, "worker", LONG_S, {})
        runner = Runner(
            settings,
            kinds=kinds,
            store=store,
            model=model,
            leases=leases,
            settler=settler,
        )
        yield Rig(store, runner, leases, list(kinds))
