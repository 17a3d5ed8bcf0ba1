"""PURE: an answer in the making: chat completion chunks (or one whole completion) joined."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tasks.errors import Unusable
from tasks.refusals import fault_of, refusal_inside
from tasks.veil import Veil


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answered: the text, what it thought on the way apart, and what it cost.

    `finish_reason` is the endpoint's word (`length`: the answer is cut short), `unknown` where it
    gave none. Tokens are 0 where the endpoint told none. `lab`: no AI was asked.
    """

    text: str
    model: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    tool_calls: list[dict[str, Any]]
    reasoning: str
    request_id: str | None
    lab: bool
    response_id: str | None


@dataclass(slots=True)
class ToolCall:
    """One tool call, its arguments growing from delta to delta."""

    index: Any = None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def told(self, hide: Callable[[str], str]) -> dict[str, Any]:
        """The call as OpenAI's API writes it, its texts as `hide` leaves them."""
        arguments = hide(utf8("".join(self.arguments)))
        function = {"name": hide(utf8(self.name)), "arguments": arguments}
        return {"id": hide(utf8(self.id)), "type": "function", "function": function}


class Draft:
    """Takes chunks until there are no more; `max_size` bounds what it keeps, in characters.

    Nothing that it answers holds one of `secrets`, should the endpoint echo them.
    """

    def __init__(self, max_size: int, secrets: Iterable[str] = ()) -> None:
        self._left = max_size
        self._veil = Veil(secrets)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._tools: list[ToolCall] = []
        self._half = ""
        self._model = ""
        self._id: str | None = None
        self.finish_reason: str | None = None
        self.input_tokens = 0
        self.output_tokens = 0

    def take(self, chunk: Any) -> tuple[bool, str]:
        """Take one chunk: whether it brought something of the answer, and its text.

        Raises CallFailed where it is an error or the answer passes `max_size`.
        """
        if not isinstance(chunk, dict):
            return False, ""
        if error := _error_in(chunk):
            raise refusal_inside(error)
        self._take_facts(chunk)
        choice = _choice(chunk.get("choices"))
        if error := choice.get("error"):
            raise refusal_inside(error)
        reason = choice.get("finish_reason")
        if reason == "error":
            raise refusal_inside("the model failed")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        delta = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        if not isinstance(delta, dict):
            return False, ""
        return bool(reason) or any(delta.values()), self._take_delta(delta)

    def rest(self) -> str:
        """The end of the text that was held back, once no more chunks come."""
        text = self._veil.rest()
        self._keep(self._text, text)
        return text

    def answer(self, *, excerpt: str, request_id: str | None, lab: bool) -> Answer:
        """The whole answer. Raises Unusable where there is none; `excerpt` says what came."""
        hide = self._veil.hide
        text, tools = "".join(self._text), [call.told(hide) for call in self._tools]
        reasoning = hide(utf8("".join(self._reasoning)))
        if self.finish_reason == "content_filter":
            raise Unusable("The endpoint's content filter withheld the answer.", type="permanent")
        if not text and not tools:
            raise self._nothing(reasoning, excerpt)
        return Answer(
            text=text,
            model=hide(utf8(self._model)),
            finish_reason=hide(utf8(self.finish_reason or "unknown")),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            tool_calls=tools,
            reasoning=reasoning,
            request_id=request_id,
            lab=lab or self._model == "lab",
            response_id=self._id and hide(self._id),
        )

    def _nothing(self, reasoning: str, excerpt: str) -> Unusable:
        if self._refusal:
            said = "".join(self._refusal)
            return Unusable(f"The model refused: {said}", type="permanent")
        if self.finish_reason == "length":
            spent = " by thinking" if reasoning else ""
            return Unusable(
                f"The token budget was used up{spent} before an answer began: raise max_tokens.",
                type="permanent",
            )
        if reasoning:
            return Unusable("The model thought, but gave no answer.")
        if self.finish_reason:
            return Unusable("The model gave an empty answer.")
        return Unusable(f"There is no answer in the reply: {excerpt}")

    def _take_facts(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.input_tokens = _count(usage, "prompt_tokens", "input_tokens")
            self.output_tokens = _count(usage, "completion_tokens", "output_tokens")
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        if isinstance(ident := chunk.get("id"), str) and ident:
            self._id = utf8(ident)

    def _take_delta(self, delta: dict[str, Any]) -> str:
        text, thought = _parts(delta.get("content"))
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        self._keep(self._reasoning, thought + "".join(_parts(reasoning)))
        self._keep(self._refusal, _parts(delta.get("refusal"))[0])
        calls = delta.get("tool_calls")
        for call in (
            calls if isinstance(calls, list) else [{"function": delta.get("function_call")}]
        ):
            self._take_tool(call)
        text = self._veil.take(self._whole(text))
        self._keep(self._text, text)
        return text

    def _take_tool(self, part: Any) -> None:
        function = part.get("function") if isinstance(part, dict) else None
        if not isinstance(function, dict):
            return
        call = self._tool(part.get("id"), part.get("index"), function.get("name"))
        call.id = call.id or str(part.get("id") or "")
        call.name = call.name or str(function.get("name") or "")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        self._keep(call.arguments, "" if arguments is None else text)

    def _tool(self, id: Any, index: Any, name: Any) -> ToolCall:
        """The call that a delta goes on with, by its id, else its index; else a new one."""
        for call in reversed(self._tools):
            if id and call.id == id:
                return call
            if call.index == index and not id and (index is not None or not name):
                return call
        self._tools.append(ToolCall(index))
        return self._tools[-1]

    def _keep(self, parts: list[str], text: str) -> None:
        if not text:
            return
        self._left -= len(text)
        if self._left < 0:
            raise Unusable("The answer is too large (SLOWCALL_MAX_ANSWER).", type="permanent")
        parts.append(text)

    def _whole(self, text: str) -> str:
        """`text` without a surrogate half at its end, which waits for the next delta."""
        if text.isascii() and not self._half:
            return text
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return utf8(text[: len(text) - len(self._half)])


def utf8(text: str) -> str:
    """`text` with split surrogate pairs joined and lone halves replaced: it can be encoded."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _error_in(chunk: dict[str, Any]) -> Any:
    """The error that `chunk` holds or is, if any; `"error": null` is none."""
    if error := chunk.get("error"):
        return error
    if "choices" not in chunk and (chunk.get("object") == "error" or fault_of(chunk).number):
        return chunk
    return None


def _choice(choices: Any) -> dict[str, Any]:
    """The first choice: what we asked for is one."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index") in (0, None):
            return choice
    return {}


def _parts(content: Any) -> tuple[str, str]:
    """A content field as text and thought: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content, ""
    text, thought = "", ""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and "thinking" in part:
            thought += "".join(_parts(part["thinking"]))
        else:
            text += _text_of(part)
    return text, thought


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _count(usage: dict[str, Any], *names: str) -> int:
    numbers = (usage.get(name) for name in names)
    return next((number for number in numbers if type(number) is int and number > 0), 0)
