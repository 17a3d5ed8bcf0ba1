"""Documents, summarised: page by page, once each, joined in their order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.documents import CALL_TOKENS, PAGE_TOKENS
from tasks.kinds import load_kinds
from tasks.lifecycle import Status
from tasks.settings import Settings
from tests.conftest import LabModel
from tests.endpoint import FIN, HJ, HS, C, Endpoint, Request, Script, answered
from tests.pdfs import encrypted, pdf, scanned, without_pages
from tests.rig import Rig, rigged
from tests.scripted import asked, scripted
from tests.scripted import finish as finish_kind
from tests.serving import served

OPENINGS = Path(__file__).with_name("data") / "openings.pdf"
FORTY = [f"Chapter {number}\nPage {number} says this. It says more." for number in range(1, 41)]
FILE = {"name": "report.pdf", "type": "application/pdf", "size": 1}
JOIN = "from the summaries of its pages"

Answer = Callable[[Request], Script]


@pytest.fixture
async def rig(settings: Settings, lab: LabModel) -> AsyncIterator[Rig]:
    async with rigged(settings, load_kinds(), model_url=lab.url) as rig:
        yield rig


async def finish(rig: Rig, input: Any, **more: Any) -> dict[str, Any]:
    return await finish_kind(rig, "summarize", input, **more)


def pages_asked(endpoint: Endpoint) -> list[str]:
    return [text for task, text in map(asked, endpoint.requests) if JOIN not in task]


# Documents.


async def test_forty_pages_of_a_pdf_are_bought_once_each_and_joined(
    rig: Rig, lab: LabModel
) -> None:
    job = await finish(rig, {"file": FILE}, blob=pdf(FORTY))
    assert (job["status"], job["progress"]["done"], job["progress"]["total"]) == ("done", 40, 40)
    assert lab.ledger()["sold"] == job["ledger"]["paid"] == 41
    assert job["result"]["pages"] == 40
    cited = [int(number) for number in re.findall(r"\[page (\d+)\]", job["result"]["text"])]
    assert cited == sorted(cited)
    assert len(cited) > 5
    assert not [key async for key in rig.store.redis.scan_iter("slowcall:blob:*")]


async def test_progress_is_told_in_pages_and_the_text_as_it_comes(rig: Rig) -> None:
    job_id = await rig.submit("summarize", {"pages": FORTY})
    await rig.work(asyncio.sleep)
    events = await rig.events(job_id)
    told = [data["progress"] for name, data in events if name == "progress"]
    assert [told[0]["note"], told[40]["note"]] == ["page 0 of 40", "page 40 of 40"]
    assert [progress["done"] for progress in told] == sorted(p["done"] for p in told)
    text = "".join(data["text"] for name, data in events if name == "delta")
    assert text == (await rig.read(job_id))["result"]["text"]


async def test_a_document_as_people_send_them(rig: Rig) -> None:
    job = await finish(rig, {"file": FILE}, blob=OPENINGS.read_bytes())
    assert "[page 2] Don Quijote de la Mancha En un lugar" in job["result"]["text"]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        pytest.param(encrypted(pdf(["x"]), user="secret"), "protected by a password", id="locked"),
        pytest.param(scanned(), "text recognition", id="scanned"),
        pytest.param(without_pages(), "has no pages", id="empty"),
        pytest.param(b"%PDF-1.4 and no more", "is broken", id="broken"),
        pytest.param(None, "upload it again", id="none"),
    ],
)
async def test_a_document_that_cannot_be_read_says_what_to_do(
    rig: Rig, lab: LabModel, document: bytes | None, sentence: str
) -> None:
    job = await finish(rig, {"file": FILE}, blob=document)
    assert (job["status"], job["attempts"]) == ("failed", 1)
    assert job["error"]["type"] == "permanent"
    assert sentence in job["error"]["message"]
    assert lab.ledger()["requests"] == 0


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"text": "page\f" * 1_000_000}, id="text"),
        pytest.param({"pages": ["page"] * 1_000_000}, id="pages"),
        pytest.param({"text": "A paragraph.\n\n" * 1_000_000}, id="paragraphs"),
    ],
)
async def test_a_million_pages_are_refused_and_not_bought(
    rig: Rig, lab: LabModel, given: dict[str, Any]
) -> None:
    job = await finish(rig, given)
    assert (job["status"], job["attempts"], job["error"]["type"]) == ("failed", 1, "permanent")
    assert "more than 2000 pages (SLOWCALL_READ_PAGES)" in job["error"]["message"]
    assert lab.ledger()["requests"] == 0


async def test_a_document_is_uploaded_and_told_of_by_nobody_else(settings: Settings) -> None:
    async with served(settings) as client:
        form = {"kind": "summarize", "instructions": "Be brief."}
        sent = await client.post(
            "/jobs", data=form, files={"file": ("a.txt", OPENINGS.read_bytes())}
        )
        assert sent.status_code == 202, sent.text
        told = await client.post("/jobs", json={"kind": "summarize", "input": {"file": FILE}})
        assert (told.status_code, told.json()["errors"][0]["pointer"]) == (422, "/input/file")
        kinds = {kind["name"]: kind for kind in (await client.get("/kinds")).json()["kinds"]}
        assert "instructions" in kinds["summarize"]["input_schema"]["properties"]


# What the model is asked.


async def test_instructions_language_and_model_reach_every_call(settings: Settings) -> None:
    given = {
        "pages": ["One.", "Two."],
        "instructions": "Use bullet points.",
        "language": "Spanish",
        "model": "m-1",
    }
    async with scripted(settings, answered("Uno.")) as (rig, endpoint):
        assert (await finish(rig, given))["status"] == "done"
        assert len(endpoint.requests) == 3
        for request in endpoint.requests:
            task, _ = asked(request)
            assert task.endswith("Use bullet points. Answer in Spanish.")
            assert request.json["model"] == "m-1"


async def test_a_long_text_is_cut_into_pages_that_know_their_heading(settings: Settings) -> None:
    paragraph = "A sentence of some length stands here. " * 20
    text = f"# Results\n\n{paragraph}\n\n{paragraph}\n\n{paragraph}\n\n{paragraph}\n\n{paragraph}"
    async with scripted(settings, answered("Short.")) as (rig, endpoint):
        assert (await finish(rig, {"text": text}))["status"] == "done"
        pages = pages_asked(endpoint)
        assert len(pages) == 2
        assert all(len(page) <= 4 * PAGE_TOKENS for page in pages)
        assert [request for request in endpoint.requests if "“Results”" in asked(request)[0]]


async def test_many_summaries_are_joined_in_levels_and_in_order(settings: Settings) -> None:
    """Twenty summaries, of which three fit into one call: seven joins, three, then one."""

    def answer(request: Request) -> Script:
        task, text = asked(request)
        if JOIN in task:
            return answered(" ".join(re.findall(r"<\d+>", text)) + "." * CALL_TOKENS)
        return answered(text + "." * CALL_TOKENS)

    async with scripted(settings, answer) as (rig, _):
        job = await finish(rig, {"pages": [f"<{n}>" for n in range(20)]})
    assert job["ledger"]["paid"] == 20 + 7 + 3 + 1
    assert job["result"]["text"].rstrip(".") == " ".join(f"<{n}>" for n in range(20))


# A page that is refused for good.

FILTER = HJ({"error": {"code": "content_filter", "message": "filtered"}}, status=400)
FILTERED = HS(C("par"), FIN("content_filter"))
TOO_LONG = HJ({"error": {"code": "context_length_exceeded", "message": "too much"}}, status=400)
THOUGHT = HS(FIN("length"))


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        pytest.param(FILTER, "filtered", id="A20 refused"),
        pytest.param(FILTERED, "content filter", id="A20 answered"),
        pytest.param(TOO_LONG, "too much", id="A18"),
        pytest.param(THOUGHT, "token budget", id="A21"),
    ],
)
async def test_a_refused_page_is_named_and_sinks_no_other_and_is_not_bought_again(
    settings: Settings, refusal: Script, reason: str
) -> None:
    failures = iter([HJ({"error": {"message": "broken"}}, status=500)])

    def answer(request: Request) -> Script:
        task, text = asked(request)
        if JOIN in task:
            assert "[page 2]" not in text
            return next(failures, answered("All of it."))
        return refusal if text == "Bad." else answered("Good.")

    async with scripted(settings, answer) as (rig, endpoint):
        job = await finish(rig, {"pages": ["One.", "Bad.", "Three."]})
        assert sorted(pages_asked(endpoint)) == ["Bad.", "One.", "Three."]
    assert (job["status"], job["attempts"], job["ledger"]["reused"]) == ("done", 2, 3)
    assert job["progress"]["done"] == 3
    assert job["result"]["failed_pages"] == [2]
    answer_text, note = job["result"]["text"].split("\n\n")
    assert (answer_text, note.startswith("[page 2] is not in it: ")) == ("All of it.", True)
    assert reason in note


async def test_when_every_page_is_refused_there_is_no_summary(settings: Settings) -> None:
    async with scripted(settings, FILTER) as (rig, _):
        job = await finish(rig, {"pages": ["One.", "Two."]})
    assert (job["status"], job["error"]["type"]) == ("failed", "permanent")
    assert "refused every page" in job["error"]["message"]


async def test_a_refusal_of_the_caller_is_no_refusal_of_a_page(settings: Settings) -> None:
    async with scripted(settings, HJ({"error": {"message": "wrong key"}}, status=401)) as (
        rig,
        endpoint,
    ):
        job = await finish(rig, {"pages": ["One.", "Two."]})
        assert len(endpoint.requests) <= 2
    assert (job["status"], job["attempts"]) == (Status.FAILED, 1)
    assert "wrong key" in job["error"]["message"]


# A person edits the input and retries.


async def test_an_edited_page_is_bought_anew_and_no_other(settings: Settings) -> None:
    joins = iter([HJ({"error": {"message": "no"}}, status=403)])

    def answer(request: Request) -> Script:
        task, text = asked(request)
        return next(joins, answered("All.")) if JOIN in task else answered(f"<{text}>")

    async with scripted(settings, answer) as (rig, endpoint):
        job = await finish(rig, {"pages": ["One.", "Two.", "Three."]})
        assert job["status"] == "failed"
        await rig.store.revive(job["job_id"], input={"pages": ["One.", "2.", "Three."]})
        await rig.work(asyncio.sleep)
        job = await rig.read(job["job_id"])
        assert (job["status"], job["ledger"]["reused"]) == ("done", 2)
        assert sorted(pages_asked(endpoint)) == ["2.", "One.", "Three.", "Two."]
        assert "<2.>" in asked(endpoint.requests[-1])[1]


async def test_a_document_need_not_be_sent_again(settings: Settings) -> None:
    refused = iter([HJ({"error": {"message": "no"}}, status=403)] * 2)
    async with scripted(settings, lambda _: next(refused, answered("Short."))) as (rig, endpoint):
        job = await finish(rig, {"file": FILE}, blob=pdf(["One.", "Two."]))
        assert job["status"] == "failed"
        edited = {"file": FILE, "instructions": "Be brief."}
        await rig.store.revive(job["job_id"], input=edited)
        await rig.work(asyncio.sleep)
        assert (await rig.read(job["job_id"]))["status"] == "done"
        assert all("Be brief." in asked(request)[0] for request in endpoint.requests[-3:])
