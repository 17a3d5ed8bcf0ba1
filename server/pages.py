"""The page and its files: read once, when the app is made, and told from memory."""

from __future__ import annotations

import re
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

_IMPORT: Final = re.compile(r"^import .* from '\./(.+)';$", re.MULTILINE)


class _File:
    """A file's two answers: all of it, and that it is still the same."""

    def __init__(self, path: Path) -> None:
        body = path.read_bytes()
        self.etag = f'"{sha256(body).hexdigest()[:32]}"'
        headers = {"ETag": self.etag}
        if path.suffix == ".html":
            headers["Link"] = _modules(path.parent)
        self.whole = Response(body, headers=headers, media_type=_TYPES[path.suffix])
        self.same = Response(status_code=304, headers=headers)


def _modules(folder: Path) -> str:
    """All that the page's script imports, and what that imports: a browser that is told with the
    page fetches them at once, and not one after the other as it comes upon them."""
    found = ["app.js"]
    for name in found:
        imported = _IMPORT.findall((folder / name).read_text())
        found += [other for other in imported if other not in found]
    return ", ".join(f"<static/{name}>; rel=modulepreload" for name in found[1:])


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
