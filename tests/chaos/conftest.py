"""A house of real processes, a model that answers by script, a customer who watches."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import httpx
import pytest

from server.prove_parts import House
from server.terminal_client import Event, events
from tasks.lifecycle import FINAL
from tests.conftest import wait_until
from tests.endpoint import Endpoint, Request, Script, answered

LEASE_S: Final = 1.0
QUICK: Final = {
    "SLOWCALL_LEASE_S": str(LEASE_S),
    "SLOWCALL_DRAIN_S": "2",
    "SLOWCALL_BACKOFF_S": "0.05",
    "SLOWCALL_JITTER": "0",
    "SLOWCALL_QUOTA": "0",
    "SLOWCALL_KINDS": "tests.chaos.kinds",
    "SLOWCALL_LAB_DELAY_S": "0.3",
    "SLOWCALL_LAB_TOKENS_PER_S": "50",
    "AI_MODEL": "scripted",
}


class Site(House):
    """A house with customers."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        super().__init__(folder, settings)
        self._customers: list[Customer] = []

    def __exit__(self, *error: object) -> None:
        for customer in self._customers:
            customer.leave()
        super().__exit__(*error)

    def open(self, *, workers: int = 1, servers: int = 1) -> Customer:
        """Add workers and servers; answers a customer of the last server."""
        self.add(workers=workers, servers=servers)
        self._customers.append(Customer(self.servers[-1].url))
        return self._customers[-1]


Build = Callable[..., Site]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Build sites that hold a store and nothing else yet; settings by their environment names."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Site(tmp_path, {**QUICK, **settings}))


class Model:
    """An endpoint with scripts for each prompt: its n-th request gets the n-th, or the last one.

    Without scripts a prompt is answered by itself.
    """

    def __init__(self) -> None:
        self._scripts: dict[str, list[Script]] = {}
        self._asked: dict[str, list[Request]] = defaultdict(list)
        self.endpoint = Endpoint(self._next)
        self.url = self.endpoint.url

    def __enter__(self) -> Self:
        self.endpoint.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.endpoint.__exit__(*error)

    def teach(self, prompt: str, *scripts: Script) -> None:
        """What to answer to this prompt."""
        self._scripts[prompt] = list(scripts)

    def asked(self, prompt: str) -> list[Request]:
        """The requests that came with this prompt."""
        return list(self._asked[prompt])

    def keys(self, prompt: str) -> set[str]:
        """The idempotency keys that this prompt came under."""
        return {request.headers["idempotency-key"] for request in self._asked[prompt]}

    def _next(self, request: Request) -> Script:
        prompt = request.json["messages"][-1]["content"]
        self._asked[prompt].append(request)
        scripts = self._scripts.get(prompt, [answered(prompt)])
        return scripts[min(len(self._asked[prompt]), len(scripts)) - 1]


@pytest.fixture
def model() -> Iterator[Model]:
    """A model that answers by script."""
    with Model() as endpoint:
        yield endpoint


class Watcher:
    """Follows a job's stream in the background, resumed whenever it breaks."""

    def __init__(self, url: str, job_id: str) -> None:
        self.events: list[Event] = []
        self.seen_at: list[float] = []
        self._url = f"{url}/jobs/{job_id}/stream"
        self._left = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def names(self) -> list[str]:
        """The names of the events, without progress."""
        return [event.name for event in self.events if event.name != "progress"]

    def await_event(self, name: str, times: int = 1, within_s: float = 15) -> float:
        """Wait for the n-th event of this name; answers when it came (monotonic seconds)."""
        wait_until(lambda: self.names.count(name) >= times, f"event {name!r} no. {times}", within_s)
        numbers = [number for number, event in enumerate(self.events) if event.name == name]
        return self.seen_at[numbers[times - 1]]

    def await_end(self, within_s: float = 20) -> list[Event]:
        """All events, once the stream has ended by itself."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"the stream ends; it came to {self.names}"
        return self.events

    def leave(self) -> None:
        """Follow it no more; a stream that is open ends with its server."""
        self._left = True

    def _follow(self) -> None:
        with httpx.Client(timeout=10, trust_env=False) as http:
            while not self._left:
                headers = {"last-event-id": self.events[-1].id} if self.events else {}
                try:
                    with http.stream("GET", self._url, headers=headers) as response:
                        if response.status_code == 204:
                            return
                        self._take(response)
                except httpx.TransportError:
                    pass
                if self.events and self.events[-1].name in FINAL:
                    return
                time.sleep(0.05)

    def _take(self, response: httpx.Response) -> None:
        if response.status_code == 200:
            for event in events(response.iter_raw()):
                self.seen_at.append(time.monotonic())
                self.events.append(event)


class Customer:
    """Whoever asks a server for something."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=15, trust_env=False)
        self._watchers: list[Watcher] = []

    def leave(self) -> None:
        """Close all connections."""
        self.http.close()
        for watcher in self._watchers:
            watcher.leave()

    def post(self, input: Any, **more: Any) -> str:
        """Submit a job with this input; answers its id."""
        return self.submit({"input": input, **more})

    def submit(self, body: dict[str, Any]) -> str:
        """Submit a job; answers its id."""
        response = self.http.post("/jobs", json=body)
        assert response.status_code == 202, response.text
        return str(response.json()["job_id"])

    def read(self, job_id: str) -> dict[str, Any]:
        """The job as it stands."""
        response = self.http.get(f"/jobs/{job_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def ledger(self, job_id: str) -> list[dict[str, Any]]:
        """The lines of its ledger."""
        return list(self.http.get(f"/jobs/{job_id}/ledger").json())

    def outcomes(self, job_id: str) -> list[str]:
        """How its calls ended."""
        return [line["outcome"] for line in self.ledger(job_id)]

    def await_status(self, job_id: str, status: str, within_s: float = 15) -> dict[str, Any]:
        """The job once it has this status."""
        wait_until(
            lambda: self.read(job_id)["status"] == status,
            f"job {status}; it is {self.read(job_id)['status']}",
            within_s,
        )
        return self.read(job_id)

    def await_end(self, job_id: str, within_s: float = 15) -> dict[str, Any]:
        """The job once it is final."""
        deadline = time.monotonic() + within_s
        while True:
            response = self.http.get(f"/jobs/{job_id}", headers={"prefer": "wait=1"})
            job = dict(response.json())
            if job.get("status") in FINAL:
                return job
            assert time.monotonic() < deadline, f"waited {within_s:g} s in vain for an end: {job}"

    def watch(self, job_id: str) -> Watcher:
        """Follow its stream."""
        self._watchers.append(Watcher(self.url, job_id))
        return self._watchers[-1]

    def log(self, job_id: str) -> list[Event]:
        """The whole log of a final job."""
        return self.watch(job_id).await_end()


def numbers(log: list[Event]) -> list[int]:
    """The ids of events, which have no gap."""
    return [int(event.id) for event in log]


def streamed(log: list[Event]) -> str:
    """The deltas after the last `running`, joined."""
    parts: list[str] = []
    for event in log:
        if event.name == "running":
            parts.clear()
        elif event.name == "delta":
            parts.append(event.data["text"])
    return "".join(parts)
