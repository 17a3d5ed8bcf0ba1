"""The page and its files: read once, when the app is made, and told from memory."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).parent.parent / "static"
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
"""Not the system's own list: some take a script for plain text, and no browser runs that."""


class _File:
    """A file's two answers: all of it, and that it is still the same."""

    def __init__(self, path: Path) -> None:
        body = path.read_bytes()
        self.etag = f'"{sha256(body).hexdigest()[:32]}"'
        headers = {"ETag": self.etag}
        self.whole = Response(body, headers=headers, media_type=_TYPES[path.suffix])
        self.same = Response(status_code=304, headers=headers)


def page_routes() -> list[Route]:
    """`GET /` and all below `/static/`; a browser asks each time whether a file is the same."""
    files = {
        path.relative_to(FOLDER).as_posix(): _File(path)
        for path in FOLDER.rglob("*")
        if path.suffix in _TYPES
    }

    async def answer(request: Request) -> Response:
        file = files.get(request.path_params.get("name", "index.html"))
        if not file:
            raise HTTPException(404)
        kept = request.headers.get("If-None-Match", "").split(",")
        same = file.etag in (tag.strip().removeprefix("W/") for tag in kept)
        return file.same if same else file.whole

    return [Route("/", answer), Route("/static/{name:path}", answer)]
