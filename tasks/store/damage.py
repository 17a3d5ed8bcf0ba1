"""What becomes of a job whose record holds values that are not ours: it fails, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.lifecycle import FINAL, Status
from tasks.store.base import StoreBase
from tasks.store.fragments import dumps, quoted, status_set
from tasks.store.records import Claimed, Moved


class Damage(StoreBase):
    """The way out for a job that no other script can move."""

    async def condemn(self, claimed: Claimed, kinds: Iterable[str], message: str) -> Moved | None:
        """Fail a claimed job with `message`, whatever its record looks like; an end stands (None).

        `kinds` are those of the worker. What can be read of the record is kept, also for a retry.
        """
        job_id, _, life = claimed.entry.partition(":")
        said = dumps(message).decode().replace("%", "%%")
        options = {"timeout_s": 600, "on_unknown": "retry", "memo": False, "trace": {}}
        told = await self.scripts.call(
            "condemn",
            job=job_id,
            life=life,
            kinds="".join(f"{kind}," for kind in kinds),
            statuses="".join(f"{quoted(status)}," for status in Status),
            final=status_set(FINAL),
            error=f'{{"attempt":%d,"type":"permanent","message":{said},"upstream_status":null}}',
            options=dumps(options),
        )
        return Moved.read(told) if told else None
