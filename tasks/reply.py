"""PURE: the bytes of one reply put together: an event stream or a document in, an Answer out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tasks.draft import Answer, Draft
from tasks.errors import CallFailed, ErrorType, OutcomeUnknown, Unusable
from tasks.refusals import documents, is_page, plain_text, refusal_inside
from tasks.sse import Decoder, Event

_BLANK = b"\xef\xbb\xbf \t\r\n"
_HEAD = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The most bytes of a line and an event of a stream, and of a whole answer."""

    line: int
    event: int
    answer: int


class Reply:
    """Takes the body of one reply in any pieces, whatever its label says.

    The first byte that is not blank tells an event stream (a field's name, or a colon) from a JSON
    document. `on_text` is given each new piece of the text, without `secrets`. `request_id` and
    `lab` are what the reply's headers say.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        on_text: Callable[[str], None] | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self._limits = limits
        self._on_text = on_text
        self._head = b""
        self._document = bytearray()
        self._decoder: Decoder | None = None
        self._draft = Draft(limits.answer, secrets)
        self.ended = False
        self.request_id: str | None = None
        self.lab = False

    @property
    def finished(self) -> bool:
        """Whether the answer is whole: a finish reason or `[DONE]` (`ended`) was seen."""
        return self.ended or self._draft.finish_reason is not None

    def feed(self, chunk: bytes) -> bool:
        """Take some bytes; whether they brought something of the answer (a keep-alive does not).

        Raises CallFailed where they hold an error, cannot be read or pass a limit.
        """
        if len(self._head) < _HEAD:
            self._head += chunk[: _HEAD - len(self._head)]
        if self._decoder:
            return self._take(self._decoder.feed(chunk))
        if not self._document:
            chunk = chunk.lstrip(_BLANK)
            if chunk[:1] and chunk[:1] in b":deir":
                self._decoder = Decoder(max_line=self._limits.line, max_event=self._limits.event)
                return self._take(self._decoder.feed(chunk))
        self._document += chunk
        if len(self._document) > self._limits.answer:
            raise _unusable(f"The reply is larger than {self._limits.answer} bytes.", "permanent")
        return bool(chunk)

    def answer(self) -> Answer:
        """The answer, once the body has ended. Raises CallFailed where there is none."""
        excerpt = plain_text(self._head)
        if self._decoder:
            self._take(self._decoder.close())
            whole = self.finished
        else:
            whole = self._take_documents()
        if not whole:
            raise OutcomeUnknown(f"The stream ended before the answer did: {excerpt}")
        self._tell(self._draft.rest())
        return self._draft.answer(excerpt=excerpt, request_id=self.request_id, lab=self.lab)

    def book(self, failure: CallFailed) -> None:
        """Note in `failure` what the reply told before it failed: its id, its tokens."""
        failure.request_id = self.request_id
        failure.input_tokens = self._draft.input_tokens
        failure.output_tokens = self._draft.output_tokens

    def _take(self, events: list[Event]) -> bool:
        moved = [self._take_event(event) for event in events if not self.ended]
        return any(moved)

    def _take_event(self, event: Event) -> bool:
        if "error" in event.unknown:
            raise refusal_inside(_error(event.unknown["error"]))
        data = event.data.strip()
        if data == "[DONE]":
            self.ended = True
            return True
        if event.name == "error" and data:
            raise refusal_inside(_error(data))
        if not data or data.startswith(":"):
            return False
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            raise OutcomeUnknown(f"The stream holds data that is not JSON: {data}") from None
        return self._take_chunk(chunk)

    def _take_chunk(self, chunk: Any) -> bool:
        moved, text = self._draft.take(chunk)
        self._tell(text)
        return moved

    def _tell(self, text: str) -> None:
        if text and self._on_text:
            self._on_text(text)

    def _take_documents(self) -> bool:
        """Whether the document is a whole answer: one value, or chunks up to a finish."""
        body = bytes(self._document)
        if is_page(body):
            raise _unusable(f"The endpoint sent {plain_text(body)}; is AI_URL right?", "permanent")
        if not body:
            # Some servers end so when they fail after their headers are out.
            raise OutcomeUnknown("The reply is empty.")
        values = list(documents(body))
        if not values:
            raise _unusable(f"The reply is not JSON: {plain_text(body)}", "transient")
        for value in values:
            self._take_chunk(value)
        return len(values) == 1 or self.finished


def first_model(body: bytes) -> str | None:
    """The id of the first model in the body of a list of models."""
    value = next(documents(body), None)
    models = value.get("data") if isinstance(value, dict) else value
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("id"), str) and model["id"]:
            return str(model["id"])
    return None


def _error(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _unusable(message: str, type: ErrorType) -> Unusable:
    return Unusable(message, type=type)
