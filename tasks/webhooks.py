"""Deliver callbacks: tell the address that came with a job of its end, signed and retried."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import random
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult

from tasks.callbacks import PRIVATE, is_private_literal, is_public
from tasks.errors import StoreUnavailable
from tasks.retry import asked_wait_s
from tasks.settings import Settings, key_of_webhook
from tasks.store import Letter, Store
from tasks.store.fragments import iso
from tasks.telemetry import tell_status, webhook_span

log = logging.getLogger("slowcall.webhooks")

TOPIC: Final = "webhook"

WAITS_S: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""What follows the first try, as Standard Webhooks 1.0 suggests it; each a little longer by chance.
The job's record may be gone before the last one: then nobody is told any more."""

_JITTER: Final = 0.1
_TIMEOUT_S: Final = 20.0
_LEASE_S: Final = 60.0
_MOST: Final = 50
_LOOK_S: Final = 0.5
_GONE: Final = 410


def sign(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` of a delivery: one for each key, so that keys can rotate."""
    signed = f"{id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses only. The connection goes to what was looked at here, so
    a name cannot point elsewhere a moment later."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name. Raises OSError where one of them is private."""
        found = await self._resolver.resolve(host, port, family)
        if not all(is_public(result["host"]) for result in found):
            raise OSError(PRIVATE)
        return found

    async def close(self) -> None:
        """Nothing is held."""


class Webhooks:
    """Delivers the callbacks of all workers' jobs; any number of workers may do so at once."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        self._keys = [key_of_webhook(secret) for secret in settings.webhook_secret]
        self._private = settings.webhook_private
        self._base_url = settings.public_url.rstrip("/")

    async def keep_delivering(self) -> None:
        """Deliver what is due, for ever; a receiver that is slow holds up no other."""
        under_way: set[asyncio.Task[None]] = set()
        async with self._session() as session:
            try:
                while True:
                    for letter in await self._take(_MOST - len(under_way)):
                        task = asyncio.create_task(self._deliver(session, letter))
                        under_way.add(task)
                        task.add_done_callback(under_way.discard)
                    await asyncio.sleep(_LOOK_S)
            finally:
                for task in under_way:
                    task.cancel()

    async def deliver_due(self) -> None:
        """Deliver the callbacks that are due now, side by side."""
        async with self._session() as session:
            letters = await self._take(_MOST)
            await asyncio.gather(*(self._deliver(session, letter) for letter in letters))

    async def _take(self, most: int) -> list[Letter]:
        try:
            return await self._store.take_letters(TOPIC, lease_s=_LEASE_S, most=most)
        except StoreUnavailable as error:
            log.debug("callbacks wait for the store: %s", error)
            return []

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=None if self._private else PublicResolver(),
            use_dns_cache=False,
            force_close=True,
        )
        return aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(_TIMEOUT_S), trust_env=False
        )

    async def _deliver(self, session: aiohttp.ClientSession, letter: Letter) -> None:
        tries = letter.payload.get("tries", 0) + 1
        status, asked_s = await self._send(session, letter)
        delivered = status is not None and 200 <= status < 300
        over = delivered or status == _GONE or tries > len(WAITS_S)
        wait_s = None if over else max(_wait_s(tries), min(asked_s or 0, WAITS_S[-1]))
        state = "delivered" if delivered else "failed" if over else "pending"
        next_at = None if wait_s is None else iso(time.time() + wait_s)
        told = {"state": state, "attempts": tries, "status": status, "next_at": next_at}
        again = Letter(letter.id, {**letter.payload, "tries": tries})
        with suppress(StoreUnavailable):  # then its lease ends, and it is told once more
            there = await self._store.tell_callback(letter, told)
            await self._store.finish_letter(TOPIC, again, wait_s=wait_s if there else None)

    async def _send(
        self, session: aiohttp.ClientSession, letter: Letter
    ) -> tuple[int | None, float | None]:
        """The answer's status (None: there was none) and the seconds it asks us to wait."""
        url = letter.payload["url"]
        body = orjson.dumps(self._event(letter))
        try:
            if not self._private and is_private_literal(urlsplit(url).hostname or ""):
                raise OSError(PRIVATE)
            headers = self._headers(letter, body)
            with webhook_span(letter.payload) as span:
                async with session.post(
                    url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    tell_status(span, response.status)
                    return response.status, asked_wait_s(response.headers.items(), time.time())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.info("a callback of job %s failed: %s", letter.id, type(error).__name__)
            return None, None

    def _event(self, letter: Letter) -> dict[str, Any]:
        event: dict[str, Any] = letter.payload["event"]
        data = event["data"]
        return {**event, "data": {**data, "url": self._base_url + data["links"]["self"]}}

    def _headers(self, letter: Letter, body: bytes) -> dict[str, str]:
        id, timestamp = f"msg_{letter.id.replace(':', '_')}", int(time.time())
        return {
            "Content-Type": "application/json",
            "User-Agent": "slowcall",
            "webhook-id": id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(self._keys, id, timestamp, body),
        }


def _wait_s(tries: int) -> float:
    return WAITS_S[tries - 1] * (1 + _JITTER * random.random())
