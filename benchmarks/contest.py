"""Two processes that want the same permits at the same time."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.competitors import CONTEXT, WORDS_PER_SLOT, WordArray
from benchmarks.measure import compile_loop

PROCESSES = 2
PATIENCE = 60.0
MEETING_SECONDS = 0.0005


@dataclass(frozen=True)
class Share:
    """What one process did in a round, and when, by the clock that all processes share."""

    start: float
    end: float
    refused: int
    preempted: int


@dataclass(frozen=True)
class Round:
    attempts: int
    refused: int
    seconds: float
    disturbed: float  # preemptions of either, plus the share of the time in which one was alone


class Contest:
    """Two spawned processes that run a statement on one thing, n times each, from a barrier on.

    They sleep between rounds, each on a processor of its own where there are two, and are woken
    together: that is when a busy scheduler is most likely to let both run. The barrier is a short
    spin; a round in which the other did not come in time is told from the rest by `disturbed`.

    `shared` is handed to the processes as they start; each makes its target of it with
    `open_shared`. They stay for all rounds of a contender, so a round costs no start-up. Leaving
    the context ends them.
    """

    def __init__(
        self,
        statement: str,
        shared: object,
        open_shared: Callable[[Any], object],
        names: Mapping[str, str],
    ) -> None:
        flags = CONTEXT.RawArray("q", PROCESSES * WORDS_PER_SLOT)
        self._kept = shared  # a process that is still starting must find it
        self._stack = ExitStack()
        self._pipes: list[Connection] = []
        for me in range(PROCESSES):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=_compete,
                args=(statement, shared, open_shared, names, me, flags, theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._stack.callback(end, process)
            self._stack.callback(ours.close)  # closed first: the process reads the end and leaves

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def run(self, n: int) -> Round:
        """Let each process run the statement n times; wait for both."""
        for pipe in self._pipes:
            pipe.send(n)
        shares = [_receive(pipe) for pipe in self._pipes]
        first, last = min(s.start for s in shares), max(s.end for s in shares)
        both = min(s.end for s in shares) - max(s.start for s in shares)
        alone = 1.0 - max(0.0, both / (last - first))
        return Round(
            attempts=n * PROCESSES,
            refused=sum(s.refused for s in shares),
            seconds=last - first,
            disturbed=sum(s.preempted for s in shares) + alone,
        )


def _receive(pipe: Connection) -> Share:
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"a competing process has not answered for {PATIENCE:.0f} s")
    share = pipe.recv()
    assert isinstance(share, Share), share
    return share


def _take_processor(me: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[me % len(allowed)]})


def _meet(flags: WordArray, me: int) -> None:
    """Wait for the other process, but not so long that the time slice for the round itself is spent."""
    mine, other = me * WORDS_PER_SLOT, (1 - me) * WORDS_PER_SLOT
    flags[mine] += 1
    deadline = time.perf_counter() + MEETING_SECONDS
    while flags[other] < flags[mine] and time.perf_counter() < deadline:
        pass


def _preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def end(process: Any) -> None:
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()


def _compete(
    statement: str,
    shared: object,
    open_shared: Callable[[Any], object],
    names: Mapping[str, str],
    me: int,
    flags: WordArray,
    pipe: Connection,
) -> None:
    target = open_shared(shared)
    loop = compile_loop(statement, names)
    _take_processor(me)
    while True:
        try:
            n = pipe.recv()
        except EOFError:
            return
        _meet(flags, me)
        before = _preemptions()
        start = time.perf_counter()
        refused = loop(n, target)
        end = time.perf_counter()
        pipe.send(Share(start, end, refused, _preemptions() - before))
