"""The page and its files: what they are told to be, and when they are not sent again."""

from __future__ import annotations

import pytest

from server.pages import FOLDER
from tasks.settings import Settings
from tests.serving import served

KINDS = {
    "/": "text/html; charset=utf-8",
    "/static/app.js": "text/javascript; charset=utf-8",
    "/static/style.css": "text/css; charset=utf-8",
    "/static/words/en.json": "application/json",
    "/static/icon.svg": "image/svg+xml",
}


async def test_every_file_is_served_as_what_it_is(settings: Settings) -> None:
    async with served(settings) as client:
        for path, kind in KINDS.items():
            answer = await client.get(path)
            assert answer.headers["content-type"] == kind
        for file in FOLDER.rglob("*.*"):
            answer = await client.get(f"/static/{file.relative_to(FOLDER).as_posix()}")
            assert answer.content == file.read_bytes()
            asked = await client.head(answer.request.url)
            assert (asked.status_code, asked.content) == (200, b"")
            assert asked.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("known", ["{etag}", "W/{etag}", '"another", {etag}'])
async def test_what_is_known_is_not_sent_again(settings: Settings, known: str) -> None:
    async with served(settings) as client:
        etag = (await client.get("/")).headers["etag"]
        again = await client.get("/", headers={"If-None-Match": known.format(etag=etag)})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag


async def test_there_is_nothing_else(settings: Settings) -> None:
    async with served(settings) as client:
        for path in ("/static", "/static/", "/static/words", "/static/../pyproject.toml"):
            assert (await client.get(path)).status_code == 404, path
        assert (await client.post("/static/app.js")).status_code == 405
