"""Kinds of your own: registered by a decorator, limited, run by the workers that have them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import RootModel

from tasks.context import Context
from tasks.errors import InvalidInput, SettingsError, TransientError
from tasks.kinds import kind, load_kinds
from tasks.settings import Settings
from tasks.tries import Retry
from tests.commands import ROOT, Command
from tests.endpoint import HJ, HS, RST, C, Script, answered
from tests.pdfs import pdf
from tests.rig import a_kind, rigged
from tests.scripted import asked, finish, scripted

BODY = {"messages": [{"role": "user", "content": "hello"}]}
BROKEN = HJ({"error": {"message": "broken"}}, status=500)
EXAMPLE = ROOT / "examples" / "letters"


class Text(RootModel[str]):
    """A text."""


async def nothing(context: Context, given: Any) -> dict[str, Any]:
    """Do nothing.

    And say so.
    """
    return {"text": ""}


# Registering.


def not_async(context: Context, given: Any) -> Any:
    return {"text": ""}


@pytest.mark.parametrize(
    ("name", "perform", "words"),
    [
        ("Chat", nothing, "lower case"),
        ("", nothing, "lower case"),
        ("a:b", nothing, "lower case"),
        ("chat", nothing, "Two modules register the kind 'chat': tasks.kinds.chat"),
        ("other", not_async, "not an `async def`"),
    ],
)
def test_a_kind_that_cannot_be_is_refused(
    name: str, perform: Callable[..., Any], words: str
) -> None:
    load_kinds()
    with pytest.raises(SettingsError, match=words):
        kind(name, input=Text)(perform)
    assert load_kinds()["chat"].perform is not perform


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "cannot import 'kinds_of_a_test'.*No module"),
        ("def", "cannot import 'kinds_of_a_test': SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("from tasks.kinds import kind\nkind('x y', input=None)(None)", "kinds_of_a_test: .*x y"),
    ],
)
def test_a_module_that_cannot_be_imported_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, words: str
) -> None:
    if source is not None:
        (tmp_path / "kinds_of_a_test.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=f"SLOWCALL_KINDS: .*{words}"):
        load_kinds(["kinds_of_a_test"])


@pytest.mark.parametrize(
    ("name", "value", "pointer"),
    [
        ("chat", "", "/input"),
        ("chat", {"messages": []}, "/input/messages"),
        ("summarize", {"text": "a", "pages": ["b"]}, "/input"),
        ("summarize", {"text": " "}, "/input"),
        ("summarize", {"text": "a", "colour": "red"}, "/input/colour"),
        ("agent", {"goal": " "}, "/input/goal"),
        ("agent", {"goal": "x", "max_steps": 0}, "/input/max_steps"),
    ],
)
def test_wrong_input_is_pointed_at(name: str, value: Any, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_kinds()[name].parse(value)
    assert [fault["pointer"] for fault in refused.value.faults] == [pointer]


# Policies of steps.


async def asks_again(context: Context, given: Any) -> dict[str, Any]:
    reply = await context.ask(BODY, step="ask", retry=Retry(times=2, wait_s=0.01))
    return reply.result()


@pytest.mark.parametrize(
    ("scripts", "options", "status", "attempts", "requests"),
    [
        pytest.param([BROKEN, BROKEN, answered("hi")], {}, "done", 1, 3, id="in the end"),
        pytest.param([BROKEN] * 3 + [answered("hi")], {}, "done", 2, 4, id="the job's own turn"),
        pytest.param([HJ({}, status=400)], {}, "failed", 1, 1, id="permanent"),
        pytest.param([HS(C("a"), RST), answered("hi")], {}, "done", 1, 2, id="in doubt"),
        pytest.param(
            [HS(C("a"), RST), answered("hi")], {"on_unknown": "park"}, "failed", 1, 1, id="parked"
        ),
    ],
)
async def test_a_call_is_tried_again_within_the_attempt_if_that_is_its_policy(
    settings: Settings,
    scripts: list[Script],
    options: dict[str, Any],
    status: str,
    attempts: int,
    requests: int,
) -> None:
    kinds = {"mine": a_kind("mine", asks_again)}
    async with scripted(settings, *scripts, kinds=kinds) as (rig, endpoint):
        job = await finish(rig, "mine", "hello", **options)
        assert len(endpoint.requests) == requests
        assert len(await rig.store.ledger(job["job_id"])) == requests, "each is in the books"
    assert (job["status"], job["attempts"]) == (status, attempts)


async def test_a_streamed_step_is_tried_again_by_the_job_alone(settings: Settings) -> None:
    async def perform(context: Context, given: Any) -> dict[str, Any]:
        reply = await context.ask(BODY, step="ask", streamed=True, retry=Retry(2))
        return reply.result()

    async with rigged(settings, {"mine": a_kind("mine", perform)}) as rig:
        job = await finish(rig, "mine", "hello")
    assert (job["status"], job["attempts"]) == ("failed", 1)
    assert job["error"]["message"] == "The kind raised ValueError."


async def test_a_step_has_a_time_and_tries_of_its_own(settings: Settings) -> None:
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            await asyncio.sleep(60)
        if len(tries) == 2:
            raise TransientError("not yet")
        return len(tries)

    async def perform(context: Context, given: Any) -> dict[str, Any]:
        number = await context.step("flaky", flaky, timeout_s=0.1, retry=Retry(2, 0.01))
        return {"text": f"{number}"}

    async with rigged(settings, {"mine": a_kind("mine", perform)}) as rig:
        job = await finish(rig, "mine", "hello")
    assert (job["result"]["text"], job["attempts"]) == ("3", 1)


async def test_a_step_that_takes_too_long_says_so(settings: Settings) -> None:
    async def perform(context: Context, given: Any) -> dict[str, Any]:
        await context.step("slow", lambda: asyncio.sleep(60), timeout_s=0.05)
        return {"text": ""}

    async with rigged(settings, {"mine": a_kind("mine", perform)}) as rig:
        job = await finish(rig, "mine", "hello", max_attempts=1)
    assert (job["status"], job["error"]["type"]) == ("failed", "timeout")
    assert job["error"]["message"] == "The step 'slow' took more than 0.05 s."


# Who runs what.


async def test_a_worker_leaves_what_it_has_no_kind_for_to_those_that_have(
    settings: Settings,
) -> None:
    mine, theirs = a_kind("mine", nothing), a_kind("theirs", nothing)
    async with rigged(settings, {"mine": mine}) as rig:
        job_id = await rig.submit("theirs")
        assert (await finish(rig, "mine", "hello"))["status"] == "done"
        assert (await rig.read(job_id))["status"] == "queued"
    async with rigged(settings, {"theirs": theirs}) as rig:
        await rig.run_due()
        job = await rig.read(job_id)
    assert (job["status"], job["attempts"]) == ("done", 1)


async def test_a_stored_step_that_the_code_no_longer_knows_is_a_clear_error(
    settings: Settings,
) -> None:
    async def before(context: Context, given: Any) -> dict[str, Any]:
        await context.step("old", lambda: asyncio.sleep(0, "kept"))
        raise TransientError("try again")

    async def now(context: Context, given: Any) -> dict[str, Any]:
        return {"text": await context.step("new", lambda: asyncio.sleep(0, "made"))}

    async with rigged(settings, {"mine": a_kind("mine", before)}) as rig:
        job_id = await rig.submit("mine")
        await rig.run_due()
    async with rigged(settings, {"mine": a_kind("mine", now)}) as rig:
        await rig.work(asyncio.sleep)
        job = await rig.read(job_id)
    assert (job["status"], job["error"]["type"]) == ("failed", "permanent")
    assert job["error"]["message"] == "The code no longer knows stored steps of this job: old."


async def test_a_stored_step_is_kept_when_its_prompt_has_changed(settings: Settings) -> None:
    """Case C24: a deploy between two attempts buys nothing anew."""

    def asking(prompt: str) -> Callable[[Context, Any], Any]:
        async def perform(context: Context, given: Any) -> dict[str, Any]:
            messages = [{"role": "user", "content": prompt}]
            first = await context.ask({"messages": messages}, step="first")
            second = await context.ask({"messages": messages}, step="second")
            return {"text": f"{first.text} {second.text}"}

        return perform

    old = {"mine": a_kind("mine", asking("the old way"))}
    async with scripted(settings, answered("one"), BROKEN, kinds=old) as (rig, _):
        job_id = await rig.submit("mine")
        await rig.run_due()
    new = {"mine": a_kind("mine", asking("the new way"))}
    async with scripted(settings, answered("two"), kinds=new) as (rig, endpoint):
        await rig.work(asyncio.sleep)
        job = await rig.read(job_id)
        assert [asked(request)[1] for request in endpoint.requests] == ["the new way"]
    assert job["result"]["text"] == "one two"


# Large results.


async def test_a_megabyte_of_text_streams_stores_and_lists_beside_other_jobs(
    settings: Settings,
) -> None:
    piece = "All work and no play makes Jack a dull boy. " * 300
    text = piece * 80
    large = HS(*[C(piece) for _ in range(80)], *answered("")[1:])
    assert len(text) > 1_000_000
    async with scripted(settings, lambda r: large if b"large" in r.body else answered("ok")) as (
        rig,
        _,
    ):
        large_id, small_id = await rig.submit("chat", "large"), await rig.submit("chat", "small")
        await rig.run_due()
        large_job, small_job = await rig.read(large_id), await rig.read(small_id)
        told = [data["text"] for name, data in await rig.events(large_id) if name == "delta"]
        listed, _ = await rig.store.list_jobs(user_id=None, status=None, kind=None, limit=50)
    assert (large_job["status"], small_job["result"]["text"]) == ("done", "ok")
    assert "".join(told) == large_job["result"]["text"] == text
    assert len(told) < 80 * 10, "in slices of time, not of tokens"
    assert [json.loads(view.body)["job_id"] for view in listed] == [small_id, large_id]


async def test_a_list_of_large_jobs_comes_in_short_pages_and_whole(settings: Settings) -> None:
    async def perform(context: Context, given: Any) -> dict[str, Any]:
        return {"text": "x" * 1_500_000}

    async with rigged(settings, {"mine": a_kind("mine", perform)}) as rig:
        submitted = [await rig.submit("mine") for _ in range(7)]
        await rig.run_due()
        pages, cursor = [], None
        while True:
            page, cursor = await rig.store.list_jobs(user_id=None, limit=6, cursor=cursor)
            pages.append([view.job_id for view in page])
            if cursor is None:
                break
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [job_id for page in pages for job_id in page] == submitted[::-1]


# The example.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as a package that is installed on its own."""
    target = tmp_path_factory.mktemp("installed")
    words = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--target", str(target), str(EXAMPLE)], check=True
    )
    return target


def test_the_example_of_the_readme_and_a_document_run_from_the_outside(
    installed: Path, tmp_path: Path
) -> None:
    environment = {"SLOWCALL_KINDS": "letters", "PYTHONPATH": str(installed)}
    with Command("up", "--port", "0", data_dir=tmp_path, **environment) as up:
        url = up.url()
        with httpx.Client(base_url=url, timeout=30, headers={"Prefer": "wait=20"}) as client:
            check_kind(client)
            check_letter(client)
            check_document(client)
        check_terminal(url, tmp_path)


def check_kind(client: httpx.Client) -> None:
    kinds = {told["name"]: told for told in client.get("/kinds").json()["kinds"]}
    assert list(kinds) == ["chat", "summarize", "agent", "letter"]
    assert kinds["letter"]["description"] == "Write a letter in several languages."
    assert kinds["letter"]["input_schema"]["required"] == ["about"]
    assert "letter" in client.get("/openapi.json").text


def check_letter(client: httpx.Client) -> None:
    wrong = client.post("/jobs", json={"kind": "letter", "input": {"about": ""}})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/input/about")
    job = client.post("/jobs", json={"kind": "letter", "input": {"about": "spring"}}).json()
    assert (job["status"], job["max_attempts"], job["progress"]["done"]) == ("done", 5, 2)
    assert job["result"]["text"].startswith("WRITE A SHORT LETTER IN ENGLISH: SPRING\n\nWRITE")


def check_document(client: httpx.Client) -> None:
    files = {"file": ("report.pdf", pdf(["One says this.", "Two says that."]))}
    job = client.post("/jobs", data={"kind": "summarize"}, files=files).json()
    assert job["result"]["text"] == "[page 1] One says this. [page 2] Two says that."


def check_terminal(url: str, folder: Path) -> None:
    document = folder / "report.pdf"
    document.write_bytes((ROOT / "tests" / "data" / "openings.pdf").read_bytes())
    words = [sys.executable, "-m", "server", "submit", str(document), "--watch"]
    said = subprocess.run(
        words, env={"SLOWCALL_URL": url, "PATH": "/bin"}, capture_output=True, text=True, timeout=30
    )
    assert said.returncode == 0, said.stderr
    assert "[page 3] Les Misérables" in said.stdout


def test_the_example_is_the_one_of_the_readme() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shown = [block for block in blocks if "@kind(" in block]
    assert shown
    assert all(block in (EXAMPLE / "letters.py").read_text() for block in shown)
