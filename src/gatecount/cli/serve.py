"""`gatecount serve`: several API server processes in front of one engine or app, behind one cap."""

from __future__ import annotations

import re
import signal
from typing import Final

import click

from gatecount._core import MAX_LIMIT, MAX_SLOTS
from gatecount.cli.counts import Count
from gatecount.cli.extras import require
from gatecount.cli.numbers import Number
from gatecount.frontend.errors import StartError
from gatecount.frontend.settings import Accept, Admission, EngineSettings, OnExit, ServeSettings
from gatecount.interrupts import Terminated, sigterm_raises

LOG_LEVELS: Final = ("critical", "error", "warning", "info", "debug")
_REFERENCE_ONLY: Final = (
    "token_limit",
    "service_time",
    "prefill_time",
    "engine_concurrency",
    "engine_load_time",
    "warmup_time",
)


def _app_path(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[\w.]+:[\w.]+", value):
        raise click.BadParameter(f"{value!r} is not of the form package.module:attribute")
    return value


@click.command(
    epilog="""\b
    Exit codes:
      0    it was ended by SIGTERM
      1    it could not start, or ended by itself; one line says why
      2    wrong usage
      130  it was ended by Ctrl-C (SIGINT)
    In every case nothing that was started is left running."""
)
@click.argument("app", required=False, metavar="[APP]", callback=_app_path)
@click.option(
    "--workers",
    "--api-server-count",
    "workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, MAX_SLOTS),
    metavar="N",
    help="Server processes on one socket.",
)
@click.option(
    "--limit",
    "--max-num-queued-reqs",
    "limit",
    type=Count(1, MAX_LIMIT),
    help="Requests in flight; one with n samples counts n.  [default: no cap]",
)
@click.option(
    "--token-limit",
    "--max-num-queued-tokens",
    "token_limit",
    type=Count(1, MAX_LIMIT),
    help="Prompt tokens in prefill; no more prompts once they have reached this.  [default: no cap]",
)
@click.option(
    "--mode",
    "--admission",
    "admission",
    default="hard",
    show_default=True,
    type=click.Choice(["hard", "approximate", "off"]),
    help="hard: exact global cap. approximate: approximate global cap, which each other server may pass "
    "by one request. off: each server has the cap for itself, so N servers run N times as much.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for a free one.",
)
@click.option(
    "--on-exit",
    default="respawn",
    show_default=True,
    type=click.Choice(["respawn", "stop"]),
    help="What follows when a server ends by itself, once what it held is given back: another takes its "
    "place, or all are ended.",
)
@click.option(
    "--accept",
    type=click.Choice(["least-loaded", "any"]),
    help="Which server takes a new connection: the one with fewest open, or whichever wakes first.  "
    "[default: least-loaded where several share a cap]",
)
@click.option(
    "--shutdown-timeout",
    default=5.0,
    show_default=True,
    type=Number(0, 3600),
    metavar="SECONDS",
    help="How long running requests may take to end; servers have that long and 3 more before they are "
    "killed.",
)
@click.option(
    "--start-timeout",
    default=60.0,
    show_default=True,
    type=Number(0.1, 86_400),
    metavar="SECONDS",
    help="How long each server may take to be ready, beside --engine-load-time and --warmup-time.",
)
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(LOG_LEVELS),
    help="Of all processes.",
)
@click.option(
    "--service-time",
    default=200.0,
    show_default=True,
    type=Number(0, 600_000),
    metavar="MS",
    help="Reference engine: how long a sample runs after its prefill.",
)
@click.option(
    "--prefill-time",
    default=0.0,
    show_default=True,
    type=Number(0, 600_000),
    metavar="MS",
    help="Reference engine: how long the prefill of 1,000 prompt tokens takes.",
)
@click.option(
    "--engine-concurrency",
    default=1024,
    show_default=True,
    type=Count(1, 1_000_000),
    help="Reference engine: samples that run at once; more wait inside.",
)
@click.option(
    "--engine-load-time",
    default=0.0,
    show_default=True,
    type=Number(0, 3600),
    metavar="SECONDS",
    help="Reference engine: how long it loads.",
)
@click.option(
    "--warmup-time",
    default=0.0,
    show_default=True,
    type=Number(0, 3600),
    metavar="SECONDS",
    help="Reference app: how long each server's start-up work takes, beside the engine's loading.",
)
@click.pass_context
def serve(
    context: click.Context,
    app: str | None,
    workers: int,
    limit: int | None,
    token_limit: int | None,
    admission: Admission,
    host: str,
    port: int,
    on_exit: OnExit,
    accept: Accept | None,
    shutdown_timeout: float,
    start_timeout: float,
    log_level: str,
    service_time: float,
    prefill_time: float,
    engine_concurrency: int,
    engine_load_time: float,
    warmup_time: float,
) -> None:
    """Serve an app with several processes, behind one cap on what all of them have in flight.

    APP is any ASGI application, package.module:attribute; the cap holds the requests and WebSockets in
    it. Without APP, the reference app is served: completions in the shape of OpenAI's API
    (/v1/completions), from one engine that takes time instead of thinking. What does not fit is
    refused with status 503 and Retry-After. /health and /metrics are never refused.

    Counts: 32k is 32,000, 1K is 1,024; likewise m, M, g, G.
    """
    if app is not None:
        _refuse_what_needs_the_reference_app(context)
    settings = ServeSettings(
        app=app,
        workers=workers,
        max_num_queued_reqs=limit,
        max_num_queued_tokens=token_limit,
        admission=admission,
        accept=accept,
        shutdown_timeout=shutdown_timeout,
        start_timeout=start_timeout,
        engine=EngineSettings(
            service_time=service_time / 1000,
            prefill_time=prefill_time / 1000,
            concurrency=engine_concurrency,
            load_time=engine_load_time,
        ),
        warmup_time=warmup_time,
    )
    _run(settings, host=host, port=port, on_exit=on_exit, log_level=log_level)


def _refuse_what_needs_the_reference_app(context: click.Context) -> None:
    for option in context.command.params:
        if option.name in _REFERENCE_ONLY:
            source = context.get_parameter_source(option.name)
            if source is not click.core.ParameterSource.DEFAULT:
                raise click.BadParameter("only the reference app has this: leave APP out", param=option)


def _run(settings: ServeSettings, *, host: str, port: int, on_exit: OnExit, log_level: str) -> None:
    import logging

    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(message)s")
    try:
        with sigterm_raises():
            require("gatecount serve", "serve", "uvicorn", "starlette", "prometheus_client")
            from gatecount.frontend import host as frontend_host

            told = frontend_host.run(
                settings, host=host, port=port, on_exit=on_exit, log_level=log_level, say=click.echo
            )
    except StartError as error:
        raise click.ClickException(str(error)) from error
    except Terminated:  # before anything was started
        told = signal.SIGTERM
    except KeyboardInterrupt:
        told = signal.SIGINT
    if told is signal.SIGINT:
        click.echo("Interrupted; all servers have ended.", err=True)
        raise click.exceptions.Exit(130)
