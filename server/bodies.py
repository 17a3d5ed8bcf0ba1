"""Bodies in: bounded reading, strict JSON, and the fingerprint that tells equal bodies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from codecs import BOM_UTF8
from typing import Any, Final, NoReturn

import orjson
from starlette.requests import Request
from starlette.types import Message

from tasks.errors import MalformedRequest, TooLarge, WrongType

BODY_S: Final = 120.0
"""As long as a request may take to send its body."""
DEPTH: Final = 64
"""How deep arrays and objects may be nested."""
_INT64: Final = range(-(2**63), 2**64)
_LARGE: Final = 262_144
"""Bytes from which on a body is parsed in a thread, so that streams go on meanwhile."""


def check_head(request: Request, limit: int) -> None:
    """Raises WrongType for a compressed body (nobody could bound what comes out of it), and
    TooLarge for one that says that it is."""
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise WrongType(f"Send the body as it is, without `Content-Encoding: {coding[:40]}`.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)


def bounded(request: Request, limit: int) -> Request:
    """The request with a body that ends in TooLarge beyond `limit` bytes, and in time. Raises as
    `check_head`."""
    deadline = asyncio.get_running_loop().time() + BODY_S
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        try:
            async with asyncio.timeout_at(deadline):
                message = await request.receive()
        except TimeoutError:
            raise _too_slow() from None
        seen += len(message.get("body", b""))
        if seen > limit:
            raise _too_large(limit)
        return message

    check_head(request, limit)
    return Request(request.scope, receive)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises TooLarge, WrongType where it is compressed, or MalformedRequest where
    it was cut off or took too long."""
    check_head(request, limit)
    chunks, size, more = list[bytes](), 0, True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise MalformedRequest("The body was cut off.")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                more = message.get("more_body", False)
                if size > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise _too_slow() from None
    return b"".join(chunks)


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object of the body. Raises WrongType, TooLarge, MalformedRequest."""
    media_type = media_type_of(request)
    if media_type != "application/json":
        raise WrongType(
            f"Send `Content-Type: application/json`, not {media_type or 'none'} "
            '(curl: --json \'{"input": "…"}\').'
        )
    body = await read_body(request, limit)
    return await asyncio.to_thread(parse_object, body) if len(body) > _LARGE else parse_object(body)


def media_type_of(request: Request) -> str:
    """The media type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object, read as strictly as `parse` does. Raises MalformedRequest."""
    value = parse(body)
    if not isinstance(value, dict):
        raise MalformedRequest("The body is not a JSON object.")
    return value


def parse(body: bytes | str) -> Any:
    """Strict JSON: UTF-8, no key twice, no NaN or infinity, integers of 64 bits, bounded nesting.

    Raises MalformedRequest with a sentence that says what is wrong and where.
    """
    try:
        text = body if isinstance(body, str) else body.removeprefix(BOM_UTF8).decode()
        value = _STRICT.decode(text)
        orjson.dumps(value)  # half a surrogate pair is no text, and nests no deeper than orjson can
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"The body is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise MalformedRequest(_where(error)) from None
    except (RecursionError, orjson.JSONEncodeError):
        raise MalformedRequest("The JSON is nested too deeply, or holds broken text.") from None
    if text.count("[") + text.count("{") > DEPTH:
        _check_depth(value)
    return value


def fingerprint(value: Any) -> str:
    """A hash that is the same for equal JSON: key order and spacing do not count, and numbers are
    equal when their values are (1, 1.0 and 1e0)."""
    canonical = orjson.dumps(_canonical(value), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and int(value) in _INT64:
        return int(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedRequest(f"The key {twice[:100]!r} comes twice in one JSON object.")
    return value


def _constant(word: str) -> NoReturn:
    raise MalformedRequest(f"{word} is not a JSON number.")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise MalformedRequest(f"The number {text[:40]} is too large.")
    return value


def _int(text: str) -> int:
    if len(text) > 20 or int(text) not in _INT64:
        raise MalformedRequest(f"The integer {text[:40]} has more than 64 bits.")
    return int(text)


_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
)


def _where(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return 'The body is empty; send JSON such as {"input": "…"}.'
    return f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise MalformedRequest(f"The JSON is nested more than {DEPTH} levels deep.")


def _too_slow() -> MalformedRequest:
    return MalformedRequest(f"The body did not arrive within {BODY_S:.0f} s.")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes (SLOWCALL_MAX_BODY).")
