"""The lesson: two invoices, three submits, two jobs; one fails once and is done at its second try.

An attempt takes two seconds by a clock that we hold in our hands, and the wait after a first
failure is five seconds. So we can say beforehand what happens at which second.
"""

from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import TransientError
from tasks.kinds import Kind
from tasks.settings import Settings
from tests.rig import Clock, Rig, a_job, a_kind, rigged

ATTEMPT_S = 2.0


class Office:
    """Where invoices are read. Reading one takes two seconds; `b` cannot be read the first time.

    `diary` says how each job stood whenever time had passed: status, second, attempts.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.read: list[str] = []
        self.diary: dict[str, list[tuple[str, float, int]]] = {}
        self.rig: Rig

    @property
    def kinds(self) -> dict[str, Kind]:
        """What the office can do."""
        return {"invoice": a_kind("invoice", self.perform)}

    async def perform(self, context: Any, given: Any) -> dict[str, Any]:
        """Read one invoice."""
        text = given.root
        self.read.append(text)
        await self.wait(ATTEMPT_S)
        if text == "factura b" and self.read.count(text) == 1:
            raise TransientError("The scanner jammed.")
        return {"text": text.upper()}

    async def submit(self, text: str) -> str:
        """Submit an invoice; its text is its key, as an order number would be."""
        submitted = await self.rig.store.submit(a_job("invoice", text, idempotency_key=text))
        job_id = submitted.job.job_id
        if not submitted.replayed:
            self.diary[job_id] = []
            await self.look(job_id)
        return job_id

    async def wait(self, seconds: float) -> None:
        """Let time pass, and write down how every job stands then."""
        self.clock.forward(seconds)
        for job_id in self.diary:
            await self.look(job_id)

    async def look(self, job_id: str) -> None:
        """Write down how a job stands."""
        job = await self.rig.read(job_id)
        self.diary[job_id].append((job["status"], self.clock.passed_s, job["attempts"]))

    async def work(self) -> int:
        """Let the one worker of the office work until nothing is left; answers how many runs."""
        runs = await self.rig.work(self.wait)
        for job_id in self.diary:
            await self.look(job_id)
        return runs


@pytest.fixture
def office() -> Office:
    """An empty office."""
    return Office()


@pytest.fixture
def quiet(settings: Settings) -> Settings:
    """The product's own waits of 5 s and 10 s, without jitter."""
    return settings.model_copy(update={"backoff_s": 5.0, "jitter": 0.0})


async def test_two_invoices(quiet: Settings, office: Office) -> None:
    """Three submits, one of them repeated, are two jobs; both end well, at second 11."""
    async with rigged(quiet, office.kinds, clock=office.clock) as office.rig:
        one = await office.submit("factura a")
        two = await office.submit("factura b")
        again = await office.submit("factura a")
        assert again == one, "the same key and the same body are the same job"
        assert one != two, "another key is another job"

        assert await office.work() == 3, "one run of the first job, two of the second"

        first, second = await office.rig.read(one), await office.rig.read(two)
        assert (first["status"], first["attempts"]) == ("done", 1)
        assert (second["status"], second["attempts"]) == ("done", 2)
        assert first["result"]["text"] == "FACTURA A"
        assert second["result"]["text"] == "FACTURA B"
        assert office.clock.passed_s == 11

        # A second pass finds nothing to do: what is done is never done again.
        assert await office.work() == 0
        assert office.read == ["factura a", "factura b", "factura b"]
        assert office.clock.passed_s == 11


async def test_the_second_invoice_alone(quiet: Settings, office: Office) -> None:
    """Alone it is read from 0 to 2 and fails, waits until 7, is read again, and done at 9."""
    async with rigged(quiet, office.kinds, clock=office.clock) as office.rig:
        two = await office.submit("factura b")
        await office.work()
        assert office.diary[two] == [
            ("queued", 0, 0),
            ("running", 2, 1),
            ("retrying", 7, 1),
            ("running", 9, 2),
            ("done", 9, 2),
        ]
        names = [name for name, _ in await office.rig.events(two)]
        assert names == ["queued", "running", "retrying", "running", "done"]
