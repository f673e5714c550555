"""Room for a gate is found when it is made or not at all: never an error, let alone a signal, later.

Each case runs in a mount namespace of its own, with a small file system where gates live. Anonymous
memory has no file system that could be small: how much it may take is up to a memory cgroup, which kills
rather than refuses and is out of scope here. A limit on the size of files is tested with the names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest

from support import DEADLINE, python


@cache
def why_not() -> str:
    """Return why no file system can be mounted here, or nothing."""
    if not shutil.which("unshare"):
        return "there is no unshare"
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "gates", "/dev/shm"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.strip() or ("" if tried.returncode == 0 else "mount failed")


def run_with(mounts: str, program: str) -> None:
    """Run a program in a mount namespace in which these commands were run first."""
    if reason := why_not():
        pytest.skip(f"no file system can be mounted by this user: {reason}")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", f'{mounts}\nexec "$@"', "sh", *python(SHARED + program)],
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


SHARED = """
import errno, mmap, os, signal
from gatecount import Gate, GateNotFound, LayoutMismatch

def create(slots=100, **more):  # 5 pages of 4 KiB with 100 slots
    return Gate.create("full", limits={"requests": 10}, slots=slots, **more)

def free():
    return os.statvfs("/dev/shm").f_bfree

def fill(leave):
    with open("/dev/shm/other", "wb") as other:
        while free() > leave:
            os.posix_fallocate(other.fileno(), 0, os.fstat(other.fileno()).st_size + 4096)

def expect(number, **more):
    before = sorted(os.listdir("/dev/shm")), free(), os.listdir("/proc/self/fd")
    try:
        create(**more)
    except OSError as error:
        assert error.errno == number, error
        assert "/dev/shm/gatecount-full" in str(error), error
    else:
        raise AssertionError("there was no room for that")
    assert (sorted(os.listdir("/dev/shm")), free(), os.listdir("/proc/self/fd")) == before

def use(gate):
    assert gate.try_acquire(10) and not gate.try_acquire()
    gate.release(10)
"""


def test_a_gate_larger_than_the_file_system_is_no_space_left_and_leaves_nothing() -> None:
    run_with(
        "mount -t tmpfs -o size=64k gates /dev/shm",
        """
for slots in (1023, 400, 350):
    expect(errno.ENOSPC, slots=slots)
    expect(errno.ENOSPC, slots=slots, exist_ok=True)
with create(slots=16) as gate:
    use(gate)
""",
    )


def test_a_gate_is_made_whole_or_not_at_all_however_few_pages_are_left() -> None:
    run_with(
        "mount -t tmpfs -o size=128k gates /dev/shm",
        """
for leave in range(5):
    fill(leave)
    expect(errno.ENOSPC)
    os.unlink("/dev/shm/other")
fill(5)
with create() as gate:
    assert free() == 0
    use(gate)
""",
    )


def test_a_gate_that_was_made_is_used_to_its_last_byte_when_no_page_is_left() -> None:
    run_with(
        "mount -t tmpfs -o size=128k gates /dev/shm",
        """
gate = create()
fill(0)
others = [Gate.open("full") for _ in range(99)]
assert sorted(other.claim() for other in others) == list(range(99))
use(gate)
assert len(gate.statistics().slots) == 100
with open("/dev/shm/gatecount-full", "r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
    whole[:] = whole[:]
for other in others:
    use(other)
""",
    )


def test_no_file_left_on_the_file_system_is_no_space_left() -> None:
    run_with(
        "mount -t tmpfs -o nr_inodes=2 gates /dev/shm",
        """
open("/dev/shm/other", "w").close()
expect(errno.ENOSPC)
os.unlink("/dev/shm/other")
use(create())
""",
    )


def test_a_file_system_that_cannot_be_written_is_an_error_that_says_so() -> None:
    run_with(
        "mount -t tmpfs -o ro gates /dev/shm",
        """
expect(errno.EROFS)
expect(errno.EROFS, exist_ok=True)
for call in (Gate.open, Gate.remove):
    try:
        call("full")
    except GateNotFound as error:
        assert error.name == "full"
""",
    )


def test_a_gate_on_a_file_system_that_became_read_only_is_an_error_that_names_it() -> None:
    run_with(
        "mount -t tmpfs gates /dev/shm",
        """
create().close()
assert os.system("mount -o remount,ro /dev/shm") == 0
for call in (Gate.open, Gate.remove):
    try:
        call("full")
    except OSError as error:
        assert error.errno == errno.EROFS and error.filename == "/dev/shm/gatecount-full", error
    else:
        raise AssertionError("it was opened")
""",
    )


WITHOUT_PROC = """
mount -t tmpfs -o size=64k gates /dev/shm
mount -t tmpfs empty /proc
"""


def test_without_proc_a_gate_is_made_under_its_name_and_works() -> None:
    """There a file cannot be made without a name and linked when it is finished."""
    run_with(
        WITHOUT_PROC,
        """
os.umask(0o777)
gate = create()
use(gate)
assert os.stat("/dev/shm/gatecount-full").st_mode & 0o777 == 0o600
for other in (Gate.open("full"), create(exist_ok=True)):
    use(other)
    assert other.claim() != gate.claim()
try:
    create()
except FileExistsError:
    pass
else:
    raise AssertionError("it was made twice")
Gate.remove("full")
assert os.listdir("/dev/shm") == []
""",
    )


def test_without_proc_a_creation_without_room_leaves_nothing() -> None:
    run_with(
        WITHOUT_PROC,
        """
for slots in (1023, 350):
    try:
        create(slots=slots)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise AssertionError("there was no room for that")
    assert os.listdir("/dev/shm") == []
use(create(slots=16))
""",
    )


def test_without_proc_nobody_is_taken_for_dead() -> None:
    run_with(
        WITHOUT_PROC,
        """
gate = create()
go, wait = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    os.write(go[1], b"x" if gate.try_acquire(6) else b"-")
    os.read(wait[0], 1)
    os._exit(0)
assert os.read(go[0], 1) == b"x"
assert gate.reclaim() == 0
assert not gate.try_acquire(5) and gate.try_acquire(4)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
assert gate.reclaim() in (0, 1)
""",
    )


def test_these_cases_leave_the_file_system_of_everybody_else_alone() -> None:
    assert not os.path.exists("/dev/shm/gatecount-full")
