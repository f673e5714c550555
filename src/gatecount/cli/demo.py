"""`gatecount demo`: the overload experiment."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gatecount.cli.extras import require
from gatecount.cli.numbers import Number
from gatecount.overload.settings import MODES, Mode, Settings

if TYPE_CHECKING:
    from gatecount.overload.experiment import ModeResult

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def _plot_path(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """Check what would otherwise fail only after the experiment."""
    if value is None:
        return None
    if value.suffix.lower() not in PLOT_SUFFIXES:
        raise click.BadParameter(f"{value} does not end in {', '.join(PLOT_SUFFIXES)}")
    if not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {value.parent}")
    return value


@click.command()
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help="Run only this mode; may be given more than once.  [default: all]",
)
@click.option(
    "--limit",
    default=10,
    show_default=True,
    type=click.IntRange(1, 250),
    help="Requests that may run at once.",
)
@click.option(
    "--servers",
    default=4,
    show_default=True,
    type=click.IntRange(2, 4),
    help="Server processes on one socket.",
)
@click.option(
    "--connections",
    default=80,
    show_default=True,
    type=click.IntRange(2, 500),
    help="Concurrent HTTP connections; more than the limit.",
)
@click.option(
    "--duration",
    default=4.0,
    show_default=True,
    type=Number(0.2, 60),
    help="Load per mode before a server is killed, in seconds.",
)
@click.option(
    "--service-time",
    default=50.0,
    show_default=True,
    type=Number(1, 5000),
    help="Time that a request takes, in milliseconds.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port to listen on.  [default: a free one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--plot",
    metavar="FILE.png",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_plot_path,
    help="Draw the requests running over time (needs the extra gatecount[plot]).",
)
def demo(
    modes: tuple[Mode, ...],
    limit: int,
    servers: int,
    connections: int,
    duration: float,
    service_time: float,
    host: str,
    port: int,
    as_json: bool,
    plot: Path | None,
) -> None:
    """See what server processes really run under one limit.

    For each mode, real HTTP server processes share one socket and are overloaded. The requests
    running are counted inside their handlers, apart from what limits them. Then one server is
    killed in mid-load, to see whether the others can use the capacity that it held.

    \b
    off          each process keeps the limit by itself
    approximate  shared counters: check the sum, then publish
    hard         one exact limit, which outlives a killed process
    """
    if connections <= limit:
        message = f"{connections} connections cannot overload a limit of {limit}: ask for more"
        raise click.BadParameter(message, param_hint="'--connections'")
    require("gatecount demo", "demo", "rich", "uvicorn", "aiohttp")
    if plot is not None:
        require("--plot", "plot", "matplotlib")
    chosen = tuple(mode for mode in MODES if mode in modes) or MODES
    settings = Settings(
        modes=chosen,
        limit=limit,
        servers=servers,
        connections=connections,
        duration=duration,
        service_time=service_time / 1000,
        host=host,
        port=port,
        aftermath=min(1.0, duration),
    )
    _report(settings, _run(settings), as_json=as_json, plot=plot)


def _run(settings: Settings) -> "list[ModeResult]":
    from rich.console import Console

    from gatecount.overload import experiment
    from gatecount.overload.errors import ExperimentError, ListenFailed
    from gatecount.overload.progress import progress_for

    try:
        with progress_for(Console(stderr=True), settings) as watcher:
            return experiment.run(settings, watcher)
    except ListenFailed as error:
        hint = "; choose another --port, or leave it out for a free one" if error.port else ""
        raise click.ClickException(f"{error}{hint}") from error
    except ExperimentError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("Interrupted; all servers have ended.", err=True)
        raise click.exceptions.Exit(130) from None


def _report(
    settings: Settings, results: "list[ModeResult]", *, as_json: bool, plot: Path | None
) -> None:
    from rich.console import Console

    from gatecount.overload import report

    if as_json:
        click.echo(json.dumps(report.as_json(settings, results), indent=2))
    else:
        report.print_tables(Console(), settings, results)
    if plot is not None:
        from gatecount.overload.plot import draw

        try:
            draw(plot, settings, results)
        except OSError as error:
            raise click.ClickException(f"cannot write {plot}: {error.strerror or error}") from error
        click.echo(f"Picture: {plot}", err=True)
    broken = list(report.broken_promises(results))
    if broken:
        raise click.ClickException("; ".join(broken) + ": this is a bug, please report it")
