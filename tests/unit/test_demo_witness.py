"""The count that the experiment believes: exact, and without a server that was killed."""

import pytest

from gatecount.overload.witness import MAX_RUNNING, MAX_SERVERS, Snapshot, Witness


def test_every_server_counts_in_a_lane_of_its_own() -> None:
    witness = Witness(limit=10)
    for server in range(MAX_SERVERS):
        for _ in range(server + 1):
            witness.enter(server)

    assert witness.look().lanes == (1, 2, 3, 4)
    assert witness.look().running == 10
    assert witness.look().busiest == 3

    witness.leave(0)
    witness.leave(3)
    assert witness.look().lanes == (0, 2, 3, 3)


def test_the_peak_outlives_the_requests_that_made_it() -> None:
    witness = Witness(limit=10)
    witness.enter(0)
    witness.enter(3)
    witness.leave(0)
    witness.leave(3)
    witness.enter(1)

    assert witness.peak == 2
    assert witness.look().running == 1


def test_full_lanes_touch_neither_each_other_nor_the_mark_of_the_dead() -> None:
    full = Snapshot((1 << 60) - 1)

    assert full.lanes == (MAX_RUNNING,) * MAX_SERVERS
    assert full.running == MAX_RUNNING * MAX_SERVERS
    assert full.dead is None


@pytest.mark.parametrize("victim", range(MAX_SERVERS))
def test_a_dead_server_runs_nothing_from_the_instant_it_is_marked(victim: int) -> None:
    witness = Witness(limit=10)
    for server in range(MAX_SERVERS):
        witness.enter(server)

    assert witness.mark_dead(witness.look(), victim)

    assert witness.look().dead == victim
    assert witness.look().lanes == (1, 1, 1, 1), "what it held can still be read"
    assert witness.look().running == 3
    other = (victim + 1) % MAX_SERVERS
    witness.enter(other)
    assert (witness.peak, witness.peak_after_kill) == (4, 4)
    witness.leave(other)
    assert witness.look().running == 3


def test_a_server_is_not_marked_dead_if_anything_moved_since_it_was_chosen() -> None:
    witness = Witness(limit=10)
    witness.enter(1)
    seen = witness.look()
    witness.enter(2)

    assert not witness.mark_dead(seen, 1)
    assert witness.look().dead is None


def test_only_one_server_can_be_marked_dead() -> None:
    witness = Witness(limit=10)
    assert witness.mark_dead(witness.look(), 1)

    assert not witness.mark_dead(witness.look(), 2)
    assert witness.look().dead == 1


def test_full_again_is_the_first_time_that_the_others_run_the_limit() -> None:
    witness = Witness(limit=2)
    witness.enter(0)
    witness.enter(1)
    before_the_kill = witness.full_again_at
    assert witness.mark_dead(witness.look(), 0)
    after_the_kill = witness.full_again_at

    witness.enter(2)
    first = witness.full_again_at
    witness.leave(2)
    witness.enter(2)
    assert (before_the_kill, after_the_kill) == (None, None)
    assert first is not None
    assert witness.full_again_at == first
    assert witness.peak_after_kill == 2
