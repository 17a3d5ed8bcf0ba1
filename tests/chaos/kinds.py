"""Kinds that behave badly, or slowly, for workers that tests do harm to."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from tasks.context import Context
from tasks.kinds import kind

RAISED: Final = {
    error.__name__: error
    for error in (KeyError, MemoryError, RecursionError, OSError, KeyboardInterrupt, SystemExit)
}


class Nothing(BaseModel):
    """No input."""


class Sleep(BaseModel):
    """How long to block."""

    seconds: float


class Raise(BaseModel):
    """What to raise: a name of RAISED."""

    error: str


class Steps(BaseModel):
    """How many steps, how long each takes, the file that counts them; more while `hold` exists."""

    steps: int
    each_s: float
    tally: Path
    hold: Path | None = None


@kind("deadly", input=Nothing)
async def deadly(context: Context, given: Nothing) -> dict[str, Any]:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {"text": "never"}


@kind("blocking", input=Sleep)
async def blocking(context: Context, given: Sleep) -> dict[str, Any]:
    """Block the whole worker in its first run; later ones answer at once."""
    if context.run.run == 1:
        _hold_up_everything(given.seconds)
    return {"text": f"run {context.run.run}"}


def _hold_up_everything(seconds: float) -> None:
    time.sleep(seconds)


@kind("raising", input=Raise)
async def raising(context: Context, given: Raise) -> dict[str, Any]:
    """Raise."""
    raise RAISED[given.error]("words that nobody shall see")


@kind("stepping", input=Steps)
async def stepping(context: Context, given: Steps) -> dict[str, Any]:
    """Step by step; a line in the file for every time that one is computed."""

    def step(number: int) -> Any:
        async def make() -> int:
            with given.tally.open("a") as tally:
                tally.write(f"{number}\n")
            await asyncio.sleep(given.each_s)
            return number

        return make

    number = 0
    while number < given.steps or (given.hold and given.hold.exists()):
        number += 1
        await context.step(f"step {number}", step(number))
        await context.progress(number)
    return {"text": f"{number} steps"}
