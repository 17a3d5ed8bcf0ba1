"""What a kind sees of its job: steps that are bought once, calls, progress, streamed text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import orjson

from tasks.calls import Calls, Order, Reply
from tasks.deltas import DeltaLog, Deltas
from tasks.errors import RunLost
from tasks.lease import Held
from tasks.model import ModelClient
from tasks.settle import Settler
from tasks.store import Progress, Run, Store, StoredStep

T = TypeVar("T")

WAITING_FOR_MODEL: Final = "waiting for the model"
ANSWERING: Final = "the model answers"


class Context:
    """One run of one job, for the kind that performs it.

    Whatever `step` and `ask` answer is stored before they return: a later run finds it and goes on
    from there. Their names must be the same in every run and unique within the job.
    """

    def __init__(
        self, run: Run, held: Held, *, store: Store, model: ModelClient, settler: Settler
    ) -> None:
        self.run = run
        self.held = held
        self.calls = Calls(run, held, store=store, model=model, settler=settler)
        self._store = store
        self._model = model
        self._stored: dict[str, StoredStep] = {}
        self._visited: set[str] = set()
        self._progress = Progress(0, None, "")
        self._unit = ""
        self._deltas = DeltaLog(store, run)
        self._reused = 0

    async def load(self) -> None:
        """Read the steps that earlier runs stored."""
        if self.run.run > 1:
            self._stored = await self._store.steps(self.run)

    @property
    def done(self) -> int:
        """How much of the progress this run has come to."""
        return self._progress.done

    @property
    def unvisited(self) -> set[str]:
        """Stored steps that this run never came to."""
        return self._stored.keys() - self._visited

    async def step(self, name: str, make: Callable[[], Awaitable[T]], *, key: Any = None) -> T:
        """The stored result of the step `name`, else what `make` answers (JSON-able), stored.

        `key` is what the result depends on; it counts only after a person edited the input.
        """
        hash = fingerprint(key)
        stored = await self._take(name, hash)
        if stored is None:
            self.held.go_on()
            value = await make()
            stored = await self._store.store_step(self.run, name, hash, value)
        return stored.value  # type: ignore[no-any-return]

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        step: str,
        streamed: bool = False,
        timeout_s: float | None = None,
        counts: bool = False,
    ) -> Reply:
        """The model's answer to `body` (of an OpenAI chat completion), bought once as step `step`.

        `streamed` publishes its text as `delta` events while it comes; `counts` makes the step one
        more of the progress. Raises CallFailed where there is no usable answer.
        """
        body = {**body, "model": body.get("model") or await self._model.default_model()}
        hash = fingerprint(body)
        deltas = Deltas(self._deltas, step) if streamed else None
        stored = await self._take(step, hash)
        if stored is None:
            timeout_s = timeout_s or self.run.options["timeout_s"]
            stored = await self._buy(step, body, hash, timeout_s, deltas, counts)
        elif counts:
            self._one_more()
        reply = Reply(**stored.value)
        if deltas is not None:
            await deltas.complete(reply.text)
        return reply

    async def map(
        self,
        name: str,
        function: Callable[[str, Any], Awaitable[T]],
        items: Sequence[Any],
        *,
        at_once: int = 4,
    ) -> list[T]:
        """`function(step, item)` for every item, `at_once` side by side; results in order.

        The steps are called `{name} 1`, `{name} 2`, …; `function` gives its own to `ask` or `step`.
        When one fails, nothing new is started, and what is under way is let end: it is paid.
        """
        results: dict[int, T] = {}
        todo = iter(list(enumerate(items)))
        failures: list[BaseException] = []

        async def work() -> None:
            for index, item in todo:
                try:
                    results[index] = await function(f"{name} {index + 1}", item)
                except Exception as error:
                    failures.append(error)
                if failures:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return [results[index] for index in range(len(items))]

    async def expect(self, total: int, unit: str) -> None:
        """From now on the progress is counted in `total` units: "page 7 of 40"."""
        self._unit = unit
        await self.progress(self._progress.done, total, f"{unit} {self._progress.done} of {total}")

    async def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Publish how far the job is; a `total` or `note` left out stays as it was."""
        was = self._progress
        self._progress = Progress(done, was.total if total is None else total, note or was.note)
        reused, self._reused = self._reused, 0
        await self._store.tell_progress(self.run, self._progress, reused=reused)

    async def tell_text(self, step: str, text: str) -> None:
        """Publish a piece of text as a `delta` event."""
        await self._deltas.tell(step, text)

    async def close(self) -> None:
        """Tell what was taken from the store and not told yet."""
        if self._reused:
            await self.progress(self._progress.done)

    def _one_more(self) -> Progress:
        done, total = self._progress.done + 1, self._progress.total
        note = f"{self._unit} {done} of {total}" if self._unit else self._progress.note
        self._progress = Progress(done, total, note)
        return self._progress

    async def _take(self, step: str, hash: str) -> StoredStep | None:
        self._visited.add(step)
        stored = self._stored.get(step)
        if stored is not None and self.run.edited and stored.hash != hash:
            await self._store.forget_step(self.run, step, stored.hash)
            return None
        if stored is not None:
            self._reused += 1
        return stored

    async def _buy(
        self,
        step: str,
        body: dict[str, Any],
        hash: str,
        timeout_s: float,
        deltas: Deltas | None,
        counts: bool,
    ) -> StoredStep:
        if self._reused:
            await self.progress(self._progress.done)
        opened = asyncio.Event()
        progress = self._one_more if counts else _nothing
        order = Order(step, body, hash, timeout_s, deltas, opened.set, progress)
        if self._progress.total is not None:
            return await self.calls.buy(order)
        await self.progress(self._progress.done, note=WAITING_FOR_MODEL)
        teller = asyncio.create_task(self._tell_answering(opened))
        try:
            return await self.calls.buy(order)
        finally:
            teller.cancel()

    async def _tell_answering(self, opened: asyncio.Event) -> None:
        await opened.wait()
        with suppress(RunLost):
            await self.progress(self._progress.done, note=ANSWERING)


def _nothing() -> None:
    return None


def fingerprint(value: Any) -> str:
    """A short hash of JSON: equal values have equal ones, whatever the order of their keys."""
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()[:24]
