"""The board: rows of their own, totals of all, shared or not."""

from __future__ import annotations

import pickle

import pytest

from gatecount.frontend.board import Board, Row
from support import Crew


@pytest.fixture(params=[True, False], ids=["shared", "local"])
def board(request: pytest.FixtureRequest) -> Board:
    return Board(3, shared=request.param)


def test_nobody_accepts_and_nothing_is_counted_at_first(board: Board) -> None:
    totals = board.totals()

    assert len(board) == 3
    assert totals.connections == (None, None, None)
    assert (totals.admitted, totals.accepted) == (0, 0)
    assert (totals.refused("requests"), totals.refused("tokens")) == (0, 0)


def test_each_row_counts_for_itself_and_the_totals_are_of_all(board: Board) -> None:
    for index, row in enumerate(board.rows()):
        assert row.index == index
        for _ in range(10**index):
            row.count_admitted()
        for _ in range(2 * 10**index):
            row.count_refused("requests")
        for _ in range(3 * 10**index):
            row.count_refused("tokens")
        for _ in range(4 * 10**index):
            row.count_accepted()
        row.connections = 5 * 10**index

    assert [row.admitted for row in board.rows()] == [1, 10, 100]
    assert [row.refused("requests") for row in board.rows()] == [2, 20, 200]
    assert [row.refused("tokens") for row in board.rows()] == [3, 30, 300]
    assert [row.accepted for row in board.rows()] == [4, 40, 400]
    totals = board.totals()
    assert totals.admitted == 111
    assert (totals.refused("requests"), totals.refused("tokens")) == (222, 333)
    assert (totals.refused_requests, totals.refused_tokens) == (222, 333)
    assert totals.accepted == 444
    assert totals.connections == (5, 50, 500)


def test_no_open_connections_is_not_the_same_as_not_accepting(board: Board) -> None:
    row = board.at(1)
    row.connections = 0
    assert row.connections == 0
    row.connections = None
    assert row.connections is None
    assert board.totals().connections == (None, None, None)


def test_the_counts_go_on_when_a_server_has_ended(board: Board) -> None:
    row = board.at(2)
    row.connections = 4
    row.count_admitted()
    row.connections = None

    again = board.at(2)
    again.count_admitted()
    assert board.totals().admitted == 2


def _write(board: Board) -> None:
    row = board.at(1)
    row.connections = 7
    row.count_admitted()


def test_a_spawned_process_writes_into_a_shared_board_and_not_into_a_local_one() -> None:
    shared, local = Board(2), Board(2, shared=False)
    assert shared.shared
    assert not local.shared
    with Crew("spawn") as crew:
        crew.start(_write, shared)
        crew.start(_write, local)
        crew.join()

    assert shared.totals().connections == (None, 7)
    assert shared.totals().admitted == 1
    assert local.totals().connections == (None, None)
    assert local.totals().admitted == 0


def test_a_shared_board_travels_only_to_a_process_that_is_being_started() -> None:
    with pytest.raises(RuntimeError):
        pickle.dumps(Board(2))


@pytest.mark.parametrize("servers", [0, -1])
def test_a_board_needs_a_server(servers: int) -> None:
    with pytest.raises(ValueError, match=f"servers must be at least 1, not {servers}"):
        Board(servers)


@pytest.mark.parametrize("index", [-1, 3])
def test_there_is_no_row_of_another_index(board: Board, index: int) -> None:
    with pytest.raises(ValueError, match=f"index must be from 0 to 2, not {index}"):
        board.at(index)


def test_there_are_two_caps(board: Board) -> None:
    with pytest.raises(KeyError):
        board.at(0).count_refused("bytes")


def test_a_row_says_what_it_is() -> None:
    row: Row = Board(1, shared=False).at(0)
    assert repr(row) == "<Row 0: connections=None>"
