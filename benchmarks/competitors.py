"""What a host would use without this package: other ways to count up to a limit over processes."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import gatecount

CONTEXT = get_context("spawn")
WORDS_PER_SLOT = 8

WordArray = Any  # a ctypes array of c_longlong; the class that RawArray returns has no name

_serial = itertools.count()


def raw_array(slots: int) -> WordArray:
    return CONTEXT.RawArray("q", gatecount.SharedAdmissionStats.num_counters(slots))


class PythonHost:
    """Publish and sum counts in a RawArray("q"), as a host does in plain Python.

    The sum is written in the two ways that a host writes it: the generator that comes to mind
    first, and an extended slice, the fastest that plain Python has (C makes a list of the words).
    """

    def __init__(self, buffer: WordArray, index: int) -> None:
        self._buffer = buffer
        self._word = index * WORDS_PER_SLOT
        self._end = len(buffer)

    def set_num_requests(self, count: int) -> None:
        self._buffer[self._word] = count

    def get_num_requests(self) -> int:
        return sum(self._buffer[i] for i in range(0, self._end, WORDS_PER_SLOT))

    def get_num_requests_by_slice(self) -> int:
        return sum(self._buffer[::WORDS_PER_SLOT])


class EmptyMethod:
    """What a call costs that does nothing."""

    def method(self) -> None:
        pass


class LockedValue:
    """A limit on a `multiprocessing.Value`, under its lock as the documentation shows it."""

    def __init__(self, value: Synchronized[int], limit: int) -> None:
        self._value = value
        self._limit = limit

    def try_acquire(self) -> bool:
        with self._value.get_lock():
            if self._value.value >= self._limit:
                return False
            self._value.value += 1
            return True

    def release(self) -> None:
        with self._value.get_lock():
            self._value.value -= 1


class CompareAndSwap:
    """A limit on one shared word: the compare-and-swap loop in Python, the swap in atomicshm."""

    def __init__(self, buffer: WordArray, limit: int) -> None:
        atomicshm = importlib.import_module("atomicshm")
        self._word: Any = atomicshm.AtomicView(buffer).cell_u64(0)
        self._limit = limit

    def try_acquire(self) -> bool:
        count = self._word.load()
        while count < self._limit:
            seen = self._word.cas(count, count + 1)
            if seen == count:
                return True
            count = seen
        return False

    def release(self) -> None:
        self._word.fetch_sub(1)


def locked_value(limit: int) -> LockedValue:
    return LockedValue(CONTEXT.Value(ctypes.c_longlong, 0), limit)


def posix_semaphore(stack: ExitStack, limit: int) -> tuple[str, Any]:
    """Create a named POSIX semaphore that is removed when the stack closes."""
    posix_ipc = importlib.import_module("posix_ipc")
    name = f"/gatecount-bench-{os.getpid()}-{next(_serial)}"
    semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, initial_value=limit)
    stack.callback(posix_ipc.unlink_semaphore, name)
    stack.callback(semaphore.close)
    return name, semaphore


def open_posix_semaphore(name: str) -> Any:
    return importlib.import_module("posix_ipc").Semaphore(name)


def gate(stack: ExitStack, *, limit: int, slots: int, mode: str) -> gatecount.Gate:
    made = gatecount.Gate.create(limits={"requests": limit}, slots=slots, mode=mode)
    stack.callback(made.close)
    return made
