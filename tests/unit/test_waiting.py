"""Waiting threads of one process: who comes first, who gives up, and what is left of them."""

from __future__ import annotations

import gc
import math
import pickle
import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gatecount import Gate, GateClosed, GateFull, GateTimeout, NotOwner, UnknownCap
from gatecount._core import Line
from support import DEADLINE, wait_until
from waiters import Outcomes, join, line_up, start, waiting

LIMITS = {"requests": 2, "tokens": 100}


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


def test_room_is_taken_at_once(gate: Gate) -> None:
    gate.acquire()
    gate.acquire(timeout=5, max_waiting=0)
    assert gate.held() == 2
    gate.acquire(60, cap="tokens", headroom=40)
    with gate.admit(tokens=40, timeout=None) as permit:
        assert dict(permit.amounts) == {"tokens": 40}
    told = gate.statistics().caps["requests"]
    assert (told.admitted, told.refused, told.waiting) == (2, 0, 0)


def test_a_release_by_another_thread_wakes_a_waiter(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    threads = line_up(gate, outcomes, {"waiter": lambda: gate.acquire(timeout=DEADLINE)})
    gate.release()
    join(*threads)
    assert outcomes.list == ["waiter"]
    assert (gate.held(), waiting(gate)) == (2, 0)
    told = gate.statistics().caps["requests"]
    assert (told.admitted, told.refused) == (2, 0)


def test_the_oldest_waiter_comes_first(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    threads = line_up(gate, outcomes, {i: lambda: gate.acquire(timeout=DEADLINE) for i in range(6)})
    for count in range(6):
        gate.release()
        wait_until(lambda count=count: len(outcomes.list) == count + 1)
    join(*threads)
    assert outcomes.list == list(range(6))


def test_a_newcomer_does_not_overtake_who_waits_for_more(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    calls = {
        "both": lambda: gate.acquire(2, timeout=DEADLINE),
        "one": lambda: gate.acquire(timeout=DEADLINE),
    }
    threads = line_up(gate, outcomes, calls)
    gate.release()
    time.sleep(0.1)  # for the wrong one to come in
    assert (outcomes.list, waiting(gate)) == ([], 2)
    gate.release()
    wait_until(lambda: outcomes.list == ["both"])
    gate.release(2)
    join(*threads)


def test_who_wants_room_left_does_not_keep_others_out(gate: Gate) -> None:
    gate.acquire()
    outcomes = Outcomes()
    low = line_up(gate, outcomes, {"low": lambda: gate.acquire(headroom=1, timeout=DEADLINE)})
    gate.acquire(timeout=1)
    high = line_up(gate, outcomes, {"high": lambda: gate.acquire(timeout=DEADLINE)})
    gate.release()
    wait_until(lambda: outcomes.list == ["high"])
    gate.release(2)
    join(*low, *high)
    assert outcomes.list == ["high", "low"]


def test_when_the_first_in_line_gives_up_the_next_tries_at_once(gate: Gate) -> None:
    gate.acquire()

    def next_was_there(seconds: float) -> bool:
        """Let the first wait so long; tell whether the next came to wait meanwhile."""
        outcomes = Outcomes()
        both = start(outcomes.of, "both", lambda: gate.acquire(2, timeout=seconds))
        wait_until(lambda: waiting(gate) == 1 or outcomes.list)
        one = start(outcomes.of, "one", lambda: gate.acquire(timeout=DEADLINE))
        told = wait_until(lambda: ["there"] if waiting(gate) == 2 else outcomes.list)
        join(both, one)
        assert set(outcomes.list) == {("both", GateTimeout), "one"}
        assert (gate.held(), waiting(gate)) == (2, 0)
        gate.release()
        return told == ["there"]

    # A busy machine may let the time go by, but hardly as much as that.
    assert any(next_was_there(seconds) for seconds in (1, 4, 16))


def test_a_timeout_says_what_was_missing_and_is_counted(gate: Gate) -> None:
    gate.acquire()
    began = time.monotonic()
    with pytest.raises(GateTimeout) as caught:
        gate.acquire(2, timeout=0.1)
    assert 0.1 <= time.monotonic() - began < DEADLINE
    error = caught.value
    fields = (error.cap, error.limit, error.in_flight, error.requested, error.timeout)
    assert fields == ("requests", 2, 1, 2, 0.1)
    assert isinstance(error, TimeoutError)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
    assert str(error) == "cap 'requests' was full for 0.1 s: 1 of 2 in flight, no room for 2 more"
    told = gate.statistics()
    cap = told.caps["requests"]
    assert (cap.refused, cap.waiting) == (1, 0)
    assert cap.refused_by == {"full": 0, "timeout": 1, "too_large": 0}
    assert told.slots[0].refused == {"requests": 1, "tokens": 0}
    assert (gate.held(), cap.in_flight) == (1, 1)


def test_every_refusal_has_one_reason(gate: Gate) -> None:
    gate.acquire(2)
    assert not gate.try_acquire()
    assert not gate.try_acquire(3)
    assert not gate.try_acquire(1, headroom=2)
    for refused in (
        lambda: gate.acquire(timeout=0),
        lambda: gate.admit(requests=1),
        lambda: gate.acquire(timeout=5, max_waiting=0),
        lambda: gate.acquire(3, timeout=5),
        lambda: gate.admit(requests=2, headroom=1, timeout=None),
    ):
        with pytest.raises(GateFull) as caught:
            refused()
        assert (caught.value.cap, caught.value.in_flight) == ("requests", 2)
    with pytest.raises(GateTimeout):
        gate.acquire(timeout=0.01)
    told = gate.statistics().caps["requests"]
    assert told.refused_by == {"full": 4, "timeout": 1, "too_large": 4}
    assert told.refused == sum(told.refused_by.values())


def test_nobody_waits_for_what_could_never_fit(gate: Gate) -> None:
    began = time.monotonic()
    with pytest.raises(GateFull):
        gate.acquire(3, timeout=DEADLINE)
    with pytest.raises(GateFull) as caught:
        gate.admit(requests=1, tokens=60, headroom=41, timeout=None)
    assert time.monotonic() - began < DEADLINE / 2
    assert (caught.value.cap, caught.value.requested, caught.value.headroom) == ("requests", 1, 41)


def test_a_limit_lowered_below_what_a_waiter_wants_ends_its_wait(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    calls = {"both": lambda: gate.acquire(2, timeout=None), "one": lambda: gate.acquire(timeout=None)}
    threads = line_up(gate, outcomes, calls)
    gate.set_limit("requests", 1)
    wait_until(lambda: outcomes.list == [("both", GateFull)])
    gate.release(2)
    join(*threads)
    assert outcomes.list == [("both", GateFull), "one"]
    assert gate.held() == 1


def test_a_higher_limit_wakes_those_who_wait(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    threads = line_up(gate, outcomes, {i: lambda: gate.acquire(timeout=DEADLINE) for i in range(3)})
    gate.set_limit("requests", 5)
    join(*threads)
    assert outcomes.list == [0, 1, 2]
    assert gate.held() == 5


def test_several_caps_are_waited_for_together(gate: Gate) -> None:
    gate.acquire(100, cap="tokens")
    gate.acquire()
    outcomes = Outcomes()
    both = {"requests": 2, "tokens": 60}
    thread = start(outcomes.of, "all", lambda: gate.admit(**both, timeout=DEADLINE).release())
    wait_until(lambda: waiting(gate) == 1)  # the first cap refuses
    gate.release()
    wait_until(lambda: (waiting(gate), waiting(gate, "tokens")) == (0, 1))
    assert gate.held() == 0, "held while it waits for another cap"
    gate.release(60, cap="tokens")
    join(thread)
    assert outcomes.list == ["all"]
    assert (gate.held(), gate.held(cap="tokens"), waiting(gate, "tokens")) == (0, 40, 0)


def test_no_more_than_max_waiting_wait(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    calls = {i: lambda: gate.acquire(timeout=DEADLINE, max_waiting=3) for i in range(3)}
    threads = line_up(gate, outcomes, calls)
    with pytest.raises(GateFull):
        gate.acquire(timeout=DEADLINE, max_waiting=3)
    assert waiting(gate) == 3
    assert gate.statistics().slots[0].waiting == {"requests": 3, "tokens": 0}
    for count in range(3):
        gate.release()
        wait_until(lambda count=count: len(outcomes.list) == count + 1)
    join(*threads)
    assert outcomes.list == [0, 1, 2]


def test_closing_the_gate_ends_every_wait(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    threads = line_up(gate, outcomes, {i: lambda: gate.acquire(timeout=DEADLINE) for i in range(4)})
    gate.close()
    join(*threads)
    assert sorted(outcomes.list) == [(i, GateClosed) for i in range(4)]


def test_who_waited_as_the_gate_was_closed_is_counted_nowhere(gate_name: str) -> None:
    """Nor in the books of whoever stands beside a slot that is the gate's no more."""
    with Gate.create(gate_name, limits=LIMITS, slots=2) as other:
        other.acquire(100, cap="tokens")
        gate, outcomes = Gate.open(gate_name), Outcomes()
        thread = start(outcomes.of, 0, lambda: gate.acquire(cap="tokens", timeout=DEADLINE))
        wait_until(lambda: waiting(other, "tokens") == 1)
        gate.close()
        join(thread)
        assert outcomes.list == [(0, GateClosed)]
        assert [other.slot_statistics(slot)[2] for slot in range(2)] == [(0, 0), (0, 0)]


def test_nothing_is_left_of_a_line_in_which_nobody_stands(gate: Gate) -> None:
    def lines() -> int:
        return sum(isinstance(thing, Line) for thing in gc.get_objects())

    gate.acquire(2)
    before = lines()
    for headroom in (0, 1):
        with pytest.raises(GateTimeout):
            gate.acquire(headroom=headroom, timeout=0.001)
    assert lines() <= before  # the watcher of a test before may just be ending


def test_a_wait_ends_with_the_gate_and_not_by_a_look_now_and_then(gate_name: str) -> None:
    """Also if closing gives nothing back that would wake the waiter."""
    seconds = []
    with Gate.create(gate_name, limits={"requests": 1}) as holder:
        holder.acquire()
        for _ in range(20):
            gate = Gate.open(gate_name)
            calls = {"waiter": lambda gate=gate: gate.acquire(timeout=DEADLINE)}
            threads = line_up(holder, Outcomes(), calls)
            began = time.monotonic()
            gate.close()
            join(*threads)
            seconds.append(time.monotonic() - began)
    assert sorted(seconds)[6] < 0.005


def test_a_long_wait_takes_next_to_no_processor_time(gate: Gate) -> None:
    gate.acquire(2)

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    outcomes = Outcomes()
    threads = line_up(gate, outcomes, {i: lambda: gate.acquire(timeout=DEADLINE) for i in range(8)})
    before, began = used(), time.monotonic()
    time.sleep(1)
    share = (used() - before) / (time.monotonic() - began)
    gate.set_limit("requests", 10)
    join(*threads)
    assert share < 0.1
    assert len(outcomes.list) == 8


def test_a_permit_waited_for_is_like_any(gate: Gate) -> None:
    gate.acquire(2)
    thread = start(lambda: (wait_until(lambda: waiting(gate) == 1), gate.release(2)))
    with gate.admit(requests=2, tokens=7, timeout=DEADLINE) as permit:
        assert (gate.held(), gate.held(cap="tokens")) == (2, 7)
        assert dict(permit.amounts) == {"requests": 2, "tokens": 7}
    join(thread)
    assert (gate.held(), gate.held(cap="tokens")) == (0, 0)
    with pytest.raises(NotOwner):
        gate.release()


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "text": ({"timeout": "5"}, TypeError, "timeout must be a number of seconds or None, not str"),
    "flag": ({"timeout": True}, TypeError, "timeout must be a number of seconds"),
    "negative": ({"timeout": -0.1}, ValueError, "timeout must be seconds from 0 on, or None, not -0.1"),
    "nan": ({"timeout": math.nan}, ValueError, "timeout must be seconds from 0 on"),
    "huge": ({"timeout": 10**400}, ValueError, "timeout must be seconds from 0 on"),
    "float": ({"max_waiting": 1.5}, TypeError, "max_waiting must be an int"),
    "below": ({"max_waiting": -1}, ValueError, "max_waiting must be from 0"),
    "beyond": ({"max_waiting": 2**32}, ValueError, "max_waiting must be from 0"),
    "headroom": ({"headroom": -1}, ValueError, "headroom must be from 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_named_and_changes_nothing(gate: Gate, case: str) -> None:
    keywords, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        gate.acquire(**keywords)
    with pytest.raises(error, match=text):
        gate.admit(**keywords)
    with pytest.raises(UnknownCap):
        gate.acquire(cap="jobs")
    with pytest.raises(ValueError, match="n must be from 1"):
        gate.acquire(0)
    assert gate.held() == 0
    assert gate.statistics().caps["requests"].refused == 0


def test_any_number_of_seconds_will_do(gate: Gate) -> None:
    gate.acquire(timeout=10**9)
    gate.acquire(timeout=math.inf)
    for timeout in (0.01, 1e-9, 5e-324):
        with pytest.raises(GateTimeout):
            gate.acquire(timeout=timeout)
