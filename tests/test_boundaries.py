"""kill -9 of the worker at every step boundary: nothing stored is bought again (case C24)."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.settings import Settings
from tasks.store import NewJob, Store
from tests.conftest import LabModel
from tests.endpoint import Endpoint, Request, Script, answered
from tests.mortal import Moment, live_once
from tests.pdfs import pdf
from tests.rig import a_job, seen
from tests.scripted import asked

FORTY = [f"Chapter {number}\nPage {number} says this." for number in range(1, 41)]
FILE = {"name": "report.pdf", "type": "application/pdf", "size": 1}
PLAN = {"steps": [f"task {number}" for number in range(1, 7)]}
MOMENTS: tuple[Moment, ...] = ("after", "after", "before")

pytestmark = pytest.mark.timeout(240)  # dozens of processes, on a machine that may be busy


async def survive(settings: Settings, url: str, new: NewJob) -> tuple[dict[str, Any], int]:
    """The job, done by workers of which each dies at its first boundary; how many died."""
    settings = settings.model_copy(
        update={"ai_url": SecretStr(url), "ai_model": "lab", "lease_s": 0.2}
    )
    store = Store.connect(settings)
    try:
        job_id = (await store.submit(new)).job.job_id
        moments = cycle(MOMENTS)
        deaths = 0
        while live_once(settings, next(moments)):
            deaths += 1
            assert deaths < 100, "the job comes on"
        ledger = await store.ledger(job_id)
        assert len(ledger) == len({line["call"] for line in ledger})
        return seen(await store.read(job_id)) | {"lines": ledger}, deaths
    finally:
        await store.aclose()


@pytest.mark.parametrize("honours_keys", [True, False])
async def test_forty_pages_of_a_pdf(
    settings: Settings, serve_lab: Callable[[Settings], LabModel], honours_keys: bool
) -> None:
    lab = serve_lab(settings.model_copy(update={"lab_honours_keys": honours_keys}))
    new = a_job("summarize", {"file": FILE}, blob=pdf(FORTY), max_attempts=100)
    job, deaths = await survive(settings, lab.url, new)
    assert (job["status"], job["result"]["pages"]) == ("done", 40), job["error"]
    assert deaths > 40, "one at least for each page"
    meter, in_flight = lab.ledger(), job["ledger"]["unknown"]
    assert meter["requests"] <= 41 + in_flight <= 41 + 4 * deaths
    assert meter["sold"] == (41 if honours_keys else meter["requests"])
    assert meter["sold"] > 41 or honours_keys, "calls were in flight at the deaths"


async def test_an_agent_of_six_steps(settings: Settings) -> None:
    def play(request: Request) -> Script:
        task, text = asked(request)
        return answered(json.dumps(PLAN) if "You plan work" in task else f"<{text[:6]}>")

    with Endpoint(play) as endpoint:
        new = a_job("agent", {"goal": "Open a bakery"}, max_attempts=100)
        job, deaths = await survive(settings, endpoint.url, new)
        keys = [request.headers["idempotency-key"] for request in endpoint.requests]
    assert job["status"] == "done", job["error"]
    assert deaths >= 8, "one for each step, the plan and the answer"
    assert len(set(keys)) == 8, "what an endpoint that honours keys sells"
    assert len(keys) == 8 + job["ledger"]["unknown"], "what one that does not sells"
    assert [step["title"] for step in job["result"]["steps"]] == PLAN["steps"]
