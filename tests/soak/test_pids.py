"""Pids that lie: used again by another process, or counted in another PID namespace.

That a process is dead must be proved; that its pid is gone, or is somebody's, proves it only within one
namespace. Some of these tests write owner words as a dead process would have left them: role, whether
the owner had a lock, pid, and start time, in the first words of each owner's line of the gate's file.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest

from gatecount import Gate
from support import DEADLINE, Crew, Remote, path_of, python, wait_until

LIVE, RECLAIMING = 2, 3
LOCKED = 1 << 61
START = (1 << 39) - 1


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits={"requests": 10}, slots=4) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def in_flight(gate: Gate) -> int:
    cap = gate.statistics().caps["requests"]
    assert cap.repairs == 0
    return cap.in_flight


@contextmanager
def owner_line(gate: Gate, slot: int) -> Iterator[memoryview]:
    """Map the owner's line of a slot: word, namespaces, …"""
    assert gate.name
    with path_of(gate.name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
        line = memoryview(whole)[128 + 64 * slot : 192 + 64 * slot].cast("Q")
        try:
            yield line
        finally:
            line.release()


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def word_of(pid: int, start: int, role: int = LIVE, locked: bool = False) -> int:
    return role << 62 | (LOCKED if locked else 0) | pid << 39 | start & START


def dead_holder(gate: Gate, crew: Crew, units: int = 6) -> int:
    """Return the slot of a process that was killed with so many units."""
    holder = Remote(crew, Gate.open, gate.name)
    assert holder.call("try_acquire", units)
    slot = holder.call("claim")
    holder.kill()
    return int(slot)


def test_these_tests_know_what_an_owner_word_looks_like(gate: Gate, crew: Crew) -> None:
    holder = Remote(crew, Gate.open, gate.name)
    slot, pid = holder.call("claim"), holder.process.pid
    assert pid is not None
    with owner_line(gate, slot) as line:
        assert line[0] == word_of(pid, start_of(pid), locked=True)


# A pid that is another process's by now


def test_an_owner_whose_pid_was_taken_by_another_process_is_dead(gate: Gate, crew: Crew) -> None:
    slot, other = dead_holder(gate, crew), Remote(crew, Gate.open, gate.name)
    assert other.process.pid
    with owner_line(gate, slot) as line:
        line[0] = word_of(other.process.pid, start_of(other.process.pid) - 1)
    assert [alive for _, _, alive, *_ in gate.owners()] == [False]
    assert gate.reclaim() == 1
    assert in_flight(gate) == 0
    assert other.call("try_acquire", 10)


def test_an_owner_with_a_lock_is_dead_without_it_whoever_has_its_pid(gate: Gate, crew: Crew) -> None:
    slot, other = dead_holder(gate, crew), Remote(crew, Gate.open, gate.name)
    assert other.process.pid
    with owner_line(gate, slot) as line:  # even in the same tick of the clock
        line[0] = word_of(other.process.pid, start_of(other.process.pid), locked=True)
    assert gate.reclaim() == 1
    assert in_flight(gate) == 0


@pytest.mark.parametrize("known", [True, False])
def test_an_owner_without_a_lock_lives_as_long_as_nothing_proves_it_dead(
    known: bool, gate: Gate, crew: Crew
) -> None:
    """The pid is a living process's that began then, or nobody knows when it began."""
    slot, other = dead_holder(gate, crew), Remote(crew, Gate.open, gate.name)
    assert other.process.pid
    with owner_line(gate, slot) as line:
        line[0] = word_of(other.process.pid, start_of(other.process.pid) if known else 0)
    assert gate.reclaim() == 0
    assert in_flight(gate) == 6
    assert not gate.try_acquire(5)
    other.kill()
    assert gate.reclaim() == 1
    assert gate.try_acquire(10)


def test_a_dead_reclaimer_is_replaced_whoever_has_its_pid(gate: Gate, crew: Crew) -> None:
    slot, other = dead_holder(gate, crew), Remote(crew, Gate.open, gate.name)
    pid = other.process.pid
    assert pid
    for word in (
        word_of(pid, start_of(pid) - 1, RECLAIMING),
        word_of(pid, start_of(pid), RECLAIMING, locked=True),
    ):
        with owner_line(gate, slot) as line:
            line[0] = word
        assert gate.reclaim() == 1
        assert in_flight(gate) == 0
        slot = dead_holder(gate, crew)


def test_a_living_reclaimer_is_left_to_its_work(gate: Gate, crew: Crew) -> None:
    slot, reclaimer = dead_holder(gate, crew), Remote(crew, Gate.open, gate.name)
    pid = reclaimer.process.pid
    assert pid
    with owner_line(gate, slot) as line:
        line[0] = word_of(pid, start_of(pid), RECLAIMING)
    assert gate.reclaim() == 0
    assert not gate.try_acquire(5)
    assert in_flight(gate) == 6
    reclaimer.kill()
    assert gate.reclaim() == 1
    assert in_flight(gate) == 0


@pytest.mark.parametrize("namespaces", [0, 1, 2**63])
def test_a_pid_of_another_namespace_proves_nothing(namespaces: int, gate: Gate, crew: Crew) -> None:
    """Not that nobody has it here, and not that the one who has it began at another time."""
    slot = dead_holder(gate, crew)
    gone = crew.members[0].pid
    assert gone
    assert not psutil.pid_exists(gone)
    for word in (word_of(gone, 12345), word_of(os.getpid(), 12345), word_of(1, 12345)):
        with owner_line(gate, slot) as line:
            line[0], line[1] = word, namespaces
        assert gate.reclaim() == 0
        assert in_flight(gate) == 6
        assert [alive for _, _, alive, *_ in gate.owners()] == [True]


# Real namespaces


@cache
def unshare(*flags: str) -> tuple[str, ...] | str:
    """Return a command that makes namespaces, or why there is none."""
    if not shutil.which("unshare"):
        return "there is no unshare"
    said = ""
    for more in ((), ("--user", "--map-root-user")):
        command = ("unshare", *more, *flags)
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return command
        said = said or tried.stderr.strip()
    return f"this user may not make a PID namespace: {said}"


INSIDE = """
import os, sys
from gatecount import Gate
gate = Gate.open(sys.argv[1])
print(gate.try_acquire(4), os.getpid(), flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Inside:
    """A process in a PID namespace of its own that has the gate open and holds 4 units."""

    def __init__(self, gate: Gate, *flags: str) -> None:
        command = unshare("--pid", "--fork", *flags)
        if isinstance(command, str):
            pytest.skip(command)
        assert gate.name
        self.unshare = subprocess.Popen(
            [*command, *python(INSIDE, gate.name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.unshare.stdout
        assert self.unshare.stdout.readline() == "True 1\n"
        (self.process,) = psutil.Process(self.unshare.pid).children()

    def ask(self, expression: str) -> str:
        assert self.unshare.stdin
        assert self.unshare.stdout
        print(expression, file=self.unshare.stdin, flush=True)
        return self.unshare.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.unshare.wait(DEADLINE)

    def close(self) -> None:
        if self.process.is_running():
            self.process.kill()
        self.unshare.communicate(timeout=DEADLINE)


@pytest.fixture(
    params=[(), ("--mount-proc",)], ids=["with the /proc of its parent", "with its own /proc"]
)
def inside(request: pytest.FixtureRequest, gate: Gate) -> Iterator[Inside]:
    made = Inside(gate, *request.param)
    yield made
    made.close()


def test_an_owner_in_another_pid_namespace_is_alive_until_it_is_killed(
    gate: Gate, inside: Inside
) -> None:
    """There it has pid 1, as somebody else has here who began at another time."""
    assert [(pid, alive) for _, pid, alive, *_ in gate.owners()] == [(1, True)]
    assert gate.reclaim() == 0
    assert not gate.try_acquire(7)
    assert gate.try_acquire(6)
    inside.kill()
    assert [alive for _, pid, alive, *_ in gate.owners() if pid == 1] == [False]
    assert gate.reclaim() == 1
    assert in_flight(gate) == 6
    assert gate.try_acquire(4)


def test_from_another_pid_namespace_owners_are_alive_until_they_are_killed(
    gate: Gate, crew: Crew, inside: Inside
) -> None:
    """There nobody has the pids of the owners outside."""
    assert gate.try_acquire()
    holder = Remote(crew, Gate.open, gate.name)
    assert holder.call("try_acquire", 5)
    assert inside.ask("gate.reclaim()") == "0"
    assert inside.ask("gate.try_acquire()") == "False"
    assert inside.ask("[owner[2] for owner in gate.owners()]") == "[True, True, True]"
    holder.kill()
    assert inside.ask("gate.reclaim()") == "1"
    assert inside.ask("gate.try_acquire(5)") == "True"
    assert in_flight(gate) == 10
    assert gate.held() == 1


def test_two_pid_namespaces_with_the_same_pids_keep_apart(gate: Gate, inside: Inside) -> None:
    twin = Inside(gate)
    try:
        assert [(pid, alive) for _, pid, alive, *_ in gate.owners()] == [(1, True)] * 2
        assert inside.ask("gate.reclaim()") == twin.ask("gate.reclaim()") == "0"
        inside.kill()
        assert twin.ask("gate.reclaim()") == "1"
        assert twin.ask("gate.held()") == "4"
        assert in_flight(gate) == 4
    finally:
        twin.close()


REUSED = """
import os, signal, sys
from gatecount import Gate

gate = Gate.create(limits={"requests": 10}, slots=4)

def child(units):
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, b"x" if not units or gate.try_acquire(units) else b"-")
        signal.pause()
    assert os.read(ready, 1) == b"x"
    return pid

def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def child_of_pid(pid, units):
    for _ in range(100):
        try:
            with open("/proc/sys/kernel/ns_last_pid", "w") as last:
                last.write(str(pid - 1))
        except OSError as error:
            sys.exit(f"cannot choose a pid: {error}")
        found = child(units)
        if found == pid:
            return
        kill(found)
    sys.exit("other processes were quicker")

def owners():
    return [(alive, held) for _, pid, alive, _, held in gate.owners() if pid == first]

first = child(6)
kill(first)
child_of_pid(first, 0)
assert owners() == [(False, (6,))], owners()
kill(first)
child_of_pid(first, 3)  # and takes back, as it claims, what the first has held
assert owners() == [(True, (3,))], owners()
told = gate.statistics().caps["requests"]
assert (told.in_flight, told.reclaimed) == (3, 6), told
assert gate.try_acquire(7) and not gate.try_acquire()
kill(first)
assert gate.reclaim() == 1 and gate.try_acquire(3)
print("reused")
"""


def test_a_pid_that_is_really_used_again_is_told_from_its_last_owner() -> None:
    command = unshare("--pid", "--fork", "--mount-proc")
    if isinstance(command, str):
        pytest.skip(command)
    done = subprocess.run(
        [*command, *python(REUSED)], timeout=DEADLINE, capture_output=True, text=True, check=False
    )
    if "cannot choose a pid" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout, done.stderr) == (0, "reused\n", "")


def test_the_kernels_pids_fit_into_an_owner_word() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux alone says what its largest pid is")
    assert int(Path("/proc/sys/kernel/pid_max").read_text()) <= 1 << 22
    wait_until(lambda: os.getpid() < 1 << 22)
