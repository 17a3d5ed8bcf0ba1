"""Tell people of failed jobs, through Apprise: one alert for each cause and moment, none lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tasks.errors import StoreUnavailable
from tasks.settings import Settings, name_of_target
from tasks.store import Letter, Store

log = logging.getLogger("slowcall.alerts")

_LOOK_S: Final = 1.0
_LEASE_S: Final = 120.0
_DELIVERY_S: Final = 60.0
_PATIENCE_S: Final = 45.0
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


def topic_of(target: str) -> str:
    """Where the store keeps the letters to a target."""
    return f"alert:{target}"


class Channels:
    """The targets of SLOWCALL_ALERT_URLS, each called as the store calls it."""

    def __init__(self, settings: Settings) -> None:
        self._base_url = settings.public_url.rstrip("/")
        self._urls = {name_of_target(url): url.get_secret_value() for url in settings.alert_urls}

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    async def tell(self, target: str, alert: Alert) -> bool:
        """Send an alert to a target; whether it took it."""
        url, body = self._urls[target], alert.body(self._base_url)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_S):
                return await _in_thread(lambda: _notify(url, alert.title, body))
        return False


def _notify(url: str, title: str, body: str) -> bool:
    import apprise  # takes a second to import: only those who alert pay for it

    channel = apprise.Apprise()
    if not channel.add(url):
        log.error("an alert URL is not one that Apprise knows")
        return False
    if "rto=" not in url:
        for plugin in channel:  # Apprise hangs up after 4 s: who took longer would be told again
            plugin.socket_read_timeout = _PATIENCE_S
    try:
        return bool(channel.notify(body, title, apprise.NotifyType.FAILURE))
    except Exception as error:  # a plug-in may raise anything; the job must not feel it
        log.warning("an alert target failed: %s", type(error).__name__)
        return False


def _in_thread(work: Callable[[], bool]) -> asyncio.Future[bool]:
    """What `work` answers in a thread of its own. Those of asyncio are few, are needed to look up
    names, and are waited for when a worker leaves."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def run() -> None:
        took = work()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, took)

    def settle(took: bool) -> None:
        if not answer.done():
            answer.set_result(took)

    threading.Thread(target=run, daemon=True).start()
    return answer


class Alerter:
    """Delivers the alerts of all workers' jobs, whoever failed them; several may run at once.

    Each target has letters of its own, so that a slow or dead one holds up no other and a living
    one is not told twice.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        self._channels = Channels(settings)
        self._under_way: set[asyncio.Task[None]] = set()

    async def keep_delivering(self) -> None:
        """Deliver what is due, for ever."""
        async with asyncio.TaskGroup() as group:
            for target in self._channels:
                group.create_task(self._keep_telling(target))

    async def deliver_due(self) -> None:
        """Deliver the alerts that are due. Raises StoreUnavailable."""
        await asyncio.gather(*map(self._tell_due, self._channels))

    async def close(self, within_s: float) -> None:
        """Let end what is under way: who is in the middle of taking it would be told again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*self._under_way)

    async def _keep_telling(self, target: str) -> None:
        while True:
            look = asyncio.create_task(self._look(target))
            self._under_way.add(look)
            look.add_done_callback(self._under_way.discard)
            await asyncio.shield(look)
            await asyncio.sleep(_LOOK_S)

    async def _look(self, target: str) -> None:
        try:
            await self._tell_due(target)
        except StoreUnavailable as error:
            log.debug("alerts wait for the store: %s", error)
        except Exception:  # the worker has better things to do than to end by it
            log.exception("alerts cannot be told; they are tried again")

    async def _tell_due(self, target: str) -> None:
        topic = topic_of(target)
        letters = await self._store.take_letters(topic, lease_s=_LEASE_S, most=_MOST)
        await asyncio.gather(*(self._tell(target, group) for group in _by_cause(letters)))

    async def _tell(self, target: str, group: list[Letter]) -> None:
        took = await self._channels.tell(target, Alert([one.payload["job"] for one in group]))
        for letter in group:
            tries = letter.payload.get("tries", 0) + 1
            wait_s = None if took else _WAITS_S[min(tries, len(_WAITS_S)) - 1]
            again = Letter(letter.id, {**letter.payload, "tries": tries})
            await self._store.finish_letter(topic_of(target), again, wait_s=wait_s)


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
    return await asyncio.gather(*(channels.tell(target, Alert([job])) for target in channels))


def _by_cause(letters: Iterable[Letter]) -> list[list[Letter]]:
    """Letters that tell of the same: kind, type of error, upstream status."""
    groups: dict[tuple[Any, ...], list[Letter]] = {}
    for letter in letters:
        job = letter.payload["job"]
        error = job["error"]
        cause = (job["kind"], error["type"], error["upstream_status"])
        groups.setdefault(cause, []).append(letter)
    return list(groups.values())
