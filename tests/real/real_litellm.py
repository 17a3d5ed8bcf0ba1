"""LiteLLM's proxy in front of the lab model: a gateway that rewrites every reply and every error.

What it taught (LiteLLM 1.108): it hands on `Retry-After` only as `llm_provider-retry-after`, turns
a connection it lost into a 500, and drops the code of an error, so that a spent quota looks like
any other 429.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.errors import CallFailed
from tasks.model import Answer, ModelClient
from tasks.settings import Settings
from tests.conftest import LabModel
from tests.real.jobs import run_jobs
from tests.real.servers import environment, running
from tests.test_model_reach import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

KEY = "sk-0123456789abcdef0123456789abcdef"
PROMPT = {"model": "gate", "messages": [{"role": "user", "content": "hello big world"}]}


@pytest.fixture
def gateway(lab: LabModel, tmp_path: Path) -> Iterator[str]:
    """A running proxy that offers the lab model as `gate` and does not retry by itself."""
    model = {"model": "openai/lab", "api_base": f"{lab.url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "gate", "litellm_params": model | {"max_retries": 0}}],
        "litellm_settings": {"num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = environment("litellm", "litellm[proxy]") / "litellm"
    command: list[str | Path] = [program, "--config", path, "--host", "127.0.0.1"]
    variables = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with running([*command, "--port", str(port)], f"{url}/health/liveliness", **variables):
        yield url


@pytest.fixture
async def client(gateway: str) -> AsyncIterator[ModelClient]:
    client = ModelClient(Settings(AI_KEY=SecretStr(KEY)), base_url=gateway)
    yield client
    await client.aclose()


async def ask(client: ModelClient, key: str, **body: Any) -> Answer:
    return await client.chat(PROMPT | body, idempotency_key=key, timeout_s=20)


async def test_a_gateway(client: ModelClient, lab: LabModel) -> None:
    assert await client.default_model() == "gate"
    for number, streamed in enumerate((True, False)):
        answer = await ask(client, f"good {number}", stream=streamed)
        assert (answer.text, answer.finish_reason) == ("HELLO BIG WORLD", "stop")
        assert (answer.input_tokens, answer.output_tokens, answer.lab) == (3, 3, True)
    assert lab.ledger()["sold"] == 2

    for fault, outcome, type, wait_s in (
        ({"status": 429, "retry_after": "3"}, "rejected", "rate_limited", 3),
        ({"status": 503, "retry_after": "3"}, "rejected", "rate_limited", 3),
        ({"status": 500}, "rejected", "transient", None),
        ({"status": 400}, "rejected", "permanent", None),
        ({"status": 401}, "rejected", "permanent", None),
        ({"error_after": 1}, "rejected", "transient", None),
        ({"cut_after": 1}, "unknown", "transient", None),
        ({"drop": "after"}, "unknown", "transient", None),
    ):
        lab.misbehave(fault)
        with pytest.raises(CallFailed) as failed:
            await ask(client, json.dumps(fault))
        found = (failed.value.outcome, failed.value.type, failed.value.retry_after_s)
        assert found == (outcome, type, wait_s), f"{fault}: {failed.value}"


async def test_jobs_through_a_gateway(settings: Settings, gateway: str, lab: LabModel) -> None:
    keyed = settings.model_copy(update={"ai_key": SecretStr(KEY)})
    pages = {"pages": ["one two three", "four five six", "seven eight nine"]}
    chat, summary = await run_jobs(keyed, gateway, ("chat", PROMPT, 1), ("summarize", pages, 4))
    assert chat["result"]["text"] == "HELLO BIG WORLD"
    assert summary["progress"]["done"] == 3
    assert lab.ledger()["sold"] == 5
