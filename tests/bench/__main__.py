"""slowcall beside its peers, as tables: `python -m tests.bench [section …] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tests.bench.parts import PEERS
from tests.bench.table import Table

SECTIONS: Final = (*("jobs", "post", "streams", "deltas", "recovery", "growth", "start"),)
RESULTS: Final = Path(__file__).parent / "results"
_OURS: Final = ("arq", "redis", "starlette", "uvicorn", "sse-starlette", "uvloop")


def main() -> None:
    """Run the sections that are asked for, print their tables and keep them in `results`."""
    asked = _arguments()
    if not PEERS.exists():
        print(f"No Python of the peers at {PEERS}: `make bench` sets one up; without it only arq.")
    for name in asked.sections or SECTIONS:
        section = importlib.import_module(f"tests.bench.{name}")
        began_s = time.monotonic()
        tables = section.bench(1 if asked.quick else asked.runs, asked.quick)
        _show(name, tables, time.monotonic() - began_s)
        if not asked.quick:
            _keep(name, tables)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, once: does it work?")
    parser.add_argument("--runs", type=int, default=3, help="runs for each figure (3)")
    asked = parser.parse_args()
    if unknown := set(asked.sections) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}")
    return asked


def _show(name: str, tables: list[Table], took_s: float) -> None:
    print(f"\n## {name} ({took_s:.0f} s, load {os.getloadavg()[0]:.1f})\n")
    print("\n\n".join(table.markdown() for table in tables), flush=True)


def _keep(name: str, tables: list[Table]) -> None:
    """One pair of files for each section: its newest run stands in the repository."""
    RESULTS.mkdir(exist_ok=True)
    facts = _machine()
    about = ", ".join(f"{key} {value}" for key, value in facts.items())
    text = "\n\n".join(table.markdown() for table in tables)
    (RESULTS / f"{name}.md").write_text(f"{text}\n\n{about}\n")
    document = {"machine": facts, "tables": [table.document() for table in tables]}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "Python": platform.python_version(),
        **{name: version(name) for name in _OURS},
    }


if __name__ == "__main__":
    main()
