"""What a gate tells about itself, and that telling changes nothing."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Iterator

import psutil
import pytest

from gatecount import Gate, GateStatistics, SharedAdmissionStats
from support import path_of, scaled

LIMITS = {"requests": 10, "tokens": 1000}


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


def test_statistics_count_what_happened(gate: Gate) -> None:
    assert gate.try_acquire(6)
    assert gate.try_acquire(3)
    assert not gate.try_acquire(2)
    gate.release(5)
    assert gate.try_acquire(1)
    cap = gate.statistics().caps["requests"]
    assert (cap.in_flight, cap.limit, cap.peak) == (5, 10, 9)
    assert (cap.admitted, cap.refused, cap.reclaimed, cap.repairs) == (3, 1, 0, 0)


def test_a_flood_of_refusals_is_counted_like_any(gate: Gate) -> None:
    assert gate.try_acquire(10)
    floods = scaled(20_000)
    began = time.process_time()
    assert not any(gate.try_acquire() for _ in range(floods))
    assert time.process_time() - began < 0.001 * floods
    cap = gate.statistics().caps["requests"]
    assert (cap.in_flight, cap.admitted, cap.refused) == (10, 1, floods)


def test_statistics_are_frozen_and_ready_for_json(gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS, slots=4) as gate:
        assert gate.try_acquire(2)
        statistics = gate.statistics()
        assert isinstance(statistics, GateStatistics)
        for frozen in (statistics, statistics.caps["requests"], statistics.slots[0]):
            field = dataclasses.fields(frozen)[0].name
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(frozen, field, 1)
        told = json.loads(json.dumps(dataclasses.asdict(statistics)))
        assert (told["name"], told["mode"], told["slot_count"]) == (gate_name, "hard", 4)
        assert told["caps"]["requests"]["in_flight"] == 2
        assert told["slots"][0]["held"] == {"requests": 2, "tokens": 0}


def test_statistics_show_a_slot_per_living_owner_and_none_before_the_first_reserve(
    gate: Gate,
) -> None:
    assert gate.statistics().slots == ()
    slot = gate.claim()
    assert gate.claim() == slot
    (owner,) = gate.statistics().slots
    assert (owner.slot, owner.pid) == (slot, psutil.Process().pid)
    assert 0 <= owner.age < 60
    assert owner.held == {"requests": 0, "tokens": 0}


def test_reading_writes_nothing_to_the_segment(gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS, slots=4) as gate, Gate.open(gate_name) as reader:
        assert gate.try_acquire(3)
        before = path_of(gate_name).read_bytes()
        stats = SharedAdmissionStats({"mp_admission_counters": reader.counters()}, 4, 0)
        for one in (gate, reader):
            one.statistics()
            one.owners()
            one.held()
            repr(one)
            assert bytes(one.counters())[:8] == (3).to_bytes(8, "little")
        assert stats.get_num_requests() == 3
        assert path_of(gate_name).read_bytes() == before


def test_the_counters_are_those_a_host_would_publish(gate: Gate) -> None:
    assert gate.try_acquire(3)
    assert gate.try_acquire(50, cap="tokens")
    at = 8 * gate.claim()
    for cap, count in (("requests", 3), ("tokens", 50)):
        view = gate.counters(cap=cap)
        assert view.readonly
        assert (view.format, len(view)) == ("q", 32)
        assert view[at] == count
        assert sum(view) == count
        stats = SharedAdmissionStats({"mp_admission_counters": view}, 4, 0)
        assert stats.get_num_requests() == count
        assert not stats.exact
        with pytest.raises(TypeError):
            stats.set_num_requests(1)


def test_the_counters_outlive_their_gate(gate: Gate) -> None:
    assert gate.try_acquire(3)
    view = gate.counters()
    gate.close()
    assert sum(view) == 0
    del gate
    gc.collect()
    assert view.tolist() == [0] * 32
