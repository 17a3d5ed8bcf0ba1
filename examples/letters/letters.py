"""A kind of your own: one letter in several languages, each a step that is bought once."""

from typing import Any

from pydantic import BaseModel, Field

from tasks.context import Context
from tasks.kinds import kind


class Letter(BaseModel):
    about: str = Field(min_length=1, description="What the letter says.")
    languages: list[str] = ["English", "Spanish"]


@kind("letter", input=Letter, description="Write a letter in several languages.", max_attempts=5)
async def letter(context: Context, given: Letter) -> dict[str, Any]:
    async def write(step: str, language: str) -> str:
        prompt = f"Write a short letter in {language}: {given.about}"
        messages = [{"role": "user", "content": prompt}]
        return (await context.ask({"messages": messages}, step=step, counts=True)).text

    await context.expect(len(given.languages), "letter")
    letters = await context.map("letter", write, given.languages)
    return {"text": "\n\n".join(letters)}
