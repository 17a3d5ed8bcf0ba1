"""What a kind sees of its job: steps that are bought once, calls, progress, streamed text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import orjson

from tasks.deltas import DeltaLog, Deltas
from tasks.draft import Answer
from tasks.errors import CallFailed, Drained, OptionRefused, RunLost
from tasks.lease import Held
from tasks.model import ModelClient
from tasks.settle import Settler
from tasks.store import Begun, Progress, Run, Settlement, Store, StoredStep

T = TypeVar("T")

WAITING_FOR_MODEL: Final = "waiting for the model"
ANSWERING: Final = "the model answers"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as a step keeps it. `source` is `model` or `lab`."""

    text: str
    source: str
    model: str
    finish_reason: str
    tool_calls: list[dict[str, Any]]

    @classmethod
    def of(cls, answer: Answer) -> Reply:
        """What is kept of an answer; the reasoning is not."""
        source = "lab" if answer.lab else "model"
        return cls(answer.text, source, answer.model, answer.finish_reason, answer.tool_calls)

    def result(self) -> dict[str, Any]:
        """The reply as a job's result."""
        return {name: value for name, value in asdict(self).items() if value != []}


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
        self.called_in_vain = False
        self._store = store
        self._model = model
        self._settler = settler
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
            self._go_on()
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
            stored = await self._buy(body, step, hash, deltas, timeout_s, counts)
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

    def _go_on(self) -> None:
        if self.held.draining:
            raise Drained("This worker leaves.")

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
        body: dict[str, Any],
        step: str,
        hash: str,
        deltas: Deltas | None,
        timeout_s: float,
        counts: bool,
    ) -> StoredStep:
        """Ask, and once more where the endpoint does not know an option: two calls, two lines."""
        for last in (False, True):
            try:
                return await self._call(body, step, hash, deltas, timeout_s, counts)
            except OptionRefused:
                if last:
                    raise
        raise AssertionError("the second refusal is raised")

    async def _call(
        self,
        body: dict[str, Any],
        step: str,
        hash: str,
        deltas: Deltas | None,
        timeout_s: float,
        counts: bool,
    ) -> StoredStep:
        """begin -> one request -> settle: the paid-once protocol."""
        self._go_on()
        await self._tell_start()
        call = uuid4().hex
        begun = await self._store.begin(
            self.run, call=call, step=step, model=body["model"], hash=hash
        )
        if not isinstance(begun, Begun):
            return begun
        key = f"{self.run.job_id}:{step}:{hash}:{begun.number}"
        end = Settlement(call, step, hash, "unknown", message="The call was closed.")
        request = asyncio.create_task(self._request(body, key, deltas, timeout_s))
        self.held.calls[step] = request
        try:
            answer = await request
            end = _answered(end, answer, self._one_more() if counts else None)
        except CallFailed as failure:
            self.called_in_vain |= failure.outcome == "unknown"
            end = _failed(end, failure)
            raise
        except asyncio.CancelledError:
            if step in self.held.answered and self.held.stopped is None:
                raise Drained(
                    "The answer came from another worker: it is taken by the next run."
                ) from None
            raise
        finally:
            del self.held.calls[step]
            await self._settler.settle(self.run, end)
        return StoredStep(hash, end.value)

    async def _tell_start(self) -> None:
        if self._reused:
            await self.progress(self._progress.done)
        elif self._progress.total is None:
            await self.progress(self._progress.done, note=WAITING_FOR_MODEL)

    async def _request(
        self, body: dict[str, Any], key: str, deltas: Deltas | None, timeout_s: float
    ) -> Answer:
        opened = asyncio.Event()
        chat = partial(
            self._model.chat, body, idempotency_key=key, timeout_s=timeout_s, on_open=opened.set
        )
        teller = asyncio.create_task(self._tell_answering(opened))
        try:
            if deltas is None:
                return await chat()
            async with deltas:
                return await chat(on_text=deltas.add)
        finally:
            teller.cancel()

    async def _tell_answering(self, opened: asyncio.Event) -> None:
        await opened.wait()
        if self._progress.note == WAITING_FOR_MODEL:
            with suppress(RunLost):
                await self.progress(self._progress.done, note=ANSWERING)


def _answered(end: Settlement, answer: Answer, progress: Progress | None) -> Settlement:
    return replace(
        end,
        outcome="paid",
        status=200,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        request_id=answer.request_id,
        message="",
        value=asdict(Reply.of(answer)),
        progress=progress,
    )


def _failed(end: Settlement, failure: CallFailed) -> Settlement:
    return replace(
        end,
        outcome=failure.outcome,
        status=failure.upstream_status,
        input_tokens=failure.input_tokens,
        output_tokens=failure.output_tokens,
        request_id=failure.request_id,
        message=str(failure),
    )


def fingerprint(value: Any) -> str:
    """A short hash of JSON: equal values have equal ones, whatever the order of their keys."""
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()[:24]
