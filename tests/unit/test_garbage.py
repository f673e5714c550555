"""What is dropped gives its slot back at once, and in a cycle when the collector finds it."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gatecount import AdmissionCounters, AtomicArray, Gate, GatecountError, SharedAdmissionStats

USES: dict[str, Callable[[Gate], object]] = {
    "claim": lambda gate: gate.claim(),
    "acquire": lambda gate: gate.try_acquire(2),
    "release too much": lambda gate: gate.try_acquire() and gate.release(2),
    "refused": lambda gate: gate.admit(requests=1, tokens=99),
    "unknown cap": lambda gate: gate.try_acquire() and gate.try_acquire(cap="none"),
    "permit": lambda gate: gate.admit(tokens=2).release(),
    "permit given back by hand": lambda gate: given_back_by_hand(gate, requests=1),
    "permit of two caps given back by hand": lambda gate: given_back_by_hand(gate, requests=1, tokens=1),
    "statistics": lambda gate: gate.claim() or gate.statistics(),
    "reclaim": lambda gate: gate.claim() or gate.reclaim(),
    "repr": lambda gate: gate.claim() or repr(gate),
}


def given_back_by_hand(gate: Gate, **amounts: int) -> None:
    permit = gate.admit(**amounts)
    for cap, n in amounts.items():
        gate.release(n, cap=cap)
    permit.release()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Keep the collector from running by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("use", USES)
def test_a_dropped_gate_frees_its_slot_without_the_collector(use: str, gate_name: str) -> None:
    def use_and_drop() -> None:
        gate = Gate.open(gate_name)
        with contextlib.suppress(GatecountError):
            USES[use](gate)

    with Gate.create(gate_name, limits={"requests": 5, "tokens": 9}, slots=1) as observer:
        use_and_drop()
        assert observer.owners() == []
        assert [cap.in_flight for cap in observer.statistics().caps.values()] == [0, 0]


class Cycle:
    def __init__(self, *kept: Any) -> None:
        self.kept = kept
        self.itself = self


@pytest.mark.usefixtures("uncollected")
def test_a_gate_in_a_cycle_frees_its_slot_when_it_is_collected(gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 5}, slots=2) as observer:
        gate = Gate.open(gate_name)
        Cycle(gate, gate.admit(requests=3))
        del gate
        assert observer.statistics().caps["requests"].in_flight == 3
        with pytest.warns(ResourceWarning, match="dropped without release"):
            gc.collect()
        assert observer.owners() == []
        assert observer.statistics().caps["requests"].in_flight == 0


@pytest.mark.usefixtures("uncollected")
def test_a_fork_after_a_collection_finds_every_open_claim() -> None:
    """Collected claims must have left the list that a forked child goes through."""
    for _ in range(20):
        buffer = AdmissionCounters(client_count=2, limit=5)
        stats = SharedAdmissionStats({"mp_admission_counters": buffer}, 2, 0)
        assert stats.try_reserve()
        gate = Gate.create(limits={"requests": 1})
        assert gate.try_acquire()
        Cycle(stats, buffer, gate)
        del stats, buffer, gate
        gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)


class LooksLate:
    """Reads shared words from its finalizer, while the cycle that it is in is being collected."""

    seen: list[int]

    def __init__(self, words: AtomicArray) -> None:
        self.words, self.itself = words, self

    def __del__(self) -> None:
        self.seen.append(self.words[0])


@pytest.mark.usefixtures("uncollected")
def test_words_can_be_read_by_a_finalizer_of_their_cycle() -> None:
    LooksLate.seen = []
    LooksLate(AtomicArray([7]))
    gc.collect()
    assert LooksLate.seen == [7]
