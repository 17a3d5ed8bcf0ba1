"""PURE: which addresses a callback may name; what a name means is looked at when it is called."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from tasks.errors import InvalidInput
from tasks.settings import Settings

PRIVATE: Final = "a private address is not called (SLOWCALL_WEBHOOK_PRIVATE)"

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_callback(url: str, settings: Settings) -> None:
    """Raises InvalidInput for an address that could never be told."""
    if not settings.webhook_secret:
        _refuse("callbacks are signed: the server needs SLOWCALL_WEBHOOK_SECRET")
    try:
        host, _ = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        host = None
    if not host:
        _refuse("not an address")
    elif not settings.webhook_private and is_private_literal(host):
        _refuse(PRIVATE)


def _refuse(message: str) -> None:
    raise InvalidInput("The body does not fit.", [{"pointer": "/callback_url", "message": message}])


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet, also where it wraps another one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.is_global and not ip.is_multicast and all(is_public(str(i)) for i in _wrapped(ip))


def _wrapped(ip: Address) -> Iterable[Address]:
    if ip.version == 4:
        return ()
    inner = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF))
    return [address for address in inner if address is not None]


def is_private_literal(host: str) -> bool:
    """Whether a host is written as an address that is none of the internet."""
    try:
        return not is_public(host)
    except ValueError:
        return False
