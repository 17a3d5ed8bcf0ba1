"""The kind `chat`: one prompt or conversation, one streamed answer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.context import Context
from tasks.kinds import kind


class ChatInput(BaseModel):
    """A prompt, or the body of an OpenAI chat completion: what else it holds is passed on as it is.

    `sample` is a recorded answer, or one for each turn of the assistant; it is used, and labelled,
    where the job would else fail because no model answered.
    """

    model_config = ConfigDict(extra="allow", title="Chat")

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    sample: str | list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompt(cls, value: Any) -> Any:
        if isinstance(value, str):
            if not value.strip():
                raise ValueError("the prompt is empty")
            return {"messages": [{"role": "user", "content": value}]}
        return value

    def body(self) -> dict[str, Any]:
        """What the endpoint is asked."""
        return self.model_dump(exclude={"sample"}, exclude_none=True)


def sample_answer(given: ChatInput) -> str | None:
    """The recorded answer for this turn: after the last one of a list, the last."""
    if not isinstance(given.sample, list):
        return given.sample
    turn = sum(message.get("role") == "assistant" for message in given.messages)
    return given.sample[min(turn, len(given.sample) - 1)] if given.sample else None


@kind("chat", input=ChatInput, description="Answer a prompt.", sample=sample_answer)
async def chat(context: Context, given: ChatInput) -> dict[str, Any]:
    """Ask once and stream the answer."""
    reply = await context.ask(given.body(), step="answer", streamed=True)
    return reply.result()
