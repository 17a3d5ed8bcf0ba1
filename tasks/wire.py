"""The way to the model: a pool of connections that sends each request once, and is sure of it."""

from __future__ import annotations

from base64 import b64encode

import httpx
from aiohttp.client import IDEMPOTENT_METHODS
from httpx_aiohttp import AiohttpTransport

from tasks.errors import SettingsError


def wire(proxy: str | None) -> AiohttpTransport:
    """A transport without limits, through `proxy` where one is given.

    Raises SettingsError where the libraries below it would send a POST again by themselves: aiohttp
    does so, unasked, with the methods that it takes for harmless.
    """
    # No limit of connections (0): lanes and the worker's concurrency are the limits. Servers close
    # an idle one after 2 s or more: a call that met that moment would count as perhaps bought, so
    # ours goes before.
    transport = AiohttpTransport(
        limits=httpx.Limits(max_connections=0, keepalive_expiry=1),
        proxy=_proxy(proxy) if proxy else None,
    )
    if transport.retries or "POST" in IDEMPOTENT_METHODS:
        raise SettingsError("aiohttp: this version repeats a POST by itself; install another one")
    return transport


def _proxy(url: str) -> httpx.Proxy:
    """The proxy at `url`; the transport makes its `Authorization` a `Proxy-Authorization`."""
    proxy = httpx.Proxy(url)
    if not proxy.auth:
        return proxy
    login = b64encode(":".join(proxy.auth).encode()).decode()
    return httpx.Proxy(str(proxy.url), headers={"Authorization": f"Basic {login}"})
