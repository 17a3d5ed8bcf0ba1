"""What every request passes before its route: the right host, the same site, a known caller."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.auth import Caller, Guest, Keyring, session_user
from server.problems import problem, refusal
from tasks.errors import Forbidden, Refusal, Unauthorized
from tasks.settings import is_loopback

COOKIE: Final = "slowcall_session"
MAX_HEADERS: Final = 32_768
"""Bytes of a request's headers in all."""
_OUR_PAGE: Final = "x-requested-with"
_OPEN: Final = re.compile(r"/|/static/.*|/openapi\.json|/healthz|/readyz|/session")
_SHARED: Final = re.compile(r"/jobs/(?!stream$)[^/]+(/stream)?")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SECURITY: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class SecurityHeaders:
    """Middleware: the headers that keep a browser from harm, on every answer, errors too.

    Only files have an ETag: they may be kept, if they are asked for anew each time (RFC 9111).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                kept = (b"cache-control", b"no-cache" if b"etag" in given else b"no-store")
                more = [header for header in (*_SECURITY, kept) if header[0] not in given]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, with_headers)


class Gate:
    """Middleware: refuses what comes from the wrong place, and puts the caller into the scope."""

    def __init__(self, app: ASGIApp, *, keyring: Keyring, origins: Collection[str]) -> None:
        self._app, self._keyring, self._origins = app, keyring, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._look_at(scope) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)

    def _look_at(self, scope: Scope) -> Response | None:
        """The refusal, if the request is refused. Not a part of the call above, where all that was
        looked at would stay as long as a stream does."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            return problem(431, f"The headers are larger than {MAX_HEADERS} bytes.")
        headers = _headers_of(scope)
        try:
            if not self._keyring:
                check_host(headers.get("host", ""))
            if not _is_public(scope):
                check_site(scope["method"], headers, self._origins)
            scope["user"] = self._caller(scope, headers)
        except Refusal as error:
            return refusal(error, scope.get("root_path", ""))
        return None

    def _caller(self, scope: Scope, headers: Mapping[str, str]) -> Caller:
        """The caller: by key, by signed link, by session. Raises Unauthorized."""
        path = _path_of(scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._keyring:
            return Caller.named(self._keyring.user_of(key.strip()))
        query = scope["query_string"]
        share = query and QueryParams(query).get("share")
        if share and scope["method"] in ("GET", "HEAD") and _SHARED.fullmatch(path):
            return Guest(token=share, keyring=self._keyring)
        if not self._keyring or _OPEN.fullmatch(path):
            return Caller()
        if session := cookie(headers, COOKIE):
            return Caller.named(session_user(self._keyring, session))
        raise Unauthorized("Send a key of SLOWCALL_API_KEYS as `Authorization: Bearer`.")


def _path_of(scope: Scope) -> str:
    """The path of a request below where this app is mounted."""
    return str(scope["path"].removeprefix(scope.get("root_path", "")))


def _is_public(scope: Scope) -> bool:
    """Whether it is a look at what anybody may see: the page, its files, how the server is."""
    return scope["method"] in ("GET", "HEAD") and bool(_OPEN.fullmatch(_path_of(scope)))


def _headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names; of several of one name the first one."""
    raw = reversed(list(scope["headers"]))
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}


@lru_cache
def check_host(host: str) -> None:
    """Without keys only loopback is served: another name for it is a page that was rebound to us
    by its DNS. Raises Forbidden."""
    if not is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise Forbidden(
            "Without SLOWCALL_API_KEYS this server answers at localhost only; set keys to serve "
            "other hosts."
        )


def check_site(method: str, headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Another site's page may link here, and do nothing else. Raises Forbidden.

    What a browser says of the site itself comes first: behind a proxy the host may be renamed. It
    says nothing where there is no TLS; then our page is known by a header that another site's
    could not send, for its browser would ask us first (CORS).
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    if site is not None:
        same = site in ("same-origin", "none") or link
    else:
        host = headers.get("host", "").lower()
        same = origin is None or urlsplit(origin).netloc == host or _OUR_PAGE in headers
    same = same or origin in origins
    if not same:
        raise Forbidden(
            "This comes from another site; SLOWCALL_CORS_ORIGINS names those that may call."
        )


def cookie(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a cookie, if it was sent."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return morsel.value if morsel else None


class HideTokens(logging.Filter):
    """A log filter: signed links are not written into the access log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Blank the token in the record's arguments; the record itself is always kept."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                re.sub(r"([?&]share=)[^&]+", r"\1…", arg) if isinstance(arg, str) else arg
                for arg in record.args
            )
        return True
