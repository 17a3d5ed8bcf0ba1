"""What a kind sees of its job: steps that are bought once, calls, progress, streamed text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from tasks.calls import Calls, Order, Reply
from tasks.deltas import DeltaLog, Deltas
from tasks.errors import PermanentError, RunLost, TransientError
from tasks.lease import Held
from tasks.reading import Reader
from tasks.settings import Settings
from tasks.settle import Settler
from tasks.store import Progress, Run, Store, StoredStep
from tasks.tally import Tally
from tasks.telemetry import step_span
from tasks.tries import ONCE, Retry, tried

if TYPE_CHECKING:  # a server knows contexts, and needs no HTTP client
    from tasks.model import ModelClient

T = TypeVar("T")

WAITING_FOR_MODEL: Final = "waiting for the model"
ANSWERING: Final = "the model answers"


class Context:
    """One run of one job, for the kind that performs it.

    Whatever `step` and `ask` answer is stored before they return: a later run finds it and goes on
    from there. Their names must be the same in every run and unique within the job.
    """

    def __init__(
        self,
        run: Run,
        held: Held,
        *,
        settings: Settings,
        store: Store,
        model: ModelClient,
        settler: Settler,
        reader: Reader,
    ) -> None:
        self.run = run
        self.held = held
        self.settings = settings
        self.calls = Calls(run, held, store=store, model=model, settler=settler)
        self._store = store
        self._model = model
        self._reader = reader
        self._stored: dict[str, StoredStep] = {}
        self._visited: set[str] = set()
        self._tally = Tally()
        self._deltas = DeltaLog(store, run)
        self._reused = 0

    async def load(self) -> None:
        """Read the steps that earlier runs stored."""
        if self.run.run > 1:
            self._stored = await self._store.steps(self.run.job_id)

    @property
    def done(self) -> int:
        """How much of the progress this run has come to."""
        return self._tally.now.done

    @property
    def unvisited(self) -> set[str]:
        """Stored steps that this run never came to."""
        return self._stored.keys() - self._visited

    async def step(
        self,
        name: str,
        make: Callable[[], Awaitable[T]],
        *,
        key: Any = None,
        timeout_s: float | None = None,
        retry: Retry = ONCE,
    ) -> T:
        """The stored result of the step `name`, else what `make` answers (JSON-able), stored.

        `key` is what the result depends on; it counts only after a person edited the input. A try
        that takes more than `timeout_s` fails with a JobError of type `timeout`.
        """
        hash = fingerprint(key)
        stored = await self._take(name, hash)
        if stored is None:
            with step_span(self.run, name):
                value = await tried(partial(self._made, name, make, timeout_s), retry, park=False)
            stored = await self._store.store_step(self.run, name, hash, value)
        return stored.value  # type: ignore[no-any-return]

    async def read_document(self, step: str = "read") -> list[str]:
        """The pages of the uploaded document as texts, read once, as step `step`.

        Raises PermanentError with a sentence that says what to do.
        """
        stored = await self._take(step, hash := fingerprint(None))
        if stored is None:
            self.held.go_on()
            document = await self._store.blob(self.run)
            if document is None:
                raise PermanentError("The document did not come with the job: upload it again.")
            with step_span(self.run, step):
                pages = await self._reader.read(document)
            stored = await self._store.store_step(self.run, step, hash, pages, from_blob=True)
        return stored.value  # type: ignore[no-any-return]

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        step: str,
        streamed: bool = False,
        timeout_s: float | None = None,
        counts: bool = False,
        refusable: bool = False,
        retry: Retry = ONCE,
    ) -> Reply:
        """The model's answer to `body` (of an OpenAI chat completion), bought once as step `step`.

        `streamed` publishes its text as `delta` events while it comes; `counts` makes the step one
        more of the progress; `timeout_s` may be less than the job's, not more. Raises CallFailed
        where there is no usable answer; `refusable`: where it is the content that will never be
        answered (a filter, too long), the reply says why and the step is done. Raises ValueError
        for a `retry` of a streamed step: its text is told already, and only a new run voids it.
        """
        if streamed and retry.times:
            raise ValueError("a streamed step is tried again by the next attempt alone")
        body = {**body, "model": body.get("model") or await self._model.default_model()}
        hash = fingerprint(body)
        deltas = Deltas(self._deltas, step) if streamed else None
        stored = await self._take(step, hash)
        if stored is None:
            longest_s = self.run.options["timeout_s"]
            progress = partial(self._tally.one_more, step) if counts else _nothing
            opened = asyncio.Event()
            order = Order(
                step=step,
                body=body,
                hash=hash,
                timeout_s=min(timeout_s or longest_s, longest_s),
                deltas=deltas,
                opened=opened.set,
                progress=progress,
                refusable=refusable,
            )
            park = self.run.options["on_unknown"] == "park"
            with step_span(self.run, step):
                stored = await tried(partial(self._buy, order, opened), retry, park=park)
        elif counts:
            self._tally.one_more(step)
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

    async def expect(self, total: int, unit: str, *, plan: Mapping[str, str] | None = None) -> None:
        """From now on the progress is counted in `total` units: "page 7 of 40".

        `plan` tells what each step is going to do, so that a page can tick it off.
        """
        await self._tell(self._tally.expect(total, unit, plan))

    async def tick(self, step: str) -> None:
        """`step` is done: one more of the progress."""
        await self._tell(self._tally.one_more(step))

    async def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Publish how far the job is; a `total` or `note` left out stays as it was."""
        await self._tell(self._tally.set(done, total, note))

    async def tell_text(self, step: str, text: str) -> None:
        """Publish a piece of text as a `delta` event."""
        await self._deltas.tell(step, text)

    async def close(self) -> None:
        """Tell what was taken from the store and not told yet."""
        if self._reused:
            await self._tell(self._tally.now)

    async def _tell(self, progress: Progress) -> None:
        reused, self._reused = self._reused, 0
        await self._store.tell_progress(self.run, progress, reused=reused)

    async def _made(
        self, name: str, make: Callable[[], Awaitable[T]], timeout_s: float | None
    ) -> T:
        self.held.go_on()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await make()
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"The step {name!r} took more than {timeout_s:g} s."
            raise TransientError(message, type="timeout") from None

    async def _take(self, step: str, hash: str) -> StoredStep | None:
        self._visited.add(step)
        stored = self._stored.get(step)
        if stored is not None and self.run.edited and stored.hash != hash:
            await self._store.forget_step(self.run, step, stored.hash)
            return None
        if stored is not None:
            self._reused += 1
        return stored

    async def _buy(self, order: Order, opened: asyncio.Event) -> StoredStep:
        if self._reused:
            await self._tell(self._tally.now)
        if self._tally.now.total is not None:
            return await self.calls.buy(order)
        await self.progress(self.done, note=WAITING_FOR_MODEL)
        teller = asyncio.create_task(self._tell_answering(opened))
        try:
            return await self.calls.buy(order)
        finally:
            teller.cancel()

    async def _tell_answering(self, opened: asyncio.Event) -> None:
        await opened.wait()
        with suppress(RunLost):
            await self.progress(self.done, note=ANSWERING)


def _nothing() -> None:
    return None


def fingerprint(value: Any) -> str:
    """A short hash of JSON: equal values have equal ones, whatever the order of their keys."""
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()[:24]
