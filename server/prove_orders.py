"""What the customers of a proof do: post, post again when in doubt, watch to the end."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from server.terminal_client import Event, events
from tasks.errors import SlowcallError
from tasks.lifecycle import FINAL

PAGES: Final = 5
PATIENCE_S: Final = 60.0
_TEXT: Final = "a slow answer that is paid for once and told to whoever asks for it, nothing else"
_AGAIN_S: Final = 0.1
_AGAIN: Final = {429, 502, 503, 504}


class Unserved(SlowcallError):
    """A customer got an answer that the contract does not know, or none for too long."""


@dataclass(slots=True)
class Order:
    """A job that a customer wants: one idempotency key, however often it is posted.

    `expected` are texts that its result must hold; `seen` are the events of whoever watched it.
    """

    number: int
    key: str
    body: dict[str, Any]
    expected: tuple[str, ...]
    job_ids: set[str] = field(default_factory=set)
    posts: int = 0
    seen: list[Event] | None = None


def orders(count: int, seed: int) -> list[Order]:
    """So many different orders; every fourth one is a document of some pages."""
    made = []
    for number in range(1, count + 1):
        body, expected = _document(number) if number % 4 == 0 else _prompt(number)
        body = {**body, "max_attempts": 100}
        made.append(Order(number, f"order-{seed}-{number}", body, expected))
    return made


def _prompt(number: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    text = f"order {number} wants {_TEXT[: 20 + number % 61]}"
    return {"input": text}, (text.upper(),)


def _document(number: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    leads = tuple(f"Page {page} of order {number} was read." for page in range(1, PAGES + 1))
    pages = [f"{lead} What else it says is of no weight." for lead in leads]
    return {"kind": "summarize", "input": {"pages": pages}}, leads


class Customers:
    """They know all the servers, and go to another one when they get no answer."""

    def __init__(self, urls: Sequence[str], seed: int) -> None:
        self._urls = urls
        self._random = random.Random(seed)
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
        self._http = httpx.Client(timeout=10, trust_env=False, limits=limits)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def post(self, order: Order) -> None:
        """Post until a server says that it has the job. Raises Unserved."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            order.posts += 1
            headers = {"idempotency-key": order.key}
            answer = self._answer("POST", "/jobs", json=order.body, headers=headers)
            if answer is not None and answer.status_code in {200, 202}:
                order.job_ids.add(answer.json()["job_id"])
                return
            time.sleep(_AGAIN_S)
        raise Unserved(f"{order.key} was not taken within {PATIENCE_S:g} s")

    def watch(self, order: Order, *, live: bool) -> list[Event]:
        """The events of its stream, resumed behind the last one seen whenever it breaks; not
        `live`: as a replay, of which a break is an error. Raises Unserved."""
        seen: list[Event] = []
        deadline = time.monotonic() + PATIENCE_S
        while not (seen and seen[-1].name in FINAL):
            if time.monotonic() > deadline or (seen and not live):
                raise Unserved(f"the stream of {order.key} did not come to its end")
            try:
                self._watch_on(order, seen)
            except httpx.TransportError:
                time.sleep(_AGAIN_S)
        return seen

    def _watch_on(self, order: Order, seen: list[Event]) -> None:
        path = f"/jobs/{next(iter(order.job_ids))}/stream"
        headers = {"last-event-id": seen[-1].id} if seen else {}
        with self._http.stream("GET", self._url(path), headers=headers) as response:
            if response.status_code != 200:
                time.sleep(_AGAIN_S)
                return
            seen += events(response.iter_raw())  # also what came before a break

    def read(self, path: str) -> Any:
        """The JSON at this path. Raises Unserved."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            answer = self._answer("GET", path)
            if answer is not None and answer.status_code == 200:
                return answer.json()
            time.sleep(_AGAIN_S)
        raise Unserved(f"{path} was not answered within {PATIENCE_S:g} s")

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that the servers list."""
        listed: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self.read(f"/jobs?limit=100{cursor}")
            listed += page["jobs"]
            if page["next_cursor"] is None:
                return listed
            cursor = f"&cursor={page['next_cursor']}"

    def _answer(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """An answer, or None where a customer would ask again. Raises Unserved."""
        try:
            answer = self._http.request(method, self._url(path), **more)
        except httpx.TransportError:
            return None
        if answer.is_success:
            return answer
        if answer.status_code in _AGAIN:
            return None
        raise Unserved(f"{method} {path}: {answer.status_code} {answer.text[:200]}")

    def _url(self, path: str) -> str:
        return self._random.choice(self._urls) + path
