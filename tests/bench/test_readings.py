"""The readings of a soak: a leak of each sort is seen, and what a pool keeps is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.prove_parts import House
from tests.bench.readings import POOLED, THREADS, Reading, jobs_left

FIRST = Reading(
    keys=Counter(figures=1, workers=1),
    passing=10,
    wrong=(),
    connections=20,
    streams=0,
    files=40,
    threads=9,
    memory_mib={"worker-1": 80, "server-1": 70},
    store_mib=2,
)


@pytest.mark.parametrize(
    ("leak", "said"),
    [
        ({"keys": Counter(figures=1, workers=1, log=2)}, "2 more keys of the sort log"),
        ({"wrong": ("slowcall:x never expires",)}, "never expires"),
        ({"connections": 53}, "53 connections, 20 in the beginning, 52 at most"),
        ({"streams": 1}, "1 streams"),
        ({"files": 41 + POOLED}, "open files"),
        ({"threads": 10 + THREADS}, "threads"),
        ({"memory_mib": {"worker-1": 80, "server-1": 86}}, "86 MiB of server-1, 70 in the"),
        ({"store_mib": 4}, "MiB of the store"),
    ],
)
def test_a_leak_is_seen(leak: dict[str, Any], said: str) -> None:
    """Each in its own words, and nothing else with it."""
    (line,) = replace(FIRST, **leak).leaks(FIRST)
    assert said in line


def test_no_leak_is_seen_where_there_is_none() -> None:
    """Fewer of anything, replies on their way out, and as much more as a pool may keep."""
    later = replace(FIRST, keys=Counter(figures=1), passing=500, files=40 + POOLED, store_mib=2.5)
    assert list(later.leaks(FIRST)) == []


def test_a_reading_is_taken_of_the_real_thing(tmp_path: Path) -> None:
    """A house that has done nothing yet."""
    with House(tmp_path) as house:
        house.add(servers=1)
        reading = Reading.take(house, house.servers)
        assert jobs_left(house) == 0
    assert reading.wrong == ()
    assert reading.streams == 0
    assert reading.connections >= 2, "the server's and ours"
    assert reading.files > 5
    assert 20 < reading.memory_mib["server-1"] < 200
