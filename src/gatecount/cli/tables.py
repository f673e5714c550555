"""How the commands about gates look: consoles, tables, bars, times. Needs rich, so imported late."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gatecount.cli.gates import DeadOwner, Snapshot, printable
from gatecount.statistics import CapStatistics

_WIDE = 10_000


def is_terminal() -> bool:
    """Tell whether standard output is one. It is nothing at all where a shell has closed it."""
    return sys.stdout is not None and sys.stdout.isatty()


def make_console() -> Console:
    """Return the console of standard output. Where that is no terminal, no line is cut or folded.

    What its encoding has no character for, an ellipsis perhaps, becomes a question mark.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if is_terminal():
        return Console(highlight=False)
    return Console(highlight=False, width=_WIDE)


def text(value: str, style: str = "") -> Text:
    """Return a cell: no markup, whatever is in it."""
    return Text(value, style)


def number(value: float, style: str = "") -> Text:
    return Text(f"{value:,}", style)


def make_table(*columns: str, edge: bool = True) -> Table:
    """Return a table of unfolded columns, to the right but for those whose name begins with "<".

    With edge, an empty line above and below.
    """
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=edge, header_style="dim", padding=(0, 1), pad_edge=False
    )
    lines = max(name.count("\n") for name in columns)
    for name in columns:
        left = name.startswith("<")
        shown = name.removeprefix("<")
        shown = "\n" * (lines - shown.count("\n")) + shown
        table.add_column(shown, justify="left" if left else "right", no_wrap=True)
    return table


def cap_style(cap: CapStatistics) -> str:
    """Return the colour of a cap: how near it is to refusing."""
    if cap.in_flight >= cap.limit:
        return "red"
    return "yellow" if cap.in_flight >= 0.8 * cap.limit else "green"


def cap_bar(console: Console, cap: CapStatistics, width: int) -> Text:
    """Return a bar that says without colours, too, how much of a limit is in flight."""
    full, empty = ("█", "░") if console.encoding.startswith("utf") else ("#", ".")
    share = min(1.0, cap.in_flight / cap.limit) if cap.limit else 1.0
    # Neither full before it is, nor empty while something is in flight.
    filled = int(share * width) or (1 if cap.in_flight else 0)
    return Text.assemble((full * filled, cap_style(cap)), (empty * (width - filled), "dim"))


def age(seconds: float) -> str:
    """Return a time as people say it, in two units at most."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole // 60 % 60:02}m"
    return f"{whole // 86_400}d {whole // 3600 % 24:02}h"


def worker_table(
    snapshot: Snapshot, width: int, rows: int | None = None, *, edge: bool = True
) -> tuple[Table, list[str]]:
    """Return a table with a row per owner, and notes about what it had no room for.

    Columns are left out until it is no wider than width: waiting and slot first, then whole caps. With
    rows, only that many owners are shown: those that hold most.
    """
    caps = list(snapshot.statistics.caps)
    layouts = [(caps, True), *((caps[:count], False) for count in range(len(caps), 0, -1))]
    owners = _owners(snapshot, rows)
    widest = _widest(owners)

    def fits(layout: tuple[list[str], bool]) -> bool:
        return table_width(_workers(snapshot, widest, *layout, edge)) <= width

    # Each is narrower than the one before; the last is taken whether it fits or not.
    chosen, detailed = layouts[bisect_left(layouts[:-1], True, key=fits)]
    table = _workers(snapshot, owners, chosen, detailed, edge)
    return table, [*_hidden_caps(caps, chosen), *_hidden_owners(snapshot, owners)]


Owner = tuple[int, int, str, Sequence[dict[str, int]]]  # slot, pid, age, its numbers by cap


def _owners(snapshot: Snapshot, rows: int | None) -> list[Owner]:
    owners: list[Owner] = [
        (
            slot.slot,
            slot.pid,
            age(slot.age),
            [dict(numbers) for numbers in (slot.held, slot.admitted, slot.refused, slot.waiting)],
        )
        for slot in snapshot.statistics.slots
    ]
    owners += [(owner.slot, owner.pid, "dead", [owner.held]) for owner in snapshot.dead]
    if rows is not None and len(owners) > rows:
        caps = snapshot.statistics.caps
        owners.sort(key=lambda owner: -max(owner[3][0][cap] / max(1, caps[cap].limit) for cap in caps))
        del owners[rows:]
    return sorted(owners)


def _widest(owners: list[Owner]) -> list[Owner]:
    """Return one row that is as wide as all of these, so that no table is measured row by row."""
    if not owners:
        return []
    slots, pids, ages, numbers = zip(*owners, strict=True)
    widest: list[dict[str, int]] = []
    for group in zip_longest(*numbers, fillvalue={}):
        caps = {cap for told in group for cap in told}
        widest.append({cap: max(told.get(cap, 0) for told in group) for cap in caps})
    return [(max(slots), max(pids), max(ages, key=len), widest)]


def _workers(
    snapshot: Snapshot, owners: list[Owner], caps: list[str], detailed: bool, edge: bool
) -> Table:
    groups = ["held", "admitted", "refused", *(["waiting"] if detailed else [])]
    # With one cap there is nothing to tell apart.
    below = [f"\n{printable(cap)}" for cap in caps] if len(snapshot.statistics.caps) > 1 else [""]
    names = ["pid", *(["slot"] if detailed else []), "age"]
    table = make_table(*names, *(group + cap for group in groups for cap in below), edge=edge)
    for slot, pid, shown_age, numbers in owners:
        style = "red" if shown_age == "dead" else ""
        row = [text(str(pid), style), *([text(str(slot))] if detailed else []), text(shown_age, style)]
        for index in range(len(groups)):
            told = numbers[index] if index < len(numbers) else {}
            row += [number(told[cap], style) if cap in told else text("") for cap in caps]
        table.add_row(*row)
    return table


def table_width(table: Table) -> int:
    # With a height, too, or a dumb terminal has 80 columns whatever is asked for.
    return Console(width=_WIDE, height=1).measure(table).maximum


def _hidden_caps(caps: list[str], shown: list[str]) -> list[str]:
    hidden = caps[len(shown) :]
    return [f"too narrow for cap {', '.join(map(printable, hidden))}"] if hidden else []


def _hidden_owners(snapshot: Snapshot, shown: list[Owner]) -> list[str]:
    seen = {owner[0] for owner in shown}
    everyone: list[tuple[int, dict[str, int]]] = [
        (slot.slot, dict(slot.held)) for slot in snapshot.statistics.slots
    ]
    everyone += [(owner.slot, owner.held) for owner in snapshot.dead]
    hidden = [held for slot, held in everyone if slot not in seen]
    if not hidden:
        return []
    units = (
        f"{sum(held[cap] for held in hidden):,} {printable(cap)}" for cap in snapshot.statistics.caps
    )
    return [f"and {len(hidden)} more, which hold {', '.join(units)}"]


def dead_note(name: str, dead: Sequence[DeadOwner]) -> list[str]:
    """Return what to say where the dead still count."""
    if not dead:
        return []
    return [f"gatecount reclaim {printable(name)} takes back what the dead hold"]
