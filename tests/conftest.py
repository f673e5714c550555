"""Fixtures for all tests, and a check that each leaves nothing behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import struct
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil
import pytest

# What the tests share asserts, too, and is to show the values.
for _shared in ("servers", "integrations", "host", "processes", "twin", "support", "waiters", "witness"):
    pytest.register_assert_rewrite(_shared)

import support  # noqa: E402

# Before a test imports numpy: its threads have no business in processes that fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_NAMES = support.names("test")


def _children() -> set[int]:
    """Return the pids of this process's children, but for the two that multiprocessing keeps."""
    multiprocessing.active_children()  # reaps
    kept = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    pids = set()
    lists = list(Path("/proc/self/task").glob("*/children"))
    for file in lists:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended
            pids |= {int(pid) for pid in file.read_text().split()}
    if not lists:  # not every kernel lists them
        pids = {child.pid for child in psutil.Process().children()}
    return pids - kept


def _is_ours(file: Path) -> bool:
    """Tell whether this process made that segment, or a test chose its name."""
    if f"-{os.getpid()}-" in file.name:
        return True
    try:
        # Another test's pipe must not hold this one up.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        header = os.read(descriptor, 64)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return len(header) == 64 and struct.unpack_from("=I", header, 44)[0] == os.getpid()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves a named segment or a child process."""
    files, children = support.gate_files(), _children()
    yield
    left = [str(file) for file in support.gate_files() - files if _is_ours(file)]
    assert not left, f"left in shared memory: {left}"
    support.wait_until(lambda: not _children() - children)


@pytest.fixture
def gate_name() -> Iterator[str]:
    """Return a name that no gate has, and remove what the test has put under it."""
    name = next(_NAMES)
    yield name
    path = support.path_of(name)
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
