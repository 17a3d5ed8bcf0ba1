"""AI_URL in every spelling, and the proxy on the way there."""

from __future__ import annotations

import pytest

from tasks.errors import SettingsError
from tasks.model_url import address, proxy_for, secrets_of

V1 = "http://h:1/v1/chat/completions"


@pytest.mark.parametrize(
    ("url", "chat"),
    [
        ("http://h:1", V1),
        ("http://h:1/", V1),
        (" http://h:1/v1\n", V1),
        ("http://h:1/v1/", V1),
        ("http://h:1//v1//", V1),
        ("http://h:1/v1/chat", V1),
        ("http://h:1/v1/chat/completions", V1),
        ("http://h:1/v1/chat/completions/", V1),
        ("http://u:p@h:1/v1", V1),
        ("http://h:1/v1#top", V1),
        ("HTTP://H:1/v1", V1),
        ("http://[::1]:1/v1", "http://[::1]:1/v1/chat/completions"),
        ("https://h/api", "https://h/api/v1/chat/completions"),
        ("https://h/openai/v1", "https://h/openai/v1/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4/chat/completions"),
        (
            "https://x.azure.com/openai/deployments/x?api-version=1",
            "https://x.azure.com/openai/deployments/x/chat/completions?api-version=1",
        ),
    ],
)
def test_every_spelling_is_one_url(url: str, chat: str) -> None:
    assert address(url).chat == chat


def test_the_models_are_beside_the_chat() -> None:
    assert address("http://h/v1?a=b").models == "http://h/v1/models?a=b"


def test_a_login_is_taken_out_and_a_query_not_shown() -> None:
    found = address("http://us%40er:p%3Aw@h/v1?code=abc")
    assert found.login == ("us@er", "p:w")
    assert found.shown == "http://h/v1/chat/completions"


@pytest.mark.parametrize("url", ["https://x.azure.com/", "http://h/openai/deployments/d"])
def test_azure_is_known_by_its_name_or_its_path(url: str) -> None:
    assert address(url).azure
    assert not address("https://api.openai.com/v1").azure


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "write it like"),
        ("h:1", "write it like"),
        ("localhost", "write it like"),
        ("ftp://h/v1", "write it like"),
        ("http://", "write it like"),
        ("http://h:port/v1", "write it like"),
        ("http://h:99999/v1", "write it like"),
        ("http://[::1/v1", "write it like"),
        ("http://h/a b", "write it like"),
        ("http://h/v1/completions", "try http://h/v1"),
        ("http://h/v1/responses", "try http://h/v1"),
        ("http://h:11434/api/generate", "try http://h:11434/v1"),
    ],
)
def test_what_is_no_base_says_what_to_write(url: str, says: str) -> None:
    with pytest.raises(SettingsError, match=r"^AI_URL: ") as refused:
        address(url)
    assert says in str(refused.value)


P = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://h/v1", {}, None),
        ("http://h/v1", {"HTTP_PROXY": P}, P),
        ("http://h/v1", {"http_proxy": P}, P),
        ("http://h/v1", {"http_proxy": "proxy:3128"}, P),
        ("http://h/v1", {"HTTPS_PROXY": P}, None),
        ("https://h/v1", {"HTTPS_PROXY": P}, P),
        ("https://h/v1", {"ALL_PROXY": P}, P),
        ("http://127.0.0.1:1/v1", {"HTTP_PROXY": P}, None),
        ("http://localhost:1/v1", {"HTTP_PROXY": P, "NO_PROXY": "localhost"}, None),
        ("http://[::1]:1/v1", {"HTTP_PROXY": P}, None),
        ("http://h/v1", {"HTTP_PROXY": P, "NO_PROXY": "*"}, None),
        ("http://h/v1", {"HTTP_PROXY": P, "NO_PROXY": "a, H"}, None),
        ("http://h:8/v1", {"HTTP_PROXY": P, "NO_PROXY": "h:8"}, None),
        ("http://a.corp/v1", {"HTTP_PROXY": P, "NO_PROXY": ".corp"}, None),
        ("http://a.corp/v1", {"HTTP_PROXY": P, "NO_PROXY": "*.corp"}, None),
        ("http://acorp/v1", {"HTTP_PROXY": P, "NO_PROXY": "corp"}, P),
        ("http://10.1.2.3/v1", {"HTTP_PROXY": P, "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://[fd00::5]/v1", {"HTTP_PROXY": P, "NO_PROXY": "localhost,[::1],fd00::/8"}, None),
        ("http://[fd00::5]/v1", {"HTTP_PROXY": P, "NO_PROXY": "[fd00::5]"}, None),
        ("http://h/v1", {"HTTP_PROXY": P, "NO_PROXY": "localhost,[::1],,%%"}, P),
    ],
)
def test_proxies(url: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_for(url, environ) == proxy


@pytest.mark.parametrize("proxy", ["socks5://u:geheim@h:1", "http://", "http://h:port"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_secret(proxy: str) -> None:
    with pytest.raises(SettingsError, match="ALL_PROXY") as refused:
        proxy_for("http://h/v1", {"ALL_PROXY": proxy})
    assert "geheim" not in str(refused.value)


def test_secrets() -> None:
    found = secrets_of("key-1", "http://u:p%40ssword@h/?code=0123456789abcdef&v=1", None)
    assert set(found) == {"key-1", "p%40ssword", "p@ssword", "0123456789abcdef"}
    assert secrets_of("x") == ()
