"""`gatecount top` in a real terminal, over real workers: what it shows, and how it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from gatecount import Gate
from host.terminal import Terminal, is_left_clean
from support import DEADLINE, Crew, Remote, path_of, wait_until

FAST = ("--interval", "0.1")


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits={"requests": 10}, slots=64) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def pid(worker: Remote) -> str:
    return str(worker.process.pid)


def test_it_shows_a_bar_per_cap_and_a_row_per_worker_and_follows_them(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    workers = [Remote(crew, Gate.open, gate_name) for _ in range(3)]
    for held, worker in enumerate(workers, start=1):
        assert worker.call("try_acquire", held)
    with Terminal("top", gate_name, *FAST) as terminal:
        wait_until(lambda: terminal.shows(gate_name, "3 of 64 slots used"))
        assert "██████░░░░" in terminal.row("requests")[1]
        for held, worker in enumerate(workers, start=1):
            _pid, slot, _age, shown, *_ = terminal.row(pid(worker))
            assert (slot, shown) == (str(held - 1), str(held))
        assert workers[0].call("try_acquire", 4)
        wait_until(lambda: terminal.row(pid(workers[0]))[3] == "5")
        assert set(terminal.row("requests")[1]) == {"█"}
        gate.set_limit("requests", 4000)
        wait_until(lambda: terminal.row("requests")[2:4] == ["10", "4,000"])
        assert "░" in terminal.row("requests")[1]


def test_admitted_and_refused_are_shown_per_second_and_per_worker(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    busy = crew.start(_churn, gate_name)
    with Terminal("top", gate_name, *FAST) as terminal:
        # Before there is anything to compare with, there is a dash.
        wait_until(
            lambda: (
                [cell[0] > "0" for cell in terminal.row("requests")[-2:] if cell != "–"] == [True] * 2
            )
        )
        told = wait_until(lambda: terminal.row(str(busy.pid)))
        admitted, refused = (int(number.replace(",", "")) for number in told[4:6])
        assert admitted > 1
        assert refused > 1


def _churn(name: str) -> None:
    with Gate.open(name) as gate:
        while True:
            assert gate.try_acquire(6)
            assert not gate.try_acquire(6)
            gate.release(6)


def test_a_worker_killed_while_it_is_shown_is_called_dead_until_it_is_reclaimed(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    doomed, other = (Remote(crew, Gate.open, gate_name) for _ in range(2))
    assert doomed.call("try_acquire", 7)
    assert other.call("try_acquire", 1)
    with Terminal("top", gate_name, *FAST) as terminal:
        wait_until(lambda: terminal.row(pid(doomed)))
        doomed.kill()
        wait_until(lambda: terminal.row(pid(doomed))[2:4] == ["dead", "7"])
        assert terminal.shows("1 of 64 slots used   1 dead", f"gatecount reclaim {gate_name} ")
        assert terminal.row("requests")[2] == "8"
        assert gate.reclaim() == 1
        # Its units are back before its slot is, and a look may come between.
        wait_until(lambda: terminal.row("requests")[2] == "1" and not terminal.row(pid(doomed)))
        assert terminal.row(pid(other))


def test_a_gate_removed_while_it_is_shown_is_shown_on_until_there_is_another(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    assert worker.call("try_acquire", 2)
    with Terminal("top", gate_name, *FAST) as terminal:
        wait_until(lambda: terminal.row(pid(worker)))
        Gate.remove(gate_name)
        wait_until(lambda: terminal.shows("removed"))
        assert worker.call("try_acquire", 3)
        wait_until(lambda: terminal.row(pid(worker))[3] == "5")
        with Gate.create(gate_name, limits={"uploads": 3}):
            wait_until(lambda: terminal.row("uploads"))
            assert not terminal.shows("removed")
            assert not terminal.row(pid(worker))
        assert terminal.process.poll() is None


def test_a_file_that_replaces_a_gate_while_it_is_shown_is_told_of(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    assert worker.call("try_acquire", 2)
    with Terminal("top", gate_name, *FAST) as terminal:
        wait_until(lambda: terminal.row(pid(worker)))
        Gate.remove(gate_name)
        path_of(gate_name).write_bytes(b"something else")
        wait_until(lambda: terminal.shows("replaced by a file that is not a gatecount segment"))
        assert terminal.row(pid(worker))
        path_of(gate_name).unlink()
        wait_until(lambda: terminal.shows("removed: only processes"))
        assert terminal.process.poll() is None


def test_without_a_name_every_gate_is_shown_as_it_comes_and_goes(gate: Gate, gate_name: str) -> None:
    second = f"{gate_name}-second"
    with Terminal("top", *FAST, columns=120, rows=500) as terminal:
        wait_until(lambda: terminal.row(gate_name))
        assert not terminal.row(second)
        with Gate.create(second, limits={"uploads": 3}):
            wait_until(lambda: terminal.row(second))
            assert terminal.row(gate_name)
            Gate.remove(second)
        wait_until(lambda: not terminal.row(second))


def test_ctrl_c_leaves_with_the_terminal_as_it_was(gate: Gate, gate_name: str) -> None:
    with Terminal("top", gate_name) as terminal:
        wait_until(lambda: terminal.row("requests"))
        terminal.press(b"\x03")
        assert terminal.wait() == 0
        assert is_left_clean(terminal.output)
        assert terminal.left_settings == terminal.settings
        assert "Traceback" not in terminal.output
        assert "Abort" not in terminal.output


def test_sigterm_leaves_with_the_terminal_as_it_was(gate: Gate, gate_name: str) -> None:
    with Terminal("top", gate_name) as terminal:
        wait_until(lambda: terminal.row("requests"))
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM
        assert is_left_clean(terminal.output)
        assert "Traceback" not in terminal.output


def test_it_fits_a_terminal_of_another_size_at_once(gate: Gate, gate_name: str) -> None:
    """Not at the next look: that is an hour away."""
    gate.claim()
    with Terminal("top", gate_name, "--interval", "3600", columns=120, rows=30) as terminal:
        wait_until(lambda: len(terminal.screen()) == 30)
        assert max(len(line) for line in terminal.screen()) > 60
        terminal.resize(60, 12)
        wait_until(lambda: len(terminal.screen()) == 12)
        assert max(len(line) for line in terminal.screen()) <= 60
        assert terminal.shows("requests", str(os.getpid()))
        for columns, rows in ((20, 3), (1, 1), (200, 50)):
            terminal.resize(columns, rows)
            wait_until(partial(_has_rows, terminal, rows))
        assert terminal.shows("requests", str(os.getpid()))


def _has_rows(terminal: Terminal, rows: int) -> bool:
    return len(terminal.screen()) == rows


def test_of_more_workers_than_lines_those_that_hold_most_are_shown(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    gate.set_limit("requests", 100)
    workers = [Remote(crew, Gate.open, gate_name) for _ in range(20)]
    for worker in workers:
        assert worker.call("try_acquire", 1)
    assert workers[-1].call("try_acquire", 5)
    with Terminal("top", gate_name, *FAST, rows=18) as terminal:
        wait_until(lambda: terminal.shows("20 of 64 slots used"))
        lines = terminal.screen()
        assert len(lines) == 18
        shown = [worker for worker in workers if terminal.row(pid(worker))]
        assert workers[-1] in shown
        rest = 20 - len(shown)
        assert 10 <= rest <= 14
        assert f"and {rest} more, which hold {rest} requests" in lines


def test_without_colours_nothing_is_said_by_colour(gate: Gate, gate_name: str) -> None:
    assert gate.try_acquire(10)
    coloured = re.compile(r"\x1b\[[0-9;]*(?:3[0-8]|4[0-8]|9[0-7])[0-9;]*m")
    with Terminal("top", gate_name, *FAST) as terminal:
        wait_until(lambda: terminal.row("requests"))
        assert coloured.search(terminal.output)
    with Terminal("top", gate_name, *FAST, NO_COLOR="1") as terminal:
        wait_until(lambda: terminal.row("requests"))
        assert set(terminal.row("requests")[1]) == {"█"}
        assert not coloured.search(terminal.output.replace("\x1b[39m", "").replace("\x1b[49m", ""))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_of_few_characters_is_shown_what_it_has(
    gate: Gate, gate_name: str, encoding: str
) -> None:
    gate.claim()
    with Terminal("top", gate_name, *FAST, PYTHONIOENCODING=encoding) as terminal:
        wait_until(lambda: terminal.row(str(os.getpid())))
        terminal.resize(24, 10)
        wait_until(lambda: terminal.screen()[0].endswith("?"))
        assert terminal.output.isascii()
        terminal.press(b"\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.output


def test_a_dumb_terminal_is_printed_to_once(gate_name: str) -> None:
    limits = {"requests": 10, "tokens": 200_000, "uploads": 3}
    with Gate.create(gate_name, limits=limits) as gate:
        gate.claim()
        with Terminal("top", gate_name, TERM="dumb") as terminal:
            assert terminal.wait() == 0
            assert terminal.output == terminal.plain()
            assert str(os.getpid()) in terminal.output
            assert "…" not in terminal.output
            assert max(map(len, terminal.output.splitlines())) <= 80


def test_without_a_terminal_it_is_printed_once(gate: Gate, gate_name: str) -> None:
    assert gate.try_acquire(3)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gatecount.cli", "top", gate_name],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert "\x1b" not in done.stdout
    assert gate_name in done.stdout
    assert ["in", "flight", "3"] in [line.split() for line in done.stdout.splitlines()]
    assert str(os.getpid()) in done.stdout
    assert done.stderr == ""


def test_a_gate_that_is_not_there_is_said_before_the_screen_is_taken(gate_name: str) -> None:
    with Terminal("top", gate_name) as terminal:
        assert terminal.wait() == 1
        assert terminal.output.startswith("Error: there is no gate")
        assert "\x1b" not in terminal.output
