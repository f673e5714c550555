"""`gatecount show`: one gate, in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gatecount.cli.extras import require
from gatecount.cli.gates import (
    EXIT_CODES,
    GateCommand,
    Snapshot,
    json_option,
    name_argument,
    opened,
    print_json,
    printable,
    snapshot,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@click.command(cls=GateCommand, epilog=EXIT_CODES)
@name_argument
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a gate: its caps, and the processes that own its slots.

    Admitted and refused count calls through a process's slot, those of its earlier owners too.

    Nothing is written to it: what dead processes held still counts here until it is taken back.
    """
    with opened(name) as gate:
        told = snapshot(gate)
    if as_json:
        print_json(told.as_json())
        return
    require("gatecount show", "cli", "rich")
    from gatecount.cli.tables import make_console

    print_gate(make_console(), told)


def print_gate(console: Console, told: Snapshot) -> None:
    """Print a gate: title, caps, owners."""
    from gatecount.cli.screen import title
    from gatecount.cli.tables import dead_note, worker_table

    console.print(title(told), soft_wrap=True)
    for table in _cap_tables(console, told):
        console.print(table)
    if not told.statistics.slots and not told.dead:
        console.print("no process owns a slot", style="dim")
        return
    workers, notes = worker_table(told, console.width)
    console.print(workers)
    for note in [*notes, *dead_note(told.name, told.dead)]:
        console.print(note, style="dim", soft_wrap=True)


def _cap_tables(console: Console, told: Snapshot) -> list[Table]:
    """Return the caps side by side, in as many tables as the width asks for."""
    from gatecount.cli.tables import table_width

    tables: list[Table] = []
    caps = list(told.statistics.caps)
    while caps:
        count = len(caps)
        table = _cap_table(console, told, caps)
        while count > 1 and table_width(table) > console.width:
            count -= 1
            table = _cap_table(console, told, caps[:count])
        tables.append(table)
        del caps[:count]
    return tables


def _cap_table(console: Console, told: Snapshot, caps: list[str]) -> Table:
    from gatecount.cli.tables import cap_bar, cap_style, make_table, number, text

    table = make_table("<", *(printable(cap) for cap in caps))
    chosen = [told.statistics.caps[cap] for cap in caps]
    table.add_row("", *(cap_bar(console, cap, 10) for cap in chosen))
    table.add_row("in flight", *(number(cap.in_flight, cap_style(cap)) for cap in chosen))
    for row, field in (
        ("limit", "limit"),
        ("peak", "peak"),
        ("waiting", "waiting"),
        ("admitted", "admitted"),
    ):
        table.add_row(row, *(number(getattr(cap, field)) for cap in chosen))
    table.add_row("refused", *(number(cap.refused) for cap in chosen))
    for reason in chosen[0].refused_by:
        shown = text(f"  {reason.replace('_', ' ')}", "dim")
        table.add_row(shown, *(number(cap.refused_by[reason], "dim") for cap in chosen))
    table.add_row("reclaimed", *(number(cap.reclaimed) for cap in chosen))
    table.add_row("repairs", *(number(cap.repairs, "red" if cap.repairs else "") for cap in chosen))
    return table
