"""Whatever anybody sends, the description holds: no 500, no status or body that it does not tell.

A fuzzer reads the description and tries each address by itself, then stories: submit a job, then
read, cancel, retry, discard what came of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx

from server.app import create_app
from tasks.settings import Settings
from tests.conftest import serving

CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
OPTIONS = [
    "--phases=coverage,fuzzing,stateful",
    f"--checks={CHECKS}",
    "--exclude-path-regex=/stream$",
    "--max-examples=10",
    "--seed=1",
    "--request-timeout=10",
    "--suppress-health-check=all",
    "--no-color",
]


def test_the_description_holds_whatever_is_sent(settings: Settings, tmp_path: Path) -> None:
    free = settings.model_copy(update={"quota": 0})
    with serving(create_app(free)) as url:
        described = httpx.get(f"{url}/openapi.json").json()
        for path in described["paths"].values():
            for method in path.keys() - {"parameters"}:
                del path[method]["responses"]["500"]  # described, but not to be seen here
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps(described))
        run = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", str(file), f"--url={url}", *OPTIONS],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        jobs = httpx.get(f"{url}/jobs").json()["jobs"]
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert jobs, "some of what was sent was taken"
