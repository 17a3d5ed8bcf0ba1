"""slowcall's commands as processes, for tests: start them, read what they say, see them gone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import wait_until

ROOT = Path(__file__).parent.parent
QUICK = {
    "SLOWCALL_LAB_DELAY_S": "0",
    "SLOWCALL_LAB_TOKENS_PER_S": "0",
    "SLOWCALL_LEASE_S": "2",
    "SLOWCALL_QUOTA": "0",
}


class Command:
    """A running `slowcall` command in a folder that is not ours; use it as a context manager."""

    def __init__(self, *words: str, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        self._words = words
        self._environment = {**environment_of(data_dir), **environment}
        self.lines: list[str] = []

    def __enter__(self) -> Command:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "server", *self._words],
            env=self._environment, cwd=self.data_dir, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        family = self.family()
        if self.process.poll() is None:
            self.process.kill()
        for pid in family:
            kill(pid)
        self.process.wait(10)
        self._reader.join(10)
        if self.process.stdout:
            self.process.stdout.close()

    @property
    def text(self) -> str:
        """All it said so far."""
        return "\n".join(self.lines)

    def url(self) -> str:
        """The address that it announces; waits for that."""
        return self.find(r"(http://127\.0\.0\.1:\d+)(?!\S*/ledger)")

    def find(self, pattern: str, within_s: float = 30) -> str:
        """The first group of the pattern in what it says; waits for that."""
        wait_until(
            lambda: re.search(pattern, self.text) or self.process.poll() is not None,
            f"the command says {pattern!r}", within_s,
        )  # fmt: skip
        found = re.search(pattern, self.text)
        assert found, f"it ended with {self.process.returncode} and said:\n{self.text}"
        return found[1] if found.re.groups else found[0]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this one process."""
        self.process.send_signal(number)

    def ends(self, within_s: float = 20) -> int:
        """Its exit code; waits for that."""
        wait_until(lambda: self.process.poll() is not None, f"it ends\n{self.text}", within_s)
        self._reader.join(10)
        return self.process.returncode

    def family(self) -> dict[int, str]:
        """The live processes below it: id -> command line."""
        return descendants(self.process.pid)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))


def run(
    *words: str, data_dir: Path, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `before`: a folder ahead of ours on the path of modules."""
    env = environment_of(data_dir)
    if before:
        env["PYTHONPATH"] = f"{before}{os.pathsep}{env['PYTHONPATH']}"
    return subprocess.run(
        [sys.executable, "-P", "-m", "server", *words],
        env={**env, **environment}, cwd=data_dir, text=True, capture_output=True, timeout=40,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def environment_of(data_dir: Path) -> dict[str, str]:
    """An environment with quick settings, this data folder and no other setting of ours."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(ROOT),
        "SLOWCALL_DATA_DIR": str(data_dir),
        **QUICK,
    }


def descendants(pid: int) -> dict[int, str]:
    """The live processes below `pid`: id -> command line."""
    table = processes()
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child, (ppid, command) in table.items():
            if ppid == parent:
                found[child] = command
                waiting.append(child)
    return found


def processes() -> Mapping[int, tuple[int, str]]:
    """All live processes: id -> parent's id and command line; without zombies."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = (line.split(maxsplit=3) for line in listed.splitlines())
    return {
        int(pid): (int(ppid), args[0] if args else "")
        for pid, ppid, stat, *args in rows
        if not stat.startswith("Z")
    }


def alive(pids: Mapping[int, str]) -> dict[int, str]:
    """Those that live still, as the same command (an id may be given out again)."""
    table = processes()
    return {pid: what for pid, what in pids.items() if table.get(pid, (0, ""))[1] == what}


def kill(pid: int) -> None:
    """End a process that the test has started; it may have ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
