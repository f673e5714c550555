"""The screen of `gatecount top` without a terminal: how what there is shares the lines there are."""

from __future__ import annotations

import errno
import io
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from gatecount import Gate
from gatecount.cli.gates import Snapshot, snapshot
from gatecount.cli.screen import NO_GATES, Rate, Screen, View
from gatecount.cli.tables import age, cap_bar, cap_style, worker_table
from gatecount.cli.top import _Named, _Rates


@pytest.fixture
def told(gate_name: str) -> Iterator[Snapshot]:
    """Return a gate of one cap that this process owns a slot of."""
    with Gate.create(gate_name, limits={"requests": 10}, slots=1023) as gate:
        gate.claim()
        yield snapshot(gate)


@pytest.fixture
def wide(gate_name: str) -> Iterator[Snapshot]:
    """Return a gate of as many caps, and with as many owners, as one can have."""
    limits = {f"cap-{number}-with-a-long-name": 4_000_000_000 for number in range(32)}
    with Gate.create(f"{gate_name}-wide", limits=limits, slots=1023) as gate:
        gate.claim()
        yield with_owners(snapshot(gate), 1023)
        Gate.remove(f"{gate_name}-wide")


def with_owners(told: Snapshot, count: int, name: str = "") -> Snapshot:
    """Return a gate as if so many processes owned slots of it."""
    owner = told.statistics.slots[0]
    slots = tuple(replace(owner, slot=slot, pid=1000 + slot) for slot in range(count))
    return replace(told, name=name or told.name, statistics=replace(told.statistics, slots=slots))


def shown(*gates: Snapshot, columns: int = 80, rows: int = 24) -> list[str]:
    """Return the lines of a screen, without the last, which is about how to leave."""
    console = Console(width=columns, height=rows, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(Screen([View(gate) for gate in gates], "footer"), end="")
    lines = [line.rstrip() for line in capture.get().split("\n")]
    assert len(lines) == rows
    assert lines.pop() == "footer"
    return lines


def owners_in(lines: list[str]) -> int:
    return sum(line.split()[:1] in [[str(pid)] for pid in range(1000, 2023)] for line in lines)


@pytest.mark.parametrize("busy_first", [True, False])
def test_a_gate_of_many_workers_gets_the_lines_that_others_leave(
    told: Snapshot, busy_first: bool
) -> None:
    busy, idle = with_owners(told, 60, "busy"), with_owners(told, 0, "idle")
    lines = shown(*([busy, idle] if busy_first else [idle, busy]))
    assert "no process owns a slot" in lines
    assert owners_in(lines) >= 5
    assert f"and {60 - owners_in(lines)} more, which hold 0 requests" in lines


def test_gates_of_as_many_workers_share_the_lines(told: Snapshot) -> None:
    lines = shown(with_owners(told, 60, "first"), with_owners(told, 60, "second"), rows=40)
    second = lines.index(next(line for line in lines if line.startswith("second")))
    assert owners_in(lines) > 10
    assert abs(owners_in(lines[:second]) - owners_in(lines[second:])) <= 1


@pytest.mark.parametrize("rows", [12, 24, 50])
def test_workers_fill_the_screen(told: Snapshot, rows: int) -> None:
    lines = shown(with_owners(told, 60), rows=rows)
    assert lines[-1] == f"and {60 - owners_in(lines)} more, which hold 0 requests"


@pytest.mark.parametrize("rows", range(8, 40))
@pytest.mark.parametrize("count", [2, 3, 20])
def test_gates_that_have_no_room_are_told_of(told: Snapshot, rows: int, count: int) -> None:
    lines = shown(*(with_owners(told, 3, f"gate-{number}") for number in range(count)), rows=rows)
    there = sum(line.startswith("gate-") for line in lines)
    assert there >= 1
    more = "1 more gate" if count - there == 1 else f"{count - there} more gates"
    assert (f"and {more}: name one, or make room" in lines) == (there < count)


def test_caps_that_have_no_room_are_told_of(wide: Snapshot) -> None:
    assert shown(wide)[-1] == "and more: make room"
    assert not any("make room" in line for line in shown(wide, rows=60))


def test_numbers_are_not_cut_for_a_bar(told: Snapshot) -> None:
    cap = replace(told.statistics.caps["requests"], in_flight=190_000, limit=200_000)
    told = replace(told, statistics=replace(told.statistics, caps={"requests": cap}))
    row = next(line.split() for line in shown(told, columns=32) if line.startswith("requests"))
    assert row == ["requests", "190,000", "200,000"]


@pytest.mark.parametrize(
    ("in_flight", "limit", "bar", "colour"),
    [
        (0, 10, "░░░░░░░░░░", "green"),
        (1, 1000, "█░░░░░░░░░", "green"),
        (799, 1000, "███████░░░", "green"),
        (800, 1000, "████████░░", "yellow"),
        (999, 1000, "█████████░", "yellow"),
        (1000, 1000, "██████████", "red"),
        (3000, 1000, "██████████", "red"),
        (0, 0, "██████████", "red"),
        (3, 0, "██████████", "red"),
    ],
)
def test_a_bar_is_full_when_all_is_refused_and_empty_when_nothing_is_in_flight(
    told: Snapshot, in_flight: int, limit: int, bar: str, colour: str
) -> None:
    cap = replace(told.statistics.caps["requests"], in_flight=in_flight, limit=limit)
    assert cap_bar(Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8")), cap, 10).plain == bar
    assert cap_style(cap) == colour


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0s"),
        (59.9, "59s"),
        (60.0, "1m 00s"),
        (3599.0, "59m 59s"),
        (3600.0, "1h 00m"),
        (7384.0, "2h 03m"),
        (86_399.0, "23h 59m"),
        (86_400.0, "1d 00h"),
        (266_461.0, "3d 02h"),
    ],
)
def test_times_are_told_in_two_units_at_most(seconds: float, said: str) -> None:
    assert age(seconds) == said


def test_rates_are_of_one_gate_and_begin_anew_with_another(
    told: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = _Rates()

    def of(second: float, admitted: int, refused: int) -> dict[str, Rate]:
        cap = replace(told.statistics.caps["requests"], admitted=admitted, refused=refused)
        monkeypatch.setattr("gatecount.cli.top.time", SimpleNamespace(monotonic=lambda: second))
        return rates.of(replace(told, statistics=replace(told.statistics, caps={"requests": cap})))

    assert of(100.0, 10, 1) == {}
    assert of(100.5, 12, 7) == {"requests": Rate(4.0, 12.0)}
    assert of(101.0, 3, 9) == {}, "fewer than before"
    assert of(105.0, 3, 9) == {"requests": Rate(0.0, 0.0)}


def test_a_gate_that_may_no_longer_be_opened_is_shown_on(
    told: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_name: str) -> Gate:
        raise PermissionError(errno.EACCES, "Permission denied")

    with _Named(told.name) as watched:
        monkeypatch.setattr("gatecount.cli.top.open_now", denied)
        ((still, trouble),) = watched.look()
    assert still.name == told.name
    assert trouble == "cannot be opened any more: Permission denied"


def test_no_gate_is_said_to_be_none_that_may_be_read() -> None:
    assert shown()[0] == NO_GATES


@pytest.mark.parametrize("columns", [72, 80, 132, 200, 400, 3000])
def test_owners_fit_the_width_however_long_their_numbers(gate_name: str, columns: int) -> None:
    caps = [f"c{number}" for number in range(32)]
    with Gate.create(gate_name, limits=dict.fromkeys(caps, 10), slots=8) as gate:
        gate.claim()
        told = with_owners(snapshot(gate), 9)
    slots = list(told.statistics.slots)
    for index, group in enumerate(("held", "admitted", "refused", "waiting")):
        changes = {group: dict.fromkeys(caps, 4_000_000_000), "pid": 3_000_000, "age": 86_399.0}
        slots[2 * index] = replace(slots[2 * index], **changes)
    told = replace(told, statistics=replace(told.statistics, slots=tuple(slots)))
    table, notes = worker_table(told, columns)
    console = Console(width=10_000, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(table)
    assert "4,000,000,000" in capture.get()
    widest = max(map(len, capture.get().splitlines()))
    assert columns // 2 < widest <= columns
    there = [cap for cap in caps if cap in capture.get().split()]
    hidden = [note.removeprefix("too narrow for cap ").split(", ") for note in notes]
    assert [there, *hidden] == ([caps[: len(there)], caps[len(there) :]] if notes else [caps])
    assert bool(notes) == (columns < 3000)


def test_the_largest_gate_and_very_many_are_shown_in_little_time(wide: Snapshot, told: Snapshot) -> None:
    """Of the processor, which is all that a screen asks for: it took 16 and 7 s."""
    began = time.process_time()
    shown(wide, columns=200, rows=50)
    shown(*[told] * 500)
    assert time.process_time() - began < 4
