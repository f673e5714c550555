"""How long does it take to hand a permit over to a process that waits for it?

Two spawned processes follow each other round a ring of three limits of 1: each holds one, waits for
the next, and then lets go of the first. Two of the three are held at any time, so only one process can
go on, and its release is the only one that can wake the other. The figure is the time of the whole
dance over the number of releases: to release, to be woken in the other process, to take. A semaphore is
given back by whoever likes, a gate's units only by the process that holds them; the ring is a dance
that both can do.

One round is a few hundred such hand-overs. Whether a waiter has to sleep is a matter of luck, and the
least of all rounds would tell how long it takes those who never had to. So what counts is the median
round of a turn, and of the turns the least: that the machine has other work can only make it longer.
The least of all rounds is shown as well.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pytest

import gatecount
from benchmarks import competitors
from benchmarks.contest import PATIENCE, end
from benchmarks.measure import TURNS, Benchmark

QUESTION = "hand-over to a process that waits"
AT_BEST = "the quickest of such hand-overs"
STATIONS = ("a", "b", "c")
HAND_OVERS = 200
ROUNDS = 15

GATE, TASKS = "Gate.acquire", "Gate.acquire_async"
SEMAPHORE = "multiprocessing.Semaphore"
IN_THREADS = "multiprocessing.Semaphore in asyncio.to_thread"

Step = Callable[[int], None]
AsyncStep = Callable[[int], Awaitable[object]]


def gate_steps(gate: Any) -> tuple[Step, Step]:
    def take(station: int) -> None:
        gate.acquire(cap=STATIONS[station])

    def give(station: int) -> None:
        gate.release(cap=STATIONS[station])

    return take, give


def semaphore_steps(semaphores: Any) -> tuple[Step, Step]:
    def take(station: int) -> None:
        semaphores[station].acquire()

    def give(station: int) -> None:
        semaphores[station].release()

    return take, give


def gate_in_tasks(gate: Any) -> AsyncStep:
    return lambda station: gate.acquire_async(cap=STATIONS[station])


def semaphore_in_tasks(semaphores: Any) -> AsyncStep:
    return lambda station: asyncio.to_thread(semaphores[station].acquire)


def posix_steps(names: Any) -> tuple[Step, Step]:
    return semaphore_steps([competitors.open_posix_semaphore(name) for name in names])


def share_gate(stack: ExitStack) -> object:
    gate = gatecount.Gate.create(limits=dict.fromkeys(STATIONS, 1), slots=4)
    stack.callback(gate.close)
    return gate


def share_semaphores(_stack: ExitStack) -> object:
    return [competitors.CONTEXT.Semaphore(1) for _ in STATIONS]


def share_posix(stack: ExitStack) -> object:
    pytest.importorskip("posix_ipc")
    return [competitors.posix_semaphore(stack, 1)[0] for _ in STATIONS]


@dataclass(frozen=True)
class Competitor:
    """One kind of limit: what both processes are given, and how each takes and gives back.

    `take_in_task` is how a task takes, if tasks are to dance.
    """

    name: str
    share: Callable[[ExitStack], object]
    steps: Callable[[Any], tuple[Step, Step]]
    against: dict[str, float | None] = field(default_factory=dict)
    take_in_task: Callable[[Any], AsyncStep] | None = None


COMPETITORS = [
    Competitor(GATE, share_gate, gate_steps, {SEMAPHORE: None}),
    Competitor(TASKS, share_gate, gate_steps, {IN_THREADS: None, GATE: None}, gate_in_tasks),
    Competitor(SEMAPHORE, share_semaphores, semaphore_steps),
    Competitor(IN_THREADS, share_semaphores, semaphore_steps, {}, semaphore_in_tasks),
    Competitor("posix_ipc.Semaphore", share_posix, posix_steps, {GATE: None}),
]
BY_NAME = {competitor.name: competitor for competitor in COMPETITORS}


def dance(take: Step, give: Step, here: int, n: int) -> int:
    """Go on by n stations and return where that leads."""
    for _ in range(n):
        following = (here + 1) % len(STATIONS)
        take(following)
        give(here)
        here = following
    return here


async def dance_in_task(take: AsyncStep, give: Step, here: int, n: int) -> int:
    for _ in range(n):
        following = (here + 1) % len(STATIONS)
        await take(following)
        give(here)
        here = following
    return here


def compete(name: str, shared: Any, here: int, pipe: Connection) -> None:
    competitor = BY_NAME[name]
    take, give = competitor.steps(shared)
    take(here)
    pipe.send(None)
    with asyncio.Runner() as runner:
        while True:
            try:
                n = pipe.recv()
            except EOFError:
                return
            begin = time.perf_counter()
            if competitor.take_in_task:
                here = runner.run(dance_in_task(competitor.take_in_task(shared), give, here, n))
            else:
                here = dance(take, give, here, n)
            pipe.send((begin, time.perf_counter()))


class Pair:
    """Two processes that dance when told to; leaving the context ends them."""

    def __init__(self, competitor: Competitor) -> None:
        self._stack = ExitStack()
        self._shared = competitor.share(self._stack)  # a process that is still starting must find it
        self._pipes: list[Connection] = []
        for here in range(2):
            ours, theirs = competitors.CONTEXT.Pipe()
            process = competitors.CONTEXT.Process(
                target=compete, args=(competitor.name, self._shared, here, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._stack.callback(end, process)
            self._stack.callback(ours.close)
            self._receive(ours)

    def _receive(self, pipe: Connection) -> Any:
        if not pipe.poll(PATIENCE):
            raise TimeoutError(f"a dancer has not answered for {PATIENCE:.0f} s")
        return pipe.recv()

    def run(self, n: int) -> float:
        """Return the seconds that n hand-overs of each process took."""
        for pipe in self._pipes:
            pipe.send(n)
        times = [self._receive(pipe) for pipe in self._pipes]
        return max(end for _, end in times) - min(begin for begin, _ in times)

    def close(self) -> None:
        self._stack.close()


class Floor:
    """The pairs of this file, started on first use and kept for all turns."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._pairs: dict[str, Pair] = {}

    def pair(self, name: str) -> Pair:
        if name not in self._pairs:
            pair = self._pairs[name] = Pair(BY_NAME[name])
            self._stack.callback(pair.close)
            pair.run(HAND_OVERS // 4)
        return self._pairs[name]


@pytest.fixture(scope="session")
def floor() -> Iterator[Floor]:
    with ExitStack() as stack:
        yield Floor(stack)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("turn", range(TURNS))
def bench_handover(benchmark: Benchmark, floor: Floor, name: str, turn: int) -> None:
    pair = floor.pair(name)
    seconds: list[float] = []
    benchmark.group = QUESTION
    benchmark.pedantic(lambda: seconds.append(pair.run(HAND_OVERS)), rounds=ROUNDS)
    benchmark.extra_info["figures"] = [
        {
            "question": question,
            "contender": name,
            "unit": "ns",
            "against": dict(BY_NAME[name].against),
            "value": took / (2 * HAND_OVERS) * 1e9,
        }
        for question, took in ((QUESTION, statistics.median(seconds)), (AT_BEST, min(seconds)))
    ]
