"""A short soak, as the program runs it: real processes, killed at random, and every book compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gatecount import AtomicArray
from processes.workers import meet
from soak.board import LIMITS, SEATS, Board
from support import DEADLINE, Crew, gate_files, scaled


def soak(kills: int) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("soak.py")), "--kills", str(kills), "--json"],
        timeout=2 * DEADLINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_processes_killed_at_random_pass_no_limit_and_lose_nothing() -> None:
    files = gate_files()
    kills = scaled(60)
    code, figures = soak(kills)
    assert (code, figures["violations"], figures["wrong"]) == (0, 0, [])
    assert figures["kills"] >= kills
    assert figures["operations"] > 10 * kills
    assert figures["grants"] > 0
    assert figures["refusals"] > 0
    assert not {file for file in gate_files() - files if "gatecount-soak-" in file.name}


# The witness of the soak: it must see what is over, and must not see what is not.


@pytest.fixture
def board() -> Board:
    return Board()


def test_the_witness_finds_one_unit_too_many(board: Board) -> None:
    for seat in range(4):
        board.granted(seat, "requests", 3, board.rule("requests"))
    assert board.violations == 0
    board.granted(4, "requests", 1, board.rule("requests"))
    assert board.violations > 0


def test_the_witness_holds_a_grant_against_the_limit_in_force(board: Board) -> None:
    board.announce("requests", 5)
    rule = board.rule("requests")
    board.granted(0, "requests", 5, rule)
    assert board.violations == 0
    board.granted(1, "requests", 1, rule)
    assert board.violations == 1


def test_the_witness_excuses_a_grant_that_was_asked_for_before_the_limit_changed(
    board: Board,
) -> None:
    rule = board.rule("requests")
    board.announce("requests", 5)
    board.granted(0, "requests", 12, rule)
    assert board.violations == 0


def test_the_witness_counts_nobody_who_is_about_to_be_killed(board: Board) -> None:
    rule = board.rule("tokens")
    board.granted(0, "tokens", 60, rule)
    board.condemn(0)
    board.granted(1, "tokens", 60, rule)
    board.granted(0, "tokens", 5, rule)  # it lives a little longer
    assert board.violations == 0
    board.bury(0)
    assert board.noted(0, "tokens") == 0
    board.granted(0, "tokens", 1, rule)  # its successor
    assert board.violations > 0


def _note(board: Board, seat: int, rounds: int, words: AtomicArray) -> None:
    rule = board.rule("requests")
    for number in range(rounds):
        board.granted(seat, "requests", 3, rule)
        if number == 0:
            meet(words, 0, 4)  # all four hold at once, however long one of them is held up later
        board.releasing(seat, "requests", 3)


def test_the_witness_sees_no_sum_that_never_was(board: Board) -> None:
    """Four hold at most three each: twelve, the limit, and never more whenever one looks."""
    words, rounds = AtomicArray(1), scaled(20_000)
    with Crew("fork") as crew:
        for seat in range(4):
            crew.start(_note, board, seat, rounds, words)
        crew.join()
    assert board.violations == 0
    assert board.totals()["grants"] == 4 * rounds
    assert board.witnesses["requests"].running == 0
    assert board.witnesses["requests"].times_at_limit > 0


def test_the_witness_has_room_for_all_that_a_seat_can_hold() -> None:
    board = Board()
    for cap, limit in LIMITS.items():
        for seat in range(SEATS):
            board.granted(seat, cap, limit, 0)
        assert [board.noted(seat, cap) for seat in range(SEATS)] == [limit] * SEATS
