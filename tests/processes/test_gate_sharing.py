"""One gate in several living processes: limits, names, slots."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from gatecount import AtomicArray, Gate, GateFull, GateNotFound, NotOwner, SlotsExhausted, UnknownCap
from processes import workers
from support import DEADLINE, Crew, Remote, path_of, python, same

LIMITS = {"requests": 10, "tokens": 1000}
modes = pytest.mark.parametrize("mode", ["hard", "approximate"])


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest, gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def in_flight(gate: Gate, cap: str = "requests") -> int:
    return gate.statistics().caps[cap].in_flight


REACHES: dict[str, tuple[str, Callable[[Gate], tuple[object, ...]]]] = {
    "inherited by fork": ("fork", lambda gate: (same, gate)),
    "pickled to a spawned child": ("spawn", lambda gate: (same, gate)),
    "pickled by way of the fork server": ("forkserver", lambda gate: (same, gate)),
    "opened by name": ("spawn", lambda gate: (Gate.open, gate.name)),
}


@pytest.mark.parametrize("way", REACHES)
def test_a_gate_is_one_for_all_processes_however_they_reached_it(gate: Gate, way: str) -> None:
    method, arguments = REACHES[way]
    assert gate.try_acquire(6)
    with Crew(method) as crew:
        child = Remote(crew, *arguments(gate))  # type: ignore[arg-type]
        assert child.call("held") == 0
        with pytest.raises(NotOwner, match="holds 0 of cap 'requests'"):
            child.call("release", 1)
        assert not child.call("try_acquire", 5)
        assert child.call("try_acquire", 4)
        assert not gate.try_acquire()
        assert in_flight(gate) == 10
        statistics = child.call("statistics")
        assert {slot.pid: slot.held["requests"] for slot in statistics.slots} == {
            os.getpid(): 6,
            child.process.pid: 4,
        }
        gate.release(6)
        assert child.call("try_acquire", 6)
        child.call("release", 10)
        assert in_flight(gate) == 0
        child.call("close")
        assert [slot.pid for slot in gate.statistics().slots] == [os.getpid()]


def test_errors_of_another_process_arrive_with_their_fields(gate: Gate, crew: Crew) -> None:
    child = Remote(crew, same, gate)
    assert child.call("try_acquire", 8)
    with pytest.raises(GateFull) as full:
        child.call("admit", requests=3)
    assert (full.value.cap, full.value.limit, full.value.in_flight) == ("requests", 10, 8)
    with pytest.raises(NotOwner) as not_owner:
        child.call("release", 9)
    assert (not_owner.value.requested, not_owner.value.held) == (9, 8)
    with pytest.raises(UnknownCap):
        child.call("try_acquire", cap="jobs")


UNRELATED = """
import os, signal, sys
from gatecount import Gate
gate = Gate.from_env()
assert gate.try_acquire(3)
assert not gate.try_acquire(8)
end = sys.argv[1]
if end == "closes":
    gate.close()
elif end == "exits at once":
    os._exit(0)
elif end == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["closes", "ends", "exits at once", "is killed"])
def test_an_unrelated_process_that_opened_it_leaves_it_standing(gate: Gate, end: str) -> None:
    assert gate.name is not None
    code = subprocess.run(
        python(UNRELATED, end),
        env={**os.environ, "GATECOUNT_GATE": gate.name},
        timeout=DEADLINE,
        check=False,
    ).returncode
    assert code == (-9 if end == "is killed" else 0)
    assert path_of(gate.name).exists()
    gate.reclaim()
    assert in_flight(gate) == 0
    with Gate.open(gate.name) as again:
        assert again.try_acquire(10)
        assert not gate.try_acquire()


def test_a_limit_set_in_one_process_holds_in_every_other(gate: Gate, crew: Crew) -> None:
    child = Remote(crew, same, gate)
    assert child.call("try_acquire", 10)
    assert not child.call("try_acquire")
    gate.set_limit("requests", 12)
    assert child.call("try_acquire", 2)
    child.call("set_limit", "requests", 0)
    assert not gate.try_acquire()
    child.call("release", 12)
    assert not child.call("try_acquire")
    assert not gate.try_acquire()
    gate.set_limit("requests", 1)
    assert child.call("try_acquire")


def test_a_limit_lowered_while_full_admits_nobody_anywhere_until_it_has_drained(
    gate: Gate, crew: Crew
) -> None:
    holder, other = Remote(crew, same, gate), Remote(crew, same, gate)
    assert holder.call("try_acquire", 6)
    assert other.call("try_acquire", 4)
    gate.set_limit("requests", 3)
    for left in (9, 8, 7, 6, 5, 4, 3):
        assert not other.call("try_acquire")
        assert not gate.try_acquire()
        (holder if left > 4 else other).call("release")
        assert in_flight(gate) == left
    assert not gate.try_acquire()
    other.call("release")
    assert gate.try_acquire()
    assert not other.call("try_acquire")
    assert gate.statistics().caps["requests"].peak == 10


def test_a_gate_removed_by_another_process_goes_on_for_those_who_have_it(gate: Gate, crew: Crew) -> None:
    assert gate.name is not None
    child = Remote(crew, Gate.open, gate.name)
    assert child.call("try_acquire", 4)
    child.call("remove", gate.name)
    assert not path_of(gate.name).exists()
    with pytest.raises(GateNotFound):
        Gate.open(gate.name)
    assert not gate.try_acquire(7)
    assert gate.try_acquire(6)
    assert child.call("statistics").caps["requests"].in_flight == 10


def test_more_processes_than_slots_get_an_error_until_one_leaves(gate_name: str, crew: Crew) -> None:
    with Gate.create(gate_name, limits=LIMITS, slots=2) as gate:
        first, second, third = (Remote(crew, Gate.open, gate_name) for _ in range(3))
        assert first.call("try_acquire", 2)
        assert second.call("try_acquire", 2)
        before = gate.statistics()
        for call in ("try_acquire", "admit", "claim"):
            with pytest.raises(SlotsExhausted, match="all 2 slots are owned by living") as caught:
                third.call(call)
            assert caught.value.slots == 2
        with pytest.raises(NotOwner):
            third.call("release")
        assert gate.statistics().caps == before.caps
        first.call("close")
        assert third.call("try_acquire", 8)
        assert in_flight(gate) == 10
        second.kill()
        fourth = Remote(crew, Gate.open, gate_name)
        assert fourth.call("try_acquire", 2)
        assert in_flight(gate) == 10
        assert {slot.pid for slot in gate.statistics().slots} == {
            third.process.pid,
            fourth.process.pid,
        }


@modes
def test_300_workers_one_after_another_reuse_slots(mode: str) -> None:
    with Gate.create(limits=LIMITS, slots=2, mode=mode) as gate:
        assert gate.try_acquire()
        with Crew("spawn") as crew:
            crew.start(workers.generations, gate, 300)
            crew.join()
        assert gate.reclaim() == 1
        cap = gate.statistics().caps["requests"]
        assert (cap.in_flight, cap.peak) == (1, 10)
        assert (cap.admitted, cap.refused, cap.reclaimed) == (301, 300, 2700)
        assert cap.repairs == 0
        assert [slot.pid for slot in gate.statistics().slots] == [os.getpid()]


@pytest.mark.parametrize("exist_ok", [False, True])
def test_of_processes_that_create_one_name_at_once_all_get_the_same_gate_or_one_gets_it(
    gate_name: str, exist_ok: bool
) -> None:
    words, count = AtomicArray(32), 6
    with Crew("fork") as crew:
        for _ in range(count):
            crew.start(workers.create, gate_name, words, count, exist_ok)
        crew.join()
    losers, winners = words[8], words[16]
    assert (losers, winners) == ((0, count) if exist_ok else (count - 1, 1))
    with Gate.open(gate_name) as gate:
        assert gate.statistics().caps["requests"].admitted == winners
        gate.reclaim()
        assert in_flight(gate) == 0


def test_a_forked_child_keeps_no_descriptor_of_its_parents_claim(gate: Gate, crew: Crew) -> None:
    """Its lock would stay held with it, and the parent's death go unseen."""
    assert gate.try_acquire(2)
    assert _descriptors(gate, os.getpid()) == 2  # the segment's and the claim's
    child = Remote(crew, same, gate)
    assert not child.call("closed")
    pid = child.process.pid
    assert pid is not None
    assert _descriptors(gate, pid) == 1
    assert child.call("try_acquire", 2)
    assert _descriptors(gate, pid) == 2
    assert _descriptors(gate, os.getpid()) == 2


def _descriptors(gate: Gate, pid: int) -> int:
    """Return how many descriptors of the gate's file a process has open."""
    inode = os.stat(gate.segment.fd).st_ino
    found = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            found += os.stat(f"/proc/{pid}/fd/{fd}").st_ino == inode
    return found
