"""The description says all that the server does, and what it says is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from server.app import create_app
from server.openapi import document
from tasks.kinds import load_kinds
from tasks.settings import Settings
from tests.serving import served, submit

Json = dict[str, Any]


@pytest.fixture(scope="module")
def described() -> Json:
    return document(load_kinds())


def test_every_route_is_described_and_nothing_else(described: Json, settings: Settings) -> None:
    """But for the files of the page, which are nobody else's business."""
    routes = [route for route in create_app(settings).routes if isinstance(route, Route)]
    served = {
        (route.path, method.lower())
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
        if not route.path.startswith("/static/")
    }
    methods = {"get", "post", "delete", "put", "patch"}
    told = {
        (path, method)
        for path, item in described["paths"].items()
        for method in item
        if method in methods
    }
    assert told == served


def test_every_reference_resolves(described: Json) -> None:
    references = [value for key, value in pairs(described) if key == "$ref"]
    assert references
    for reference in references:
        place: Any = described
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def test_path_parameters_are_declared(described: Json) -> None:
    for path, item in described["paths"].items():
        declared = {parameter["name"] for parameter in item.get("parameters", ())}
        assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_every_operation_says_what_it_does_and_how_it_fails(described: Json) -> None:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            assert operation["summary"], (path, method)
            statuses = set(operation["responses"])
            assert statuses & {"200", "202", "204"}, (path, method)
            assert {"401", "403", "500", "503"} <= statuses, (path, method)


async def test_a_job_has_the_described_fields(described: Json, settings: Settings) -> None:
    schema = described["components"]["schemas"]["Job"]
    async with served(settings) as client:
        job = (await client.get(f"/jobs/{await submit(client)}")).json()
        assert (await client.get("/openapi.json")).json()["openapi"] == "3.1.0"
    assert set(job) == set(schema["properties"]) == set(schema["required"])
    for part in ("progress", "ledger", "links"):
        assert set(job[part]) == set(schema["properties"][part]["properties"]) - {"plan"}


def pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from pairs(item)
