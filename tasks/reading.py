"""Read documents outside the event loop: each in a process of its own, bounded and killable."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, Final

import orjson

from tasks.errors import PermanentError, TransientError
from tasks.settings import Settings

_PROGRAM: Final = str(Path(__file__).with_name("pdf.py"))
# The child gets no other variables: it reads what a stranger made and needs no secret of ours.
_PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_BREAKS: Final = "The document cannot be read: it breaks its reader."
_AT_ONCE: Final = max(1, (os.cpu_count() or 1) // 2)


class Reader:
    """Reads documents for one worker, a few at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def read(self, document: bytes) -> list[str]:
        """The text of each page of a PDF; the process is killed when the caller is cancelled.

        Raises PermanentError with a sentence that says what to do, TransientError where the process
        was killed from outside.
        """
        async with self._turns:
            process = await self._start()
            try:
                async with asyncio.timeout(self._settings.read_timeout_s):
                    printed, _ = await process.communicate(document)
            except TimeoutError:
                raise self._too_slow() from None
            finally:
                await _end(process)
        if process.returncode:
            raise self._died(-process.returncode)
        try:
            return _pages(orjson.loads(printed))
        except orjson.JSONDecodeError:
            raise PermanentError(_BREAKS) from None

    async def _start(self) -> Process:
        limits = self._settings
        seconds = math.ceil(limits.read_timeout_s)
        numbers = (limits.read_memory, seconds, limits.read_pages, limits.max_body)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", _PROGRAM, *map(str, numbers)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            start_new_session=True,  # Ctrl-C in a terminal is for the worker, which ends in order
        )

    def _too_slow(self) -> PermanentError:
        return PermanentError(
            f"Reading the document took more than {self._settings.read_timeout_s:g} s "
            "(SLOWCALL_READ_TIMEOUT_S): send it in parts."
        )

    def _died(self, signum: int) -> PermanentError | TransientError:
        if signum == signal.SIGXCPU:
            return self._too_slow()
        if signum in (signal.SIGKILL, signal.SIGTERM):
            return TransientError("The process that read the document was killed.")
        return PermanentError(_BREAKS)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.communicate()


def _pages(answer: dict[str, Any]) -> list[str]:
    if fault := answer.get("fault"):
        raise PermanentError(fault)
    pages: list[str] = answer["pages"]
    return pages
