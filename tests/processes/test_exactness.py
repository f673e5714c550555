"""Many processes at one cap: a witness that the gate does not know never counts more than the limit."""

from __future__ import annotations

from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest

from gatecount import AdmissionCounters, AtomicArray, Gate, SharedAdmissionStats
from processes.workers import (
    burst,
    burst_gate,
    burst_stats,
    hammer_gate,
    hammer_stats,
    hammer_thread_gate,
    hammer_two_caps,
    race,
)
from support import Crew, scaled
from witness import Witness

WORKERS = 8


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (10, 1), (10, 4)])
def test_a_hard_gate_is_never_over_its_limit(limit: int, most: int) -> None:
    witness = Witness()
    with Gate.create(limits={"requests": limit}, slots=WORKERS) as gate:
        with Crew("fork") as crew:
            for seed in range(WORKERS):
                crew.start(hammer_gate, gate, witness, WORKERS, scaled(50_000), most, seed)
            crew.join()
        gate.reclaim()
        cap = gate.statistics().caps["requests"]
        assert witness.running == cap.in_flight == 0
        assert witness.peak <= cap.peak == limit
        assert (cap.admitted, cap.refused) == (witness.grants, witness.refusals)
        assert witness.refusals > 0
        assert (cap.reclaimed, cap.repairs) == (0, 0)
        assert list(gate.counters()) == [0] * (8 * WORKERS)


def test_a_hard_buffer_is_never_over_its_limit() -> None:
    witness = Witness()
    buffer = AdmissionCounters(client_count=WORKERS, limit=10)
    with Crew("fork") as crew:
        for index in range(WORKERS):
            crew.start(hammer_stats, buffer, WORKERS, index, witness, scaled(50_000), 3)
        crew.join()
    buffer.reclaim()
    assert witness.running == buffer.in_flight == 0
    assert 8 <= witness.peak <= 10
    assert witness.refusals > 0
    assert list(buffer) == [0] * len(buffer)


def test_an_approximate_gate_is_over_by_at_most_one_grant_per_other_process() -> None:
    limit, most, witness = 10, 2, Witness()
    with Gate.create(limits={"requests": limit}, slots=WORKERS, mode="approximate") as gate:
        with Crew("fork") as crew:
            for seed in range(WORKERS):
                crew.start(hammer_gate, gate, witness, WORKERS, scaled(50_000), most, seed)
            crew.join()
        gate.reclaim()
        cap = gate.statistics().caps["requests"]
        assert limit - most < witness.peak <= limit + (WORKERS - 1) * most
        assert limit - most < cap.peak <= limit + (WORKERS - 1) * most
        assert witness.running == cap.in_flight == 0
        assert (cap.admitted, cap.refused) == (witness.grants, witness.refusals)


@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_two_caps_are_all_or_nothing_for_processes_that_contend(mode: str) -> None:
    limits, most = {"requests": 6, "tokens": 60}, {"requests": 3, "tokens": 30}
    witnesses = {cap: Witness() for cap in limits}
    with Gate.create(limits=limits, slots=WORKERS, mode=mode) as gate:
        with Crew("fork") as crew:
            for seed in range(WORKERS):
                crew.start(hammer_two_caps, gate, witnesses, WORKERS, scaled(15_000), seed)
            crew.join()
        gate.reclaim()
        for name, cap in gate.statistics().caps.items():
            witness = witnesses[name]
            overshoot = (WORKERS - 1) * most[name] if mode == "approximate" else 0
            assert witness.peak <= limits[name] + overshoot
            assert (cap.in_flight, cap.reclaimed, cap.repairs) == (0, 0, 0)
            assert (cap.admitted, cap.refused) == (witness.grants, witness.refusals)
            assert witness.refusals > 0


def test_threads_in_several_processes_are_never_over_the_limit() -> None:
    limit, witness = 5, Witness()
    with Gate.create(limits={"requests": limit}, slots=3) as gate:
        with Crew("fork") as crew:
            for seed in range(3):
                crew.start(hammer_thread_gate, gate, witness, scaled(2_000), seed)
            crew.join()
        gate.reclaim()
        cap = gate.statistics().caps["requests"]
        assert witness.running == cap.in_flight == 0
        assert 0 < witness.peak <= limit
        assert (cap.admitted, cap.refused) == (witness.grants, witness.refusals)


@pytest.mark.parametrize(
    ("workers", "tries", "limit", "admitted"),
    [(6, 50, 166, 166), (4, 4, 4, 4), (4, 1, 4, 4), (5, 60, 1000, 300)],
    ids=["300 at 166", "4 times 4 at 4", "4 at 4", "300 at 1000"],
)
@pytest.mark.parametrize("kind", ["gate", "buffer"])
def test_a_burst_admits_exactly_what_fits(
    kind: str, workers: int, tries: int, limit: int, admitted: int
) -> None:
    words = AtomicArray(24)
    gate = Gate.create(limits={"requests": limit}, slots=workers)
    buffer = AdmissionCounters(client_count=workers, limit=limit)
    with gate, Crew("fork") as crew:
        for index in range(workers):
            if kind == "gate":
                crew.start(burst_gate, gate, words, workers, tries)
            else:
                crew.start(burst_stats, buffer, words, workers, tries, index)
        crew.join()
    assert words[8] == admitted


@pytest.mark.parametrize(("limit", "n"), [(1, 1), (3, 2), (10, 10)])
def test_of_two_that_race_for_the_last_room_exactly_one_wins_each_time(limit: int, n: int) -> None:
    """Schemes that add first and undo a loss let both lose."""
    words, rounds = AtomicArray(40), scaled(300)
    with Gate.create(limits={"requests": limit}, slots=2) as gate:
        with Crew("fork") as crew:
            for _ in range(2):
                crew.start(race, gate, words, rounds, n)
            crew.join()
        wrong = words[24]
        assert wrong == 0
        assert words[8] == rounds
        cap = gate.statistics().caps["requests"]
        assert (cap.admitted, cap.refused) == (rounds, rounds)


def test_a_plain_buffer_admits_at_least_what_fits_and_ends_with_a_true_count() -> None:
    words, workers = AtomicArray(24), 4
    buffer: Any = RawArray("q", 8 * workers)
    with Crew("fork") as crew:
        for index in range(workers):
            crew.start(_burst_plain, buffer, words, workers, index)
        crew.join()
    assert 10 <= words[8] <= 10 + workers - 1
    assert sum(buffer) == words[8]


def _burst_plain(buffer: Any, words: AtomicArray, workers: int, index: int) -> None:
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, workers, index)
    burst(lambda n: stats.try_reserve(n, limit=10), words, workers, 10)
