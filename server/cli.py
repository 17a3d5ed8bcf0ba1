"""The command line: `up`, its parts one by one, and the terminal client."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from typing import Annotated, Final

import typer

from server.words import say
from tasks.errors import SettingsError, SlowcallError, StoreUnavailable
from tasks.settings import Settings, load_settings

EXIT_WRONG: Final = 2
"""The exit code of a start that a wrong setting or a missing part stopped."""
LAB_PORT: Final = 8001

app = typer.Typer(
    name="slowcall",
    help="Slow model calls as jobs: paid once, streamed live, resumed after anything.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Instead of SLOWCALL_PORT.")]
PartName = Annotated[str | None, typer.Option("--part", hidden=True)]
ListenFd = Annotated[int | None, typer.Option("--listen-fd", hidden=True)]


def main() -> None:
    """Run the command of the command line; every failure is one line and an exit code."""
    # Modules that SLOWCALL_KINDS names are looked for here, too, behind all others: a file of the
    # user's never takes the place of one of ours.
    sys.path.append(os.getcwd())
    try:
        app()
    except SlowcallError as error:
        sys.stderr.write(f"slowcall: {error}\n")
        sys.exit(EXIT_WRONG)
    except KeyboardInterrupt:
        sys.exit(130)


@app.command()
def up(
    workers: Annotated[int, typer.Option(min=0, help="Worker processes.")] = 1, port: Port = None
) -> None:
    """Start everything, supervised: the store, the lab model (without AI_URL), workers, server."""
    from server.launch import up as launch

    settings = prepared("up", port=port)
    asyncio.run(launch(settings, workers=workers, say=say))


@app.command()
def serve(port: Port = None, part: PartName = None, listen_fd: ListenFd = None) -> None:
    """Start a server alone."""
    from server.app import create_app
    from server.serving import serve as run

    settings = prepared(part or "server", port=port, supervised=part is not None)
    if not part:
        look_at_store(settings)
    run(create_app(settings), settings, door=door(settings, listen_fd), quiet=part is not None)


@app.command()
def lab(
    port: Annotated[int, typer.Option(min=0, max=65535)] = LAB_PORT,
    part: PartName = None,
    listen_fd: ListenFd = None,
) -> None:
    """Start the lab model alone: OpenAI-compatible, without a network, with a meter."""
    from server.lab import create_lab
    from server.serving import serve as run

    settings = prepared(part or "lab", port=port, supervised=part is not None)
    settings = settings.model_copy(update={"host": "127.0.0.1"})
    run(create_lab(settings), settings, door=door(settings, listen_fd), quiet=part is not None)


@app.command()
def worker(
    burst: Annotated[bool, typer.Option(help="End when nothing is left to do.")] = False,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Jobs at once.")] = None,
    kinds: Annotated[str | None, typer.Option(help="Only these kinds: a,b")] = None,
    part: PartName = None,
) -> None:
    """Start a worker alone."""
    from server.work import work

    settings = prepared(part or "worker", supervised=part is not None)
    if not part:
        look_at_store(settings)
    only = [name.strip() for name in kinds.split(",") if name.strip()] if kinds else None
    work(settings, burst=burst, max_jobs=max_jobs, kinds=only, quiet=part is not None)


@app.command()
def submit(
    source: Annotated[str, typer.Argument(metavar="FILE|TEXT|-", show_default=False)],
    kind: Annotated[str | None, typer.Option(help="chat, summarize, agent, or your own.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until it is done.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the job, or each event, as a line.")
    ] = False,
) -> None:
    """Submit a file (to be summarized), a text (a chat) or standard input."""
    from server import terminal

    settings = load_settings()
    sys.exit(terminal.submit(settings, source, kind=kind, follow=watch, as_json=json))


@app.command()
def watch(
    job_id: Annotated[str, typer.Argument(show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print each event as a line.")] = False,
) -> None:
    """Watch a job to its end, with a live bar. Exit code: 0 done, 1 failed, 3 cancelled."""
    from server import terminal

    sys.exit(terminal.watch(load_settings(), job_id, as_json=json))


@app.command()
def prove(
    seconds: Annotated[float, typer.Option(min=10, help="About so long in all.")] = 45,
    jobs: Annotated[int, typer.Option(min=1, help="Orders in each round.")] = 60,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 3,
    lease: Annotated[float, typer.Option(min=0.5, help="Seconds of a lease.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the order in which faults come.")] = 1,
) -> None:
    """Prove it: faults injected into real parts, a metered model, the books. Exit 0: they hold."""
    from rich.console import Console

    from server import prove as proof

    plan = proof.Plan(seconds=seconds, jobs=jobs, workers=workers, lease_s=lease, seed=seed)
    sys.exit(0 if proof.prove(plan, Console(highlight=False)) else 1)


@app.command("alert-test")
def alert_test() -> None:
    """Send a test alert to every target of SLOWCALL_ALERT_URLS and say who took it."""
    from tasks.alerts import send_test

    settings = prepared("alert-test")
    if not settings.alert_urls:
        raise SettingsError("SLOWCALL_ALERT_URLS: not set, so nobody would be told")
    took = asyncio.run(send_test(settings))
    for number, ok in enumerate(took, 1):
        say(f"target {number}: {'took it' if ok else 'did NOT take it'}")
    sys.exit(0 if all(took) else 1)


def prepared(name: str, *, port: int | None = None, supervised: bool = False) -> Settings:
    """The settings, with logging set up under this name and the supervisor watched."""
    from tasks.logs import configure_logging
    from tasks.telemetry import configure_tracing

    configure_logging(name)
    configure_tracing(name)
    settings = load_settings(warn=not supervised)
    if supervised:
        from server.supervise import leave_with_parent

        leave_with_parent(settings.drain_s + 10)
    return settings if port is None else settings.model_copy(update={"port": port})


def look_at_store(settings: Settings) -> None:
    """Warn of what the store of a part that runs alone lacks; one that is away may come yet."""
    from tasks.store.check import check_store

    try:
        lines = check_store(settings) if settings.redis_url else []
    except StoreUnavailable as error:
        lines = [f"{error}; waiting for it"]
    for line in lines:
        logging.getLogger("slowcall").warning(line)


def door(settings: Settings, listen_fd: int | None) -> socket.socket:
    """The socket to serve on: the supervisor's, else one of our own."""
    from server.listen import listen

    return socket.socket(fileno=listen_fd) if listen_fd else listen(settings.host, settings.port)
