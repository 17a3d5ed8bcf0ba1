"""Model servers of other makers, each in a virtual environment of its own, made once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs


def environment(name: str, *packages: str) -> Path:
    """The `bin` folder of a virtual environment with `packages`; it is kept for the next time."""
    folder = platformdirs.user_cache_path("slowcall", appauthor=False) / "real" / name
    done = folder / "done"
    if not done.exists() or done.read_text() != repr(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        python = folder / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.write_text(repr(packages))
    return folder / "bin"


@contextmanager
def running(command: list[str | Path], ready_url: str, **variables: str) -> Iterator[None]:
    """Run `command` until the block ends; the block begins when `ready_url` answers."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait(process, ready_url)
            yield
        except BaseException:
            output.seek(0)
            sys.stderr.write(output.read()[-8000:].decode("utf-8", "replace"))
            raise
        finally:
            process.terminate()
            process.wait(20)


def _wait(process: subprocess.Popen[bytes], url: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer (exit code {process.poll()})")
