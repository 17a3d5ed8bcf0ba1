"""Uploads in: a multipart form with at most one file becomes a submission like any other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from server.bodies import bounded, parse
from server.schemas import Submission
from tasks.errors import InvalidInput, MalformedRequest, WrongType

MAX_FIELDS: Final = 64
_OPTIONS: Final = frozenset(Submission.model_fields) - {"input"}
_TEXT_OPTIONS: Final = frozenset({"kind", "user_id", "callback_url", "on_unknown"})


@dataclass(frozen=True, slots=True)
class Upload:
    """A form as a JSON body would say it, the document's bytes where they are not text, and what
    was seen, which tells the form from another one."""

    document: dict[str, Any]
    blob: bytes | None
    seen: dict[str, Any]


async def read_upload(request: Request, limit: int) -> Upload:
    """The form. Raises TooLarge, WrongType (no PDF, no text), MalformedRequest, InvalidInput."""
    try:
        async with bounded(request, limit).form(
            max_files=1, max_fields=MAX_FIELDS, max_part_size=limit
        ) as form:
            fields = _fields(form.multi_items())
            file = next((v for _, v in form.multi_items() if isinstance(v, UploadFile)), None)
            content = await file.read() if file else b""
    except ClientDisconnect:
        raise MalformedRequest("The body was cut off.") from None
    except HTTPException as error:
        raise MalformedRequest(error.detail) from None
    document = _document(fields)
    seen: dict[str, Any] = {"form": fields}
    if file is None:
        return Upload(document, None, seen)
    name = _name(file.filename)
    seen["file"] = [name, hashlib.sha256(content).hexdigest()]
    blob = _put_file(document, name, content)
    return Upload(document, blob, seen)


def _fields(items: list[tuple[str, UploadFile | str]]) -> dict[str, str]:
    """The text fields. Raises MalformedRequest for one that comes twice, or a stray file."""
    fields: dict[str, str] = {}
    for name, value in items:
        if isinstance(value, UploadFile):
            if name != "file":
                raise MalformedRequest(f"The file is in the field {name[:100]!r}, not in `file`.")
        elif name in fields:
            raise MalformedRequest(f"The field {name[:100]!r} comes twice in the form.")
        else:
            fields[name] = value
    return fields


def _document(fields: dict[str, str]) -> dict[str, Any]:
    """Options of the job at the top, everything else in its input."""
    document: dict[str, Any] = {
        name: text if name in _TEXT_OPTIONS else _value(name, text)
        for name, text in fields.items()
        if name in _OPTIONS
    }
    rest = {name: text for name, text in fields.items() if name not in _OPTIONS | {"input"}}
    document["input"] = fields["input"] if "input" in fields and not rest else rest
    if "input" in fields and rest:
        raise InvalidInput("A form has either `input` or the fields of the input, not both.")
    return document


def _value(name: str, text: str) -> Any:
    try:
        return parse(text)
    except MalformedRequest:
        raise InvalidInput(
            f"The form field `{name}` is not a JSON value.",
            [{"pointer": f"/{name}", "message": "write it as in JSON"}],
        ) from None


def _put_file(document: dict[str, Any], name: str, content: bytes) -> bytes | None:
    """Put text into the input; answer the bytes of what has to be read by a worker."""
    if not content.strip():
        raise InvalidInput("The file is empty.", [{"pointer": "/input/file", "message": "empty"}])
    if not isinstance(document["input"], dict):
        raise InvalidInput("A form has either `input` or a `file`, not both.")
    if content.startswith(b"%PDF-"):
        described = {"name": name, "type": "application/pdf", "size": len(content)}
        document["input"]["file"] = described
        return content
    if "text" in document["input"]:
        raise InvalidInput("A form has either `text` or a `file` of text, not both.")
    document["input"]["text"] = _text(content)
    return None


def _text(content: bytes) -> str:
    """What a file says, told by its bytes and not by its name. Raises WrongType for no text."""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise WrongType("The file is neither a PDF nor text in UTF-8 or UTF-16.")
    return text


def _name(filename: str | None) -> str:
    """The last part of a file's name, without what cannot be shown."""
    name = PurePath((filename or "").replace("\\", "/")).name
    return "".join(c for c in name if c.isprintable())[:200] or "document"
