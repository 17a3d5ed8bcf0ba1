"""PURE: what an endpoint's refusal means: an HTTP status, an error object, the headers beside it.

content filter, context too long, 413           permanent, content    rejected
quota spent                                     permanent             rejected
400 401 403 404 422 501, other 4xx, 3xx         permanent             rejected
409 425 500 503 505 529                         transient             rejected
408 502 504 52x, other 5xx                      transient             unknown: perhaps bought
429; 503 that names a time or loads a model     rate limited          rejected
a 400 or 422 about an option that we added      asked again without   rejected
an error object inside a 200                    by its own code       rejected
what says that the model behind was lost        transient             unknown: perhaps bought
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import (
    CallFailed,
    ContentRefused,
    ErrorType,
    OptionRefused,
    OutcomeUnknown,
    RateLimited,
    Rejected,
)
from tasks.retry import asked_wait_s

Judgement = tuple[type[CallFailed], ErrorType]

PERMANENT: Judgement = (Rejected, "permanent")
CONTENT: Judgement = (ContentRefused, "permanent")
TRANSIENT: Judgement = (Rejected, "transient")
LIMITED: Judgement = (RateLimited, "rate_limited")
PERHAPS_BOUGHT: Judgement = (OutcomeUnknown, "transient")

_STATUS: dict[int, Judgement] = {
    408: PERHAPS_BOUGHT,
    409: TRANSIENT,
    413: CONTENT,
    425: TRANSIENT,
    429: LIMITED,
    500: TRANSIENT,
    501: PERMANENT,
    503: TRANSIENT,
    505: TRANSIENT,
    529: TRANSIENT,
}
_BY_CLASS = {3: PERMANENT, 4: PERMANENT, 5: PERHAPS_BOUGHT}

# What no second attempt can change, whatever status it comes with: in a code, or in words.
_HOPELESS = re.compile(r"insufficient_quota|billing_", re.IGNORECASE)
_CONTENT = re.compile(
    r"content_?filter|content_policy"
    r"|context[ _](length|size|window)|maximum context|prompt is too long",
    re.IGNORECASE,
)
_LOADING = re.compile(r"\bloading\b.*\bmodel\b|\bmodel\b.*\bloading\b", re.IGNORECASE | re.DOTALL)
# A gateway that lost the model behind it says 500: whether that one did the work, nobody knows.
_LOST = re.compile(
    r"connection (error|reset|closed|aborted)|disconnected|timed out|timeout", re.IGNORECASE
)
# An error object without a number is judged by the words of its `code` and `type`.
_LIMITED_WORDS = re.compile(r"rate_?limit|too_many_requests|throttl", re.IGNORECASE)
_PERMANENT_WORDS = re.compile(r"invalid|authentication|permission|not_found|unsupported")

_KEYS = re.compile(r"(?i)(\bbearer\s+|\bsk-)[\w.~+/-]{6,}")
_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Fault:
    """What an error object says of itself: its HTTP-like number, its code words, its message."""

    number: int | None
    words: str
    message: str


def refusal(
    status: int,
    body: bytes,
    headers: Iterable[tuple[str, str]],
    *,
    now: float,
    address: str,
    added: str | None = None,
) -> CallFailed:
    """The failure that a reply with the error status `status` means.

    `now` in seconds of the epoch; `address` as a message may show it; `added` is a field of the
    request that the caller did not ask for.
    """
    pairs = list(headers)
    fault = _fault_of_body(body)
    if added and status in (400, 422) and added.encode() in body:
        return OptionRefused(f"The endpoint does not know {added}.", upstream_status=status)
    if 300 <= status < 400:
        target = next((value for name, value in pairs if name.lower() == "location"), "nowhere")
        message = f"The endpoint sends us to {target.partition('?')[0]}: AI_URL must name the API."
    else:
        where = f" at {address}; is AI_URL right?" if status in (404, 405) else ""
        message = f"The endpoint answered {status}{where}: {fault.message or 'no reason given'}"
    wait_s = asked_wait_s(pairs, now)
    failure, type = _judged(status, fault, wait_s)
    return failure(message, type=type, upstream_status=status, retry_after_s=wait_s)


def refusal_inside(error: Any) -> CallFailed:
    """The failure that an error object inside a reply with the status 200 means."""
    fault = fault_of(error)
    failure, type = _judged(fault.number or 0, fault, None)
    if failure is OutcomeUnknown and not _LOST.search(fault.message):
        failure = Rejected
    message = f"The endpoint failed inside its reply: {fault.message or 'no reason given'}"
    return failure(message, type=type, upstream_status=fault.number or 200)


def why_unreachable(causes: Sequence[BaseException]) -> tuple[str, ErrorType]:
    """Why no connection was made, in words, and whether trying again may help."""
    for cause in reversed(causes):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its TLS certificate is not trusted ({cause.verify_message})", "permanent"
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "no TLS is spoken there, is it http://?", "permanent"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason}", "transient"
        if isinstance(cause, socket.gaierror):
            return "its name has no address", "transient"
        if isinstance(cause, TimeoutError):
            return "no connection in time", "transient"
        if status := getattr(cause, "status", None):
            return f"the proxy answered {status}", "permanent" if status < 500 else "transient"
    return str(causes[-1]), "transient"


def _judged(status: int, fault: Fault, wait_s: float | None) -> Judgement:
    for pattern, judgement in ((_HOPELESS, PERMANENT), (_CONTENT, CONTENT)):
        if pattern.search(fault.words) or pattern.search(fault.message):
            return judgement
    if (status or 500) >= 500 and _LOST.search(fault.message):
        return PERHAPS_BOUGHT
    if status == 503 and (wait_s is not None or _LOADING.search(fault.message)):
        return LIMITED
    if status:
        return _STATUS.get(status) or _BY_CLASS.get(status // 100, TRANSIENT)
    if _LIMITED_WORDS.search(fault.words):
        return LIMITED
    return PERMANENT if _PERMANENT_WORDS.search(fault.words) else TRANSIENT


def fault_of(error: Any) -> Fault:
    """An error object of any make: OpenAI's, vLLM's, llama.cpp's, FastAPI's, a plain string."""
    if not isinstance(error, dict):
        return Fault(None, "", error if isinstance(error, str) else _json(error))
    inner = error.get("error")
    if isinstance(inner, dict) and inner:
        return fault_of(inner)
    codes = [error.get(name) for name in ("code", "status", "status_code", "type", "reason")]
    number = next((found for code in codes if (found := _number(code))), None)
    words = " ".join(code for code in codes if isinstance(code, str))
    told = (error.get(name) for name in ("message", "detail", "details", "msg", "error"))
    message = next((part for part in told if part), error)
    return Fault(number, words, message if isinstance(message, str) else _json(message))


def _fault_of_body(body: bytes) -> Fault:
    value = next(documents(body), None)
    if value is None:
        return Fault(None, "", plain_text(body))
    if isinstance(value, dict) and value.get("choices") and not value.get("error"):
        filtered = b"content_filter" in body
        words = "content_filter" if filtered else ""
        return Fault(None, words, "the content filter withheld the answer" if filtered else "")
    return fault_of(value[0] if isinstance(value, list) and value else value)


def _number(code: Any) -> int | None:
    if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code):
        return int(code)
    return code if type(code) is int and 400 <= code <= 599 else None


def documents(body: bytes) -> Iterator[Any]:
    """The JSON values of `body`, one behind the other, up to what is none (`data: [DONE]`)."""
    text = body.decode("utf-8", "replace").lstrip("\ufeff \t\r\n").removeprefix("data:")
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield value


def plain_text(body: bytes) -> str:
    """What a person would read in `body`: of an HTML page its title."""
    text = body[:16_384].decode("utf-8", "replace").strip()
    if not is_page(body):
        return text
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return f"a web page: {title[1].strip()}" if title else "a web page"


def is_page(body: bytes) -> bool:
    """Whether `body` is markup, not an answer."""
    return body.lstrip().startswith(b"<")


def shown(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` as one short line for a person: without `secrets`, nor what looks like a key."""
    line = " ".join(text.split())
    for secret in secrets:
        line = line.replace(secret, "***")
    line = _KEYS.sub(r"\1***", line)
    line = line.encode("utf-8", "replace").decode()
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)
