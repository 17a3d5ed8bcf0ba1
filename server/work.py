"""Run a worker with what it needs: the store joined, a lab model where no AI_URL is set."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop
from pydantic import SecretStr

from server.listen import listen, url_of
from server.valkey import join_store
from server.words import model_line, say, store_line
from tasks.settings import Settings
from tasks.worker import run_worker


def work(
    settings: Settings,
    *,
    burst: bool,
    max_jobs: int | None,
    kinds: Sequence[str] | None,
    quiet: bool,
) -> None:
    """Work until a signal comes or, in a `burst`, nothing is left; `max_jobs` at once; not `quiet`:
    say where. Raises SettingsError, StoreUnavailable."""
    with join_store(settings) as joined, model_of(joined) as (ready, lab):
        if not quiet:
            store = store_line(joined, embedded=settings.redis_url is None)
            say(f"slowcall works on {store}; model: {model_line(ready, lab)}; Ctrl-C stops it")
        uvloop.run(
            run_worker(ready, burst=burst, max_jobs=max_jobs, kinds=list(kinds) if kinds else None)
        )


@contextmanager
def model_of(settings: Settings) -> Iterator[tuple[Settings, str | None]]:
    """The settings with an AI_URL: the user's, else that of a lab model in a thread of its own,
    whose URL comes second."""
    if settings.ai_url is not None:
        yield settings, None
        return
    # Not at the top: a worker with an endpoint starts sooner without them.
    import uvicorn

    from server.lab import create_lab

    with listen("127.0.0.1", 0) as door:
        server = uvicorn.Server(uvicorn.Config(create_lab(settings), log_config=None, ws="none"))
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [door]}, name="lab", daemon=True
        )
        thread.start()
        try:
            url = url_of(door)
            yield settings.model_copy(update={"ai_url": SecretStr(f"{url}/v1")}), url
        finally:
            server.should_exit = True
            thread.join(5)
