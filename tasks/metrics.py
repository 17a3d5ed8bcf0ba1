"""The figures for Prometheus: counted in the store, so that any server shows those of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from tasks.store.constants import BUCKETS_MS

Figures = Mapping[tuple[str, ...], int]

_COUNTERS: Final = {
    "entered": (
        "slowcall_transitions",
        "Jobs that entered a status.",
        ("kind", "status", "reason"),
    ),
    "calls": ("slowcall_calls", "Calls to the model by how they ended.", ("model", "outcome")),
    "tokens": ("slowcall_tokens", "Tokens that calls told of.", ("model", "direction")),
    "reused": ("slowcall_steps_reused", "Steps taken from the store, not bought again.", ("kind",)),
}
_HISTOGRAMS: Final = {
    "pickup": ("slowcall_pickup_seconds", "From submission to the first start.", ("kind",)),
    "call": ("slowcall_call_seconds", "How long a call took.", ("model",)),
    "first": ("slowcall_first_byte_seconds", "How long a call's first byte took.", ("model",)),
}


def store_metrics(figures: Figures, stats: Mapping[str, Any]) -> Iterator[Metric]:
    """What all servers and workers did (`figures`) and what is the case now (`stats`).

    The values are those of the whole store: of several servers, scrape one, or take the maximum.
    """
    for name, family in _COUNTERS.items():
        yield _counter(figures, name, *family)
    for name, family in _HISTOGRAMS.items():
        yield _histogram(figures, name, *family)
    yield from _gauges(stats)


def _counter(
    figures: Figures, name: str, metric: str, text: str, labels: tuple[str, ...]
) -> CounterMetricFamily:
    family = CounterMetricFamily(metric, text, labels=labels)
    for (first, *values), number in sorted(figures.items()):
        if first == name:
            family.add_metric(values, number)
    return family


def _histogram(
    figures: Figures, name: str, metric: str, text: str, labels: tuple[str, ...]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric, text, labels=labels)
    found: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    for (first, *values), number in figures.items():
        if first == name:
            found[tuple(values[:-1])][values[-1]] = number
    for labelled, parts in sorted(found.items()):
        total_ms = parts.pop("sum", 0)
        family.add_metric(labelled, list(_cumulative(parts)), total_ms / 1000)
    return family


def _cumulative(parts: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """Buckets as Prometheus wants them: each with all that is at most its bound, in seconds."""
    so_far = 0
    for bound_ms in BUCKETS_MS:
        so_far += parts.get(str(bound_ms), 0)
        yield str(bound_ms / 1000), so_far
    yield "+Inf", so_far + parts.get("+Inf", 0)


def _gauges(stats: Mapping[str, Any]) -> Iterator[GaugeMetricFamily]:
    workers: Iterable[Mapping[str, Any]] = stats["workers"]
    errors = sum(worker.get("store_errors", 0) for worker in workers)
    lanes: Iterable[Mapping[str, Any]] = stats["lanes"]
    closed = sum(lane["opens_at"] is not None for lane in lanes)
    in_line = sum(lane["in_line"] for lane in lanes)
    for metric, text, value in (
        ("slowcall_queue_depth", "Jobs that wait.", stats["queue_depth"]),
        ("slowcall_running", "Jobs that run.", stats["running"]),
        ("slowcall_oldest_wait_seconds", "How long the oldest waits.", stats["oldest_wait_s"]),
        ("slowcall_lanes_closed", "Models that asked for a pause.", closed),
        ("slowcall_lanes_in_line", "Jobs that wait for a place at their model.", in_line),
        ("slowcall_live_workers", "Workers that renewed lately.", stats["live_workers"]),
        ("slowcall_worker_store_errors", "Times a live worker found the store away.", errors),
    ):
        yield GaugeMetricFamily(metric, text, value=value)
