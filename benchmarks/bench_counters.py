"""What does it cost to read, write, publish and sum the counters, against a RawArray("q")?

"over" names the buffer under a `SharedAdmissionStats`; "in Python" is what a host writes on its own
over a RawArray (`PythonHost`). Both of its sums are shown and judged: the generator over the words,
which is the usual way to write it, and the extended slice, which is the fastest. A publication
changes the value every time, so nothing can be saved by noticing that it stands already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import gatecount
from benchmarks.competitors import PythonHost, WordArray, raw_array
from benchmarks.measure import Benchmark, Contender, Stage, empty_loop, turns_of

QUESTION = "counters"
SLOTS = (4, 16, 64, 1023)
SUM_GOALS = {4: 1 / 10, 64: 1 / 40}

Make = Callable[[ExitStack], object]


def counters(slots: int) -> gatecount.AdmissionCounters:
    return gatecount.AdmissionCounters(client_count=slots, limit=10)


def stats(buffer: WordArray | gatecount.AdmissionCounters, slots: int) -> object:
    return gatecount.SharedAdmissionStats(
        {"mp_admission_counters": buffer}, client_count=slots, client_index=1
    )


def over_counters(slots: int) -> Make:
    return lambda stack: stats(counters(slots), slots)


def over_raw_array(slots: int) -> Make:
    return lambda stack: stats(raw_array(slots), slots)


def python_host(slots: int) -> Make:
    return lambda stack: PythonHost(raw_array(slots), index=1)


def buffers() -> list[Contender]:
    read, write = "o[8]", "o[8] = 3"
    return [
        Contender("read RawArray", read, lambda stack: raw_array(4)),
        Contender("read AdmissionCounters", read, lambda stack: counters(4), {"read RawArray": None}),
        Contender("write RawArray", write, lambda stack: raw_array(4)),
        Contender("write AdmissionCounters", write, lambda stack: counters(4), {"write RawArray": None}),
    ]


def publications() -> list[Contender]:
    statement = "o.set_num_requests(3)\no.set_num_requests(2)"
    host, plain = "set in Python over RawArray", "set over RawArray"
    return [
        Contender(host, statement, python_host(4), calls=2),
        Contender(plain, statement, over_raw_array(4), {host: None}, calls=2),
        Contender(
            "set over AdmissionCounters",
            statement,
            over_counters(4),
            {host: 1.0, plain: 1.0},
            calls=2,
        ),
    ]


def sums(slots: int) -> list[Contender]:
    statement = "o.get_num_requests()"
    label = f"sum of {slots:,}"
    generator, by_slice = f"{label} in Python, generator", f"{label} in Python, slice"
    goal = SUM_GOALS.get(slots)
    against = {generator: goal, by_slice: goal}
    return [
        Contender(generator, statement, python_host(slots)),
        Contender(by_slice, "o.get_num_requests_by_slice()", python_host(slots)),
        Contender(
            f"{label} over RawArray",
            statement,
            over_raw_array(slots),
            {generator: None},
        ),
        Contender(
            f"{label} over AdmissionCounters",
            statement,
            over_counters(slots),
            against,
        ),
    ]


CONTENDERS = [
    empty_loop(),
    *buffers(),
    *publications(),
    *(contender for slots in SLOTS for contender in sums(slots)),
]


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with Stage(QUESTION, CONTENDERS) as stage:
        yield stage


@turns_of(CONTENDERS)
def bench_counters(benchmark: Benchmark, stage: Stage, name: str, turn: int) -> None:
    stage.run(benchmark, name)
