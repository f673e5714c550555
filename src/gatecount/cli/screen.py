"""The screen of `gatecount top`: gates, one below the other, made to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

NO_GATES = "no gate that may be read: gatecount list tells of the others, if there are any"

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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        lines = _Lines(console, options.update(height=None))
        body = lines.note(NO_GATES)
        if self.views:
            body = compose(lines, self.views, options.max_width, max(1, height - 1))
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
    """Return the lines of one view or more; where they are too many, of the first that fit."""
    heads: list[list[Line]] = []
    left = height + 1  # nothing need follow the last
    for view in views:
        head = _head(lines, view, width)
        if heads and left <= len(head) + 1:
            break
        heads.append(head)
        left -= len(head) + 1
    hidden = len(views) - len(heads)
    left -= hidden > 0  # the line that tells of them
    owners: dict[int, list[Line]] = {}
    # Those of few workers first: what they leave is for the others.
    for index in sorted(range(len(heads)), key=lambda index: _count(views[index].snapshot)):
        owners[index] = _owners(lines, views[index].snapshot, width, left // (len(heads) - len(owners)))
        left -= len(owners[index])
    body: list[Line] = []
    for index, head in enumerate(heads):
        body += [*head, *owners[index], []]
    if hidden:
        more = "1 more gate" if hidden == 1 else f"{hidden:,} more gates"
        body[-1:] = lines.note(f"and {more}: name one, or make room")
    else:
        body.pop()
    if len(body) > height:  # for one gate alone
        body[max(1, height - 1) :] = lines.note("and more: make room")
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
    return _cap_table(console, view, _COLUMNS[-1], 0)


def _cap_table(console: Console, view: View, columns: Sequence[str], bar: int) -> Table:
    table = make_table("<cap", *(["<"] if bar else []), *columns, edge=False)
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
        row = [*([cap_bar(console, cap, bar)] if bar else []), *(cells[column] for column in columns)]
        table.add_row(text(printable(name)), *row)
    return table


def _per_second(rate: float | None) -> Text:
    if rate is None:
        return text("–", "dim")
    return text(f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}")


def _owners(lines: _Lines, told: Snapshot, width: int, height: int) -> list[Line]:
    """Return the lines of the workers, of as many as there is room for."""
    everyone = _count(told)
    if not everyone:
        return lines.note("no process owns a slot")[: max(0, height)]
    rows = min(everyone, height)
    while rows > 0:
        table, notes = worker_table(told, width, rows, edge=False)
        found = lines.of("", table)
        for note in [*notes, *dead_note(told.name, told.dead)]:
            found += lines.note(note)
        if len(found) <= height:
            return found
        rows -= len(found) - height
    return lines.note(f"no room for {everyone} workers")[: max(0, height)]


def _count(told: Snapshot) -> int:
    return len(told.statistics.slots) + len(told.dead)
