"""A worker in the test's hand: it moves the server's jobs one step at a time, on the real store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from tasks.errors import ErrorType
from tasks.lifecycle import FAIL, FINISH, RETRY
from tasks.settings import Settings
from tasks.store import JobView, NewJob, Store
from tasks.store.records import Claimed, Progress, Run, Settlement
from tests.conftest import wait_until

NAME = "hand"
KINDS = ("agent", "chat", "review", "summarize")
LEASE_S = 600.0
REPLY = {
    "text": "bought",
    "source": "model",
    "model": "lab",
    "finish_reason": "stop",
    "tool_calls": [],
}
_T = TypeVar("_T")


class Hand:
    """Use it as a context manager; its methods wait for the store and answer."""

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.store = self.do(self._connect(settings))
        self._calls = 0

    async def _connect(self, settings: Settings) -> Store:
        return Store.connect(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.store.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run one call of the store."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def submit(
        self, title: str = "", *, kind: str = "chat", text: str = "Hello", user_id: str = "local"
    ) -> str:
        """Submit a job, the newest of all; answers its id."""
        new = NewJob(
            kind=kind,
            input=text if kind == "chat" else {"text": text},
            user_id=user_id,
            max_attempts=3,
            timeout_s=600,
            metadata={"title": title} if title else {},
        )
        self.do(self._let_a_millisecond_pass())
        return self.do(self.store.submit(new)).job.job_id

    async def _let_a_millisecond_pass(self) -> None:
        """Jobs of one millisecond have no order that the page could know."""
        seconds, micros = await self.store.redis.time()
        while tuple(await self.store.redis.time()) < (seconds, micros + 1_000):
            pass

    def forget_all(self) -> None:
        """Empty the store."""
        self.do(self._forget())

    async def _forget(self) -> None:
        await self.store.redis.flushall()

    def job(self, job_id: str) -> JobView:
        """The job as it stands."""
        return self.do(self.store.read(job_id))

    def alive(self) -> None:
        """Say that a worker lives."""
        self.do(
            self.store.renew(
                NAME,
                [],
                LEASE_S,
                {
                    "host": "here",
                    "since": "2026-01-01T00:00:00.000Z",
                    "running": 0,
                    "lease_s": LEASE_S,
                },
            )
        )

    def start(self) -> Run:
        """Start the job that is due, waiting for one."""
        claimed: list[Claimed] = []

        def claim() -> bool:
            claimed.extend(self.do(self.store.claim(NAME, KINDS, 1, LEASE_S))[0])
            return bool(claimed)

        wait_until(claim, "a job is due")
        run = claimed[0].run
        assert run, "the claimed job could not be started"
        return run

    def write(self, run: Run, *pieces: str, step: str = "answer") -> None:
        """Stream pieces of text."""
        for piece in pieces:
            self._calls += 1
            self.do(self.store.tell_delta(run, self._calls, step, piece))

    def progress(
        self,
        run: Run,
        done: int,
        total: int | None,
        note: str = "",
        plan: list[dict[str, Any]] | None = None,
    ) -> None:
        """Tell how far the job is."""
        self.do(self.store.tell_progress(run, Progress(done, total, note, plan)))

    def plan(self, run: Run, tasks: dict[str, bool], note: str = "") -> None:
        """Tell the tasks of a plan, and which of them are done."""
        plan = [
            {"step": f"step {number}", "title": title, "done": done}
            for number, (title, done) in enumerate(tasks.items(), 1)
        ]
        done = sum(tasks.values())
        self.do(self.store.tell_progress(run, Progress(done, len(tasks), note, plan)))

    def reuse(self, run: Run, done: int, total: int, reused: int) -> None:
        """Tell how far the job is, with steps that were taken from the store."""
        self.do(self.store.tell_progress(run, Progress(done, total, ""), reused=reused))

    def begin(self, run: Run, step: str) -> str:
        """Begin a call, which stays open; answers its id."""
        self._calls += 1
        call = f"call-{self._calls}"
        self.do(self.store.begin(run, call=call, step=step, model="lab", hash="h"))
        return call

    def buy(
        self, run: Run, step: str, progress: Progress | None = None, *, input_tokens: int = 120
    ) -> None:
        """Make a call that is paid."""
        paid = Settlement(
            call=self.begin(run, step),
            step=step,
            hash="h",
            outcome="paid",
            status=200,
            input_tokens=input_tokens,
            output_tokens=30,
            value=REPLY,
            progress=progress,
        )
        self.do(self.store.settle(run, paid))

    def lose(self, run: Run, step: str) -> None:
        """Make a call of which nobody knows how it ended."""
        lost = Settlement(self.begin(run, step), step, "h", "unknown", message="the line broke")
        self.do(self.store.settle(run, lost))

    def retry(self, run: Run, wait_s: float, message: str = "503 from the model") -> None:
        """Let the attempt fail in a way that may pass."""
        problem: tuple[ErrorType, str, int] = ("transient", message, 503)
        work = self.store.requeue(run, RETRY, wait_s=wait_s, reason="transient", problem=problem)
        self.do(work)

    def finish(self, run: Run, text: str, **more: Any) -> None:
        """End with a result."""
        result = {"text": text, "source": "model", **more}
        self.do(self.store.conclude(run, FINISH, result=result))

    def fail(self, run: Run, message: str = "no", type: ErrorType = "permanent") -> None:
        """End as a dead letter."""
        self.do(self.store.conclude(run, FAIL, problem=(type, message, 400)))
