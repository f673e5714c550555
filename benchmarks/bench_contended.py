"""What does the pair cost when two processes want it at once, and what is refused at the cap?

Two spawned processes start from a barrier and make the same number of attempts each, with nothing
in between: the worst case for shared memory. The figure is the time from the first start to the
last end, over all attempts of both, by their own clocks. A scheduler with other work keeps the two
apart, so of all rounds the tenth counts in which it took the processor away least often and let them
run together longest; of these the median. With room for both (limit 10) nothing may be refused;
with a cap of 1 each attempt either gets the permit and gives it back, or is refused and counted.
How many are refused depends on how long each holds the permit and on the scheduler: a share of
refusals is shown, not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks import competitors
from benchmarks.contest import Contest, Round
from benchmarks.measure import TURNS, Benchmark

ROOM, CAP = 10, 1
ROUNDS = 15
ROUND_SECONDS = 0.002

HARD = "Gate, hard"


def unchanged(shared: Any) -> object:
    return shared


def open_compare_and_swap(shared: tuple[Any, int]) -> object:
    return competitors.CompareAndSwap(*shared)


@dataclass(frozen=True)
class Competitor:
    """One way to hold a limit: what both processes are given, and how each asks for a permit."""

    name: str
    share: Callable[[ExitStack, int], object]
    open_shared: Callable[[Any], object] = unchanged
    acquire: str = "o.try_acquire()"  # true if a permit was got
    needs: str | None = None
    waits: bool = False  # acquire() without an argument is the faster form where nothing is refused
    raises: str | None = None  # the exception of its module `needs` that stands for a refusal

    @property
    def names(self) -> dict[str, str]:
        return {self.raises: self.needs} if self.raises and self.needs else {}

    def statement(self, limit: int) -> str:
        if limit > 1:
            return f"{'o.acquire()' if self.waits else self.acquire}\no.release()"
        if self.raises:
            head, refusal = f"try:\n    {self.acquire}", f"except {self.raises}:"
        else:
            head, refusal = f"if {self.acquire}:", "else:"
        return f"{head}\n    o.release()\n{refusal}\n    refused += 1"


def gate(mode: str) -> Callable[[ExitStack, int], object]:
    return lambda stack, limit: competitors.gate(stack, limit=limit, slots=4, mode=mode)


COMPETITORS = [
    Competitor(HARD, gate("hard")),
    Competitor("Gate, approximate", gate("approximate")),
    Competitor(
        "multiprocessing.Semaphore",
        lambda stack, limit: competitors.CONTEXT.Semaphore(limit),
        acquire="o.acquire(False)",
        waits=True,
    ),
    Competitor(
        "multiprocessing.Value under its lock",
        lambda stack, limit: competitors.locked_value(limit),
    ),
    Competitor(
        "posix_ipc.Semaphore",
        lambda stack, limit: competitors.posix_semaphore(stack, limit)[0],
        competitors.open_posix_semaphore,
        acquire="o.acquire(0)",
        needs="posix_ipc",
        waits=True,
        raises="BusyError",
    ),
    Competitor(
        "atomicshm, CAS loop in Python",
        lambda stack, limit: (competitors.raw_array(1), limit),
        open_compare_and_swap,
        needs="atomicshm",
    ),
]
BY_NAME = {competitor.name: competitor for competitor in COMPETITORS}


class Ring:
    """The contests of this file, started on first use and kept for all turns."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._contests: dict[tuple[str, int], tuple[Contest, int]] = {}

    def contest(self, name: str, limit: int) -> tuple[Contest, int]:
        """Return the contest and how many attempts of each process make a round long enough."""
        if (name, limit) not in self._contests:
            competitor = BY_NAME[name]
            if competitor.needs:
                pytest.importorskip(competitor.needs)
            shared = competitor.share(self._stack, limit)
            contest = self._stack.enter_context(
                Contest(competitor.statement(limit), shared, competitor.open_shared, competitor.names)
            )
            contest.run(100)
            each = min(contest.run(1_000).seconds for _ in range(3)) / 1_000
            self._contests[name, limit] = contest, max(1_000, round(ROUND_SECONDS / each))
        return self._contests[name, limit]


@pytest.fixture(scope="session")
def ring() -> Iterator[Ring]:
    with ExitStack() as stack:
        yield Ring(stack)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("limit", [ROOM, CAP])
@pytest.mark.parametrize("turn", range(TURNS))
def bench_contended(benchmark: Benchmark, ring: Ring, name: str, limit: int, turn: int) -> None:
    contest, n = ring.contest(name, limit)
    rounds: list[Round] = []
    benchmark.group = "two processes, " + ("room for both" if limit == ROOM else "cap of 1")
    benchmark.pedantic(lambda: rounds.append(contest.run(n)), rounds=ROUNDS)
    if limit == ROOM:
        assert not any(r.refused for r in rounds)
    benchmark.extra_info["figures"] = [
        {
            "contender": name,
            "unit": "ns",
            "against": {} if name == HARD else {HARD: None},
            "rounds": [
                {
                    "value": r.seconds / r.attempts * 1e9,
                    "disturbed": r.disturbed,
                    "refused": r.refused / r.attempts if limit == CAP else None,
                }
                for r in rounds
            ],
        }
    ]
