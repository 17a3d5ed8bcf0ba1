"""The way to the model: nobody there, TLS, proxies, IPv6, and the list of models."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest

from tasks.errors import (
    NotSent,
    OutcomeUnknown,
    PermanentError,
    SettingsError,
    TransientError,
)
from tasks.model import ModelClient
from tasks.settings import Settings
from tests.endpoint import HJ, HOLD, SHUT, Endpoint, Request, Script, answered, completion, reply
from tests.test_model import PROMPT, ask, quick


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def unknown_certificate() -> ssl.SSLContext:
    """The server's side of TLS with a certificate that nobody vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("untrusted.pem"))
    return context


async def unreachable(url: str) -> NotSent:
    with pytest.raises(NotSent) as failed:
        await ask(url, settings=quick(connect_timeout_s=0.5))
    assert failed.value.outcome == "not_sent"
    return failed.value


async def test_nobody_listens() -> None:
    failed = await unreachable(f"http://127.0.0.1:{free_port()}")
    assert failed.type == "transient"
    assert "http://127.0.0.1:" in str(failed)


async def test_a_name_without_an_address() -> None:
    failed = await unreachable("http://nowhere.invalid")
    assert (failed.type, "no address" in str(failed)) == ("transient", True)


async def test_a_listener_that_does_not_accept() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        failed = await unreachable(f"http://127.0.0.1:{port}")
        for one in waiting:
            one.close()
    assert (failed.type, "no connection in time" in str(failed)) == ("transient", True)


async def test_https_on_a_plain_port() -> None:
    async def bad_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(bad_request, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        failed = await unreachable(f"https://127.0.0.1:{port}")
    assert (failed.type, "is it http://?" in str(failed)) == ("permanent", True)


async def test_a_certificate_that_is_not_trusted(unknown_certificate: ssl.SSLContext) -> None:
    with Endpoint(answered("a"), tls=unknown_certificate) as endpoint:
        failed = await unreachable(endpoint.url)
        assert endpoint.requests == []
    assert (failed.type, "certificate" in str(failed)) == ("permanent", True)


async def test_a_connection_that_breaks_after_sending_was_sent() -> None:
    with Endpoint([SHUT]) as endpoint, pytest.raises(OutcomeUnknown):
        await ask(endpoint.url)


async def test_ipv6() -> None:
    with Endpoint(answered("six"), host="::1") as endpoint:
        assert (await ask(f"{endpoint.url}/v1")).text == "six"


@pytest.mark.parametrize("no_proxy", ["", "localhost,[::1]", "fd00::/8", "10.0.0.0/8,::1"])
async def test_proxy_variables_leave_the_local_model_alone(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with Endpoint(answered("a")) as endpoint:
        assert (await ask(endpoint.url)).text == "a"


async def test_a_proxy_is_used_for_what_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint(answered("a")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//user:geheim@"))
        assert (await ask("http://model.invalid/v1")).text == "a"
        (request,) = proxy.requests
    assert request.path == "http://model.invalid/v1/chat/completions"
    assert request.headers["proxy-authorization"] == "Basic dXNlcjpnZWhlaW0="
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("status", "type"), [(407, "permanent"), (403, "permanent"), (502, "transient")]
)
async def test_a_proxy_that_makes_no_tunnel_is_named(
    monkeypatch: pytest.MonkeyPatch, status: int, type: str
) -> None:
    with Endpoint(reply(status)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        failed = await unreachable("https://model.invalid/v1")
        assert [request.method for request in proxy.requests] == ["CONNECT"]
    assert failed.type == type
    assert f"through the proxy {proxy.url}: the proxy answered {status}" in str(failed)


async def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTP_PROXY", f"http://user:geheim@{proxy}")
    failed = await unreachable("http://model.invalid/v1")
    assert f"through the proxy http://{proxy}" in str(failed)
    assert "geheim" not in str(failed)


def test_a_transport_that_would_ask_twice_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test by requests is that of each failure (chaos); this one is for versions to come."""
    monkeypatch.setattr("tasks.wire.IDEMPOTENT_METHODS", frozenset({"GET", "POST"}))
    with pytest.raises(SettingsError, match="repeats a POST by itself"):
        ModelClient(Settings(), base_url="http://127.0.0.1:9")


def test_a_proxy_that_cannot_be_used_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(SettingsError, match="ALL_PROXY"):
        ModelClient(quick(), base_url="http://model.invalid")


# The list of models.

MODELS = HJ({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})


async def test_the_first_model_is_asked_for_once_by_all_together() -> None:
    with Endpoint(MODELS) as endpoint:
        client = ModelClient(quick(), base_url=f"{endpoint.url}/v1/")
        names = await asyncio.gather(*(client.default_model() for _ in range(20)))
        assert {*names, await client.default_model()} == {"first"}
        assert [request.path for request in endpoint.requests] == ["/v1/models"]
        await client.aclose()


async def test_a_model_that_is_set_is_not_asked_for() -> None:
    client = ModelClient(quick(AI_MODEL="mine"), base_url="http://127.0.0.1:1")
    assert await client.default_model() == "mine"
    await client.aclose()


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        (HJ({"detail": "Not Found"}, status=404), PermanentError),
        (HJ({"data": []}), PermanentError),
        (HJ({"data": None}), PermanentError),
        (HJ([{"name": "x"}]), PermanentError),
        (reply(200, b"<html>", content_type="text/html"), PermanentError),
        (reply(401), PermanentError),
        (reply(429), TransientError),
        (reply(503), TransientError),
        ([HOLD], TransientError),
    ],
    ids=["404", "no models", "null", "a list", "html", "401", "429", "503", "silence"],
)
async def test_no_model_can_be_named(script: Script, failure: type[Exception]) -> None:
    with Endpoint(script) as endpoint:
        client = ModelClient(quick(idle_timeout_s=0.4), base_url=endpoint.url)
        with pytest.raises(failure, match="AI_MODEL"):
            await client.default_model()
        await client.aclose()


async def test_a_list_that_failed_is_asked_for_again() -> None:
    with Endpoint(reply(503), MODELS) as endpoint:
        client = ModelClient(quick(), base_url=endpoint.url)
        with pytest.raises(TransientError, match="AI_MODEL"):
            await client.default_model()
        assert await client.default_model() == "first"
        await client.aclose()


async def test_a_hundred_slow_calls_at_once_do_not_wait_for_each_other() -> None:
    """The transport's own limit would be 100 connections, without a word."""

    def when_all_are_here(request: Request) -> Script:
        return [*HJ(completion("a"))] if len(endpoint.requests) >= 150 else [HOLD]

    with Endpoint(when_all_are_here) as endpoint:
        client = ModelClient(quick(), base_url=endpoint.url)
        calls = [
            asyncio.create_task(client.chat(PROMPT, idempotency_key="k", timeout_s=10))
            for _ in range(150)
        ]
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert next(iter(done)).result().text == "a"
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await client.aclose()
