"""Seen from outside: one trace for a whole job, figures that add up."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from importlib import resources
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from tasks.arq_worker import Worker
from tasks.kinds import load_kinds
from tasks.lifecycle import DEFER
from tasks.settings import Concurrency, Settings
from tasks.store import NoPlace, Settlement, Store
from tasks.worker import build_worker
from tests.commands import Command, run
from tests.conftest import LabModel
from tests.endpoint import Endpoint, reply
from tests.rig import store_at
from tests.serving import Hand, served, submit, until

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PAGES = [f"Page {number} is short. It ends here." for number in range(1, 41)]


async def working(stack: AsyncExitStack, settings: Settings, lab: LabModel) -> Worker:
    """A worker that runs until the stack ends."""
    ready = settings.model_copy(update={"ai_url": SecretStr(lab.url)})
    worker = await build_worker(ready, load_kinds(), stack)
    running = worker.loop.create_task(worker.async_run())

    async def stop() -> None:
        worker.leave()
        await running

    stack.push_async_callback(stop)
    return worker


async def ended(store: Store, job_id: str) -> None:
    """Wait for a job's end."""

    async def final() -> bool:
        return (await store.read(job_id)).final

    await until(final, f"job {job_id} ends", within_s=30)


async def test_a_job_with_a_retry_and_a_take_over_is_one_trace(
    settings: Settings, lab: LabModel, spans: Callable[[], list[ReadableSpan]]
) -> None:
    echo = "You sent: Page 7 is short."
    lab.misbehave({"match": "Page 7 is", "times": 1, "status": 503, "message": echo})
    async with served(settings) as client, store_at(settings) as store, AsyncExitStack() as stack:
        body = {"kind": "summarize", "input": {"pages": PAGES}}
        answer = await client.post("/jobs", json=body, headers={"traceparent": CALLER})
        job_id = answer.json()["job_id"]
        # A worker that dies: it claims, starts and is not heard of again.
        claimed, _ = await store.claim("dies", ["summarize"], 1, 0.01)
        assert claimed[0].run
        await working(stack, settings, lab)
        await ended(store, job_id)

    ours = [span for span in spans() if f"{span.context.trace_id:032x}" == CALLER[3:35]]
    names = Counter(span.name for span in ours)
    assert names["send summarize"] == 1
    assert names["process summarize"] == 2, "the take-over's attempt and the retry's"
    assert names["chat lab"] == 1 + len(PAGES) + 1, "one refused, each page, the join"
    assert (names["step page 7"], names["step page 8"]) == (2, 1)
    by_id = {span.context.span_id: span for span in ours}
    for call in (span for span in ours if span.name == "chat lab"):
        step = by_id[call.parent.span_id if call.parent else 0]
        assert step.name.startswith("step ")
        assert by_id[step.parent.span_id if step.parent else 0].name == "process summarize"
        for span in (call, step):
            assert span.attributes is not None
            assert span.attributes["slowcall.job.id"] == job_id
            assert span.attributes["slowcall.job.kind"] == "summarize"
            assert span.attributes["slowcall.job.attempt"] in (2, 3)
    send = next(span for span in ours if span.name == "send summarize")
    assert send.attributes is not None
    assert send.attributes["slowcall.job.id"] == job_id
    for attempt in (span for span in ours if span.name == "process summarize"):
        assert [link.context.span_id for link in attempt.links] == [send.context.span_id]
        assert attempt.attributes is not None
        assert attempt.attributes["slowcall.job.id"] == job_id
        assert attempt.attributes["user.id"] == "local"
    calls = [span for span in ours if span.name == "chat lab"]
    assert [span.status.status_code for span in calls].count(StatusCode.ERROR) == 1
    good = next(span for span in calls if span.status.status_code is StatusCode.UNSET)
    assert good.attributes is not None
    assert good.attributes["gen_ai.operation.name"] == "chat"
    assert good.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert int(str(good.attributes["gen_ai.usage.output_tokens"])) > 0
    assert all("short" not in span.to_json() for span in ours), "no prompt and no answer"


def test_the_spans_of_every_part_are_sent_where_otel_says(tmp_path: Path) -> None:
    with Endpoint(reply(200, b"", content_type="application/x-protobuf")) as collector:
        otel = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with Command("serve", "--port", "0", data_dir=tmp_path, **otel) as server:
            httpx.post(f"{server.url()}/jobs", json={"input": "hello"}).raise_for_status()
            assert run("worker", "--burst", data_dir=tmp_path, **otel).returncode == 0
            server.signal(signal.SIGINT)
            server.ends()
        assert {request.path for request in collector.requests} == {"/v1/traces"}
        sent = b"".join(request.body for request in collector.requests)
    for word in (b"slowcall-server", b"send chat", b"slowcall-worker", b"process chat"):
        assert word in sent
    assert b"hello" not in sent.lower()


async def test_fifty_calls_cut_in_the_middle_end_their_spans_without_noise(
    settings: Settings,
    lab: LabModel,
    spans: Callable[[], list[ReadableSpan]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab.misbehave({"delay_s": 30})
    free = settings.model_copy(update={"quota": 0})
    async with served(free) as client, store_at(free) as store, AsyncExitStack() as stack:
        await working(stack, free, lab)
        jobs = [await submit(client) for _ in range(50)]

        async def all_open() -> bool:
            return bool((await client.get("/stats")).json()["running"] == len(jobs))

        await until(all_open, "all calls are under way")
        for job_id in jobs:
            await client.post(f"/jobs/{job_id}/cancel")
        for job_id in jobs:
            await ended(store, job_id)
    assert [span.name for span in spans()].count("process chat") == len(jobs)
    noise = [line for line in caplog.messages if "detach" in line or "never awaited" in line]
    assert noise == []


async def test_the_figures_are_those_of_two_servers_and_two_workers(
    settings: Settings, lab: LabModel
) -> None:
    lab.misbehave(
        {"match": "stumble", "times": 1, "status": 500}, {"match": "never", "status": 400}
    )
    free = settings.model_copy(update={"quota": 0})
    async with served(free) as one, served(free) as two, AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_at(free))
        # A worker that dies: it claims, starts and is not heard of again.
        lost = await submit(one, "well")
        claimed, _ = await store.claim("dies", ["chat"], 1, 0.01)
        assert claimed[0].run
        await working(stack, free, lab)
        await working(stack, free, lab)
        inputs = ["well"] * 10 + ["stumble"] + ["never"]
        jobs = [await submit((one, two)[number % 2], text) for number, text in enumerate(inputs)]
        for job_id in (lost, *jobs):
            await ended(store, job_id)
        shown = [(await client.get("/metrics")).text for client in (one, two)]
    for text in shown:
        found = read_metrics(text)
        assert found["slowcall_transitions_total", "chat", "", "done"] == 12
        assert found["slowcall_transitions_total", "chat", "", "failed"] == 1
        assert found["slowcall_transitions_total", "chat", "transient", "retrying"] == 1
        assert found["slowcall_transitions_total", "chat", "lost", "retrying"] == 1
        assert found["slowcall_calls_total", "lab", "paid"] == 12
        assert found["slowcall_calls_total", "lab", "rejected"] == 2
        assert found["slowcall_pickup_seconds_count", "chat"] == 13
        assert found["slowcall_call_seconds_count", "lab"] == 14
        assert found["slowcall_first_byte_seconds_count", "lab"] == 12
        assert found["slowcall_tokens_total", "output", "lab"] > 0
        assert found["slowcall_running",] == found["slowcall_oldest_wait_seconds",] == 0
        assert found["slowcall_live_workers",] == 2
        assert found["slowcall_queue_depth",] == 0


async def test_a_closed_lane_and_who_waits_for_it_are_figures(settings: Settings) -> None:
    narrow = settings.model_copy(update={"model_concurrency": Concurrency(1)})
    async with served(narrow) as client, store_at(narrow) as store:
        hand = Hand(store)
        first, second = [await hand.start(await submit(client)) for _ in range(2)]
        await store.begin(first, call="c", step="answer", model="m", hash="h")
        begun = await store.begin(second, call="d", step="answer", model="m", hash="h")
        assert isinstance(begun, NoPlace)
        await store.requeue(second, DEFER, reason="rate_limited", counted=False, lane="m")
        refused = Settlement("c", "answer", "h", "rejected", 429, closed_s=60)
        await store.settle(first, refused)
        found = read_metrics((await client.get("/metrics")).text)
    assert found["slowcall_lanes_closed",] == 1
    assert found["slowcall_lanes_in_line",] == 1


async def test_every_query_of_the_dashboard_asks_for_a_metric_there_is(
    settings: Settings, lab: LabModel
) -> None:
    text = (resources.files("server") / "dashboard.json").read_text()
    asked = {name for name, _ in _queries(json.loads(text))}
    async with served(settings) as client, AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_at(settings))
        await working(stack, settings, lab)
        await ended(store, await submit(client))
        there = {labels[0] for labels in read_metrics((await client.get("/metrics")).text)}
    assert asked - there == set()
    assert len(asked) >= 10


def _queries(dashboard: dict[str, object]) -> Iterator[tuple[str, str]]:
    panels = dashboard["panels"]
    assert isinstance(panels, list)
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            words = "".join(c if c.isalnum() or c == "_" else " " for c in expression).split()
            yield from ((word, expression) for word in words if word.startswith("slowcall_"))


def read_metrics(text: str) -> dict[tuple[str, ...], float]:
    """Prometheus text as values by name and labels, the labels in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
