"""`gatecount list`: the gates of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from gatecount.cli.extras import require
from gatecount.cli.gates import EXIT_CODES, GateCommand, json_option, print_json, printable
from gatecount.listing import FoundGate, gates
from gatecount.names import path_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table


_COLUMNS = ("<cap", "in flight", "limit", "slots used", "<mode", "<")
"""After the name; the last are left out where a terminal is too narrow."""

_LEAST_OF_A_NAME = 16
"""Columns in which a longer name is folded where it must be."""


@click.command("list", cls=GateCommand, epilog=EXIT_CODES)
@json_option
def list_gates(as_json: bool) -> None:
    """List the gates of this machine that have a name.

    Other users' gates, and files under a gate's name that are none or are damaged, are listed apart.
    """
    found = gates()
    if as_json:
        print_json({"gates": [_as_json(one) for one in found]})
        return
    require("gatecount list", "cli", "rich")
    from gatecount.cli.tables import make_console

    console = make_console()
    if not found:
        console.print(f"There are no gates on this machine (no file {path_of('*')}).", style="dim")
    _print_gates(console, [one for one in found if one.status == "ok"])
    _print_others(console, [one for one in found if one.status != "ok"])


def _as_json(found: FoundGate) -> dict[str, Any]:
    shape = asdict(found)
    if found.permissions is not None:
        shape["permissions"] = f"{found.permissions:04o}"
    return shape


def _print_gates(console: Console, found: list[FoundGate]) -> None:
    from gatecount.cli.tables import table_width

    if not found:
        return
    folded = max(0, max(len(one.name) for one in found) - _LEAST_OF_A_NAME)
    for count in range(len(_COLUMNS), 0, -1):
        table = _gate_table(console, found, _COLUMNS[:count])
        if table_width(table) - folded <= console.width:
            break
    console.print(table)


def _gate_table(console: Console, found: list[FoundGate], columns: Sequence[str]) -> Table:
    from gatecount.cli.tables import cap_bar, make_table, number, text

    table = make_table("<gate", *columns)
    table.columns[0].no_wrap = False
    table.columns[0].overflow = "fold"
    for one in found:
        statistics = one.statistics
        assert statistics is not None, "a gate that is ok was read"
        slots = f"{len(statistics.slots):,} of {statistics.slot_count:,}"
        first = [text(one.name, "bold"), text(slots), text(statistics.mode)]
        for cap, told in statistics.caps.items():
            cells = {
                "<cap": text(printable(cap)),
                "in flight": number(told.in_flight),
                "limit": number(told.limit),
                "slots used": first[1],
                "<mode": first[2],
                "<": cap_bar(console, told, 10),
            }
            table.add_row(first[0], *(cells[column] for column in columns))
            first = [text("")] * 3
    return table


def _print_others(console: Console, found: list[FoundGate]) -> None:
    from gatecount.cli.tables import make_table, text

    if not found:
        return
    table = make_table("<not usable", "<user", "<mode bits", "<why")
    for index in (0, 3):
        table.columns[index].no_wrap = False
        table.columns[index].overflow = "fold"
    for one in found:
        bits = "" if one.permissions is None else f"{one.permissions:04o}"
        style = "red" if one.status == "invalid" else "yellow"
        table.add_row(
            text(printable(one.name)), text(one.user or ""), text(bits), text(one.problem or "", style)
        )
    console.print(table)
