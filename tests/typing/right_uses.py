"""A program that uses every public name as documented: strict mypy has nothing to say about it.

Checked, never run. `assert_type` pins what each call gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.sharedctypes import RawArray
from typing import assert_type

import gatecount
from gatecount import (
    AdmissionCounters,
    AtomicArray,
    CapStatistics,
    Gate,
    GateClosed,
    GatecountError,
    GateExists,
    GateFull,
    GateNotFound,
    GateStatistics,
    GateTimeout,
    LayoutMismatch,
    NotOwner,
    Permit,
    SharedAdmissionStats,
    SlotsExhausted,
    SlotStatistics,
    UnknownCap,
)


def arrays() -> None:
    words = AtomicArray(8)
    assert_type(words, AtomicArray)
    AtomicArray([1, 2, 3])
    AtomicArray(range(4))
    AtomicArray(words)
    assert_type(words[0], int)
    assert_type(words[1:3], list[int])
    words[0] = 1
    words[1:3] = [1, 2]
    words[1:3] = words[2:4]
    assert_type(len(words), int)
    assert_type(sum(words), int)
    assert_type([word for word in words], list[int])  # noqa: C416
    assert_type(1 in words, bool)
    assert_type(words.load(0), int)
    assert_type(words.fetch_add(0, 5), int)
    assert_type(words.exchange(0, 5), int)
    assert_type(words.compare_exchange(0, 5, 6), bool)
    words.store(0, 5)
    assert_type(memoryview(words), memoryview[int])


def counters() -> None:
    buffer = AdmissionCounters(client_count=4, limit=10)
    assert_type(buffer, AdmissionCounters)
    assert_type(buffer[0], int)
    buffer[8] = 3
    buffer.limit = 5
    assert_type(buffer.limit, int)
    assert_type(buffer.in_flight, int)
    assert_type(buffer.reclaim(), int)
    plain = RawArray("q", SharedAdmissionStats.num_counters(4))
    for shared in (buffer, plain, None):
        stats = SharedAdmissionStats({"mp_admission_counters": shared}, 4, 1)
        stats.set_num_requests(3)
        assert_type(stats.get_num_requests(), int)
        assert_type(stats.try_reserve(), bool)
        assert_type(stats.try_reserve(2, limit=10), bool)
        assert_type(stats.exact, bool)
        stats.release()
        stats.release(2)
    SharedAdmissionStats({}, client_count=1, client_index=0)


def gates(name: str) -> None:
    assert_type(Gate.create(limits={"requests": 10}), Gate)
    gate = Gate.create(
        "api",
        limits={"requests": 10, "tokens": 200_000},
        slots=16,
        mode="approximate",
        exist_ok=True,
        permissions=0o660,
    )
    assert_type(Gate.open(name), Gate)
    assert_type(Gate.from_env(), Gate)
    assert_type(gate.try_acquire(), bool)
    assert_type(gate.try_acquire(2, cap="tokens"), bool)
    gate.release()
    gate.release(2, cap="tokens")
    gate.acquire()
    gate.acquire(2, cap="tokens", timeout=0.5, headroom=3, max_waiting=100)
    gate.acquire(timeout=None, max_waiting=None)
    assert_type(gate.held(cap="tokens"), int)
    assert_type(gate.claim(), int)
    assert_type(gate.reclaim(), int)
    assert_type(gate.closed, bool)
    assert_type(gate.name, str | None)
    gate.set_limit("requests", 50)
    with gate.admit(requests=1, tokens=512) as permit:
        assert_type(permit, Permit)
        assert_type(permit.amounts, Mapping[str, int])
        assert_type(permit.released, bool)
    permit.release()
    assert_type(gate.admit(timeout=None, max_waiting=5, headroom=2, tokens=7), Permit)
    with Gate.open(name) as opened:
        assert_type(opened, Gate)
        SharedAdmissionStats({"mp_admission_counters": opened.counters()}, 16, 0)
    gate.close()
    Gate.remove("api")


async def waiting(gate: Gate) -> None:
    await gate.acquire_async()
    await gate.acquire_async(2, cap="tokens", timeout=0.5, headroom=3, max_waiting=100)
    with await gate.admit_async(requests=1, timeout=1, max_waiting=5, headroom=2) as permit:
        assert_type(permit, Permit)


def statistics(gate: Gate) -> str:
    told = gate.statistics()
    assert_type(told, GateStatistics)
    assert_type(told.caps["requests"], CapStatistics)
    assert_type(told.caps["requests"].in_flight, int)
    assert_type(told.slots, tuple[SlotStatistics, ...])
    assert_type(told.caps["requests"].waiting, int)
    assert_type(told.caps["requests"].refused_by, Mapping[str, int])
    assert_type(told.slots[0].held, Mapping[str, int])
    assert_type(told.slots[0].admitted, Mapping[str, int])
    assert_type(told.slots[0].refused, Mapping[str, int])
    assert_type(told.slots[0].waiting, Mapping[str, int])
    assert_type(told.slots[0].age, float)
    return json.dumps(asdict(told))


class ApiGate(Gate):
    """A subclass keeps its type."""


def subclass() -> None:
    assert_type(ApiGate.create(limits={"requests": 1}), ApiGate)
    assert_type(ApiGate.open("api"), ApiGate)


def errors(gate: Gate) -> None:
    try:
        gate.admit()
    except GateFull as full:
        assert_type((full.cap, full.limit, full.in_flight), tuple[str, int, int])
    except GateTimeout as late:
        assert_type((late.requested, late.timeout), tuple[int, float])
    except (GateClosed, GateExists, GateNotFound, LayoutMismatch, SlotsExhausted) as error:
        raise SystemExit(str(error)) from error
    except NotOwner as error:
        assert_type(error.held, int | None)
    except UnknownCap as error:
        assert_type(error.caps, tuple[str, ...])
    except GatecountError:
        raise
    assert_type(gatecount.__version__, str)
