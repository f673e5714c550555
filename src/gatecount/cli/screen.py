"""The screen of `gatecount top`: gates, one below the other, made to fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gatecount.cli.gates import Snapshot, printable
from gatecount.cli.tables import (
    cap_bar,
    cap_style,
    dead_note,
    make_table,
    number,
    table_width,
    text,
    worker_table,
)

_SHORTEST_BAR, _LONGEST_BAR = 8, 40
_COLUMNS = (
    ("in flight", "limit", "peak", "waiting", "admitted\nper s", "refused\nper s"),
    ("in flight", "limit", "waiting", "admitted\nper s", "refused\nper s"),
    ("in flight", "limit", "waiting"),
    ("in flight", "limit"),
)
"""Of the caps, for narrower and narrower screens."""

Line = list[Segment]


@dataclass(frozen=True)
class Rate:
    """Calls per second since the screen before."""

    admitted: float
    refused: float


@dataclass(frozen=True)
class View:
    """One gate on the screen."""

    snapshot: Snapshot
    rates: Mapping[str, Rate] = field(default_factory=dict)
    """By cap; empty before there is anything to compare with."""
    trouble: str | None = None
    """Why what is shown is not what stands under the name, if so."""


@dataclass(frozen=True)
class Screen:
    """What one screen shows, cut to the height of the terminal; rendered anew it fits a new size."""

    views: Sequence[View]
    footer: str
    empty: str = "no gates on this machine"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        lines = _Lines(console, options.update(height=None))
        body = compose(lines, self.views, options.max_width, max(1, height - 1))
        if not self.views:
            body = lines.of(Text(self.empty, "dim"))
        body = body[: height - 1]
        body += [[] for _ in range(height - 1 - len(body))]
        body += lines.of(Text(self.footer, "dim", no_wrap=True, overflow="ellipsis"))[:1]
        for index, line in enumerate(body):
            if index:
                yield Segment.line()
            yield from line


class _Lines:
    """Turns what rich can render into lines, to be counted."""

    def __init__(self, console: Console, options: ConsoleOptions) -> None:
        self.console = console
        self._options = options

    def of(self, *parts: RenderableType) -> list[Line]:
        lines: list[Line] = []
        for part in parts:
            lines += self.console.render_lines(part, self._options, pad=False)
        return lines

    def note(self, note: str, style: str = "dim") -> list[Line]:
        return self.of(Text(note, style, no_wrap=True, overflow="ellipsis"))


def compose(lines: _Lines, views: Sequence[View], width: int, height: int) -> list[Line]:
    """Return the lines of all views; where they are too many, of the first that fit."""
    heads = [_head(lines, view, width) for view in views]
    shown = len(views)
    while shown > 1 and sum(len(head) + 1 for head in heads[:shown]) > height:
        shown -= 1
    left = height - sum(len(head) + 1 for head in heads[:shown]) + 1  # nothing need follow the last
    body: list[Line] = []
    for index, (view, head) in enumerate(zip(views[:shown], heads, strict=False)):
        owners = _owners(lines, view.snapshot, width, left // (shown - index))
        left -= len(owners)
        body += [*head, *owners, []]
    if shown < len(views):
        body[-1:] = lines.note(f"and {len(views) - shown} more gates: name one, or make room")
    return body


def title(told: Snapshot) -> Text:
    """Return a gate's line: name, mode, slots."""
    statistics = told.statistics
    used = f"{len(statistics.slots):,} of {statistics.slot_count:,} slots used"
    dead = f"   {len(told.dead):,} dead" if told.dead else ""
    return Text.assemble((printable(told.name), "bold"), f"   {statistics.mode}   {used}", (dead, "red"))


def _head(lines: _Lines, view: View, width: int) -> list[Line]:
    heading = title(view.snapshot)
    heading.no_wrap, heading.overflow = True, "ellipsis"
    head = lines.of(heading)
    if view.trouble:
        head += lines.note(view.trouble, "yellow")
    return head + lines.of(_caps(lines.console, view, width))


def _caps(console: Console, view: View, width: int) -> Table:
    for columns in _COLUMNS:
        table = _cap_table(console, view, columns, _SHORTEST_BAR)
        spare = width - table_width(table)
        if spare >= 0:
            return _cap_table(console, view, columns, min(_LONGEST_BAR, _SHORTEST_BAR + spare))
    return table


def _cap_table(console: Console, view: View, columns: Sequence[str], bar: int) -> Table:
    table = make_table("<cap", "<", *columns, edge=False)
    for name, cap in view.snapshot.statistics.caps.items():
        rate = view.rates.get(name)
        cells = {
            "in flight": number(cap.in_flight, cap_style(cap)),
            "limit": number(cap.limit),
            "peak": number(cap.peak),
            "waiting": number(cap.waiting),
            "admitted\nper s": _per_second(rate.admitted if rate else None),
            "refused\nper s": _per_second(rate.refused if rate else None),
        }
        row = [cells[column] for column in columns]
        table.add_row(text(printable(name)), cap_bar(console, cap, bar), *row)
    return table


def _per_second(rate: float | None) -> Text:
    if rate is None:
        return text("–", "dim")
    return text(f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}")


def _owners(lines: _Lines, told: Snapshot, width: int, height: int) -> list[Line]:
    """Return the lines of the workers, of as many as there is room for."""
    if not told.statistics.slots and not told.dead:
        return lines.note("no process owns a slot")[: max(0, height)]
    everyone = len(told.statistics.slots) + len(told.dead)
    for rows in _downwards(min(everyone, height)):
        table, notes = worker_table(told, width, rows, edge=False)
        found = lines.of("", table)
        for note in [*notes, *dead_note(told.name, told.dead)]:
            found += lines.note(note)
        if len(found) <= height:
            return found
    return lines.note(f"no room for {everyone} workers")[: max(0, height)]


def _downwards(rows: int) -> Iterator[int]:
    yield from range(rows, 0, -1)
