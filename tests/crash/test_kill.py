"""SIGKILL at random instants, through the public calls: never over the cap, and nothing lost.

Each kind of worker is killed again and again while the others go on. That a kill at every single
instruction is survived, the single-step test in tests/c shows; here whole processes die, with all that
Python, the kernel and multiprocessing do besides.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from crash.workers import admit_at_gate, serve_requests, work_at_gate
from gatecount import AdmissionCounters, AtomicArray, Gate
from support import Crew, scaled, wait_until
from witness import KillProofWitness

LIMIT = 20
WORKERS = 4
Arguments = Callable[[int], tuple[Any, ...]]


def massacre(
    method: str,
    kills: int,
    work: Callable[..., object],
    arguments: Arguments,
    witnesses: list[KillProofWitness],
    stop: AtomicArray,
) -> None:
    """Keep WORKERS at work, kill one after another at random instants, then let the last ones finish."""
    chance = random.Random(kills)
    first = witnesses[0]
    with Crew(method) as crew:

        def begin(me: int) -> BaseProcess:
            return crew.start(work, *arguments(me))

        def see_at_work(me: int) -> None:
            before = first.grants(me)

            def is_served() -> bool:
                assert workers[me].exitcode is None, f"worker {me} has ended by itself"
                return first.grants(me) > before

            wait_until(is_served)

        workers = [begin(me) for me in range(WORKERS)]
        for _ in range(kills):
            me = chance.randrange(WORKERS)
            see_at_work(me)
            time.sleep(chance.uniform(0, 0.002))  # anywhere in its next calls
            for witness in witnesses:
                witness.condemn(me)
            crew.kill(workers[me])
            crew.members.remove(workers[me])
            for witness in witnesses:
                witness.bury(me)
            workers[me] = begin(me)
        for me in range(WORKERS):
            see_at_work(me)
        stop.store(0, 1)
        crew.join()
    for witness in witnesses:
        assert witness.violations == 0
        assert witness.running == 0
    assert first.times_at_limit > 0


@pytest.mark.parametrize(("method", "kills"), [("fork", 30), ("spawn", 5)])
@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_killed_workers_lose_no_permit_of_a_gate(mode: str, method: str, kills: int) -> None:
    most = 3
    overshoot = (WORKERS - 1) * most if mode == "approximate" else 0
    witness, stop = KillProofWitness(LIMIT + overshoot, reached=LIMIT), AtomicArray(1)
    with Gate.create(limits={"requests": LIMIT}, slots=WORKERS, mode=mode) as gate:
        massacre(
            method,
            scaled(kills),
            work_at_gate,
            lambda me: (gate, witness, me, most, stop),
            [witness],
            stop,
        )
        gate.reclaim()
        cap = gate.statistics().caps["requests"]
        assert (cap.in_flight, cap.repairs) == (0, 0)
        assert cap.peak <= LIMIT + overshoot
        assert list(gate.counters()) == [0] * (8 * WORKERS)
        assert gate.statistics().slots == ()
        assert gate.try_acquire(LIMIT)
        assert not gate.try_acquire()


def test_a_kill_between_two_caps_leaves_neither_charged() -> None:
    requests, tokens, stop = KillProofWitness(6), KillProofWitness(40), AtomicArray(1)
    with Gate.create(limits={"requests": 6, "tokens": 40}, slots=WORKERS) as gate:
        massacre(
            "fork",
            scaled(30),
            admit_at_gate,
            lambda me: (gate, requests, tokens, me, stop),
            [requests, tokens],
            stop,
        )
        gate.reclaim()
        for cap in gate.statistics().caps.values():
            assert (cap.in_flight, cap.repairs) == (0, 0)
        with gate.admit(requests=6, tokens=40):
            assert not gate.try_acquire()


@pytest.mark.parametrize(("method", "kills"), [("fork", 30), ("forkserver", 5)])
def test_killed_servers_lose_no_permit_of_a_buffer(method: str, kills: int) -> None:
    witness, stop = KillProofWitness(LIMIT), AtomicArray(1)
    buffer = AdmissionCounters(client_count=WORKERS, limit=LIMIT)
    massacre(
        method,
        scaled(kills),
        serve_requests,
        lambda me: (buffer, WORKERS, witness, me, stop),
        [witness],
        stop,
    )
    buffer.reclaim()
    assert buffer.in_flight == 0
    assert list(buffer) == [0] * len(buffer)
