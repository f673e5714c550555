"""Owners that die, are stopped, or are outlived by their children: what they held comes back once."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gatecount import AtomicArray, Gate, LayoutMismatch
from processes.workers import (
    acquire_and_end,
    acquire_and_exit,
    heirs,
    hold_and_fork,
    reclaim_with_heirs,
)
from support import DEADLINE, Crew, Holder, Remote, gone, path_of, same, scaled, wait_until

LIMITS = {"requests": 10, "tokens": 1000}


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def caps(gate: Gate) -> tuple[int, int]:
    told = gate.statistics().caps
    return told["requests"].in_flight, told["tokens"].in_flight


def test_reclaim_takes_back_what_a_killed_process_held_under_every_cap(gate: Gate, crew: Crew) -> None:
    victim, other = Remote(crew, Holder, gate), Remote(crew, Holder, gate)
    assert victim.call("admit", requests=4, tokens=300)
    assert other.call("admit", requests=2, tokens=50)
    victim.kill()
    assert caps(gate) == (6, 350)
    assert gate.reclaim() == 1
    assert caps(gate) == (2, 50)
    told = gate.statistics().caps
    assert (told["requests"].reclaimed, told["tokens"].reclaimed) == (4, 300)
    assert (told["requests"].repairs, told["tokens"].repairs) == (0, 0)
    assert gate.reclaim() == 0
    other.call("release", 2)
    other.call("release", 50, cap="tokens")
    assert caps(gate) == (0, 0)


def test_a_dead_owner_is_shown_in_no_slot_and_counts_until_it_is_reclaimed(
    gate: Gate, crew: Crew
) -> None:
    victim = Remote(crew, same, gate)
    assert victim.call("try_acquire", 4)
    assert [slot.pid for slot in gate.statistics().slots] == [victim.process.pid]
    victim.kill()
    assert gate.statistics().slots == ()
    assert caps(gate) == (4, 0)
    assert [(pid, alive) for _, pid, alive, *_ in gate.owners()] == [(victim.process.pid, False)]
    gate.reclaim()
    assert gate.owners() == []


def test_a_claim_takes_back_what_the_dead_held_though_a_slot_was_free(gate: Gate, crew: Crew) -> None:
    victim, successor = Remote(crew, same, gate), Remote(crew, same, gate)
    gate.claim()
    assert victim.call("try_acquire", 4)
    victim.kill()
    assert caps(gate) == (4, 0)
    successor.call("claim")
    assert caps(gate) == (0, 0)


def test_telling_of_a_dead_owner_writes_nothing(gate_name: str, crew: Crew) -> None:
    with Gate.create(gate_name, limits=LIMITS, slots=4):
        victim = Remote(crew, Gate.open, gate_name)
        assert victim.call("try_acquire", 4)
        victim.kill()
        before = path_of(gate_name).read_bytes()
        with Gate.open(gate_name) as reader:
            assert reader.statistics().caps["requests"].in_flight == 4
            assert len(reader.owners()) == 1
            assert sum(reader.counters()) == 4
        assert path_of(gate_name).read_bytes() == before


def test_whoever_would_be_refused_looks_for_the_dead_first(gate: Gate, crew: Crew) -> None:
    victim, other = Remote(crew, same, gate), Remote(crew, same, gate)
    assert victim.call("try_acquire", 10)
    assert not other.call("try_acquire")
    victim.kill()
    wait_until(lambda: other.call("try_acquire", 10))
    assert caps(gate) == (10, 0)
    assert gate.statistics().caps["requests"].reclaimed == 10


def test_whoever_would_be_refused_by_one_cap_of_two_looks_for_the_dead_first(
    gate: Gate, crew: Crew
) -> None:
    victim, other = Remote(crew, Holder, gate), Remote(crew, Holder, gate)
    assert victim.call("try_acquire", 1000, cap="tokens")
    victim.kill()
    wait_until(lambda: other.call("admit", requests=1, tokens=1000))
    assert caps(gate) == (1, 1000)


@pytest.mark.parametrize("end", [acquire_and_exit, acquire_and_end])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_ends_with_exit_code_0_loses_no_permit(
    gate: Gate, method: str, end: Callable[[Gate, int], None]
) -> None:
    with Crew(method) as crew:
        crew.start(end, gate, 10)
        crew.join()
    wait_until(gate.try_acquire)
    assert caps(gate) == (1, 0)


def test_the_permits_of_a_dead_parent_do_not_live_on_in_its_forked_child(gate: Gate, crew: Crew) -> None:
    read_end, write_end = os.pipe()
    here, there = crew.context.Pipe(duplex=False)
    try:
        parent = crew.start(hold_and_fork, gate, 10, there, read_end, write_end)
        assert here.poll(DEADLINE)
        child = psutil.Process(here.recv())
        crew.kill(parent)
        assert child.is_running()
        assert gate.reclaim() == 1
        assert gate.try_acquire(10)
        assert not gone(child)
    finally:
        os.close(write_end)
        os.close(read_end)
    wait_until(lambda: gone(child))


def test_a_stopped_process_is_alive_and_holds_up_nobody(gate: Gate, crew: Crew) -> None:
    sleeper = Remote(crew, same, gate)
    assert sleeper.call("try_acquire", 6)
    pid = sleeper.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        assert gate.reclaim() == 0
        assert not gate.try_acquire(5)
        assert gate.try_acquire(4)
        gate.release(4)
        assert [slot.pid for slot in gate.statistics().slots if slot.held["requests"]] == [pid]
    finally:
        os.kill(pid, signal.SIGCONT)
    sleeper.call("release", 6)
    assert caps(gate) == (0, 0)


def test_a_zombie_is_dead(gate: Gate) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if gate.try_acquire(10) else 1)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert gate.reclaim() == 1
    assert gate.try_acquire(10)
    assert os.waitpid(pid, 0) == (pid, 0)


def test_several_that_reclaim_at_once_reclaim_each_dead_owner_once(crew: Crew) -> None:
    with Gate.create(limits=LIMITS, slots=16) as gate:
        reclaimers = [Remote(crew, same, gate) for _ in range(4)]
        for _ in range(5):
            victims = [Remote(crew, same, gate) for _ in range(6)]
            assert all(victim.call("try_acquire") for victim in victims)
            for victim in victims:
                victim.kill()
            for reclaimer in reclaimers:
                reclaimer._connection.send(("reclaim", (), {}))
            outcomes = [reclaimer._connection.recv() for reclaimer in reclaimers]
            assert sum(count for _, count in outcomes) == 6
            assert caps(gate) == (0, 0)
        cap = gate.statistics().caps["requests"]
        assert (cap.reclaimed, cap.admitted, cap.repairs) == (30, 30, 0)


def test_an_heir_gets_the_slot_of_a_dead_owner_while_others_reclaim_it(gate_name: str) -> None:
    """It must not take a slot for owned that a rival is just about to free."""
    words, count = AtomicArray(1), scaled(120)
    with Gate.create(gate_name, limits=LIMITS, slots=1) as gate, Crew("spawn") as crew:
        crew.start(reclaim_with_heirs, gate, words, count)
        crew.start(heirs, gate, words, count)
        crew.join()
        gate.reclaim()
        assert caps(gate) == (0, 0)
        assert gate.statistics().caps["requests"].reclaimed == count


def test_a_service_killed_as_a_whole_starts_again_under_its_name(gate_name: str) -> None:
    settings: dict[str, Any] = {"limits": LIMITS, "slots": 2, "exist_ok": True}
    for _ in range(3):
        with Crew("fork") as crew:
            servers = [Remote(crew, _create, gate_name, settings) for _ in range(2)]
            for server in servers:
                server.call("held")  # it is up, and has taken back what it found of the dead
            assert servers[0].call("try_acquire", 6)
            assert servers[1].call("try_acquire", 4)
            assert not servers[0].call("try_acquire")
            for server in servers:
                server.kill()
    with Gate.create(gate_name, **settings) as gate:
        assert caps(gate) == (0, 0)
        assert gate.statistics().caps["requests"].reclaimed == 30
        assert gate.try_acquire(10)


def _create(name: str, settings: dict[str, Any]) -> Gate:
    return Gate.create(name, **settings)


def test_adopting_a_gate_leaves_the_living_of_the_service_before(gate_name: str) -> None:
    settings: dict[str, Any] = {"limits": LIMITS, "slots": 4, "exist_ok": True}
    with Crew("fork") as crew:
        old, killed = (Remote(crew, _create, gate_name, settings) for _ in range(2))
        assert old.call("try_acquire", 3)
        assert killed.call("try_acquire", 7)
        killed.kill()
        with Gate.create(gate_name, **{**settings, "limits": {**LIMITS, "requests": 5}}) as gate:
            assert caps(gate) == (3, 0)
            assert gate.try_acquire(2)
            assert not old.call("try_acquire")
            with pytest.raises(LayoutMismatch):
                Gate.create(gate_name, **{**settings, "slots": 5})
            assert old.call("held") == 3


def test_a_process_without_descriptors_gets_an_error_and_no_slot(gate: Gate, crew: Crew) -> None:
    child = Remote(crew, _without_descriptors, gate)
    assert gate.try_acquire(3)
    with pytest.raises(OSError, match="Too many open files"):
        child.call("try_acquire")
    assert caps(gate) == (3, 0)
    assert len(gate.statistics().slots) == 1


def _without_descriptors(gate: Gate) -> Gate:
    used = len(list(Path("/proc/self/fd").iterdir())) - 1
    while True:
        try:
            os.dup(0)
        except OSError:
            return gate
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
