"""An exception from a signal handler, at whatever moment, loses no permit and is not lost itself."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from gatecount import Gate
from support import scaled


class Interrupt(Exception):
    """Raised by the handler."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupt


def use_until_interrupted(gate: Gate) -> None:
    """Go on for seconds. A function of its own: a `try` may not cover a loop's jump back."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with gate.admit(requests=1, tokens=2):
            pass
    raise AssertionError("the exception was swallowed")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_exception_from_a_signal_handler_loses_no_permit_and_is_not_swallowed() -> None:
    seconds = random.Random(7)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Gate.create(limits={"requests": 3, "tokens": 9}, slots=1) as gate:
            for _ in range(scaled(2000)):
                try:
                    signal.setitimer(signal.ITIMER_REAL, seconds.uniform(200e-6, 900e-6))
                    use_until_interrupted(gate)
                except Interrupt:
                    pass
                assert (gate.held(), gate.held(cap="tokens")) == (0, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_child_forked_in_the_block_leaves_it_as_it_would_have_without() -> None:
    with Gate.create(limits={"requests": 3}) as gate, gate.admit(requests=2) as permit:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with permit:
                    code = 7 if not permit.released else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert gate.held() == 2
