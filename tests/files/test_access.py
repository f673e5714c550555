"""Who may use a gate: its user, others by permission, but no program that one happens to start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from files.gatefile import LIMITS, SLOTS, adopt, create, error_of, identity
from gatecount import AdmissionCounters, AtomicArray, Gate, GateExists, SharedAdmissionStats
from processes.workers import meet
from support import DEADLINE, Crew, Remote, gate_files, path_of, python, scaled

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def become_nobody(groups: list[int]) -> None:
    os.setgroups(groups)
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


class Stranger:
    """What another user's process does with a gate's name."""

    def __init__(self, groups: list[int]) -> None:
        become_nobody(groups)
        self.gates: list[Gate] = []

    def _keep(self, gate: Gate) -> None:
        self.gates.append(gate)

    def open(self, name: str) -> None:
        self._keep(Gate.open(name))

    def adopt(self, name: str) -> None:
        self._keep(adopt(name))

    def create(self, name: str) -> None:
        self._keep(create(name))

    def remove(self, name: str) -> None:
        Gate.remove(name)

    def acquire(self, n: int) -> bool:
        return self.gates[-1].try_acquire(n)

    def reclaim(self) -> int:
        return self.gates[-1].reclaim()


def stranger(crew: Crew, *groups: int) -> Remote:
    return Remote(crew, Stranger, list(groups))


def expect_permission_error(other: Remote, method: str, name: str) -> None:
    before = identity(path_of(name))
    began = time.monotonic()
    error, text = error_of(lambda name: other.call(method, name), name)
    assert error is PermissionError
    assert str(path_of(name)) in text
    assert time.monotonic() - began < 10, "it tried again and again"
    assert identity(path_of(name)) == before


# Other users


@as_root
def test_the_gate_of_another_user_is_refused_and_left_alone(gate_name: str, crew: Crew) -> None:
    other = stranger(crew)
    with create(gate_name) as gate:
        for method in ("open", "adopt", "remove"):
            expect_permission_error(other, method, gate_name)
        with pytest.raises(GateExists):
            other.call("create", gate_name)
        assert gate.statistics().slots == ()


@as_root
@pytest.mark.parametrize("permissions", [0o606, 0o666])
def test_permissions_let_another_user_in_whatever_the_umask(
    permissions: int, gate_name: str, crew: Crew
) -> None:
    umask = os.umask(0o077)
    try:
        gate = create(gate_name, permissions=permissions)
    finally:
        os.umask(umask)
    with gate:
        assert stat.S_IMODE(path_of(gate_name).stat().st_mode) == permissions
        other = stranger(crew)
        for method in ("open", "adopt"):
            other.call(method, gate_name)
            assert other.call("acquire", 3)
        assert not gate.try_acquire(5)
        other.kill()
        assert gate.reclaim() == 2
        assert gate.try_acquire(10)


@as_root
def test_permissions_let_a_group_in_and_nobody_else(gate_name: str, crew: Crew) -> None:
    group = os.getegid()
    with create(gate_name, permissions=0o660):
        expect_permission_error(stranger(crew), "open", gate_name)
        member = stranger(crew, group)
        member.call("open", gate_name)
        assert member.call("acquire", 10)


@as_root
@pytest.mark.parametrize("permissions", [0o644, 0o602, 0o611])
def test_who_may_not_both_read_and_write_may_not_open(
    permissions: int, gate_name: str, crew: Crew
) -> None:
    with create(gate_name, permissions=permissions):
        expect_permission_error(stranger(crew), "open", gate_name)


@as_root
def test_another_user_sees_who_is_dead_and_who_is_alive(gate_name: str, crew: Crew) -> None:
    """A signal to the process of another user is not permitted: that is no proof of its death."""
    with create(gate_name, permissions=0o666) as gate:
        other, mine = stranger(crew), Remote(crew, Gate.open, gate_name)
        other.call("open", gate_name)
        assert mine.call("try_acquire", 4)
        assert gate.try_acquire(3)
        assert other.call("reclaim") == 0
        mine.kill()
        assert other.call("reclaim") == 1
        assert other.call("acquire", 7)
        assert gate.held() == 3


@as_root
def test_a_gate_in_a_sticky_directory_is_removed_by_its_owner_alone(gate_name: str, crew: Crew) -> None:
    if not path_of(gate_name).parent.stat().st_mode & stat.S_ISVTX:
        pytest.skip("the directory of gates is not sticky here")
    with create(gate_name, permissions=0o666) as gate:
        other = stranger(crew)
        expect_permission_error(other, "remove", gate_name)
        other.call("open", gate_name)
        assert other.call("acquire", 4)
        assert not gate.try_acquire(7)
    theirs = f"{gate_name}-theirs"
    other.call("create", theirs)
    Gate.remove(theirs)  # root may


@as_root
@pytest.mark.parametrize("named", [True, False])
def test_servers_that_drop_their_privileges_go_on_with_the_gate_they_were_handed(
    named: bool, gate_name: str, crew: Crew
) -> None:
    gate = create(gate_name) if named else Gate.create(limits=LIMITS, slots=SLOTS)
    with gate:
        first, second = (Remote(crew, _as_nobody, gate) for _ in range(2))
        assert first.call("try_acquire", 4)
        assert second.call("try_acquire", 5)
        assert not second.call("try_acquire", 2)
        assert second.call("reclaim") == gate.reclaim() == 0
        first.kill()
        assert second.call("reclaim") == 1
        assert second.call("try_acquire", 5)
        second.kill()
        assert gate.reclaim() == 1
        assert gate.try_acquire(10)
        assert gate.statistics().caps["requests"].repairs == 0


def _as_nobody(gate: Gate) -> Gate:
    become_nobody([])
    return gate


# Exclusive creation


def _race(name: str, words: AtomicArray, rounds: int) -> None:
    for number in range(1, rounds + 1):
        meet(words, 0, 2 * number)
        try:
            gate = create(name)
        except GateExists:
            words.fetch_add(8, 1)
            gate = Gate.open(name)
        else:
            words.fetch_add(16, 1)
        meet(words, 24, 2 * number)
        if words.load(16) != number or not gate.try_acquire(5):
            words.fetch_add(32, 1)
        meet(words, 40, 2 * number)
        with contextlib.suppress(FileNotFoundError):
            Gate.remove(name)
        gate.close()


def test_of_two_that_create_a_name_at_once_exactly_one_does(gate_name: str, crew: Crew) -> None:
    words, rounds = AtomicArray(48), scaled(500)
    for _ in range(2):
        crew.start(_race, gate_name, words, rounds)
    crew.join()
    losers, winners, wrong = words[8], words[16], words[32]
    assert (losers, winners, wrong) == (rounds, rounds, 0)
    assert path_of(gate_name) not in gate_files()


# Descriptors


INHERITED = """
import os
for fd in os.listdir("/proc/self/fd"):
    if os.path.exists("/proc/self/fd/" + fd):
        print(os.stat("/proc/self/fd/" + fd)[1:3])
"""


def test_a_started_program_inherits_no_descriptor_of_ours(gate_name: str) -> None:
    buffer, words = AdmissionCounters(2, 5), AtomicArray(8)
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, 2, 0)
    assert stats.try_reserve()
    named, anonymous = create(gate_name), Gate.create(limits=LIMITS)
    with named, anonymous, Gate.open(gate_name) as opened:
        shared: list[Any] = [buffer, words, named, anonymous, opened]
        assert all(gate.try_acquire() for gate in (named, anonymous, opened))
        files = {(told.st_dev, told.st_ino) for told in (os.fstat(one.segment.fd) for one in shared)}
        ours = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        ours = [fd for fd in ours if (os.fstat(fd).st_dev, os.fstat(fd).st_ino) in files]
        assert len(ours) == len(shared) + 4  # and one for each claim
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in ours)
        seen = subprocess.run(
            python(INHERITED),
            timeout=DEADLINE,
            capture_output=True,
            text=True,
            check=True,
            close_fds=False,
        ).stdout
        assert seen
        assert not [file for file in files if str(file) in seen]


# Sealed


MAKERS: dict[str, Callable[[], Any]] = {
    "a gate": lambda: Gate.create(limits=LIMITS),
    "counters": lambda: AdmissionCounters(4, 10),
    "an array": lambda: AtomicArray(100),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_anonymous_memory_can_be_resized_by_nobody(kind: str) -> None:
    shared = MAKERS[kind]()
    fd, size = shared.segment.fd, shared.segment.size
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    for seal in (fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL):
        assert seals & seal
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        for at in (fd, again):
            for other in (0, 1, size - 1, size + 1, 1 << 20):
                with pytest.raises(PermissionError):
                    os.ftruncate(at, other)
            with pytest.raises(PermissionError):
                os.pwrite(at, b"x", size)
            with pytest.raises(PermissionError):
                fcntl.fcntl(at, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(again)
    assert os.fstat(fd).st_size == size


def test_a_child_can_not_resize_what_it_inherited(crew: Crew) -> None:
    with Gate.create(limits=LIMITS) as gate:
        child = crew.start(_truncate, gate)
        crew.join()
        assert child.exitcode == 0
        assert gate.try_acquire(10)


def _truncate(gate: Gate) -> None:
    signal.alarm(60)
    with pytest.raises(PermissionError):
        os.ftruncate(gate.segment.fd, 0)
    assert not gate.try_acquire(11)
    assert gate.try_acquire(10)
    gate.close()
