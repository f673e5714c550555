"""What does the pair reserve + release cost in one process, against other ways to hold a limit?

Two empty method calls are the floor. They are measured on a compiled type, without arguments
(judged, if a C compiler is there to build it) and with the optional ones of `try_acquire`, and on a
Python class. `multiprocessing.Semaphore` and `posix_ipc.Semaphore` are measured in their fastest
form, `acquire()`, which would wait at the limit, and in the form that does what `try_acquire` does;
the goal holds against the fastest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import gatecount
from benchmarks import competitors, native
from benchmarks.measure import Benchmark, Contender, Stage, empty_loop, turns_of

QUESTION = "pair of reserve and release"
LIMIT = 10
ROOM = 100_000_000  # a limit that reserves alone do not reach

Make = Callable[[ExitStack], object]

HARD, APPROXIMATE = "Gate, hard", "Gate, approximate"
EMPTY_COMPILED, EMPTY_PYTHON = "two empty calls, compiled", "two empty calls, Python"
EMPTY_OPEN = "two empty calls, compiled, with optional arguments"
SEMAPHORE = "multiprocessing.Semaphore"
GATE_PAIR = "o.try_acquire()\no.release()"


def gate(mode: str, slots: int = 4, limit: int = LIMIT, held: int = 0) -> Make:
    def make(stack: ExitStack) -> gatecount.Gate:
        made = competitors.gate(stack, limit=limit, slots=slots, mode=mode)
        if held:
            made.try_acquire(held)
            stack.callback(made.release, held)
        return made

    return make


def stats_over_counters(stack: ExitStack) -> object:
    buffer = gatecount.AdmissionCounters(client_count=4, limit=LIMIT)
    return gatecount.SharedAdmissionStats(
        {"mp_admission_counters": buffer}, client_count=4, client_index=1
    )


def stats_over_raw_array(stack: ExitStack) -> object:
    return gatecount.SharedAdmissionStats(
        {"mp_admission_counters": competitors.raw_array(4)}, client_count=4, client_index=1
    )


def compiled_empty(stack: ExitStack) -> object:
    if native.COMPILER is None:
        pytest.skip("no C compiler")
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    return native.empty_type(Path(directory))()


def semaphore(initial: int) -> Make:
    return lambda stack: competitors.CONTEXT.Semaphore(initial)


def posix(stack: ExitStack) -> object:
    pytest.importorskip("posix_ipc")
    return competitors.posix_semaphore(stack, LIMIT)[1]


def compare_and_swap(stack: ExitStack) -> object:
    pytest.importorskip("atomicshm")
    return competitors.CompareAndSwap(competitors.raw_array(1), LIMIT)


def release_all(n: int, target: Any) -> None:
    target.release(n)


FLOORS = [
    Contender(EMPTY_COMPILED, "o.method()\no.method()", compiled_empty),
    Contender(EMPTY_OPEN, "o.method_with_arguments()\no.method_with_arguments()", compiled_empty),
    Contender(EMPTY_PYTHON, "o.method()\no.method()", lambda stack: competitors.EmptyMethod()),
]

OURS = [
    Contender(
        HARD,
        GATE_PAIR,
        gate("hard"),
        {
            SEMAPHORE: 1.0,
            EMPTY_COMPILED: 1.6,
            EMPTY_OPEN: None,
            EMPTY_PYTHON: None if native.COMPILER else 1.6,
        },
    ),
    Contender(APPROXIMATE, GATE_PAIR, gate("approximate"), {SEMAPHORE: None, HARD: None}),
    Contender(
        "SharedAdmissionStats, hard",
        f"o.try_reserve(1, {LIMIT})\no.release(1)",
        stats_over_counters,
        {SEMAPHORE: None, HARD: None},
    ),
    Contender(
        "SharedAdmissionStats, approximate",
        f"o.try_reserve(1, {LIMIT})\no.release(1)",
        stats_over_raw_array,
        {SEMAPHORE: None, HARD: None},
    ),
]

THEIRS = [
    Contender(SEMAPHORE, "o.acquire()\no.release()", semaphore(LIMIT), {HARD: None}),
    Contender(
        f"{SEMAPHORE}, acquire(False)",
        "o.acquire(False)\no.release()",
        semaphore(LIMIT),
        {HARD: None},
    ),
    Contender("posix_ipc.Semaphore", "o.acquire()\no.release()", posix, {HARD: None}),
    Contender("posix_ipc.Semaphore, acquire(0)", "o.acquire(0)\no.release()", posix, {HARD: None}),
    Contender(
        "multiprocessing.Value under its lock",
        GATE_PAIR,
        lambda stack: competitors.locked_value(LIMIT),
        {HARD: None},
    ),
    Contender("atomicshm, CAS loop in Python", GATE_PAIR, compare_and_swap, {HARD: None}),
]


def by_slots(slots: int) -> list[Contender]:
    def name(what: str, size: int) -> str:
        return f"{what}, {size:,} slot{'s' if size > 1 else ''}"

    def against(what: str, goal: float | None) -> dict[str, float | None]:
        return {name(what, 1): goal} if slots > 1 else {}

    reserve, pair, plain = "reserve alone, hard", "pair, hard", "pair, approximate"
    return [
        Contender(
            name(reserve, slots),
            "o.try_acquire()",
            gate("hard", slots, ROOM),
            against(reserve, 1.1),
            after=release_all,
        ),
        Contender(name(pair, slots), GATE_PAIR, gate("hard", slots), against(pair, 1.1)),
        Contender(name(plain, slots), GATE_PAIR, gate("approximate", slots), against(plain, None)),
    ]


FULL_SEMAPHORE = f"refusal, {SEMAPHORE}"
REFUSALS = [
    Contender(FULL_SEMAPHORE, "o.acquire(False)", semaphore(0)),
    Contender(
        "refusal, Gate, hard",
        "o.try_acquire()",
        gate("hard", held=LIMIT),
        {FULL_SEMAPHORE: None},
    ),
]

CONTENDERS = [empty_loop(), *OURS, *FLOORS, *THEIRS, *by_slots(1), *by_slots(1023), *REFUSALS]


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with Stage(QUESTION, CONTENDERS) as stage:
        yield stage


@turns_of(CONTENDERS)
def bench_pair(benchmark: Benchmark, stage: Stage, name: str, turn: int) -> None:
    stage.run(benchmark, name)
