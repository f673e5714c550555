"""The results, for machines and for people."""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from gatecount.overload.experiment import ModeResult
from gatecount.overload.settings import Mode, Settings

STYLE: dict[Mode, str] = {"off": "red", "approximate": "yellow", "hard": "green"}


def as_json(settings: Settings, results: Sequence[ModeResult]) -> dict[str, object]:
    """Return the results as plain data. None stands for what never happened."""
    return {
        "modes": [_mode_as_json(result) for result in results],
        "settings": asdict(settings),
        "machine": machine(),
    }


def _mode_as_json(result: ModeResult) -> dict[str, object]:
    measured, tally = result.measured, result.measured.tally
    return {
        "mode": result.mode,
        "limit": result.limit,
        "peak_in_flight": result.peak,
        "mean_in_flight": round(measured.mean, 2),
        "overshoot": result.overshoot,
        "admitted": tally.admitted,
        "refused": tally.refused,
        "p50_ms": _milliseconds(tally.percentile(50)),
        "p99_ms": _milliseconds(tally.percentile(99)),
        "recovery_ms": _milliseconds(measured.recovery),
        "peak_after_kill": result.peak_after_kill,
        "held_by_killed": measured.held_by_killed,
        "failed_by_kill": measured.failed,
    }


def machine() -> dict[str, object]:
    """Return where and when this was measured."""
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvicorn": version("uvicorn"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def broken_promises(results: Sequence[ModeResult]) -> Iterator[str]:
    """Yield a line for each thing that a hard limit promises and `results` do not show."""
    for result in results:
        if result.mode != "hard":
            continue
        if result.overshoot:
            yield f"hard mode ran {result.peak} requests under a limit of {result.limit}"
        # Without a load that kept it full before, it says nothing that it was not full again.
        well_used = result.measured.mean >= 0.8 * result.limit
        if well_used and result.measured.recovery is None:
            yield "hard mode did not get back what a killed server held"


def print_tables(console: Console, settings: Settings, results: Sequence[ModeResult]) -> None:
    """Print the results as two tables: under load, and after a server was killed."""
    load = _table(
        f"limit {settings.limit}, {settings.servers} servers, {settings.connections} connections, "
        f"{settings.duration:g} s of load",
        "peak in\nflight",
        "mean in\nflight",
        "over-\nshoot",
        "admitted",
        "refused\n(503)",
        "p50\nms",
        "p99\nms",
    )
    kill = _table(
        "then one server is killed (SIGKILL)",
        "in flight in\nthat server",
        "usable again\nby the others",
        "peak in flight\nafter the kill",
    )
    for result in results:
        measured, tally = result.measured, result.measured.tally
        mode = f"[{STYLE[result.mode]}]{result.mode}[/]"
        load.add_row(
            mode,
            str(result.peak),
            f"{measured.mean:.1f}",
            f"+{result.overshoot}" if result.overshoot else "0",
            f"{tally.admitted:,}",
            f"{tally.refused:,}",
            _shown(tally.percentile(50)),
            _shown(tally.percentile(99)),
        )
        kill.add_row(
            mode,
            str(measured.held_by_killed),
            _recovery(settings, result),
            str(result.peak_after_kill),
        )
    console.print(load)
    console.print(kill)
    about = machine()
    notes = [
        f"{about['cpu']}, {about['cores']} cores, {about['system']}, {about['python']}, "
        f"uvicorn {about['uvicorn']}, {about['date']}"
    ]
    if any(result.mode == "approximate" for result in results):
        # Two servers must check within the same fraction of a microsecond, so most runs show less.
        most = settings.limit + settings.servers - 1
        notes.insert(0, f"approximate may run up to {most}: one too many for each other server")
    for note in notes:
        console.print(note, style="dim", highlight=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    table.add_column("\nmode", min_width=len("approximate"))
    for name in columns:
        table.add_column(name if "\n" in name else f"\n{name}", justify="right")
    return table


def _recovery(settings: Settings, result: ModeResult) -> str:
    if result.measured.recovery is not None:
        return f"after {result.measured.recovery * 1000:.0f} ms"
    # Nobody can give back what each process keeps to itself: it takes a restart.
    return "never" if result.mode == "off" else f"not in {settings.patience:g} s"


def _shown(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def _cores() -> int | None:
    """Return how many cores this process may use, which in a container is fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
