"""Deaths at bad moments: together, before one's children, while cleaning up, while another claims."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from gatecount import (
    AdmissionCounters,
    AtomicArray,
    Gate,
    NotOwner,
    SharedAdmissionStats,
    SlotsExhausted,
)
from processes.workers import claimed, meet
from support import DEADLINE, Crew, Holder, Remote, gone, same, scaled, wait_until

LIMITS = {"requests": 10, "tokens": 1000}


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=8) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def in_flight(gate: Gate) -> tuple[int, ...]:
    told = gate.statistics().caps.values()
    assert [cap.repairs for cap in told] == [0] * len(told)
    return tuple(cap.in_flight for cap in told)


def test_two_holders_killed_in_the_same_moment_both_give_back(gate: Gate, crew: Crew) -> None:
    leader, other, bystander = (Remote(crew, Holder, gate) for _ in range(3))
    assert leader.process.pid
    assert other.process.pid
    os.setpgid(leader.process.pid, 0)
    os.setpgid(other.process.pid, leader.process.pid)
    assert leader.call("admit", requests=4, tokens=300)
    assert other.call("admit", requests=5, tokens=600)
    assert bystander.call("try_acquire", 1)
    os.killpg(leader.process.pid, signal.SIGKILL)  # one call for both
    crew.kill(leader.process)
    crew.kill(other.process)
    assert in_flight(gate) == (10, 900)
    assert gate.reclaim() == 2
    assert in_flight(gate) == (1, 0)
    told = gate.statistics().caps
    assert (told["requests"].reclaimed, told["tokens"].reclaimed) == (9, 900)
    assert bystander.call("held") == 1


def test_all_holders_killed_in_the_same_moment_leave_an_empty_gate(gate: Gate, crew: Crew) -> None:
    holders = [Remote(crew, same, gate) for _ in range(7)]
    assert all(holder.call("try_acquire") for holder in holders)
    for holder in holders:
        holder.process.kill()
    for holder in holders:
        holder.kill()
    assert gate.reclaim() == 7
    assert in_flight(gate) == (0, 0)
    assert gate.try_acquire(10)


def _parent(gate: Gate, answer: Any, lifeline: int) -> None:
    """Hold some, fork a child that holds some of its own, and wait to be killed."""
    assert gate.try_acquire(4)
    child = os.fork()
    if child == 0:
        try:
            gate.release(4)
        except NotOwner:
            assert gate.try_acquire(3)
            answer.send(os.getpid())
        os.read(lifeline, 1)
        gate.release(3)
        answer.send("released")
        os._exit(0)
    os.read(lifeline, 1)


def test_a_parent_killed_while_its_forked_child_lives_gives_back_its_own_and_only_its_own(
    gate: Gate, crew: Crew
) -> None:
    read_end, write_end = os.pipe()
    here, there = crew.context.Pipe(duplex=False)
    try:
        parent = crew.start(_parent, gate, there, read_end)
        assert here.poll(DEADLINE)
        child = psutil.Process(here.recv())
        assert in_flight(gate) == (7, 0)
        crew.kill(parent)
        assert gate.reclaim() == 1
        assert in_flight(gate) == (3, 0)
        assert [slot.pid for slot in gate.statistics().slots] == [child.pid]
        os.write(write_end, b"x")
        assert here.poll(DEADLINE)
        assert here.recv() == "released"
    finally:
        os.close(write_end)
        os.close(read_end)
    wait_until(lambda: gone(child))
    assert gate.reclaim() == 1
    assert in_flight(gate) == (0, 0)


def test_a_parent_is_dead_before_anybody_has_waited_for_it_though_its_forked_child_lives(
    gate: Gate, crew: Crew
) -> None:
    """Its pid is still there. Only its lock tells, which must not live on in the child."""
    read_end, write_end = os.pipe()
    here, there = crew.context.Pipe(duplex=False)
    try:
        parent = crew.start(_parent, gate, there, read_end)
        assert parent.pid
        assert here.poll(DEADLINE)
        child = psutil.Process(here.recv())
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(parent.pid).status() == psutil.STATUS_ZOMBIE
        assert gate.reclaim() == 1
        assert in_flight(gate) == (3, 0)
        assert [slot.pid for slot in gate.statistics().slots] == [child.pid]
        child.kill()  # an end of the pipe may live on elsewhere: it need not see the other one close
        wait_until(lambda: gone(child))
    finally:
        os.close(write_end)
        os.close(read_end)


def test_a_child_killed_while_its_parent_lives_gives_back_its_own_and_only_its_own(
    gate: Gate, crew: Crew
) -> None:
    read_end, write_end = os.pipe()
    here, there = crew.context.Pipe(duplex=False)
    try:
        parent = crew.start(_parent, gate, there, read_end)
        assert here.poll(DEADLINE)
        child = psutil.Process(here.recv())
        child.kill()  # and nobody waits for it: it stays a zombie
        wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
        assert gate.reclaim() == 1
        assert in_flight(gate) == (4, 0)
        assert [slot.pid for slot in gate.statistics().slots] == [parent.pid]
    finally:
        os.close(write_end)
        os.close(read_end)


def test_a_family_killed_in_the_same_moment_gives_back_all(gate: Gate, crew: Crew) -> None:
    read_end, write_end = os.pipe()
    here, there = crew.context.Pipe(duplex=False)
    try:
        parent = crew.start(_parent, gate, there, read_end)
        assert parent.pid
        os.setpgid(parent.pid, 0)
        assert here.poll(DEADLINE)
        child = psutil.Process(here.recv())
        child_group = os.getpgid(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.killpg(parent.pid, signal.SIGKILL)
        if child_group != parent.pid:  # it was forked before its parent got a group
            child.kill()
        crew.kill(parent)
        wait_until(lambda: gone(child))
        assert gate.reclaim() == 2
        assert in_flight(gate) == (0, 0)
    finally:
        os.close(write_end)
        os.close(read_end)


# Claiming while another cleans up


def _reclaim_in_step(reclaim: Callable[[], int], words: AtomicArray, rounds: int) -> None:
    for number in range(1, rounds + 1):
        meet(words, 0, 2 * number)
        reclaim()
        meet(words, 8, 2 * number)


def _die_with(work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)


def test_the_only_slot_of_a_dead_owner_can_be_claimed_while_another_reclaims_it(
    gate_name: str, crew: Crew
) -> None:
    words, rounds, refused = AtomicArray(16), scaled(400), 0
    with Gate.create(gate_name, limits={"requests": 4}, slots=1) as gate:
        crew.start(_reclaim_in_step, gate.reclaim, words, rounds)
        for number in range(1, rounds + 1):
            _die_with(gate.try_acquire)
            with Gate.open(gate_name) as heir:
                meet(words, 0, 2 * number)
                try:
                    claimed(heir.claim)
                except SlotsExhausted:
                    refused += 1
            meet(words, 8, 2 * number)
        crew.join()
    assert refused == 0


def _serve(buffer: AdmissionCounters) -> None:
    SharedAdmissionStats({"mp_admission_counters": buffer}, 1, 0).set_num_requests(1)


def test_a_respawned_server_gets_its_index_while_another_reclaims_what_the_last_one_left(
    crew: Crew,
) -> None:
    words, rounds, refused = AtomicArray(16), scaled(400), 0
    buffer = AdmissionCounters(client_count=1, limit=4)
    crew.start(_reclaim_in_step, buffer.reclaim, words, rounds)
    for number in range(1, rounds + 1):
        _die_with(lambda: _serve(buffer))
        meet(words, 0, 2 * number)
        heir = os.fork()
        if heir == 0:
            try:
                claimed(lambda: _serve(buffer))
            except NotOwner:
                os._exit(1)
            os._exit(0)
        meet(words, 8, 2 * number)
        refused += os.waitpid(heir, 0)[1] != 0
    crew.join()
    assert refused == 0
