"""Waits that are cut short: by a signal handler that raises, or by one that forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gatecount import Gate
from support import DEADLINE, scaled, wait_until
from waiters import Outcomes, code_of_a_child_that_waits, join, line_up, start, waiting

LIMITS = {"requests": 2, "tokens": 100}


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


class Interrupt(Exception):
    """Raised by the handler."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupt


@pytest.fixture
def alarm() -> Iterator[Callable[[float], object]]:
    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


Handler = Callable[[Callable[[], object], int], object]


@pytest.fixture
def handler(gate: Gate) -> Iterator[Handler]:
    """Set what a signal handler does, once so many wait: the call that is to be interrupted, too."""

    def set_handler(work: Callable[[], object], count: int) -> None:
        def handle(number: int, frame: object) -> None:
            if waiting(gate) < count:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
            else:
                work()

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    before = signal.getsignal(signal.SIGALRM)
    yield set_handler
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def raise_interrupt() -> None:
    raise Interrupt


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_signal_handler_that_raises_ends_the_wait_at_once(
    gate: Gate, handler: Handler, place: str
) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    ahead = {"ahead": lambda: gate.acquire(timeout=DEADLINE)} if place == "second" else {}
    threads = line_up(gate, outcomes, ahead)
    began = time.monotonic()
    handler(raise_interrupt, 1 + len(threads))
    with pytest.raises(Interrupt):
        gate.acquire(timeout=DEADLINE)
    assert time.monotonic() - began < DEADLINE / 2
    assert waiting(gate) == len(threads)
    gate.release()
    join(*threads)
    assert gate.held() == 1 + len(threads)


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_handler_that_waits_comes_before_the_wait_that_it_interrupts(
    gate: Gate, handler: Handler, place: str
) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    take = {
        name: lambda: gate.admit(requests=2, timeout=DEADLINE / 2).release()
        for name in ("ahead", "handler", "interrupted", "behind")
    }
    threads = line_up(gate, outcomes, {"ahead": take["ahead"]} if place == "second" else {})

    def follow() -> None:
        wait_until(lambda: waiting(gate) == 1 + len(threads))
        threads.extend(line_up(gate, outcomes, {"behind": take["behind"]}))
        wait_until(lambda: waiting(gate) == 2 + len(threads))
        gate.release(2)

    handler(lambda: outcomes.of("handler", take["handler"]), 2 + len(threads))  # the one behind, too
    follower = start(follow)
    outcomes.of("interrupted", take["interrupted"])
    join(follower, *threads)
    assert outcomes.list == ["ahead", "handler", "interrupted", "behind"][place == "first" :]
    assert (gate.held(), waiting(gate)) == (0, 0)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_interrupts_at_any_moment_of_a_wait_keep_every_count(
    gate: Gate, alarm: Callable[[float], object]
) -> None:
    over = threading.Event()

    def give_and_take() -> None:
        while not over.is_set():
            with gate.admit(requests=2, timeout=None):
                pass

    rival = start(give_and_take)
    granted = 0

    # A function of its own: on CPython 3.13 an exception at the jump back of a loop was seen to escape
    # the try around it.
    def take_until_interrupted(seconds: float) -> None:
        nonlocal granted
        alarm(seconds)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with gate.admit(requests=1, tokens=3, timeout=None):
                granted += 1
        raise AssertionError("the exception was swallowed")

    try:
        for i in range(scaled(600)):
            with pytest.raises(Interrupt):
                take_until_interrupted(0.0002 + i % 7 * 0.0002)
    finally:
        over.set()
        join(rival)
    assert granted > 0
    assert (gate.held(), gate.held(cap="tokens"), waiting(gate)) == (0, 0, 0)
    gate.acquire(2, timeout=1)


def test_a_child_forked_while_others_wait_has_no_waiter(gate: Gate) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    threads = line_up(gate, outcomes, {i: lambda: gate.acquire(timeout=DEADLINE) for i in range(2)})
    assert code_of_a_child_that_waits(gate, 2) == 7
    assert waiting(gate) == 2
    gate.release(2)
    join(*threads)
    assert (gate.held(), waiting(gate)) == (2, 0)


def test_a_child_forked_in_mid_wait_that_waits_no_more_leaves_its_parents_place_alone(
    gate: Gate, handler: Handler
) -> None:
    gate.acquire(2)
    parent, codes = os.getpid(), list[int]()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            gate.try_acquire()  # so that it has a slot
            raise Interrupt
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        gate.release()

    handler(fork, 1)
    try:
        gate.acquire(timeout=DEADLINE)
    finally:
        if os.getpid() != parent:
            os._exit(7 if waiting(gate) == 1 else 2)
    assert codes == [7]
    assert (gate.held(), waiting(gate)) == (2, 0)


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_child_forked_by_a_handler_in_mid_wait_goes_on_waiting_for_itself(
    gate: Gate, handler: Handler, place: str
) -> None:
    gate.acquire(2)
    outcomes = Outcomes()
    ahead = {"ahead": lambda: gate.acquire(timeout=DEADLINE)} if place == "second" else {}
    threads = line_up(gate, outcomes, ahead)
    parent, children = os.getpid(), list[int]()

    def make_room_for_all() -> None:
        wait_until(lambda: [sum(slot.waiting.values()) for slot in gate.statistics().slots] == expected)
        gate.set_limit("requests", 5)

    expected = [1 + len(threads), 1]
    threads.append(start(make_room_for_all))
    code = 1
    try:
        handler(lambda: children.append(os.fork()), expected[0])
        gate.acquire(timeout=DEADLINE)
        code = 0 if gate.held() == 1 else 2
    finally:
        if os.getpid() != parent:
            os._exit(code)
    (child,) = children
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    join(*threads)
    assert (gate.held(), waiting(gate)) == (2 + len(threads), 0)
