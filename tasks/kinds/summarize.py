"""The kind `summarize`: a long document, page by page, then joined into one summary."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.context import Context
from tasks.documents import split_pages
from tasks.kinds import kind

_AT_ONCE: Final = 4
_JOIN_CHARACTERS: Final = 24_000
_PAGE: Final = "Summarise this page of a longer document in a few sentences."
_JOIN: Final = (
    "Summarise the document from the summaries of its pages below, in their order, as one text."
)


class SummarizeInput(BaseModel):
    """A text (form feeds part its pages, else it is cut at paragraph ends) or its pages."""

    model_config = ConfigDict(extra="forbid", title="Summarize")

    text: str | None = None
    pages: list[str] | None = None
    instructions: str | None = Field(None, description="What the summary should look like.")
    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_pages(self) -> SummarizeInput:
        if (self.text is None) == (self.pages is None):
            raise ValueError("give either `text` or `pages`")
        if not self.all_pages():
            raise ValueError("there is no text in it")
        return self

    def all_pages(self) -> list[str]:
        """The pages that are not empty, in order."""
        if self.pages is not None:
            return [page for page in self.pages if page.strip()]
        return split_pages(self.text or "")


@kind("summarize", input=SummarizeInput, description="Summarise a long document page by page.")
async def summarize(context: Context, given: SummarizeInput) -> dict[str, Any]:
    """Each page is a step, several at once; then their summaries are joined, in levels if long."""
    pages = given.all_pages()
    await context.expect(len(pages), "page")

    async def page(step: str, text: str) -> tuple[str, str]:
        reply = await context.ask(_body(given, _PAGE, text), step=step, counts=True)
        return reply.text, reply.source

    answers = await context.map("page", page, pages, at_once=_AT_ONCE)
    texts = [text for text, _ in answers]
    level = 0
    while len(texts) > 1:
        level += 1
        texts = await _join(context, given, texts, level)
    return {"text": texts[0], "source": answers[0][1], "pages": len(pages)}


async def _join(context: Context, given: SummarizeInput, texts: list[str], level: int) -> list[str]:
    """One level of joining: as many texts in each call as fit."""

    async def join(step: str, group: list[str]) -> str:
        reply = await context.ask(_body(given, _JOIN, "\n\n".join(group)), step=step)
        return reply.text

    groups = _groups(texts)
    await context.progress(context.done, note=f"joining {len(texts)} summaries")
    return await context.map(f"join {level}", join, groups, at_once=_AT_ONCE)


def _groups(texts: list[str]) -> list[list[str]]:
    """Neighbours that fit in one call, at least two in each, so that every level is shorter."""
    groups: list[list[str]] = []
    for text in texts:
        size = sum(map(len, groups[-1])) if groups else 0
        if groups and (len(groups[-1]) < 2 or size + len(text) <= _JOIN_CHARACTERS):
            groups[-1].append(text)
        else:
            groups.append([text])
    return groups


def _body(given: SummarizeInput, task: str, text: str) -> dict[str, Any]:
    system = f"{task} {given.instructions}" if given.instructions else task
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]
    }
    return body | ({"model": given.model} if given.model else {})
