"""The kind `summarize`: a long document, page by page, then joined into one summary."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.calls import Reply
from tasks.context import Context
from tasks.documents import CALL_TOKENS, Page, groups, number_pages, split_pages
from tasks.errors import PermanentError
from tasks.kinds import UploadedFile, kind

_AT_ONCE: Final = 4
_PAGE: Final = (
    "Summarise this page of a longer document in a few sentences. Keep names, figures and the "
    "headings that they stand under."
)
_WHOLE: Final = "Summarise this document in a few sentences. Keep names, figures and headings."
_JOIN: Final = (
    "Summarise the document from the summaries of its pages below as one text, in their order. "
    "Each begins with its page number: cite it as [page 3] behind what you take from that page."
)
_SAME_LANGUAGE: Final = "Answer in the language of the document."


class SummarizeInput(BaseModel):
    """A text (form feeds part its pages, else it is cut at paragraph ends), pages, or a file."""

    model_config = ConfigDict(extra="forbid", title="Summarize")

    text: str | None = None
    pages: list[str] | None = None
    file: UploadedFile | None = None
    instructions: str | None = Field(None, description="What the summary should look like.")
    language: str | None = Field(None, description="Of the summary; else that of the document.")
    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_text(self) -> SummarizeInput:
        sources = (self.text, self.pages, self.file)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of `text`, `pages` and a `file`")
        if self.file is None and not any(map(str.strip, self.pages or [self.text or ""])):
            raise ValueError("there is no text in it")
        return self

    def body(self, task: str, text: str) -> dict[str, Any]:
        """What the model is asked: to do `task` with `text`, in the asked way and language."""
        language = f"Answer in {self.language}." if self.language else _SAME_LANGUAGE
        system = " ".join(filter(None, (task, self.instructions, language)))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return {"messages": messages} | ({"model": self.model} if self.model else {})


@kind("summarize", input=SummarizeInput, description="Summarise a long document page by page.")
async def summarize(context: Context, given: SummarizeInput) -> dict[str, Any]:
    """Each page is a step, several at once; then their summaries are joined, in levels if long.

    A page that the model refuses for good is named in the result and does not sink the others.
    """
    pages = await _pages(context, given)
    await context.expect(len(pages), "page")
    if len(pages) == 1:
        only = await context.ask(
            given.body(_WHOLE, pages[0].text), step="page 1", streamed=True, counts=True
        )
        return only.result() | {"pages": 1}
    replies = await _ask_pages(context, given, pages)
    answer = await _join(context, given, _labelled(pages, replies))
    result = answer.result() | {"pages": pages[-1].number}
    refused = {
        page.number: reply.refused
        for page, reply in zip(pages, replies, strict=True)
        if reply.refused
    }
    if refused:
        note = "".join(f"\n\n[page {n}] is not in it: {why}" for n, why in refused.items())
        await context.tell_text("note", note)
        result |= {"text": answer.text + note, "failed_pages": list(refused)}
    return result


async def _pages(context: Context, given: SummarizeInput) -> list[Page]:
    if given.file is not None:
        await context.progress(0, note="reading the document")
        return number_pages(await context.read_document())
    most = context.settings.read_pages
    pages = given.pages
    if not pages:  # in a thread: to cut megabytes takes long enough to hold up a lease
        pages = await asyncio.to_thread(split_pages, given.text or "", most)
    if len(pages) > most:
        raise PermanentError(
            f"The document has more than {most} pages (SLOWCALL_READ_PAGES): send it in parts."
        )
    return await asyncio.to_thread(number_pages, pages)


async def _ask_pages(context: Context, given: SummarizeInput, pages: list[Page]) -> list[Reply]:
    """A summary or a refusal for each page. Raises PermanentError where all were refused."""

    async def ask(step: str, page: Page) -> Reply:
        goes_on = f"It goes on under the heading “{page.section}”." if page.section else ""
        body = given.body(f"{_PAGE} {goes_on}".strip(), page.text)
        return await context.ask(body, step=step, counts=True, refusable=True)

    replies: list[Reply] = await context.map("page", ask, pages, at_once=_AT_ONCE)
    if all(reply.refused for reply in replies):
        raise PermanentError(f"The model refused every page. {replies[0].refused}")
    return replies


def _labelled(pages: list[Page], replies: list[Reply]) -> list[str]:
    return [
        f"[page {page.number}] {reply.text}"
        for page, reply in zip(pages, replies, strict=True)
        if not reply.refused
    ]


async def _join(context: Context, given: SummarizeInput, texts: list[str]) -> Reply:
    """Join as many texts in each call as fit, level by level, until one call takes all."""
    level = 1
    while len(parts := groups(texts, CALL_TOKENS)) > 1:
        replies = await _join_level(context, given, parts, level)
        texts = [reply.text for reply in replies]
        level += 1
    await context.progress(context.done, note="joining the summaries")
    body = given.body(_JOIN, "\n\n".join(texts))
    return await context.ask(body, step=f"join {level} 1", streamed=True)


async def _join_level(
    context: Context, given: SummarizeInput, parts: list[list[str]], level: int
) -> list[Reply]:
    async def join(step: str, texts: list[str]) -> Reply:
        return await context.ask(given.body(_JOIN, "\n\n".join(texts)), step=step)

    await context.progress(context.done, note=f"joining the summaries in {len(parts)} parts")
    return await context.map(f"join {level}", join, parts, at_once=_AT_ONCE)
