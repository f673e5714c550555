"""A witness for servers that are no children of the test: a file of words, and one lock over all.

It asks no gate. An application counts itself in once it runs and out before it returns, so never more
are counted than are admitted, and what is over the limit was over it. Everything happens under the lock,
so that a count and the sum that it makes are of one instant. A worker is killed under the lock too: its
row stops counting then, as what it was admitted for may be given to others from then on. So does that of
a worker which has ended or is about to, whoever has seen to that.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT = "BYSTANDER"
"""The environment variable that holds the file's path."""

_PEAK, _ENTERED, _ROWS = 0, 1, 8
_PID, _RUNNING, _HELD, _KILLED, _WORDS = 0, 1, 2, 3, 4
_WORKERS = 128
_PF_EXITING = 0x4


class Bystander:
    """How many requests run now, per worker and in all. Safe from any thread and process."""

    def __init__(self, path: str | Path) -> None:
        size = 8 * (_ROWS + _WORDS * _WORKERS)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._descriptor, size)
        self._words = memoryview(mmap.mmap(self._descriptor, size)).cast("q")
        self._mutex = threading.Lock()  # the file's lock is one of processes

    @contextmanager
    def _locked(self) -> Iterator[memoryview]:
        with self._mutex:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield self._words
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _row(self, pid: int) -> int:
        for row in range(_ROWS, len(self._words), _WORDS):
            if self._words[row] in (0, pid):
                self._words[row] = pid
                return row
        raise AssertionError("more workers than rows")

    def _total(self, word: int) -> int:
        return sum(self._words[row + word] for row in self._running_rows())

    def _running_rows(self) -> Iterator[int]:
        words = self._words
        for row in range(_ROWS, len(words), _WORDS):
            if words[row + _RUNNING] and not words[row + _KILLED] and _lives(words[row]):
                yield row

    def enter(self, held: bool) -> None:
        """Count a request in: one of those that the client holds open, or not."""
        with self._locked() as words:
            row = self._row(os.getpid())
            words[row + _RUNNING] += 1
            words[row + _HELD] += held
            words[_ENTERED] += 1
            words[_PEAK] = max(words[_PEAK], self._total(_RUNNING))

    def leave(self, held: bool) -> None:
        with self._locked() as words:
            row = self._row(os.getpid())
            words[row + _RUNNING] -= 1
            words[row + _HELD] -= held

    def kill(self, pid: int) -> int:
        """Send SIGKILL to a worker; return how many requests it ran at that instant."""
        with self._locked() as words:
            row = self._row(pid)
            words[row + _KILLED] = 1
            os.kill(pid, signal.SIGKILL)
            return words[row + _RUNNING]

    def by_worker(self) -> dict[int, int]:
        """Return the running requests of each worker that has some and was not killed."""
        with self._locked() as words:
            return {words[row]: words[row + _RUNNING] for row in self._running_rows()}

    @property
    def running(self) -> int:
        with self._locked():
            return self._total(_RUNNING)

    @property
    def held(self) -> int:
        with self._locked():
            return self._total(_HELD)

    @property
    def peak(self) -> int:
        """The most that ever ran at one instant."""
        return self._words[_PEAK]

    @property
    def entered(self) -> int:
        return self._words[_ENTERED]


def _lives(pid: int) -> bool:
    """Tell whether a process has not begun to end."""
    try:
        # state ppid pgrp session tty tpgid flags, after the name in brackets
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" and not int(fields[5]) & _PF_EXITING
