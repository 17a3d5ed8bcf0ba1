"""Read the PDF on standard input within limits: a program of its own, so that no file hurts ours.

reading.py runs it as a file, so it imports nothing of ours. Arguments: bytes of memory, seconds of
processor time, pages and characters of text at most. It prints one JSON object: `pages`, a list of
texts, or `fault`, a sentence for a person.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from io import BytesIO

from pypdf import PdfReader
from pypdf.errors import DependencyError, FileNotDecryptedError, LimitReachedError

ENCRYPTED = "The PDF is protected by a password: save it without one and send it again."
EMPTY = "The PDF has no pages: send the document itself."
SCANNED = "The PDF holds no text, only pictures of it: run a text recognition (OCR) over it first."
BROKEN = "The PDF is broken and cannot be read: open it, save it anew and send that."
LARGE = "Reading the PDF takes more memory than allowed (SLOWCALL_READ_MEMORY): send it in parts."
LONG = "The PDF has {} pages, and {} are allowed (SLOWCALL_READ_PAGES): send it in parts."
WORDY = "The PDF holds more than {} characters of text (SLOWCALL_MAX_BODY): send it in parts."


class Unreadable(Exception):
    """The document cannot be read; the message says what to do."""


def main() -> None:
    """Print the pages, or why there are none."""
    memory, seconds, most, length = map(int, sys.argv[1:5])
    confine(memory, seconds)
    try:
        answer: dict[str, object] = {"pages": pages(sys.stdin.buffer.read(), most, length)}
    except (MemoryError, LimitReachedError):
        answer = {"fault": LARGE}
    except Unreadable as error:
        answer = {"fault": str(error)}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def confine(memory: int, seconds: int) -> None:
    """No more memory and time than that, no files, no core, as far as the system can say so."""
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))


def pages(document: bytes, most: int, length: int) -> list[str]:
    """The text of each page, empty where it has none: of `most` pages and `length` in all.

    Raises Unreadable, MemoryError, LimitReachedError.
    """
    try:
        reader = PdfReader(BytesIO(document))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable(ENCRYPTED)
        count = len(reader.pages)
        if count > most:
            raise Unreadable(LONG.format(count, most))
        texts: list[str] = []
        for page in reader.pages:
            texts.append(page.extract_text())
            length -= len(texts[-1])
            if length < 0:
                raise Unreadable(WORDY.format(sum(map(len, texts)) + length))
    except (Unreadable, MemoryError, LimitReachedError):
        raise
    except (DependencyError, FileNotDecryptedError):
        raise Unreadable(ENCRYPTED) from None
    except Exception:
        # Whatever a parser meets in a file that anybody may have made, RecursionError too.
        raise Unreadable(BROKEN) from None
    if not texts:
        raise Unreadable(EMPTY)
    if not any(text.strip() for text in texts):
        raise Unreadable(SCANNED)
    return [text.replace("\0", "").encode("utf-8", "replace").decode() for text in texts]


if __name__ == "__main__":
    main()
