"""Whole jobs against any endpoint, from the post to the result."""

from __future__ import annotations

from typing import Any

from tasks.kinds import load_kinds
from tasks.settings import Settings
from tests.rig import rigged


async def run_jobs(
    settings: Settings, url: str, *jobs: tuple[str, dict[str, Any], int]
) -> list[dict[str, Any]]:
    """Run jobs (kind, input, calls it takes) to their end against `url`; answers them as they end.

    Every call is one line of the ledger, paid; the deltas of a job are its text.
    """
    async with rigged(settings, load_kinds(), model_url=url) as rig:
        ended = []
        for kind, given, calls in jobs:
            job_id = await rig.submit(kind, given)
            await rig.run_due()
            job = await rig.read(job_id)
            assert job["status"] == "done", job["error"]
            assert len(await rig.store.ledger(job_id)) == job["ledger"]["paid"] == calls
            events = await rig.events(job_id)
            told = "".join(data["text"] for name, data in events if name == "delta")
            assert told == job["result"]["text"]
            ended.append(job)
        return ended
