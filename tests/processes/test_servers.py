"""Servers that share a buffer: an index is one living process's, and a dead one's comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest

from gatecount import AdmissionCounters, NotOwner, SharedAdmissionStats
from processes.workers import StatsHolder, stats_hold_and_fork
from support import DEADLINE, START_METHODS, Crew, Remote, same, wait_until

CLIENTS, LIMIT = 4, 10


@pytest.fixture(params=START_METHODS)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(request.param) as made:
        yield made


@pytest.fixture
def forked() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


@pytest.fixture
def buffer() -> AdmissionCounters:
    return AdmissionCounters(client_count=CLIENTS, limit=LIMIT)


def server(crew: Crew, buffer: Any, index: int) -> Remote:
    return Remote(crew, StatsHolder, buffer, CLIENTS, index)


def own(buffer: Any, index: int) -> SharedAdmissionStats:
    return SharedAdmissionStats({"mp_admission_counters": buffer}, CLIENTS, index)


def test_servers_share_one_limit(crew: Crew, buffer: AdmissionCounters) -> None:
    first, second = server(crew, buffer, 0), server(crew, buffer, 1)
    assert first.call("try_reserve", 7)
    assert not second.call("try_reserve", 4)
    assert second.call("try_reserve", 3)
    assert not first.call("try_reserve")
    assert first.call("get_num_requests") == second.call("get_num_requests") == 10
    first.call("release", 7)
    assert second.call("in_flight") == buffer.in_flight == 3


@pytest.mark.parametrize("kind", ["plain", "hard"])
def test_an_unmodified_host_in_one_process_reads_ours_in_another(
    forked: Crew, buffer: AdmissionCounters, kind: str
) -> None:
    shared: Any = buffer if kind == "hard" else RawArray("q", 8 * CLIENTS)
    theirs, ours = server(forked, shared, 0), server(forked, shared, 1)
    theirs.call("write", 0, 3)
    ours.call("set_num_requests", 4)
    assert ours.call("get_num_requests") == 7
    assert theirs.call("read", 8) == 4
    assert [shared[0], shared[8]] == [3, 4]


def test_a_killed_server_is_respawned_under_its_index_and_what_it_held_comes_back(
    crew: Crew, buffer: AdmissionCounters
) -> None:
    other, victim = server(crew, buffer, 0), server(crew, buffer, 1)
    assert other.call("try_reserve", 3)
    victim.call("set_num_requests", 5)
    assert victim.call("try_reserve", 2)
    victim.kill()
    assert (buffer.in_flight, buffer[8]) == (10, 7)
    heir = server(crew, buffer, 1)
    heir.call("set_num_requests", 0)
    assert (buffer.in_flight, buffer[8]) == (3, 0)
    assert other.call("get_num_requests") == 3
    assert heir.call("try_reserve", 7)
    assert not other.call("try_reserve")


def test_what_a_killed_server_held_comes_back_without_a_successor(
    forked: Crew, buffer: AdmissionCounters
) -> None:
    victim, other = server(forked, buffer, 2), server(forked, buffer, 0)
    assert victim.call("try_reserve", 10)
    assert not other.call("try_reserve")
    victim.kill()
    assert wait_until(lambda: other.call("try_reserve", 10))
    assert (buffer.in_flight, buffer[16]) == (10, 0)


def test_a_server_that_ends_with_exit_code_0_is_reclaimed_like_any(
    forked: Crew, buffer: AdmissionCounters
) -> None:
    victim = server(forked, buffer, 2)
    assert victim.call("try_reserve", 4)
    victim.end()
    assert buffer.in_flight == 4
    assert buffer.reclaim() == 1
    assert (buffer.in_flight, buffer[16]) == (0, 0)
    assert buffer.reclaim() == 0


def test_the_index_of_another_living_process_is_refused(crew: Crew, buffer: AdmissionCounters) -> None:
    owner, thief = server(crew, buffer, 1), server(crew, buffer, 1)
    assert owner.call("try_reserve", 4)
    for call in (("set_num_requests", 0), ("set_num_requests", 9), ("try_reserve", 1)):
        with pytest.raises(NotOwner, match="client_index 1 is in use by another living process"):
            thief.call(*call)
    with pytest.raises(NotOwner, match="this process has 0"):
        thief.call("release", 1)
    assert thief.call("get_num_requests") == 4
    assert buffer.in_flight == 4
    owner.call("release", 4)
    assert buffer.in_flight == 0
    owner.end()
    thief.call("set_num_requests", 2)
    assert buffer.in_flight == 2


def test_a_forked_child_cannot_release_its_parents_permits(
    forked: Crew, buffer: AdmissionCounters
) -> None:
    parents = own(buffer, 1)
    parents.set_num_requests(2)
    assert parents.try_reserve(3)
    child = Remote(forked, same, parents)
    with pytest.raises(NotOwner, match="this process has 0"):
        child.call("release", 1)
    with pytest.raises(NotOwner, match="client_index 1 is in use"):
        child.call("set_num_requests", 0)
    with pytest.raises(NotOwner):
        child.call("try_reserve", 1)
    assert child.call("get_num_requests") == 5
    child.end()
    assert (buffer.in_flight, buffer[8]) == (5, 5)
    assert buffer.reclaim() == 0
    parents.release(3)
    parents.set_num_requests(0)
    assert buffer.in_flight == 0


def test_a_forked_child_may_take_another_index_of_the_same_buffer(
    forked: Crew, buffer: AdmissionCounters
) -> None:
    parents = own(buffer, 0)
    assert parents.try_reserve(3)
    child = server(forked, buffer, 1)
    assert child.call("try_reserve", 7)
    assert not parents.try_reserve()
    child.end()
    assert wait_until(lambda: parents.try_reserve(7))


def test_a_forked_child_may_go_on_with_the_index_of_its_dead_parent_and_holds_nothing_yet(
    forked: Crew, buffer: AdmissionCounters
) -> None:
    read_end, write_end = os.pipe()
    here, there = forked.context.Pipe(duplex=False)
    try:
        parent = forked.start(stats_hold_and_fork, buffer, CLIENTS, 1, there, read_end, write_end)
        assert here.poll(DEADLINE)
        assert here.recv() == "reserved"
        forked.kill(parent)
        assert buffer.in_flight == 6
    finally:
        os.close(write_end)
        os.close(read_end)
    assert here.poll(DEADLINE)
    assert here.recv() == (1, 1)
    wait_until(lambda: buffer.reclaim() or buffer.in_flight == 0)
    assert buffer.in_flight == 0


def test_one_process_may_hold_two_indices_among_others(forked: Crew, buffer: AdmissionCounters) -> None:
    other = server(forked, buffer, 0)
    first, second = own(buffer, 1), own(buffer, 2)
    first.set_num_requests(2)
    second.set_num_requests(3)
    other.call("set_num_requests", 1)
    assert other.call("get_num_requests") == first.get_num_requests() == 6
    assert buffer.in_flight == 6
    with pytest.raises(NotOwner):
        server(forked, buffer, 2).call("set_num_requests", 1)
