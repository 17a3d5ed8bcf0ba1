"""What a worker asks of the store: claim, renew, sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from tasks.keys import name
from tasks.store.base import StoreBase
from tasks.store.fragments import dumps, loads
from tasks.store.records import Claimed, Moved, Run

_SWEEP: Final = 100
_RENEWED: Final = 100
"""Leases of one script: Redis serves nobody else for the millisecond that so many take."""


class WorkerVerbs(StoreBase):
    """The worker's part of the store: which jobs it runs, and that it lives."""

    async def claim(
        self,
        worker: str,
        kinds: Iterable[str],
        room: int,
        lease_s: float,
        *,
        claim_id: str | None = None,
        broken: Iterable[str] = (),
    ) -> tuple[list[Claimed], float | None]:
        """Up to `room` due entries of `kinds`, each leased for `lease_s` and a run of it begun, and
        the seconds until the next entry is due (None: none is known).

        A claim that was not answered is made again under its `claim_id`, for its runs have begun.
        `broken` are entries that run here by their record, and do not: they are taken over.
        """
        wait, *claimed = await self.scripts.call(
            "claim",
            worker=worker,
            claim=claim_id or uuid4().hex,
            kinds="".join(f"{kind}," for kind in kinds),
            room=room,
            lease_ms=_ms(lease_s),
            broken="".join(f"{entry}," for entry in broken),
        )
        return [_claimed(*said) for said in claimed], float(wait) / 1000 if wait else None

    async def renew(
        self, worker: str, runs: Iterable[Run], lease_s: float, about: Mapping[str, Any]
    ) -> set[str]:
        """Renew the leases of `runs` and say that the worker lives; answers the jobs it lost."""
        named = [f"{run.job_id}:{run.run} " for run in runs]
        lost: list[bytes] = []
        for start in range(0, max(1, len(named)), _RENEWED):
            lost += await self.scripts.call(
                "renew",
                worker=worker,
                lease_ms=_ms(lease_s),
                about=dumps(about),
                runs="".join(named[start : start + _RENEWED]),
            )
        return {job_id.decode() for job_id in lost}

    async def leave(self, worker: str) -> None:
        """The worker is gone in good order: nobody counts it any more."""
        await self.ask(lambda: self.redis.hdel(name("workers"), worker))

    async def sweep(self) -> list[Moved]:
        """Fail what is overdue, revive by rule, prune; answers the jobs that it moved."""
        moved = await self.scripts.call("sweep", most=_SWEEP)
        return [Moved.read(fields) for fields in moved]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _claimed(entry: bytes, word: bytes, *fields: bytes) -> Claimed:
    name = entry.decode()
    if word == b"failed":
        return Claimed(name, moved=Moved.read(fields))
    if word in (b"ours", b"damaged"):
        return Claimed(name, ours=word == b"ours")
    try:
        return Claimed(name, _run(name.partition(":")[0], fields, taken_over=word == b"lost"))
    except ValueError:
        return Claimed(name)


def _run(job_id: str, fields: Sequence[bytes], *, taken_over: bool) -> Run:
    run, attempt, most, user, kind, left, created, waited, input, options, edited = fields
    return Run(
        job_id=job_id,
        run=int(run),
        attempt=int(attempt),
        max_attempts=int(most),
        kind=kind.decode(),
        user_id=user.decode(),
        input=loads(input),
        options=loads(options),
        deadline_left_s=float(left) / 1000 if left else None,
        created_ms=float(created),
        waited_ms=int(waited),
        edited=bool(edited),
        taken_over=taken_over,
    )
