"""The set-up: what `make` says where Python will not do, and what the package brings along."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.commands import ROOT

TOO_OLD = 'test "$1" = --version && echo "Python 3.9.2"; exit $(test "$1" = --version; echo $?)'
NO_VENV = 'case "$2" in *ensurepip*) exit 1;; esac; exit 0'


@pytest.mark.parametrize(
    ("python", "first_line"),
    [
        (TOO_OLD, r"slowcall needs Python 3.11 or newer, and here is Python 3.9.2: install one"),
        (NO_VENV, r"slowcall needs Python's venv module, which python3 lacks: sudo apt install"),
        ("exit 127", r"slowcall needs Python 3.11 or newer, and here is no python3: install one"),
    ],
)
def test_a_python_that_will_not_do_is_named_in_the_first_line(
    tmp_path: Path, python: str, first_line: str
) -> None:
    fake = tmp_path / "python3"
    fake.write_text(f"#!/bin/sh\n{python}\n")
    fake.chmod(0o755)
    refused = subprocess.run(
        ["/bin/sh", str(ROOT / ".ci" / "venv"), str(tmp_path / "venv")],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr.startswith(first_line)
    assert not (tmp_path / "venv").exists()


def test_the_package_brings_all_that_it_reads(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("slowcall-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        entries = archive.read(next(n for n in packed if n.endswith("entry_points.txt"))).decode()
    wanted = {
        str(path.relative_to(ROOT))
        for wing in ("server", "tasks", "static")
        for path in (ROOT / wing).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert wanted - packed == set()
    assert not [name for name in packed if name.startswith("tests/")]
    assert "slowcall = server.__main__:main" in entries
