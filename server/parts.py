"""What a server process holds while it runs, and how a request gets at it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from starlette.requests import HTTPConnection
from starlette.types import Scope

from server.auth import Caller, Keyring
from server.hub import Hub
from server.seats import Seats
from tasks.errors import JobNotFound
from tasks.kinds import Kind
from tasks.settings import Settings
from tasks.store import Store
from tasks.store.records import JobView

_JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a running server."""

    settings: Settings
    kinds: Mapping[str, Kind]
    keyring: Keyring
    store: Store
    hub: Hub
    seats: Seats


def parts_of(scope: Scope) -> Parts:
    """The parts of the server that serves this request."""
    return cast(Parts, scope["app"].state.parts)


def caller_of(scope: Scope) -> Caller:
    """Who is calling, as the gate found out."""
    return cast(Caller, scope["user"])


async def job_of(request: HTTPConnection) -> JobView:
    """The job that the path names. Raises JobNotFound also where it is another user's."""
    job_id = request.path_params["job_id"]
    if not _JOB_ID.fullmatch(job_id):
        raise JobNotFound("There is no such job.")
    view = await parts_of(request.scope).store.read(job_id)
    caller_of(request.scope).check(view)
    return view
