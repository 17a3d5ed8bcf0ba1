"""PURE: check the spelling of `REDIS_URL`, bring it to one form, show it without its password."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

SCHEMES: Final = ("redis", "rediss", "unix")
FORM: Final = "redis://[user:password@]host:6379/0"
OPTIONS: Final = re.compile(r"db|ssl_\w+|socket_\w+|health_check_interval")
ENCODE: Final = (
    "write the password percent-encoded (@ is %40, # is %23, / is %2F, ? is %3F, % is %25)"
)


def check_redis_url(text: str) -> str:
    """The address in the one form that every part understands, its database in the path.

    Raises ValueError with a line that says what to write and holds nothing of the password.
    """
    text = text.strip()
    scheme, found, _ = text.partition("://")
    if not found or scheme.lower() not in SCHEMES:
        raise ValueError(_scheme_advice(scheme.lower() if found else ""))
    _check_password(text)
    parts = urlsplit(text)
    options = _options(parts)
    return _unix(parts, options) if parts.scheme == "unix" else _network(parts, options)


def show_redis_url(url: str) -> str:
    """A checked address without user, password and options, for people to see."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return _join(parts.scheme, host, parts.path, {})


def _scheme_advice(scheme: str) -> str:
    if "sentinel" in scheme or "cluster" in scheme:
        return f"Sentinel and Cluster are not supported; write the address of one server: {FORM}"
    if scheme in {"valkey", "valkeys"}:
        return f"write {'redis' if scheme == 'valkey' else 'rediss'}:// for {scheme}://"
    return f"an address begins with redis://, rediss:// or unix://; write {FORM}"


def _check_password(text: str) -> None:
    """Refuse what a URL parser would cut a raw password at: it would call another host."""
    rest = text.partition("://")[2]
    credentials, found, host = rest.rpartition("@")
    if not found:
        return
    if re.search(r"[@#/?\s]", credentials) or re.search(r"%(?![0-9A-Fa-f]{2})", credentials):
        raise ValueError(ENCODE)
    if "#" in host:
        raise ValueError(ENCODE)


def _options(parts: SplitResult) -> dict[str, str]:
    if parts.fragment:
        raise ValueError(f"# has no place here; {ENCODE}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if not OPTIONS.fullmatch(name):
            raise ValueError("after ? only db, ssl_*, socket_* and health_check_interval are taken")
    return options


def _network(parts: SplitResult, options: dict[str, str]) -> str:
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"the port is not a number; write {FORM}") from None
    if not parts.hostname:
        raise ValueError(f"the host is missing; write {FORM}")
    if port == 0:
        raise ValueError(f"0 is no port; write {FORM}")
    in_path = parts.path.strip("/")
    in_options = options.pop("db", in_path)
    if in_path and in_options != in_path:
        raise ValueError(f"it names two databases; write one: {FORM}")
    return _join(parts.scheme, parts.netloc, f"/{_database(in_options)}", options)


def _unix(parts: SplitResult, options: dict[str, str]) -> str:
    host = parts.netloc.rpartition("@")[2]
    if host or not parts.path.strip("/"):
        raise ValueError("write unix:///path/to/redis.sock?db=0, with three slashes")
    options["db"] = _database(options.get("db", ""))
    return _join(parts.scheme, parts.netloc, parts.path, options)


def _join(scheme: str, netloc: str, path: str, options: dict[str, str]) -> str:
    """The parts as a URL; the standard library would drop the slashes of an empty host."""
    return f"{scheme}://{netloc}{path}" + (f"?{urlencode(options)}" if options else "")


def _database(text: str) -> str:
    if not re.fullmatch(r"\d{0,9}", text, re.ASCII):
        raise ValueError(f"the database is not a number; write {FORM}")
    return str(int(text or 0))
