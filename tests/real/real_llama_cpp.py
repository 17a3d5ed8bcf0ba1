"""llama.cpp's Python server with a tiny random model that the test writes itself.

What it taught (llama-cpp-python 0.3.36): a prompt that is too long for the context is refused with
a 400 where no stream was asked for, but ends a stream, cleanly, without a single byte, and closes
the connection after it; and it tells no usage in a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import CallFailed
from tasks.model import Answer, ModelClient
from tasks.settings import Settings
from tests.real.jobs import run_jobs
from tests.real.servers import environment, running
from tests.real.tiny_model import write_tiny_model
from tests.test_model_reach import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PROMPT = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A running server of the tiny model. Setting it up compiles llama.cpp: minutes, once."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model)
    url = f"http://127.0.0.1:{(port := free_port())}"
    python = environment("llama-cpp", "llama-cpp-python[server]") / "python"
    options = f"--model {model} --model_alias tiny --n_ctx 512 --n_threads 1 --port {port}"
    with running([python, "-m", "llama_cpp.server", *options.split()], f"{url}/v1/models"):
        yield url


@pytest.fixture
async def client(server: str) -> AsyncIterator[ModelClient]:
    client = ModelClient(Settings(), base_url=server)
    yield client
    await client.aclose()


async def ask(client: ModelClient, **body: Any) -> Answer:
    return await client.chat(PROMPT | body, idempotency_key="k", timeout_s=60)


async def test_llama_cpp(client: ModelClient) -> None:
    assert await client.default_model() == "tiny"
    streamed, whole = [await ask(client, stream=stream) for stream in (True, False)]
    assert streamed.text
    assert (streamed.text, streamed.finish_reason) == (whole.text, "length")
    assert (streamed.output_tokens, whole.output_tokens) == (0, 12)

    for stream, type, outcome in (
        (True, "transient", "unknown"),
        (False, "permanent", "rejected"),
    ):
        with pytest.raises(CallFailed) as failed:
            await ask(client, stream=stream, messages=[{"role": "user", "content": "a " * 2000}])
        assert (failed.value.type, failed.value.outcome) == (type, outcome), str(failed.value)
        await asyncio.sleep(1.5)  # its connection is not used again

    call = asyncio.create_task(ask(client, max_tokens=400))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await ask(client)).text == whole.text


async def test_jobs_with_llama_cpp(settings: Settings, server: str) -> None:
    whole = {**PROMPT, "stream": False}
    jobs = await run_jobs(settings, server, ("chat", PROMPT, 1), ("chat", whole, 1))
    texts = {job["result"]["text"] for job in jobs}
    assert len(texts) == 1, "the same prompt, streamed and not"
    assert {job["result"]["finish_reason"] for job in jobs} == {"length"}
