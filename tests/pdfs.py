"""Make the PDFs that tests read: plain ones, and every sort that cannot be read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from io import BytesIO

from pypdf import PdfReader, PdfWriter


def pdf(pages: Iterable[str]) -> bytes:
    """A PDF with one page for each text, one line of it for each line."""
    return _document([_text_stream(page) for page in pages])


def scanned(pages: int = 1) -> bytes:
    """A PDF of pictures: it paints, and says nothing."""
    return _document([b"0.5 g 100 100 200 200 re f"] * pages)


def bomb(megabytes: int) -> bytes:
    """A small PDF with one page whose content grows to so many megabytes."""
    return _document([_text_stream("x") + b" " * (megabytes * 1_000_000)])


def endless(levels: int, width: int) -> bytes:
    """A small PDF whose tree of pages says that it has `width ** levels` leaves: each level names
    the next one again and again."""
    last = 2 + levels
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    for number in range(2, last):
        kids = f"{number + 1} 0 R " * width
        parent = f"/Parent {number - 1} 0 R" if number > 2 else ""
        count = width ** (last - number)
        objects.append(f"<< /Type /Pages {parent} /Kids [{kids}] /Count {count} >>".encode())
    objects.append(f"<< /Type /Page /Parent {last - 1} 0 R /MediaBox [0 0 9 9] >>".encode())
    return _whole(objects)


def encrypted(document: bytes, *, user: str, owner: str = "owner") -> bytes:
    """The same, protected by passwords; with an empty one for the user anybody can read it."""
    writer = PdfWriter(clone_from=PdfReader(BytesIO(document)))
    writer.encrypt(user, owner, algorithm="AES-256")
    return _written(writer)


def without_pages() -> bytes:
    """A PDF that has no page."""
    return _written(PdfWriter())


def _written(writer: PdfWriter) -> bytes:
    buffer = BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def _text_stream(text: str) -> bytes:
    lines = [
        line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        for line in text.split("\n")
    ]
    shown = " T* ".join(f"({line}) Tj" for line in lines)
    return f"BT /F 11 Tf 14 TL 72 760 Td {shown} ET".encode("cp1252")


def _document(streams: list[bytes]) -> bytes:
    """The objects of a PDF in order, and the table that says where each begins."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(streams)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(streams)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, stream in enumerate(streams):
        packed = zlib.compress(stream)
        font = "/Resources << /Font << /F 3 0 R >> >>"
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] {font}"
        objects += [
            f"{page} /Contents {5 + 2 * number} 0 R >>".encode(),
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed),
        ]
    return _whole(objects)


def _whole(objects: list[bytes]) -> bytes:
    whole, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    size = len(objects) + 1
    table = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, b"".join(places))
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(whole))
    return whole + table + trailer
