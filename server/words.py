"""What the commands say to the person at the terminal."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from tasks.redis_url import show_redis_url
from tasks.settings import Settings


def say(line: str) -> None:
    """A line for the person who started us; at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def greeting(
    settings: Settings, *, url: str, lab: str | None, workers: int, embedded: bool
) -> list[str]:
    """What `up` says when all is ready, with requests to paste."""
    key = "-H 'Authorization: Bearer KEY' " if settings.api_keys else ""
    return [
        f"slowcall {release()} is up",
        f"  page     {url}",
        f"  store    {store_line(settings, embedded)}",
        f"  model    {model_line(settings, lab)}",
        f"  workers  {workers}",
        "",
        "Try it:",
        f"  curl {key}{url}/jobs -H 'Content-Type: application/json' "
        '-d \'{"input": "hello, slow world"}\'',
        f"  curl {key}{url}/jobs -F kind=summarize -F file=@report.txt",
        f"  curl -N {key}{url}/jobs/stream",
        "",
        "Ctrl-C stops it.",
    ]


def store_line(settings: Settings, embedded: bool) -> str:
    """Where the jobs are kept; without a password."""
    if embedded:
        return f"embedded Valkey in {settings.data_dir}"
    url = settings.redis_url.get_secret_value() if settings.redis_url else ""
    return show_redis_url(url)


def model_line(settings: Settings, lab: str | None) -> str:
    """Who answers; the host alone, since an address may hold a key."""
    if lab:
        return f"the built-in lab ({lab}/ledger); set AI_URL to ask a real one"
    url = settings.ai_url.get_secret_value() if settings.ai_url else ""
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return f"{settings.ai_model or 'the first one'} at {host}"


def waiting(running: int, drain_s: float) -> str:
    """What a stop waits for."""
    if not running:
        return "stopping"
    jobs = "1 job to finish its call" if running == 1 else f"{running} jobs to finish their calls"
    return f"waiting for {jobs}, up to {drain_s:g} s; Ctrl-C again does not wait"


def release() -> str:
    """Our version."""
    try:
        return version("slowcall")
    except PackageNotFoundError:
        return "(not installed)"
