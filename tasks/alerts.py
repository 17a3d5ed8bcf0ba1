"""Tell people of failed jobs, through Apprise: one alert for each cause and moment, none lost."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tasks.errors import StoreUnavailable
from tasks.settings import Settings
from tasks.store import Letter, Store

log = logging.getLogger("slowcall.alerts")

TOPIC: Final = "alert"

_LOOK_S: Final = 1.0
_LEASE_S: Final = 120.0
_DELIVERY_S: Final = 60.0
_MOST: Final = 1000
_SHOWN: Final = 5
_WAITS_S: Final = (5, 30, 120, 600)


@dataclass(frozen=True, slots=True)
class Alert:
    """Failures of one cause, told together: the jobs as they failed."""

    jobs: Sequence[dict[str, Any]]

    @property
    def title(self) -> str:
        """The alert in one line."""
        job, error = self.jobs[0], self.jobs[0]["error"]
        status = f" {error['upstream_status']}" if error["upstream_status"] else ""
        many = f"{len(self.jobs)} jobs" if len(self.jobs) > 1 else "a job"
        return f"slowcall: {many} of kind {job['kind']} failed ({error['type']}{status})"

    def body(self, base_url: str) -> str:
        """What a person decides by: whose job, what went wrong, what it cost, where to look."""
        lines = [_line(job, base_url) for job in self.jobs[:_SHOWN]]
        if len(self.jobs) > _SHOWN:
            lines.append(f"and {len(self.jobs) - _SHOWN} more: {base_url}/jobs?status=failed")
        return "\n\n".join(lines)


def _line(job: dict[str, Any], base_url: str) -> str:
    ledger = job["ledger"]
    return (
        f"Job {job['job_id']} of user {job['user_id']}: {job['error']['message']}\n"
        f"Attempts: {job['attempts']} of {job['max_attempts']}. "
        f"Calls paid: {ledger['paid']}, unknown: {ledger['unknown']}, "
        f"rejected: {ledger['rejected']}.\n"
        f"{base_url}{job['links']['self']}"
    )


class Channels:
    """The targets of SLOWCALL_ALERT_URLS, each called by a hash: its URL may hold a secret."""

    def __init__(self, settings: Settings) -> None:
        self._base_url = settings.public_url.rstrip("/")
        urls = (url.get_secret_value() for url in settings.alert_urls)
        self._targets = {hashlib.sha256(url.encode()).hexdigest()[:8]: url for url in urls}

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    async def tell(self, alert: Alert, targets: Iterable[str]) -> dict[str, bool]:
        """Send an alert to those of `targets` that there are; answers who took it."""
        known = [target for target in targets if target in self._targets]
        took = await asyncio.gather(*(self._tell_one(alert, target) for target in known))
        return dict(zip(known, took, strict=True))

    async def _tell_one(self, alert: Alert, target: str) -> bool:
        import apprise  # takes a second to import: only those who alert pay for it

        channel = apprise.Apprise()
        if not channel.add(self._targets[target]):
            log.error("an alert URL is not one that Apprise knows")
            return False
        try:
            async with asyncio.timeout(_DELIVERY_S):
                return bool(
                    await channel.async_notify(
                        title=alert.title,
                        body=alert.body(self._base_url),
                        notify_type=apprise.NotifyType.FAILURE,
                    )
                )
        except Exception as error:  # a plug-in may raise anything; the job must not feel it
            log.warning("an alert target failed: %s", type(error).__name__)
            return False


class Alerter:
    """Delivers the alerts of all workers' jobs, whoever failed them; several may run at once.

    A letter keeps the targets that have not taken it yet, so that a dead target is tried again and
    a living one is not told twice.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        self._channels = Channels(settings)

    async def keep_delivering(self) -> None:
        """Deliver what is due, for ever."""
        while True:
            try:
                await self.deliver_due()
            except StoreUnavailable as error:
                log.debug("alerts wait for the store: %s", error)
            await asyncio.sleep(_LOOK_S)

    async def deliver_due(self) -> None:
        """Deliver the alerts that are due, each to the targets it still owes."""
        letters = await self._store.take_letters(TOPIC, lease_s=_LEASE_S, most=_MOST)
        for group in _by_cause(letters):
            await self._deliver(group)

    async def _deliver(self, group: list[Letter]) -> None:
        alert = Alert([letter.payload["job"] for letter in group])
        owed = group[0].payload.get("left") or list(self._channels)
        took = await self._channels.tell(alert, owed)
        left = [target for target, ok in took.items() if not ok]
        for letter in group:
            if not left:
                await self._store.finish_letter(TOPIC, letter)
                continue
            tries = letter.payload.get("tries", 0) + 1
            wait_s = _WAITS_S[min(tries, len(_WAITS_S)) - 1]
            again = Letter(letter.id, {**letter.payload, "tries": tries, "left": left})
            await self._store.finish_letter(TOPIC, again, wait_s=wait_s)


async def send_test(settings: Settings) -> list[bool]:
    """Send a test alert to every target; answers for each whether it took it."""
    channels = Channels(settings)
    job = {
        "job_id": "test",
        "kind": "test",
        "user_id": "you",
        "attempts": 1,
        "max_attempts": 1,
        "error": {"type": "permanent", "message": "This is only a test.", "upstream_status": None},
        "ledger": {"paid": 0, "unknown": 0, "rejected": 0},
        "links": {"self": "/"},
    }
    return list((await channels.tell(Alert([job]), channels)).values())


def _by_cause(letters: Iterable[Letter]) -> list[list[Letter]]:
    """Letters that tell of the same: kind, type of error, upstream status, targets still owed."""
    groups: dict[tuple[Any, ...], list[Letter]] = {}
    for letter in letters:
        job = letter.payload["job"]
        error = job["error"]
        left = tuple(letter.payload.get("left") or ())
        cause = (job["kind"], error["type"], error["upstream_status"], left)
        groups.setdefault(cause, []).append(letter)
    return list(groups.values())
