"""Reading documents: every sort of PDF, within its limits, in a process that can be ended."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import PermanentError
from tasks.reading import Reader
from tasks.settings import Settings
from tests.pdfs import bomb, encrypted, endless, pdf, scanned, without_pages

GOOD = pdf(["One\nfirst page", "", "Three (3) \\ ñ"])
OPENINGS = Path(__file__).with_name("data") / "openings.pdf"


async def read(document: bytes, **limits: Any) -> list[str]:
    return await Reader(Settings().model_copy(update=limits)).read(document)


async def test_the_text_of_each_page_is_read() -> None:
    assert await read(GOOD) == ["One\nfirst page", "", "Three (3) \\ ñ"]


async def test_a_document_as_people_send_them_is_read() -> None:
    pages = await read(OPENINGS.read_bytes())
    assert [page.split("\n")[0] for page in pages] == [
        "The Gettysburg Address",
        "Don Quijote de la Mancha",
        "Les Misérables",
    ]
    assert "rocín flaco y galgo corredor" in " ".join(pages[1].split())


async def test_a_password_that_only_its_owner_needs_is_in_nobodys_way() -> None:
    assert await read(encrypted(GOOD, user="")) == await read(GOOD)


@pytest.mark.parametrize(
    ("document", "limits", "sentence"),
    [
        pytest.param(encrypted(GOOD, user="secret"), {}, "without one", id="encrypted"),
        pytest.param(scanned(2), {}, r"text recognition \(OCR\)", id="scanned"),
        pytest.param(without_pages(), {}, "has no pages", id="no pages"),
        pytest.param(GOOD[: len(GOOD) // 2], {}, "save it anew", id="cut off"),
        pytest.param(b"%PDF-1.7 and no more", {}, "save it anew", id="junk"),
        pytest.param(GOOD, {"read_pages": 2}, r"3 pages, and 2 .*READ_PAGES", id="long"),
        pytest.param(GOOD, {"read_timeout_s": 0.01}, "READ_TIMEOUT_S", id="slow"),
        pytest.param(bomb(60), {"read_memory": 134_217_728}, "READ_MEMORY", id="memory"),
        pytest.param(bomb(200), {}, "READ_MEMORY", id="bomb"),
        pytest.param(pdf(["x" * 99] * 40), {"max_body": 3900}, "than 3900 char.*BODY", id="wordy"),
        pytest.param(endless(6, 10), {"read_timeout_s": 20}, "READ_|broken", id="a million pages"),
        pytest.param(endless(40, 50), {"read_timeout_s": 2}, "READ_|broken", id="no end of pages"),
    ],
)
async def test_what_cannot_be_read_is_told_with_what_to_do(
    document: bytes, limits: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PermanentError, match=sentence):
        await read(document, **limits)


HANGS = "import time; time.sleep(60)"
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
RAISES = "raise RuntimeError"
BABBLES = "print('no JSON')"


@pytest.mark.parametrize(
    ("program", "sentence"),
    [(HANGS, "took more than"), (CRASHES, "breaks its reader"), (RAISES, "breaks its reader"),
     (BABBLES, "breaks its reader")],
    ids=["hangs", "crashes", "raises", "babbles"],
)  # fmt: skip
async def test_a_file_that_breaks_its_reader_breaks_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, sentence: str
) -> None:
    """What a file may one day do to the parser, done by the parser's program itself."""
    broken = tmp_path / "pdf.py"
    broken.write_text(program)
    monkeypatch.setattr("tasks.reading._PROGRAM", str(broken))
    with pytest.raises(PermanentError, match=sentence):
        await read(GOOD, read_timeout_s=1.0 if program == HANGS else 20.0)


async def test_the_process_ends_with_the_job_that_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: asyncio.Queue[Process] = asyncio.Queue()
    create = asyncio.create_subprocess_exec

    async def watched(*args: Any, **kwargs: Any) -> Process:
        process = await create(*args, **kwargs)
        started.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    task = asyncio.create_task(read(bomb(60)))
    process = await asyncio.wait_for(started.get(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.returncode == -9


async def test_the_loop_goes_on_while_a_document_is_read() -> None:
    """Case C23: a lease is renewed in between, however heavy the document."""
    longest = 0.0
    task = asyncio.create_task(read(bomb(30), read_timeout_s=1.0))
    loop = asyncio.get_running_loop()
    while not task.done():
        before = loop.time()
        await asyncio.sleep(0.01)
        longest = max(longest, loop.time() - before)
    with pytest.raises(PermanentError):
        await task
    assert longest < 0.5, f"the loop stood still for {longest:.2f} s"
