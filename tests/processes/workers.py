"""What the processes of these tests do: importable, so that any start method finds it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gatecount import AtomicArray, Gate, GateFull, NotOwner, SharedAdmissionStats, SlotsExhausted
from support import DEADLINE
from witness import Witness

Value = TypeVar("Value")

PATIENCE = 1.0
"""Seconds for which a claim waits for a slot that another is just freeing."""


def claimed(claim: Callable[[], Value]) -> Value:
    """Return what a claim returns; raise its refusal if that came before all patience was used up.

    One that came later is right, and made up for: whoever frees the slot may be stopped for long.
    """
    end = time.monotonic() + DEADLINE
    while True:
        began = time.monotonic()
        try:
            return claim()
        except (SlotsExhausted, NotOwner):
            if not began + PATIENCE <= time.monotonic() < end:
                raise


def publish_and_read(
    config: dict[str, Any], clients: int, index: int, barrier: Any, results: Any
) -> None:
    """Publish index + 1, read the sum once all have published, and stay until all have read."""
    stats = SharedAdmissionStats(config, clients, index)
    stats.set_num_requests(index + 1)
    barrier.wait(DEADLINE)
    results.send((index, stats.get_num_requests(), stats.exact))
    barrier.wait(DEADLINE)


class StatsHolder:
    """A server's stats, and the buffer by index as an unmodified host would use it."""

    def __init__(self, buffer: Any, clients: int, index: int) -> None:
        self.buffer = buffer
        self.stats = SharedAdmissionStats({"mp_admission_counters": buffer}, clients, index)
        for method in ("set_num_requests", "get_num_requests", "try_reserve", "release"):
            setattr(self, method, getattr(self.stats, method))

    def read(self, at: int) -> int:
        return int(self.buffer[at])

    def write(self, at: int, value: int) -> None:
        self.buffer[at] = value

    def in_flight(self) -> int:
        return int(self.buffer.in_flight)


def hammer(
    reserve: Callable[[int], bool],
    release: Callable[[int], None],
    witness: Witness,
    rounds: int,
    most: int,
    seed: int,
) -> None:
    """Reserve and release at random, holding several permits at a time; end with none."""
    chance = random.Random(seed)
    held: list[int] = []
    for _ in range(rounds):
        if held and chance.random() < 0.45:
            n = held.pop(chance.randrange(len(held)))
            witness.releasing(n)
            release(n)
            continue
        n = chance.randint(1, most)
        if reserve(n):
            witness.granted(n)
            held.append(n)
            if chance.random() < 0.01:
                os.sched_yield()  # with what is held: on few cores the others must get to see it
        else:
            witness.refused()
    for n in held:
        witness.releasing(n)
        release(n)


def hammer_gate(gate: Gate, witness: Witness, everybody: int, rounds: int, most: int, seed: int) -> None:
    witness.meet(everybody)
    hammer(gate.try_acquire, gate.release, witness, rounds, most, seed)


def hammer_thread_gate(gate: Gate, witness: Witness, rounds: int, seed: int) -> None:
    """Hammer from four threads, which share the slot."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            hammer(gate.try_acquire, gate.release, witness, rounds, 2, 100 * seed + number)
        except BaseException as failure:  # noqa: BLE001 (reported below)
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not failures


def hammer_stats(
    buffer: Any, clients: int, index: int, witness: Witness, rounds: int, most: int
) -> None:
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, clients, index)
    witness.meet(clients)
    hammer(stats.try_reserve, stats.release, witness, rounds, most, index)


def hammer_two_caps(
    gate: Gate, witnesses: dict[str, Witness], everybody: int, rounds: int, seed: int
) -> None:
    """Admit under two caps at once, and hold nothing of either whenever that was refused."""
    chance = random.Random(seed)
    witnesses["requests"].meet(everybody)
    for _ in range(rounds):
        wanted = {"requests": chance.randint(1, 3), "tokens": chance.randint(1, 30)}
        try:
            permit = gate.admit(**wanted)
        except GateFull as full:
            witnesses[full.cap].refused()
            assert (gate.held(cap="requests"), gate.held(cap="tokens")) == (0, 0)
            continue
        for cap, n in wanted.items():
            witnesses[cap].granted(n)
        if chance.random() < 0.05:
            os.sched_yield()
        for cap, n in wanted.items():
            witnesses[cap].releasing(n)
        permit.release()


def meet(words: AtomicArray, at: int, everybody: int) -> None:
    """Go on when as many have come as are everybody: a barrier that wakes all in the same instant."""
    words.fetch_add(at, 1)
    while words.load(at) < everybody:
        os.sched_yield()


def burst(reserve: Callable[[int], bool], words: AtomicArray, workers: int, tries: int) -> None:
    """Ask for one unit so many times, all workers at once; keep what is granted, and count it."""
    meet(words, 0, workers)
    granted = sum(reserve(1) for _ in range(tries))
    words.fetch_add(8, granted)
    meet(words, 16, workers)


def burst_gate(gate: Gate, words: AtomicArray, workers: int, tries: int) -> None:
    burst(gate.try_acquire, words, workers, tries)


def burst_stats(buffer: Any, words: AtomicArray, workers: int, tries: int, index: int) -> None:
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, workers, index)
    burst(stats.try_reserve, words, workers, tries)


def race(gate: Gate, words: AtomicArray, rounds: int, n: int) -> None:
    """Ask for n units in the same instant as one other process, round after round.

    Counts the wins, and the rounds won by nobody or by both.
    """
    for number in range(1, rounds + 1):
        meet(words, 0, 2 * number)
        won = gate.try_acquire(n)
        if won:
            words.fetch_add(8, 1)
        meet(words, 16, 2 * number)
        if words.load(8) != number:
            words.fetch_add(24, 1)
        meet(words, 32, 2 * number)
        if words.load(8) != number:  # both say the same: start the next round from a true count
            words.compare_exchange(8, words.load(8), number)
        if won:
            gate.release(n)


def create(name: str, words: AtomicArray, workers: int, exist_ok: bool) -> None:
    """Create a gate of that name in the same instant as others, and reserve one unit of it."""
    meet(words, 0, workers)
    try:
        gate = Gate.create(name, limits={"requests": workers}, slots=workers, exist_ok=exist_ok)
    except FileExistsError:
        words.fetch_add(8, 1)
    else:
        words.fetch_add(16, 1)
        assert gate.try_acquire()
    meet(words, 24, workers)


def hold_and_fork(gate: Gate, held: int, answer: Any, lifeline: int, other_end: int) -> None:
    """Reserve, fork a child that lives until the lifeline is cut, tell its pid, wait to be killed."""
    os.close(other_end)
    assert gate.try_acquire(held)
    child = os.fork()
    if child == 0:
        os.read(lifeline, 1)
        os._exit(0)
    answer.send(child)
    os.read(lifeline, 1)


def acquire_and_exit(gate: Gate, n: int) -> None:
    """Reserve and end with exit code 0, as a server that forgets to give back."""
    os._exit(0 if gate.try_acquire(n) else 1)


def acquire_and_end(gate: Gate, n: int) -> None:
    """Reserve and end through the interpreter's own shutdown."""
    sys.exit(0 if gate.try_acquire(n) else 1)


def generations(gate: Gate, count: int) -> None:
    """Fork so many workers, each of which fills the gate and ends with all it holds."""
    for number in range(count):
        worker = os.fork()
        if worker == 0:
            os._exit(0 if gate.try_acquire(9) and not gate.try_acquire() else 1)
        assert os.waitpid(worker, 0) == (worker, 0), f"worker {number}"


def heirs(gate: Gate, words: AtomicArray, count: int) -> None:
    """Fork so many workers, each of which needs the only slot, and ends without giving it back."""
    try:
        for number in range(1, count + 1):
            worker = os.fork()
            if worker == 0:
                meet(words, 0, 2 * number)
                os._exit(0 if claimed(gate.try_acquire) else 1)
            assert os.waitpid(worker, 0) == (worker, 0), f"heir {number}"
    finally:
        words.store(0, 2 * count)  # whoever waits for the next one goes on


def reclaim_with_heirs(gate: Gate, words: AtomicArray, count: int) -> None:
    """Reclaim while each of them is about to, a little earlier or later."""
    chance = random.Random(count)
    for number in range(1, count + 1):
        pause = range(chance.randrange(3_000))
        meet(words, 0, 2 * number)
        for _ in pause:
            pass
        gate.reclaim()


def stats_hold_and_fork(
    buffer: Any, clients: int, index: int, answer: Any, lifeline: int, other_end: int
) -> None:
    """Reserve, fork a child that goes on as this server when the lifeline is cut, wait to be killed."""
    os.close(other_end)
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, clients, index)
    assert stats.try_reserve(6)
    if os.fork():
        answer.send("reserved")
        signal.pause()
    os.read(lifeline, 1)
    stats.set_num_requests(1)
    answer.send((stats.get_num_requests(), buffer.in_flight))
    os._exit(0)
