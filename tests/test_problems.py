"""Every error of the domain becomes its problem; every refusal of Starlette's, too."""

from __future__ import annotations

import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.openapi import document
from server.problems import MEDIA_TYPE, SHAPES, SafetyNet, refusal
from tasks import errors
from tasks.settings import Settings
from tests.serving import served

ERRORS: list[tuple[errors.SlowcallError, int]] = [
    (errors.MalformedRequest("why"), 400),
    (errors.Unauthorized("why"), 401),
    (errors.Forbidden("why"), 403),
    (errors.JobNotFound("why"), 404),
    (errors.WrongStatus("why"), 409),
    (errors.TooLarge("why"), 413),
    (errors.WrongType("why"), 415),
    (errors.InvalidInput("why", [{"pointer": "/kind", "message": "what"}]), 422),
    (errors.KeyReused("why"), 422),
    (errors.QuotaExceeded("why", limit=5, retry_after_s=3), 429),
    (errors.StoreUnavailable("Error 111 connecting to 10.0.0.1:6379"), 503),
    (errors.PermanentError("a fault of ours: no refusal"), 500),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda case: type(case).__name__)
def test_each_error_is_a_problem(error: errors.SlowcallError, status: int) -> None:
    response = refusal(error)
    problem = json.loads(bytes(response.body))
    assert response.status_code == problem["status"] == status
    assert response.headers["content-type"] == MEDIA_TYPE
    assert problem["title"]
    assert problem["detail"]


def test_every_refusal_has_a_shape() -> None:
    assert set(SHAPES) >= {
        e for e in errors.Refusal.__subclasses__() if e.__module__ == "tasks.errors"
    }


def test_a_type_is_a_place_in_the_description() -> None:
    problem = json.loads(bytes(refusal(errors.KeyReused("why"), "/prefix").body))
    path, _, pointer = problem["type"].partition("#")
    assert path == "/prefix/openapi.json"
    place = document({})
    for part in pointer.strip("/").split("/"):
        place = place[part]
    assert place["description"] == problem["title"]


def test_faults_and_headers_are_told() -> None:
    invalid = json.loads(bytes(refusal(ERRORS[7][0]).body))
    assert invalid["errors"] == [{"pointer": "/kind", "message": "what"}]
    full = refusal(errors.QuotaExceeded("why", limit=5, retry_after_s=3))
    assert full.headers["retry-after"] == "3"
    assert json.loads(bytes(full.body))["violated-policies"] == ["inflight"]
    assert refusal(errors.Unauthorized("why")).headers["www-authenticate"].startswith("Bearer")


def test_an_outage_names_no_address() -> None:
    response = refusal(ERRORS[10][0])
    assert b"10.0.0.1" not in bytes(response.body)
    assert response.headers["retry-after"].isdigit()


async def test_what_nobody_expected_is_a_500_that_tells_nothing() -> None:
    async def broken(request: Request) -> Response:
        raise KeyError("a secret")

    app = Starlette(routes=[Route("/", broken)], middleware=[Middleware(SafetyNet)])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test"
    ) as client:
        response = await client.get("/")
    assert response.status_code == response.json()["status"] == 500
    assert "secret" not in response.text


async def test_unknown_paths_and_methods_are_problems(settings: Settings) -> None:
    async with served(settings) as client:
        unknown = await client.get("/nothing/here")
        method = await client.patch("/jobs")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, MEDIA_TYPE)
    assert (method.status_code, method.headers["content-type"]) == (405, MEDIA_TYPE)
    assert method.headers["allow"] == "GET, HEAD, POST"
