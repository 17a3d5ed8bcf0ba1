"""A worker is killed: how long until another one runs its job again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from tests.bench.jobs import QUEUES, Peer
from tests.bench.parts import Place, place, running, until
from tests.bench.peers import BEGUN
from tests.bench.table import OURS, Table

JOB_S: Final = 3
"""As long as the job takes; a queue that goes by a time-out of jobs is given this one."""
_NOTE: Final = (
    f"arq's worker looks again when its job_timeout (here {JOB_S} s, by default 300) and 10 s more "
    "are over. The other peers wait for minutes, or for ever."
)


def bench(runs: int, quick: bool) -> list[Table]:
    """One table."""
    table = Table("kill -9 of a worker: seconds until another one runs its job", _NOTE)
    arq = "arq, tuned"
    cases = [(OURS, f"lease {lease} s", {"BENCH_LEASE_S": str(lease)}) for lease in (2, 10)]
    cases.append((arq, f"job_timeout {JOB_S} s", {"BENCH_TIMEOUT_S": str(JOB_S)}))
    for _ in range(runs):
        for name, measure, more in cases[:1] if quick else cases:
            table.add(name, measure, _recover_s(QUEUES[name], more))
    return [table]


def _recover_s(peer: Peer, more: dict[str, str]) -> float:
    with place() as here, ExitStack() as stack:
        tuned = str(int(peer.tuned))
        more = {"BENCH_JOBS": "1", "BENCH_AT_ONCE": "10", "BENCH_TUNED": tuned, **more}
        environment = here.environment(**more)
        for _ in range(2):
            work = peer.words("work", 10)
            stack.enter_context(running(*work, env=environment, cwd=here.folder))
        time.sleep(2)
        subprocess.run(peer.words("submit", JOB_S, 0), env=environment, check=True)
        until(lambda: list(_begun(here)), "the job runs")
        ((victim, _),) = _begun(here)
        os.kill(victim, signal.SIGKILL)
        killed_s = time.time()
        until(lambda: len(list(_begun(here))) > 1, "another worker runs it", 60)
        return list(_begun(here))[1][1] - killed_s


def _begun(here: Place) -> Iterator[tuple[int, float]]:
    """Who began the job, and when (s of the epoch)."""
    with here.redis() as client:
        for line in client.lrange(BEGUN, 0, -1):
            pid, at_s = line.split()
            yield int(pid), float(at_s)
