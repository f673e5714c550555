"""Wrong uses, each of which strict mypy must find: an ignore that ignores nothing is an error there.

Checked, never run.
"""

from __future__ import annotations

from gatecount import (
    AdmissionCounters,
    AtomicArray,
    Gate,
    GateFull,
    GateStatistics,
    Permit,
    SharedAdmissionStats,
)


def arrays(words: AtomicArray, buffer: AdmissionCounters) -> None:
    AtomicArray(1.5)  # type: ignore[arg-type]
    AtomicArray("8")  # type: ignore[arg-type]
    AtomicArray(["1"])  # type: ignore[list-item]
    AtomicArray()  # type: ignore[call-arg]
    words["0"]  # type: ignore[call-overload]
    words[0] = 1.5  # type: ignore[call-overload]
    words[0] = "1"  # type: ignore[call-overload]
    words[0:1] = 1  # type: ignore[call-overload]
    words.fetch_add(0, 1.5)  # type: ignore[arg-type]
    words.fetch_add(0)  # type: ignore[call-arg]
    words.compare_exchange(0, 1, None)  # type: ignore[arg-type]
    text: str = words.load(0)  # type: ignore[assignment]
    del words[0]  # type: ignore[attr-defined]
    del text
    AdmissionCounters(4)  # type: ignore[call-arg]
    AdmissionCounters(4, "10")  # type: ignore[arg-type]
    buffer.fetch_add(0, 1)  # type: ignore[attr-defined]
    buffer.in_flight = 3  # type: ignore[misc]
    buffer.limit = "3"  # type: ignore[assignment]


def stats(buffer: AdmissionCounters) -> None:
    SharedAdmissionStats(buffer, 4, 0)  # type: ignore[arg-type]
    SharedAdmissionStats({}, 4)  # type: ignore[call-arg]
    SharedAdmissionStats({}, "4", 0)  # type: ignore[arg-type]
    mine = SharedAdmissionStats({}, 4, 0)
    mine.set_num_requests()  # type: ignore[call-arg]
    mine.set_num_requests(1.5)  # type: ignore[arg-type]
    mine.try_reserve("1")  # type: ignore[arg-type]
    mine.exact = True  # type: ignore[misc]
    mine.num_requests  # type: ignore[attr-defined]  # noqa: B018


def gates(gate: Gate) -> None:
    Gate.create("api")  # type: ignore[call-arg]
    Gate.create("api", {"requests": 1})  # type: ignore[call-arg]
    Gate.create("api", limits={"requests": "1"})  # type: ignore[dict-item]
    Gate.create("api", limits=10)  # type: ignore[arg-type]
    Gate.create(b"api", limits={"requests": 1})  # type: ignore[arg-type]
    Gate.create("api", limits={"requests": 1}, slots="4")  # type: ignore[arg-type]
    Gate.create("api", limits={"requests": 1}, timeout=4)  # type: ignore[call-arg]
    Gate.open(None)  # type: ignore[arg-type]
    Gate.remove()  # type: ignore[call-arg]
    gate.try_acquire(1.5)  # type: ignore[arg-type]
    gate.try_acquire(1, "tokens")  # type: ignore[call-arg]
    gate.try_acquire(cap=5)  # type: ignore[arg-type]
    gate.admit(requests=1.5)  # type: ignore[arg-type]
    gate.admit(1)  # type: ignore[call-arg]
    gate.admit(timeout="1")  # type: ignore[arg-type]
    gate.acquire(timeout="1")  # type: ignore[arg-type]
    gate.acquire(1, "tokens")  # type: ignore[call-arg]
    gate.acquire(max_waiting=1.5)  # type: ignore[arg-type]
    gate.acquire_async(timeout="1")  # type: ignore[arg-type, unused-coroutine]
    with gate.admit_async():  # type: ignore[attr-defined]
        pass
    if gate.acquire():  # type: ignore[func-returns-value]
        pass
    gate.set_limit(None, 5)  # type: ignore[arg-type]
    gate.set_limit("requests")  # type: ignore[call-arg]
    gate.closed = True  # type: ignore[misc]
    permit: Permit = gate.try_acquire()  # type: ignore[assignment]
    permit.released = True  # type: ignore[misc]
    permit.amounts["requests"] = 2  # type: ignore[index]


def statistics(told: GateStatistics, full: GateFull) -> None:
    told.mode = "hard"  # type: ignore[misc]
    told.caps["requests"].limit = 3  # type: ignore[misc]
    told.caps["requests"].waiters  # type: ignore[attr-defined]  # noqa: B018
    full.slots  # type: ignore[attr-defined]  # noqa: B018
