"""A kind of a user's own, for the form that the page makes of its schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.context import Context
from tasks.kinds import kind


class Review(BaseModel):
    """One field of each sort."""

    model_config = ConfigDict(extra="forbid")

    text: str
    tone: Literal["kind", "strict"]
    stars: int = Field(3, ge=1, le=5, description="How many it may get.")
    public: bool = False
    points: list[str] | None = None
    extra: dict[str, Any] | None = None


@kind("review", input=Review, description="Review a text.")
async def review(context: Context, given: Review) -> dict[str, Any]:
    """Praise it."""
    return {"text": f"{given.tone}: {given.text}", "source": "model"}
