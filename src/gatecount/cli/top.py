"""`gatecount top`: gates, live."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Self

import click

from gatecount.cli.extras import require
from gatecount.cli.gates import (
    GateCommand,
    GateName,
    Snapshot,
    explained,
    json_option,
    print_json,
    snapshot,
)
from gatecount.cli.numbers import Number
from gatecount.errors import LayoutMismatch
from gatecount.gate import Gate
from gatecount.listing import names, open_now

if TYPE_CHECKING:
    from rich.console import Console

    from gatecount.cli.screen import Rate, View

_EXIT_CODES = """\b
    Exit codes:
      0    it was left by Ctrl-C, or printed what there is
      1    one line on standard error says why: there is no such gate, it is
           damaged, it is another user's
      2    wrong usage
      143  it was ended by SIGTERM"""


@click.command(cls=GateCommand, epilog=_EXIT_CODES)
@click.argument("name", type=GateName(), metavar="[NAME]", required=False)
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Number(0.1, 3600),
    metavar="SECONDS",
    help="Time between two looks.",
)
@json_option
def top(name: str | None, interval: float, as_json: bool) -> None:
    """Watch a gate, or all gates: bars for the caps, one row per worker. Ctrl-C leaves.

    Where standard output is no terminal, or with --json, it is printed once.

    Admitted and refused count calls through a worker's slot, those of its earlier owners too.

    Looking writes nothing: what dead workers held counts, and is shown as theirs, until it is taken
    back. If the gate is removed its processes are shown on, until one of that name is created again.
    """
    with ExitStack() as stack:
        watched = stack.enter_context(_Named(name)) if name is not None else _All()
        if as_json:
            print_json({"gates": [told.as_json() for told, _trouble in watched.look()]})
            return
        require("gatecount top", "cli", "rich")
        from gatecount.cli.screen import NO_GATES
        from gatecount.cli.show import print_gate
        from gatecount.cli.tables import is_terminal, make_console

        console = make_console()
        if console.is_dumb_terminal or not is_terminal():
            looked = list(watched.look())
            for told, _trouble in looked:
                print_gate(console, told)
            if not looked:
                console.print(NO_GATES, style="dim")
            return
        _watch(console, watched, interval)


class _Named:
    """The gate of one name. Held open, so that it can be shown on when its name is gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        with explained(name):
            self._gate = Gate.open(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._gate.close()

    def look(self) -> Iterator[tuple[Snapshot, str | None]]:
        trouble = None
        try:
            gate = open_now(self.name)
        except FileNotFoundError:
            trouble = "removed: only processes that have it open go on with it"
        except LayoutMismatch as mismatch:
            trouble = f"replaced by a file that {mismatch.reason}"
        except OSError as error:
            trouble = f"cannot be opened any more: {error.strerror}"
        else:
            self._gate.close()
            self._gate = gate
        yield snapshot(self._gate), trouble


class _All:
    """Every gate that has a name and may be opened."""

    def look(self) -> Iterator[tuple[Snapshot, str | None]]:
        for name in names():
            try:
                with open_now(name) as gate:
                    yield snapshot(gate), None
            except (ValueError, OSError):
                continue  # another user's, no gate, or just removed; list tells of these


class _Rates:
    """What changed between two looks, per second."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Snapshot]] = {}

    def of(self, told: Snapshot) -> dict[str, Rate]:
        from gatecount.cli.screen import Rate

        now = time.monotonic()
        then, before = self._before.get(told.name, (now, told))
        self._before[told.name] = now, told
        rates = {}
        for cap, after in told.statistics.caps.items():
            earlier = before.statistics.caps.get(cap)
            # Fewer than before: another gate stands under the name now.
            if earlier is None or now <= then or after.admitted < earlier.admitted:
                continue
            admitted, refused = after.admitted - earlier.admitted, after.refused - earlier.refused
            rates[cap] = Rate(admitted / (now - then), max(0, refused) / (now - then))
        return rates


def _watch(console: Console, watched: _Named | _All, interval: float) -> None:
    from rich.live import Live

    from gatecount.cli.screen import Screen, View

    rates = _Rates()
    try:
        with _signals() as sleep, Live(console=console, screen=True, auto_refresh=False) as live:
            views: list[View] = []
            due = 0.0
            while True:
                if time.monotonic() >= due:
                    due = time.monotonic() + interval
                    views = [View(told, rates.of(told), trouble) for told, trouble in watched.look()]
                footer = f"Ctrl-C leaves   {time.strftime('%H:%M:%S')}, every {interval:g} s"
                live.update(Screen(views, footer), refresh=True)
                sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        return


@contextmanager
def _signals() -> Iterator[Callable[[float], None]]:
    """Yield a sleep that ends early when the terminal has another size; make SIGTERM an orderly end.

    By a pipe: a handler may come between any two steps of what it interrupts, and an Event that is set
    while it is being waited for can wait for itself.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)

    def note(_number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # full of notes
            os.write(write, b"\0")

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def sleep(seconds: float) -> None:
        if select.select([read], [], [], seconds)[0]:
            os.read(read, 4096)

    before = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, note),
        signal.SIGTERM: signal.signal(signal.SIGTERM, end),
    }
    try:
        yield sleep
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)
