"""A worker process that is killed -9 at the first step boundary that it comes to."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from tasks.settings import Settings
from tasks.store import Store
from tasks.worker import run_worker

Moment = Literal["before", "after"]

# Children are forked from a process that has this module loaded, and nothing else: quick and clean.
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def live_once(settings: Settings, moment: Moment, within_s: float = 30) -> bool:
    """Let a worker live to the `moment` of storing its first step, or until nothing is left to do;
    whether it was killed."""
    process = _CONTEXT.Process(target=_work, args=(settings, moment))
    process.start()
    process.join(within_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the worker neither died nor ended in {within_s:g} s")
    assert process.exitcode in (0, -signal.SIGKILL), f"exit code {process.exitcode}"
    return process.exitcode != 0


def _work(settings: Settings, moment: Moment) -> None:
    for name in ("settle_spooled", "store_step"):
        setattr(Store, name, _deadly(getattr(Store, name), moment))
    asyncio.run(run_worker(settings, burst=True))


def _deadly(verb: Callable[..., Awaitable[Any]], moment: Moment) -> Callable[..., Awaitable[Any]]:
    # Several steps that end at once would be stored in one breath: the death is at the first one's.
    first = asyncio.Lock()

    async def deadly(*arguments: Any, **named: Any) -> Any:
        async with first:
            if moment == "after":
                await verb(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)

    return deadly
