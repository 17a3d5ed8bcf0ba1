"""Jobs of the built-in kinds on a scripted endpoint: what was asked, and what became of the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tasks.kinds import Kind, load_kinds
from tasks.settings import Settings
from tests.endpoint import Endpoint, Request, Script
from tests.rig import Rig, rigged


@asynccontextmanager
async def scripted(
    settings: Settings,
    *scripts: Script | Callable[[Request], Script],
    kinds: Mapping[str, Kind] | None = None,
) -> AsyncIterator[tuple[Rig, Endpoint]]:
    """A rig whose model plays these scripts, and the endpoint that it asks."""
    named = settings.model_copy(update={"ai_model": "scripted"})
    with Endpoint(*scripts) as endpoint:
        async with rigged(named, kinds or load_kinds(), model_url=endpoint.url) as rig:
            yield rig, endpoint


async def finish(rig: Rig, kind: str, input: Any, **more: Any) -> dict[str, Any]:
    """The job of this kind and input after all its attempts."""
    job_id = await rig.submit(kind, input, **more)
    await rig.work(asyncio.sleep)
    return await rig.read(job_id)


def asked(request: Request) -> tuple[str, str]:
    """What a request says to the model: its instructions, and the last message."""
    messages = request.json["messages"]
    return messages[0]["content"], messages[-1]["content"]
