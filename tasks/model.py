"""The model client: one request, one outcome; nothing here asks twice."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import quote

import aiohttp
import httpx

from tasks.draft import Answer
from tasks.errors import (
    CallFailed,
    NotSent,
    OptionRefused,
    OutcomeUnknown,
    PermanentError,
    SettingsError,
    TransientError,
)
from tasks.model_url import address, origin, proxy_for, secrets_of
from tasks.refusals import refusal, shown, why_unreachable
from tasks.reply import Limits, Reply, first_model
from tasks.settings import Settings
from tasks.wire import wire

__all__ = ["Answer", "ModelClient"]

# Its line for each request shows the whole address, and with it a key in the query.
logging.getLogger("httpx").setLevel(logging.WARNING)

_ERROR_BODY = 16_384
# A larger body goes out in pieces, so that writing it does not hold up the other calls.
_PIECE = 262_144
# How long a whole answer may wait for what should follow it: the usage, then the body's end.
_LINGER_S = 2.0
_LAST_S = 0.1
# A gateway may hand on the lab's word under a name of its own.
_LAB = ("x-slowcall-lab", "llm_provider-x-slowcall-lab")
_REQUEST_ID = ("x-request-id", "request-id", "apim-request-id")
# The transport calls every broken connection a connect error, also one that broke after the
# request was sent; only these causes mean that it never left.
_NEVER_LEFT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)


class ModelClient:
    """One endpoint that speaks OpenAI's chat API, more or less. Safe for any number of calls."""

    def __init__(self, settings: Settings, *, base_url: str) -> None:
        """Prepare for `base_url` (AI_URL in any spelling, or the lab's); no I/O.

        Raises SettingsError where the address, the key or the proxy cannot be used.
        """
        self._settings = settings
        self._limits = Limits(settings.max_line, settings.max_event, settings.max_answer)
        self._address = address(base_url)
        self._proxy = proxy_for(self._address.chat, os.environ)
        self._key = _key(settings)
        self._secrets = secrets_of(self._key, base_url, self._proxy)
        self._refused = False
        self._listing: asyncio.Task[str] | None = None
        self._http = self._client()

    def _client(self) -> httpx.AsyncClient:
        connect_s = self._settings.connect_timeout_s
        headers = {"Accept-Encoding": "identity", "User-Agent": "slowcall"}
        if self._key and self._address.azure:
            headers["api-key"] = self._key
        elif self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return httpx.AsyncClient(
            transport=wire(self._proxy),
            headers=headers,
            auth=None if self._key else self._address.login,
            # `pool` bounds the whole way to a connection, names too.
            timeout=httpx.Timeout(None, connect=connect_s, pool=connect_s),
            follow_redirects=False,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        if self._listing:
            self._listing.cancel()
        await self._http.aclose()

    async def default_model(self) -> str:
        """AI_MODEL, else the first model that the endpoint lists: asked once, by all together.

        Raises PermanentError where it lists none, TransientError where it cannot say just now.
        """
        if self._settings.ai_model:
            return self._settings.ai_model
        listing = self._listing
        if not listing or (listing.done() and (listing.cancelled() or listing.exception())):
            listing = self._listing = asyncio.create_task(self._first_model())
        return await asyncio.shield(listing)

    async def _first_model(self) -> str:
        try:
            async with asyncio.timeout(self._settings.idle_timeout_s):
                response = await self._http.get(self._address.models)
            found = first_model(response.content)
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            reason = self._broken(error)
            message = shown(f"Without AI_MODEL the models are asked for: {reason}", self._secrets)
            raise TransientError(message) from error
        if found:
            return found
        status = response.status_code
        message = f"Set AI_MODEL: the endpoint lists no models ({status} at {response.url.path})."
        passing = status in (408, 425, 429) or status >= 500
        raise (TransientError if passing else PermanentError)(message, upstream_status=status)

    async def chat(
        self,
        body: Mapping[str, Any],
        *,
        idempotency_key: str,
        timeout_s: float,
        on_text: Callable[[str], None] | None = None,
        on_open: Callable[[], None] | None = None,
    ) -> Answer:
        """Send `body`, a chat completion's, once, and answer what came of it.

        It is streamed unless `body` says `"stream": false`: `on_open` is called at the first byte
        of the answer, `on_text` with each piece of text. `timeout_s` bounds the whole call.
        Raises CallFailed; a cancelled call closes its connection at once.
        """
        reply = Reply(self._limits, on_text=on_text, secrets=self._secrets)
        sent = self._asked(body)
        added = "stream_options" if "stream_options" in sent else None
        request = self._request(json.dumps(sent).encode(), idempotency_key)
        try:
            await self._exchange(request, reply, timeout_s, added, on_open or _nothing)
            return reply.answer()
        except CallFailed as failure:
            if isinstance(failure, OptionRefused):
                self._refused = True
            failure.args = (shown(str(failure), self._secrets),)
            reply.book(failure)
            raise

    def _asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """`body` as it is sent: streamed with the usage at its end, where the endpoint can."""
        sent = {name: value for name, value in body.items() if name != "stream_options"}
        if sent.get("stream") is None:
            sent["stream"] = True
        if sent["stream"] and not self._refused:
            sent["stream_options"] = body.get("stream_options") or {"include_usage": True}
        return sent

    def _request(self, body: bytes, idempotency_key: str) -> httpx.Request:
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept": "text/event-stream, application/json",
            "Idempotency-Key": quote(idempotency_key, safe=":"),
        }
        content = body if len(body) <= _PIECE else _pieces(body)
        url = self._address.chat
        return self._http.build_request("POST", url, content=content, headers=headers)

    async def _exchange(
        self,
        request: httpx.Request,
        reply: Reply,
        timeout_s: float,
        added: str | None,
        on_open: Callable[[], None],
    ) -> None:
        """Send `request` and read all of `reply`, within every limit of time."""
        response: httpx.Response | None = None
        total = asyncio.timeout(timeout_s)
        try:
            async with total, asyncio.timeout(self._settings.first_byte_s) as quiet:
                response = await self._http.send(request, stream=True)
                async with aclosing(response):
                    reply.request_id = shown(_header(response, _REQUEST_ID), self._secrets) or None
                    reply.lab = _header(response, _LAB) == "1"
                    if not response.is_success:
                        quiet.reschedule(None)
                        raise await self._refusal(response, added)
                    await self._read(response, reply, quiet, on_open)
        except TimeoutError:
            if not reply.finished:
                raise self._too_slow(timeout_s if total.expired() else None, response) from None
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            if not reply.finished:
                raise self._broken(error) from error

    async def _read(
        self,
        response: httpx.Response,
        reply: Reply,
        quiet: asyncio.Timeout,
        on_open: Callable[[], None],
    ) -> None:
        """Read the body; only what belongs to the answer puts the idle limit off."""
        now = asyncio.get_running_loop().time
        idle_s = self._settings.idle_timeout_s
        quiet.reschedule(now() + idle_s)
        async for chunk in response.aiter_bytes():
            if reply.feed(chunk):
                on_open()
                on_open = _nothing
                wait_s = _LAST_S if reply.ended else _LINGER_S if reply.finished else idle_s
                quiet.reschedule(now() + wait_s)

    async def _refusal(self, response: httpx.Response, added: str | None) -> CallFailed:
        body = bytearray()
        # The status stands, whatever becomes of the body that explains it.
        with suppress(TimeoutError, httpx.HTTPError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(self._settings.idle_timeout_s):
                async for chunk in response.aiter_bytes():
                    body += chunk[:_ERROR_BODY]
                    if len(body) >= _ERROR_BODY:
                        break
        return refusal(
            response.status_code,
            bytes(body),
            response.headers.multi_items(),
            now=time.time(),
            address=self._address.shown,
            added=added,
        )

    def _too_slow(self, in_all_s: float | None, begun: httpx.Response | None) -> OutcomeUnknown:
        message = f"No reply began within {self._settings.first_byte_s} s."
        if begun is not None:
            message = f"No byte of answer came for {self._settings.idle_timeout_s:g} s."
        if in_all_s is not None:
            message = f"The answer was not whole after {in_all_s:g} s."
        return OutcomeUnknown(message, type="timeout")

    def _broken(self, error: Exception) -> CallFailed:
        """What a broken connection means: judged by the cause, see `_NEVER_LEFT`."""
        causes = list(_causes(error))
        if not any(isinstance(cause, _NEVER_LEFT) for cause in causes):
            broke = type(causes[-1]).__name__
            return OutcomeUnknown(f"The connection broke before the answer was whole ({broke}).")
        where = f"Cannot reach {origin(self._address.chat)}"
        if self._proxy:
            where += f" through the proxy {origin(self._proxy)}"
        reason, error_type = why_unreachable(causes)
        return NotSent(f"{where}: {reason}.", type=error_type)


def _nothing() -> None:
    """Nobody wants to be told."""


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, what caused it, what caused that …"""
    while error:
        yield error
        error = error.__cause__


def _key(settings: Settings) -> str | None:
    key = settings.ai_key.get_secret_value().strip() if settings.ai_key else ""
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise SettingsError("AI_KEY: only visible ASCII characters can be sent")
    return key or None


def _header(response: httpx.Response, names: tuple[str, ...]) -> str:
    return next((response.headers[name] for name in names if name in response.headers), "")
