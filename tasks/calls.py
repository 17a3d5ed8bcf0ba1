"""The paid-once protocol: begin -> one request -> settle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tasks.deltas import Deltas
from tasks.draft import Answer
from tasks.errors import CallFailed, Drained, LaneBusy, OptionRefused, RateLimited, Unusable
from tasks.lease import Held
from tasks.settle import Settler
from tasks.store import Begun, NoPlace, Progress, Run, Settlement, Store, StoredStep
from tasks.telemetry import call_span, tell_answer

if TYPE_CHECKING:  # a server knows calls, and needs no HTTP client
    from tasks.model import ModelClient


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as a step keeps it. `source` is `model` or `lab`.

    `refused` says why there is none and never will be, where the step takes that for an answer.
    """

    text: str
    source: str
    model: str
    finish_reason: str
    tool_calls: list[dict[str, Any]]
    refused: str = ""

    @classmethod
    def of(cls, answer: Answer) -> Reply:
        """What is kept of an answer; the reasoning is not."""
        source = "lab" if answer.lab else "model"
        return cls(answer.text, source, answer.model, answer.finish_reason, answer.tool_calls)

    @classmethod
    def of_refusal(cls, failure: CallFailed) -> Reply:
        """What is kept of a refusal that is an answer too."""
        return cls("", "model", "", "refused", [], refused=str(failure))

    def result(self) -> dict[str, Any]:
        """The reply as a job's result."""
        told = asdict(self)
        return {name: told[name] for name in told if told[name] or name == "text"}


@dataclass(frozen=True, slots=True)
class Order:
    """What a step wants to buy: the request's body and hash, its time, who follows its text.

    `opened` is called when the model begins to answer; `progress` says how far the job is with
    this answer (None: it tells nothing). `refusable`: a refusal of the content is stored, too.
    """

    step: str
    body: dict[str, Any]
    hash: str
    timeout_s: float
    deltas: Deltas | None
    opened: Callable[[], None]
    progress: Callable[[], Progress | None]
    refusable: bool


def upstream_key(job_id: str, step: str, hash: str, number: int) -> str:
    """The `Idempotency-Key` that a call is sent with: the same for as long as the endpoint may hold
    an answer to it."""
    return f"{job_id}:{step}:{hash}:{number}"


class Calls:
    """The calls of one run. `in_vain`: one of them ended with an outcome that nobody knows; `lane`:
    the model that had no place for one ('': all had)."""

    def __init__(
        self, run: Run, held: Held, *, store: Store, model: ModelClient, settler: Settler
    ) -> None:
        self.in_vain = False
        self.lane = ""
        self._open = 0
        self._turn = asyncio.Lock()
        self._settled = asyncio.Event()
        self._run = run
        self._held = held
        self._store = store
        self._model = model
        self._settler = settler

    async def buy(self, order: Order) -> StoredStep:
        """The answer to an order, stored; the stored one, where it came meanwhile.

        An endpoint that does not know an option is asked once more without: two calls, two lines.
        Raises CallFailed, LaneBusy, Drained, RunLost.
        """
        try:
            return await self._call(order)
        except OptionRefused:
            return await self._call(order)

    async def _call(self, order: Order) -> StoredStep:
        call = uuid4().hex
        begun = await self._begin(call, order)
        if not isinstance(begun, Begun):
            progress = order.progress()
            if progress is not None:
                await self._store.tell_progress(self._run, progress)
            return begun
        key = upstream_key(self._run.job_id, order.step, order.hash, begun.number)
        end = Settlement(call, order.step, order.hash, "unknown", message="The call was closed.")
        timing = _Timing()
        request = asyncio.create_task(self._request(order, key, timing))
        self._held.calls[order.step] = request
        try:
            answer = _wanted(await request, order.body)
            end = _answered(end, answer, order.progress())
        except CallFailed as failure:
            self.in_vain |= failure.outcome == "unknown"
            end = _failed(end, failure)
            if not (order.refusable and failure.about_content):
                raise
            refusal = asdict(Reply.of_refusal(failure))
            end = replace(end, value=refusal, progress=order.progress())
        except asyncio.CancelledError:
            if order.step in self._held.answered and self._held.stopped is None:
                raise Drained("An earlier run's answer came: the next one takes it.") from None
            raise
        finally:
            del self._held.calls[order.step]
            await self._settle(replace(end, first_ms=timing.first_ms))
        return StoredStep(order.hash, end.value)

    async def _begin(self, call: str, order: Order) -> Begun | StoredStep:
        """Write the ledger line, when the lane has a place for the call.

        Until then it waits for the run's other calls to end. Raises LaneBusy where there is none:
        then the job waits in the queue.
        """
        model = order.body["model"]
        while True:
            self._held.go_on()
            async with self._turn:
                begun = await self._store.begin(
                    self._run,
                    call=call,
                    step=order.step,
                    model=model,
                    hash=order.hash,
                    memo=self._run.options["memo"],
                )
                self._open += isinstance(begun, Begun)
            if not isinstance(begun, NoPlace):
                return begun
            if not self._open:
                self.lane = model
                raise LaneBusy(f"{model} takes no more calls now.", retry_after_s=begun.wait_s)
            self._settled.clear()
            await self._settled.wait()

    async def _settle(self, end: Settlement) -> None:
        try:
            await self._settler.settle(self._run, end)
        finally:
            self._open -= 1
            self._settled.set()

    async def _request(self, order: Order, key: str, timing: _Timing) -> Answer:
        def opened() -> None:
            timing.open()
            order.opened()

        chat = partial(
            self._model.chat,
            order.body,
            idempotency_key=key,
            timeout_s=order.timeout_s,
            on_open=opened,
        )
        with call_span(self._run, order.step, order.body) as span:
            answer = await _with_text(chat, order.deltas)
            tell_answer(span, answer, timing.first_ms)
        return answer


class _Timing:
    """When a call was sent and its answer began."""

    def __init__(self) -> None:
        self.first_ms: int | None = None
        self._sent = monotonic()

    def open(self) -> None:
        self.first_ms = round((monotonic() - self._sent) * 1000)


async def _with_text(chat: Callable[..., Awaitable[Answer]], deltas: Deltas | None) -> Answer:
    if deltas is None:
        return await chat()
    async with deltas:
        return await chat(on_text=deltas.add)


def _wanted(answer: Answer, body: dict[str, Any]) -> Answer:
    """The answer, unless it is nothing but calls of tools that nobody offered. Raises Unusable."""
    if answer.text or body.get("tools") or body.get("functions"):
        return answer
    failure = Unusable("The model asked for a tool, and none was offered.", type="permanent")
    failure.input_tokens, failure.output_tokens = answer.input_tokens, answer.output_tokens
    failure.request_id = answer.request_id
    raise failure


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
        closed_s=failure.retry_after_s if isinstance(failure, RateLimited) else None,
    )
