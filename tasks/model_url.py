"""PURE: where the model is: AI_URL in any spelling, the proxy on the way, what both must hide."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from tasks.errors import SettingsError

_EXAMPLE = "write it like http://127.0.0.1:11434/v1"
_CHAT = "/chat/completions"
_VERSION = re.compile(r"v\d+\w*")
_OTHER_CALLS = (
    "/completions",
    "/responses",
    "/embeddings",
    "/models",
    "/api/chat",
    "/api/generate",
)


@dataclass(frozen=True, slots=True)
class Address:
    """One endpoint: the canonical `chat` URL, `models` beside it, and the login of the URL."""

    chat: str
    models: str
    login: tuple[str, str] | None
    azure: bool

    @property
    def shown(self) -> str:
        """The chat URL as messages may show it: without its query, which can hold a key."""
        return self.chat.partition("?")[0]


def address(url: str) -> Address:
    """The address that `url` means: with or without `/v1`, a slash, the whole path, a query.

    Raises SettingsError, which says what to write.
    """
    text = url.strip()
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingsError(f"AI_URL: {error}; {_EXAMPLE}") from None
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f]", text):
        raise SettingsError(f"AI_URL: not an http or https address; {_EXAMPLE}")
    where = f"[{host}]" if ":" in host else host
    netloc = f"{where}:{port}" if port is not None else where
    path = _chat_path(re.sub(r"/+", "/", parts.path).rstrip("/"), f"{parts.scheme}://{netloc}")
    models = path.removesuffix(_CHAT) + "/models"
    return Address(
        chat=urlunsplit((parts.scheme, netloc, path, parts.query, "")),
        models=urlunsplit((parts.scheme, netloc, models, parts.query, "")),
        login=(unquote(parts.username or ""), unquote(parts.password or ""))
        if "@" in parts.netloc
        else None,
        azure="/openai/deployments/" in path or host.endswith(".azure.com"),
    )


def _chat_path(path: str, root: str) -> str:
    if path.endswith(_CHAT):
        return path
    if path.endswith(_OTHER_CALLS):
        raise SettingsError(f"AI_URL: {path} is not the base of a chat API; try {root}/v1")
    path = path.removesuffix("/chat")
    segments = path.split("/")
    versioned = "deployments" in segments or any(map(_VERSION.fullmatch, segments))
    return path + ("" if versioned else "/v1") + _CHAT


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for `url`, or None.

    HTTPS_PROXY or HTTP_PROXY by scheme, else ALL_PROXY, in either case; NO_PROXY may hold names,
    addresses (IPv6 bare or bracketed), networks and `*`. A loopback address never takes a proxy.
    Raises SettingsError for a proxy that is not an http one.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    names = (f"{parts.scheme}_proxy", "all_proxy")
    found = [(name, _variable(environ, name)) for name in names]
    name, proxy = next(((name, value) for name, value in found if value), ("", ""))
    if not proxy or _is_loopback(host) or _bypassed(host, _variable(environ, "no_proxy")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        usable = urlsplit(proxy).scheme in ("http", "https") and urlsplit(proxy).port != 0
    except ValueError:
        usable = False
    if not usable or not urlsplit(proxy).hostname:
        raise SettingsError(
            f"{name.upper()}: only http:// proxies can be used on the way to AI_URL"
        )
    return proxy


def origin(url: str) -> str:
    """Scheme, host and port alone: what a message may show of any URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def secrets_of(key: str | None, *urls: str | None) -> tuple[str, ...]:
    """What no message may hold: the key, the passwords of `urls` and the long values they ask with.

    What is shorter than four characters is no secret, but would black out half of any message.
    """
    found = {key or ""}
    for url in urls:
        parts = urlsplit(url or "")
        found |= {parts.password or "", unquote(parts.password or "")}
        found |= {value for _, value in parse_qsl(parts.query) if len(value) >= 16}
    return tuple(sorted((secret for secret in found if len(secret) >= 4), key=len, reverse=True))


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _bypassed(host: str, no_proxy: str) -> bool:
    return any(_covers(entry.strip().lower(), host) for entry in no_proxy.split(","))


def _covers(entry: str, host: str) -> bool:
    """Whether one entry of NO_PROXY means `host`; an entry that cannot be read means nobody."""
    if entry == "*":
        return True
    name = re.sub(r"^\[(.*)\](:\d+)?$", r"\1", entry)
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        name = re.sub(r":\d+$", "", name).removeprefix("*").removeprefix(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
