"""What the terminal asks a slowcall server for, over HTTP: submit, read, follow to the end."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tasks.errors import SlowcallError
from tasks.lifecycle import FINAL
from tasks.settings import Settings

READ_S: Final = 60.0
"""A stream without a byte for so long is dead: keep-alives are at most 15 s apart."""
PATIENCE_S: Final = 5.0
SUBMIT_TRIES: Final = 5
_AWAY: Final = {429, 502, 503, 504}


class Refused(SlowcallError):
    """The server does not do what was asked; the message is its own."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job: its id in the log, its name, its data."""

    id: str
    name: str
    data: dict[str, Any]


class Server:
    """A slowcall server; use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = (settings.url or f"http://{host}:{settings.port}").rstrip("/")
        key = settings.key.get_secret_value() if settings.key else ""
        self._http = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(10, read=READ_S),
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Post a job; `request` is the body as httpx takes it (`json`, or `data` and `files`).

        One idempotency key for all tries: a lost answer never makes a second job. Raises Refused.
        """
        headers = {"idempotency-key": str(uuid.uuid4())}
        tries = 0
        while True:
            tries += 1
            try:
                return answered(self._http.post("/jobs", headers=headers, **request))
            except httpx.TransportError as error:
                if tries == SUBMIT_TRIES or isinstance(error, httpx.ConnectError):
                    raise self._unreachable(error) from None
            time.sleep(backoff_s(tries))

    def read(self, job_id: str) -> dict[str, Any]:
        """The job as it stands. Raises Refused."""
        try:
            return answered(self._http.get(f"/jobs/{job_id}"))
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def live_workers(self) -> int | None:
        """How many workers live; None where the server does not say."""
        try:
            return int(answered(self._http.get("/stats"))["live_workers"])
        except (httpx.TransportError, Refused):
            return None

    def follow(self, job_id: str) -> Iterator[Event | None]:
        """The job's events to the end, each once; None when the connection was lost and before
        each further try. Raises Refused."""
        last, lost, over = "", 0, False
        while True:
            try:
                for event in self._events(job_id, last):
                    last, lost, over = event.id or last, 0, event.name in FINAL
                    yield event
            except _Caught:
                return
            except httpx.TransportError:
                over = False
            if not over:
                lost += 1
                yield None
                time.sleep(backoff_s(lost))

    def _events(self, job_id: str, last: str) -> Iterator[Event]:
        """One connection's events. Raises _Caught up when the job is final and all was seen."""
        headers = {"last-event-id": last} if last else {}
        with self._http.stream("GET", f"/jobs/{job_id}/stream", headers=headers) as response:
            if response.status_code == 204:
                raise _Caught
            if response.status_code in _AWAY:
                raise httpx.ReadError(f"status {response.status_code}")
            if response.status_code != 200:
                response.read()
                answered(response)
            yield from events(response.iter_raw())

    def _unreachable(self, error: httpx.TransportError) -> Refused:
        hint = "; is slowcall up?" if isinstance(error, httpx.ConnectError) else ""
        return Refused(f"{self.url} does not answer: {error}{hint}")


class _Caught(Exception):
    """Nothing is left to follow."""


def answered(response: httpx.Response) -> dict[str, Any]:
    """The JSON of a good answer. Raises Refused with the problem's own words."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    if response.is_success and isinstance(body, dict):
        return body
    faults = [f"{fault['pointer']}: {fault['message']}" for fault in body.get("errors", [])]
    detail = body.get("detail") or body.get("title") or response.reason_phrase
    raise Refused(" ".join([f"{response.status_code}: {detail}", *faults]))


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events in the bytes of a stream; only line feeds end a line in what our server sends."""
    rest = b""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line[1:])
            if b"data" in fields:
                name, number = fields.get(b"event", b"").decode(), fields.get(b"id", b"").decode()
                yield Event(number, name, json.loads(fields[b"data"]))


def backoff_s(lost: int) -> float:
    """The wait before try number `lost` + 1."""
    return min(PATIENCE_S, 0.25 * 2.0**lost)
