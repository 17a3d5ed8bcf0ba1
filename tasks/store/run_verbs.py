"""What a run writes: its steps and calls, its progress and text, its end. All of it is fenced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tasks.errors import Drained, ErrorType, RecordDamaged, RunLost
from tasks.keys import name
from tasks.lifecycle import FAIL, RELEASE, Reason, Transition
from tasks.store.base import StoreBase
from tasks.store.fragments import dumps, error, loads, quoted, status_set
from tasks.store.records import Begun, NoPlace, Progress, Run, Settlement, StoredStep

_AT_DOOR: Final = {401, 403, 409, 425, 429, 503}
"""Refusals before anything ran; 409 is also said while an earlier request of the key is at work."""


class RunVerbs(StoreBase):
    """A run's part of the store. Each method raises RunLost when the run is over."""

    async def steps(self, job_id: str) -> dict[str, StoredStep]:
        """The stored results of a job's steps, by name."""
        stored = await self.ask(lambda: self.redis.hgetall(name("steps", job_id)))
        return {step.decode(): _stored(kept) for step, kept in stored.items()}

    async def begin(
        self, run: Run, *, call: str, step: str, model: str, hash: str, memo: bool = False
    ) -> Begun | StoredStep | NoPlace:
        """Write the ledger line of a call; the stored result instead, where the step has one.

        With `memo` the answer that an earlier job of the user got for this request will do, too.
        Nothing is written where the lane of the model has no place for it.
        """
        word, value = await self.scripts.call(
            "begin",
            job=run.job_id,
            run=run.run,
            call=call,
            step=step,
            model=model,
            attempt=run.attempt,
            hash=hash,
            memo=int(memo),
        )
        _held(word)
        if word == b"wait":
            return NoPlace(int(value) / 1000)
        return _stored(value) if word == b"stored" else Begun(int(value))

    async def settle(self, run: Run, end: Settlement) -> None:
        """Close a call's line and store its answer, also for a run that is over.

        Raises Drained when an earlier run's answer stands: this one makes way for the next.
        """
        await self.settle_spooled(settle_arguments(run, end))

    async def settle_spooled(self, arguments: Mapping[str, Any]) -> None:
        """Close a call's line from the arguments that a spool kept. Raises RunLost as `settle`."""
        (word,) = await self.scripts.call("settle", **arguments)
        if word == b"taken":
            raise Drained("An earlier run's answer came: the next one takes it.")
        _held(word)

    async def blob(self, run: Run) -> bytes | None:
        """The document that was uploaded with the job; None where there is none (any more)."""
        blob: bytes | None = await self.ask(lambda: self.redis.get(name("blob", run.job_id)))
        return blob

    async def store_step(
        self,
        run: Run,
        step: str,
        hash: str,
        value: Any,
        progress: Progress | None = None,
        *,
        from_blob: bool = False,
    ) -> StoredStep:
        """Store the result of a step without a call; answers the one that counts: the first.

        One that was made of the uploaded document (`from_blob`) drops it in the same breath.
        """
        word, kept = await self.scripts.call(
            "step",
            job=run.job_id,
            run=run.run,
            step=step,
            hash=hash,
            value=dumps(value),
            from_blob="1" if from_blob else "",
            **_progress(progress),
        )
        _held(word)
        return _stored(kept)

    async def forget_step(self, run: Run, step: str, hash: str) -> None:
        """Drop a stored step whose request a person changed; `hash` is that of what is stored."""
        _held(*await self.scripts.call("forget", job=run.job_id, run=run.run, step=step, hash=hash))

    async def tell_progress(self, run: Run, progress: Progress, *, reused: int = 0) -> None:
        """Publish how far the run is, and how many steps it took from the store since the last."""
        _held(
            *await self.scripts.call_once(
                "progress", job=run.job_id, run=run.run, reused=reused, **_progress(progress)
            )
        )

    async def tell_delta(self, run: Run, number: int, step: str, text: str) -> None:
        """Publish a piece of streamed text, the run's `number`-th."""
        data = dumps({"job_id": run.job_id, "step": step, "text": text})
        _held(
            *await self.scripts.call("delta", job=run.job_id, run=run.run, number=number, data=data)
        )

    async def requeue(
        self,
        run: Run,
        transition: Transition,
        *,
        wait_s: float = 0,
        reason: Reason | None = None,
        problem: tuple[ErrorType, str, int | None] | None = None,
        counted: bool = True,
        lane: str = "",
    ) -> None:
        """Retry, defer or release: back in the queue for `wait_s`.

        `problem` is the error's type, message and upstream status; an attempt that is not `counted`
        is given back. `lane` is the model that has no place for it: it waits in line instead.
        """
        _held(
            *await self.scripts.call_once(
                "requeue",
                job=run.job_id,
                run=run.run,
                **{"from": status_set(transition.origins)},
                status=quoted(transition.target),
                reason=reason or "",
                wait_ms=_ms(wait_s),
                retry_at="" if transition is RELEASE else 1,
                attempts=0 if counted else -1,
                deferred=int(reason == "rate_limited"),
                lane=lane,
                error=_error(run, problem),
            )
        )

    async def conclude(
        self,
        run: Run,
        transition: Transition,
        *,
        result: Mapping[str, Any] | None = None,
        problem: tuple[ErrorType, str, int | None] | None = None,
    ) -> None:
        """Finish with a result, or fail with a problem (type, message, upstream status)."""
        _held(
            *await self.scripts.call(
                "conclude",
                job=run.job_id,
                run=run.run,
                **{"from": status_set(transition.origins)},
                status=quoted(transition.target),
                result=dumps(result),
                error=_error(run, problem),
                alert=int(transition is FAIL),
            )
        )


def settle_arguments(run: Run, end: Settlement) -> dict[str, Any]:
    """The arguments of a settlement: what the script takes, and what a spool keeps for later."""
    return {
        "job": run.job_id,
        "run": run.run,
        "call": end.call,
        "outcome": end.outcome,
        "status": end.status or "",
        "input_tokens": end.input_tokens,
        "output_tokens": end.output_tokens,
        "request_id": end.request_id or "",
        "message": end.message,
        "first_ms": "" if end.first_ms is None else end.first_ms,
        "closed_ms": "" if end.closed_s is None else _ms(end.closed_s),
        "at_door": int(end.status in _AT_DOOR),
        "step": end.step,
        "hash": end.hash,
        "value": "" if end.value is None else dumps(end.value).decode(),
        **_progress(end.progress),
    }


def _held(word: bytes) -> None:
    if word in (b"lost", b"gone", b"none"):
        raise RunLost("The run is not the job's any more.")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _error(run: Run, problem: tuple[ErrorType, str, int | None] | None) -> bytes:
    if problem is None:
        return b"null"
    kind, message, upstream_status = problem
    return dumps(error(kind, message, run.attempt, upstream_status))


def _progress(progress: Progress | None) -> dict[str, Any]:
    if progress is None:
        return {"done": 0, "total": "null", "note": "", "plan": ""}
    return {
        "done": progress.done,
        "total": dumps(progress.total).decode(),
        "note": dumps(progress.note).decode(),
        "plan": dumps(progress.plan).decode() if progress.plan else "",
    }


def _stored(kept: bytes) -> StoredStep:
    hash, _, value = kept.partition(b"\n")
    try:
        return StoredStep(hash.decode(), loads(value))
    except ValueError:
        raise RecordDamaged("A stored step of this job holds what is not ours.") from None
