"""Run one claimed job: perform -> judge -> record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from random import random
from typing import Any

import orjson
from opentelemetry import trace

from tasks.context import Context
from tasks.errors import (
    DeadlinePassed,
    Drained,
    InvalidInput,
    JobError,
    PermanentError,
    RecordDamaged,
    RunLost,
    StepUnknown,
    Stopped,
)
from tasks.kinds import Kind
from tasks.lease import Held, Leases
from tasks.lifecycle import FAIL, FINISH, RELEASE, START, Status
from tasks.logs import log_job, log_moved
from tasks.model import ModelClient
from tasks.reading import Reader
from tasks.retry import Verdict, backoff_s, judge
from tasks.settings import Settings
from tasks.settle import Settler
from tasks.store import Claimed, Run, Store
from tasks.telemetry import attempt_span, tell_failure

log = logging.getLogger("slowcall.job")

Result = dict[str, Any]


def _nothing() -> None:
    pass


class Runner:
    """Runs jobs for one worker. Nothing that a kind raises escapes its verdict."""

    def __init__(
        self,
        settings: Settings,
        *,
        kinds: Mapping[str, Kind],
        store: Store,
        model: ModelClient,
        leases: Leases,
        settler: Settler,
    ) -> None:
        self._settings = settings
        self._kinds = kinds
        self._store = store
        self._model = model
        self._leases = leases
        self._settler = settler
        self._reader = Reader(settings)

    async def run(self, claimed: Claimed, *, performed: Callable[[], None] = _nothing) -> None:
        """Run a claimed job until its record says how the run ended, or somebody else has it.

        `performed` hears when its work is over and only the record is left.
        """
        try:
            if claimed.run is None:
                raise RecordDamaged
            await self._run(claimed.run, performed)
        except RecordDamaged as error:
            log.error("job %s: its record is damaged", claimed.job_id, exc_info=error)
            moved = await self._store.condemn(claimed, self._kinds, str(error))
            if moved is not None:
                log_moved(moved)

    async def _run(self, run: Run, performed: Callable[[], None]) -> None:
        with attempt_span(run) as span, self._leases.hold(run) as held:
            if run.taken_over:
                log_job(run, Status.RETRYING, reason="lost")
            log_job(run, START.target)
            context = Context(
                run,
                held,
                settings=self._settings,
                store=self._store,
                model=self._model,
                settler=self._settler,
                reader=self._reader,
            )
            end = await self._perform(context)
            performed()
            try:
                await self._record(context, end)
            except RunLost:
                tell_failure(span, "lost")
                log_job(run, "left to another")

    async def _perform(self, context: Context) -> Result | Exception:
        """What the kind answers or raises; what stopped it, when it was stopped."""
        held = context.held
        task = asyncio.create_task(self._guarded(context))
        held.attend(task)
        timer = self._deadline(held)
        try:
            return await task
        except asyncio.CancelledError:
            if held.stopped is None:
                task.cancel()
                raise
            return held.stopped
        finally:
            if timer is not None:
                timer.cancel()

    def _deadline(self, held: Held) -> asyncio.TimerHandle | None:
        if held.run.deadline_left_s is None:
            return None
        error = DeadlinePassed("The job's deadline passed while it ran.")
        return asyncio.get_running_loop().call_later(held.run.deadline_left_s, held.stop, error)

    async def _guarded(self, context: Context) -> Result | Exception:
        # Also SystemExit and its like: raised out of a task they would end the whole worker.
        try:
            return await self._call_kind(context)
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            return PermanentError("The kind raised CancelledError.")
        except ExceptionGroup as group:
            stopped = group.subgroup((Stopped, RecordDamaged))
            return group if stopped is None else _leaf(stopped)
        except Exception as error:
            return error
        except BaseException as error:
            return PermanentError(f"The kind raised {type(error).__name__}.")

    async def _call_kind(self, context: Context) -> Result:
        run = context.run
        kind = self._kinds[run.kind]
        try:
            given = kind.parse(run.input)
        except InvalidInput as error:
            raise PermanentError(f"The stored input cannot be read: {error}") from error
        await context.load()
        result = await kind.perform(context, given)
        await context.close()
        if context.unvisited and not run.edited:
            names = ", ".join(sorted(context.unvisited)[:3])
            raise StepUnknown(f"The code no longer knows stored steps of this job: {names}.")
        return _checked(result)

    async def _record(self, context: Context, end: Result | Exception) -> None:
        try:
            await self._record_end(context, end)
        except (TypeError, ValueError) as error:
            log.error("job %s: its end cannot be written", context.run.job_id, exc_info=error)
            end = PermanentError(f"What the kind raised cannot be written: {type(error).__name__}.")
            await self._record_failure(context, end)

    async def _record_end(self, context: Context, end: Result | Exception) -> None:
        run = context.run
        match end:
            case dict():
                await self._store.conclude(run, FINISH, result=end)
                log_job(run, FINISH.target)
            case RunLost() | RecordDamaged():
                raise end
            case Drained():
                await self._store.requeue(run, RELEASE, counted=False)
                log_job(run, RELEASE.target, reason="released")
            case _:
                await self._record_failure(context, end)

    async def _record_failure(self, context: Context, error: Exception) -> None:
        run = context.run
        if not isinstance(error, JobError):
            log.error("job %s: the kind %r raised", run.job_id, run.kind, exc_info=error)
        verdict = self._judge(context, error)
        told = (verdict.error["type"], verdict.error["message"], verdict.error["upstream_status"])
        tell_failure(trace.get_current_span(), told[0])
        log_end = partial(log_job, run, reason=told[0], upstream_status=told[2])
        if verdict.transition is not FAIL:
            await self._store.requeue(
                run,
                verdict.transition,
                wait_s=verdict.wait_s,
                reason=verdict.reason,
                problem=told,
                counted=verdict.reason != "rate_limited",
                lane=context.calls.lane if verdict.reason == "rate_limited" else "",
            )
            log_end(verdict.transition.target, wait_s=round(verdict.wait_s, 3))
            return
        sample = await self._sample(context, error)
        if sample is not None:
            await self._store.conclude(run, FINISH, result=sample)
            log_end(FINISH.target)
        else:
            await self._store.conclude(run, FAIL, problem=told)
            log_end(FAIL.target)

    def _judge(self, context: Context, error: Exception) -> Verdict:
        run, settings = context.run, self._settings
        return judge(
            error,
            attempts=run.attempt,
            max_attempts=run.max_attempts,
            on_unknown=run.options["on_unknown"],
            paid_unknown=context.calls.in_vain,
            waited_s=run.waited_ms / 1000,
            max_wait_s=settings.max_wait_s,
            backoff=partial(_backoff_s, settings),
            backoff_max_s=settings.backoff_max_s,
        )

    async def _sample(self, context: Context, error: Exception) -> Result | None:
        """The recorded answer of a job that no model answered, where its kind has one."""
        kind = self._kinds[context.run.kind]
        if kind.sample is None or not isinstance(error, JobError) or error.type == "permanent":
            return None
        text = kind.sample(kind.parse(context.run.input))
        if text is None:
            return None
        await context.tell_text("sample", text)
        return {"text": text, "source": "sample"}


def _cancelled_from_outside() -> bool:
    """Whether somebody cancelled the task that runs now."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _leaf(group: BaseExceptionGroup[Any]) -> Exception:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first


def _backoff_s(settings: Settings, attempt: int) -> float:
    return backoff_s(
        attempt,
        base_s=settings.backoff_s,
        cap_s=settings.backoff_max_s,
        jitter=settings.jitter,
        random=random(),
    )


def _checked(result: Any) -> Result:
    """A kind's result as it can be stored. Raises PermanentError for one that cannot."""
    if not isinstance(result, dict) or not isinstance(result.get("text"), str):
        raise PermanentError("The kind's result must be a dict with at least a `text`.")
    try:
        orjson.dumps(result)
    except TypeError as error:
        raise PermanentError(f"The kind's result is not JSON: {error}") from error
    return {"source": "model"} | result
