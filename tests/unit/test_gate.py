"""A gate within one process: reserve, release, several caps, limits, threads, closing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from gatecount import Gate, GateClosed, GateFull, GateTimeout, NotOwner, SlotsExhausted, UnknownCap
from support import DEADLINE, scaled

LIMITS = {"requests": 10, "tokens": 1000}


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


def in_flight(gate: Gate) -> dict[str, int]:
    return {cap: one.in_flight for cap, one in gate.statistics().caps.items()}


def test_it_admits_up_to_the_limit_and_refuses_beyond(gate: Gate) -> None:
    assert [gate.try_acquire() for _ in range(12)] == [True] * 10 + [False] * 2
    assert in_flight(gate) == {"requests": 10, "tokens": 0}
    gate.release()
    assert gate.try_acquire()
    assert not gate.try_acquire()


def test_n_units_are_all_or_nothing(gate: Gate) -> None:
    assert gate.try_acquire(8)
    assert not gate.try_acquire(3)
    assert gate.held() == 8
    assert gate.try_acquire(2)
    gate.release(10)
    assert gate.held() == 0


def test_the_cap_is_requests_unless_named(gate: Gate) -> None:
    assert gate.try_acquire(4)
    assert gate.try_acquire(400, cap="tokens")
    assert gate.try_acquire(1, cap="requests")
    assert in_flight(gate) == {"requests": 5, "tokens": 400}
    gate.release(400, cap="tokens")
    gate.release(5)
    assert in_flight(gate) == {"requests": 0, "tokens": 0}


def test_a_gate_without_that_cap_wants_it_named() -> None:
    with Gate.create(limits={"jobs": 1}) as gate:
        with pytest.raises(UnknownCap, match="'requests' does not exist; this gate has 'jobs'"):
            gate.try_acquire()
        with pytest.raises(UnknownCap):
            gate.admit()
        assert gate.try_acquire(cap="jobs")
        gate.release(cap="jobs")


@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_limit_0_refuses_all(mode: str) -> None:
    with Gate.create(limits={"requests": 0}, mode=mode) as gate:
        assert not gate.try_acquire()
        with pytest.raises(GateFull):
            gate.admit()
        assert in_flight(gate) == {"requests": 0}


@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_the_largest_limit_can_be_filled_to_the_last_unit(mode: str) -> None:
    most = 2**32 - 1
    with Gate.create(limits={"requests": most}, mode=mode) as gate:
        assert gate.try_acquire(most - 1)
        assert not gate.try_acquire(2)
        assert gate.try_acquire(1)
        assert not gate.try_acquire(1)
        assert not gate.try_acquire(most)
        assert in_flight(gate) == {"requests": most}
        gate.release(most)
        assert in_flight(gate) == {"requests": 0}


@pytest.mark.parametrize("held", [0, 3])
def test_release_of_more_than_is_held_raises_and_changes_nothing(gate: Gate, held: int) -> None:
    if held:
        assert gate.try_acquire(held)
    before = gate.statistics().caps
    with pytest.raises(NotOwner, match=f"holds {held} of cap 'requests'") as caught:
        gate.release(4)
    assert (caught.value.requested, caught.value.held) == (4, held)
    with pytest.raises(NotOwner):
        gate.release(1, cap="tokens")
    assert gate.statistics().caps == before
    if held:
        gate.release(held)


def test_two_gates_of_one_process_are_two_owners(gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS) as first, Gate.open(gate_name) as second:
        assert first.try_acquire(6)
        assert not second.try_acquire(5)
        assert second.try_acquire(4)
        with pytest.raises(NotOwner, match="holds 4"):
            second.release(5)
        assert [slot.held["requests"] for slot in first.statistics().slots] == [6, 4]


# Limits


def test_a_new_limit_holds_for_the_next_call(gate: Gate) -> None:
    gate.set_limit("requests", 2)
    assert [gate.try_acquire() for _ in range(3)] == [True, True, False]
    gate.set_limit("requests", 3)
    assert gate.try_acquire()
    assert not gate.try_acquire()
    assert gate.statistics().caps["tokens"].limit == 1000


def test_lowered_while_full_nobody_is_admitted_until_it_has_drained(gate: Gate) -> None:
    assert gate.try_acquire(10)
    gate.set_limit("requests", 4)
    for left in range(9, 3, -1):
        assert not gate.try_acquire()
        gate.release()
        assert in_flight(gate)["requests"] == left
    assert not gate.try_acquire()
    gate.release(4)
    assert in_flight(gate)["requests"] == 0
    assert gate.try_acquire(4)
    assert not gate.try_acquire()


# Several caps


def test_admit_reserves_under_every_cap_named(gate: Gate) -> None:
    with gate.admit(requests=2, tokens=300) as permit:
        assert permit.amounts == {"requests": 2, "tokens": 300}
        assert in_flight(gate) == {"requests": 2, "tokens": 300}
    assert in_flight(gate) == {"requests": 0, "tokens": 0}


def test_admit_without_arguments_is_one_request(gate: Gate) -> None:
    with gate.admit():
        assert in_flight(gate) == {"requests": 1, "tokens": 0}


@pytest.mark.parametrize(
    ("wanted", "full"),
    [({"requests": 1, "tokens": 901}, "tokens"), ({"tokens": 1, "requests": 10}, "requests")],
)
def test_refused_by_one_cap_the_other_is_untouched(
    gate: Gate, wanted: dict[str, int], full: str
) -> None:
    with gate.admit(requests=1, tokens=100):
        before = gate.statistics().caps
        counters = {cap: bytes(gate.counters(cap=cap)) for cap in LIMITS}
        with pytest.raises(GateFull) as caught:
            gate.admit(**wanted)
        error = caught.value
        assert (error.cap, error.limit) == (full, LIMITS[full])
        assert (error.in_flight, error.requested) == (before[full].in_flight, wanted[full])
        after = gate.statistics().caps
        (other,) = set(LIMITS) - {full}
        assert after[other] == before[other]
        assert after[full] == dataclasses.replace(
            before[full], refused=1, refused_by={"full": 1, "timeout": 0, "too_large": 0}
        )
        assert counters == {cap: bytes(gate.counters(cap=cap)) for cap in LIMITS}


def test_large_requests_are_charged_when_they_are_reserved() -> None:
    with Gate.create(limits={"requests": 100, "tokens": 2_000_000}) as gate:
        permits = []
        for _ in range(8):
            with contextlib.suppress(GateFull):
                permits.append(gate.admit(requests=1, tokens=500_000))
        assert len(permits) == 4
        assert in_flight(gate) == {"requests": 4, "tokens": 2_000_000}
        for permit in permits:
            permit.release()


def test_thirty_two_caps_can_be_reserved_at_once() -> None:
    limits = {f"cap{i}": i for i in range(1, 33)}
    with Gate.create(limits=limits, slots=2) as gate:
        with gate.admit(**limits):
            assert in_flight(gate) == limits
            with pytest.raises(GateFull, match="'cap1'"):
                gate.admit(cap1=1, cap32=1)
        assert set(in_flight(gate).values()) == {0}


# Closing


def test_close_gives_back_what_the_process_holds(gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS) as watcher:
        gate = Gate.open(gate_name)
        assert gate.try_acquire(7)
        assert gate.try_acquire(9, cap="tokens")
        gate.close()
        gate.close()
        assert gate.closed
        assert in_flight(watcher) == {"requests": 0, "tokens": 0}
        assert watcher.statistics().slots == ()
        assert watcher.statistics().caps["requests"].reclaimed == 0


def test_a_gate_that_is_dropped_gives_back_what_it_held(gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS) as watcher:
        gate = Gate.open(gate_name)
        assert gate.try_acquire(7)
        del gate
        gc.collect()
        assert in_flight(watcher) == {"requests": 0, "tokens": 0}
        assert watcher.statistics().slots == ()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("try_acquire", ()),
        ("release", ()),
        ("admit", ()),
        ("claim", ()),
        ("held", ()),
        ("set_limit", ("requests", 1)),
        ("statistics", ()),
        ("owners", ()),
        ("counters", ()),
        ("reclaim", ()),
    ],
)
def test_a_closed_gate_says_so(gate: Gate, method: str, arguments: tuple[Any, ...]) -> None:
    assert gate.try_acquire(2)
    gate.close()
    with pytest.raises(GateClosed, match="this gate is closed"):
        getattr(gate, method)(*arguments)
    assert "closed" in repr(gate)


def test_leaving_the_block_closes_the_gate_whatever_happened() -> None:
    gate = Gate.create(limits=LIMITS)
    with pytest.raises(ZeroDivisionError), gate:
        gate.release(1 // (not gate.try_acquire()))
    assert gate.closed


def test_gates_that_are_closed_or_dropped_leave_no_descriptor(gate_name: str) -> None:
    process = psutil.Process()
    Gate.create(gate_name, limits=LIMITS).close()
    gc.collect()
    before = process.num_fds()
    for i in range(100):
        gate = Gate.open(gate_name)
        assert gate.try_acquire(10)
        if i % 2:
            gate.close()
    del gate
    gc.collect()
    assert process.num_fds() <= before  # a thread of a test before may just be ending


# Threads


def test_threads_share_the_slot_of_their_process_and_are_exact(gate: Gate) -> None:
    running, peak, admitted = 0, 0, 0
    watch = threading.Lock()
    start = threading.Barrier(8)

    def work() -> None:
        nonlocal running, peak, admitted
        start.wait()
        for _ in range(scaled(2_000)):
            if gate.try_acquire(3):
                with watch:
                    running += 3
                    admitted += 1
                    peak = max(peak, running)
                with watch:
                    running -= 3
                gate.release(3)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert 0 < peak <= 9
    cap = gate.statistics().caps["requests"]
    assert (cap.in_flight, cap.admitted) == (0, admitted)
    assert cap.peak <= 10
    assert len(gate.statistics().slots) == 1


def test_a_gate_is_made_by_its_class_methods_only() -> None:
    with pytest.raises(TypeError, match=r"use Gate\.create\(\), Gate\.open\(\) or Gate\.from_env"):
        Gate()


@pytest.mark.parametrize("index", [-1, 2, 10**6])
def test_statistics_of_a_cap_that_is_not_there_are_an_index_error(gate: Gate, index: int) -> None:
    with pytest.raises(IndexError, match=str(index)):
        gate.cap_statistics(index)


def test_a_gate_closed_while_a_thread_waits_for_a_slot_keeps_none(gate_name: str) -> None:
    """Whoever wins a slot for a gate that was closed meanwhile must give it up again."""
    outcomes: list[type[Exception]] = []

    def use(gate: Gate) -> None:
        try:
            gate.claim()
        except (GateClosed, SlotsExhausted) as error:
            outcomes.append(type(error))

    with Gate.create(gate_name, limits={"requests": 1}, slots=1) as owner:
        for _ in range(20):
            owner_again = Gate.open(gate_name)
            owner_again.claim()
            waiting = Gate.open(gate_name)
            thread = threading.Thread(target=use, args=(waiting,))
            thread.start()
            waiting.close()
            owner_again.close()
            thread.join(DEADLINE)
            assert owner.owners() == []
    assert set(outcomes) <= {GateClosed, SlotsExhausted}
    assert GateClosed in outcomes


def test_headroom_stays_free_for_those_who_ask_for_less(gate: Gate) -> None:
    assert gate.try_acquire(2, headroom=8)
    assert not gate.try_acquire(1, headroom=8)
    assert gate.try_acquire(5, headroom=3)
    assert not gate.try_acquire(1, headroom=3)
    assert gate.try_acquire(3)
    assert in_flight(gate)["requests"] == 10


def test_admit_leaves_the_headroom_under_each_cap_it_names(gate: Gate) -> None:
    with gate.admit(requests=1, tokens=990, headroom=9):
        with pytest.raises(GateFull, match=r"no room for 1 more and a headroom of 10") as full:
            gate.admit(tokens=1, headroom=10)
        assert (full.value.cap, full.value.headroom) == ("tokens", 10)
        assert in_flight(gate) == {"requests": 1, "tokens": 990}


@pytest.mark.parametrize(
    ("headroom", "error"), [(-1, ValueError), (2**32, ValueError), (1.0, TypeError)]
)
def test_a_wrong_headroom_is_named_and_changes_nothing(
    gate: Gate, headroom: Any, error: type[Exception]
) -> None:
    for call in (gate.try_acquire, gate.admit):
        with pytest.raises(error, match="headroom"):
            call(headroom=headroom)
    assert in_flight(gate) == {"requests": 0, "tokens": 0}


def test_any_other_name_will_do_for_a_cap() -> None:
    names = ("self", "gate", "n", "cap", "class")
    with Gate.create(limits=dict.fromkeys(names, 1)) as gate:
        for name in names:
            with gate.admit(**{name: 1}), pytest.raises(GateTimeout):
                asyncio.run(gate.admit_async(timeout=0.001, **{name: 1}))


@pytest.mark.parametrize("name", ["headroom", "timeout", "max_waiting"])
def test_a_cap_is_not_named_like_a_keyword_of_admit(name: str) -> None:
    with pytest.raises(ValueError, match=f"no cap can be named '{name}'"):
        Gate.create(limits={"requests": 1, name: 1})
