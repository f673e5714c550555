"""Waiting across processes: woken at once by whoever makes room, and stranded by nobody's death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from gatecount import AtomicArray, Gate, GateFull, GateTimeout
from processes.workers import meet
from support import DEADLINE, Crew, Remote, gone, python, scaled, wait_for_end, wait_until
from waiters import waiting

LIMITS = {"requests": 1, "tokens": 100}
SLICE = 0.05
"""Seconds after which a waiter looks for the dead."""


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest, gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=8, mode=request.param) as made:
        yield made


@pytest.fixture
def hard(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=8) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def acquire(gate: Gate, words: AtomicArray, at: int, way: str = "thread") -> None:
    """Wait for one unit, note that it was granted, and stay."""
    if way == "thread":
        gate.acquire(timeout=DEADLINE)
    else:
        asyncio.run(gate.acquire_async(timeout=DEADLINE))
    words.fetch_add(at, 1)
    signal.pause()


ways = pytest.mark.parametrize("way", ["thread", "task"])


@ways
@pytest.mark.parametrize("deed", ["release", "close", "limit", "reclaim", "death"])
def test_whoever_makes_room_lets_a_waiter_of_another_process_in(
    gate: Gate, crew: Crew, way: str, deed: str
) -> None:
    words = AtomicArray(1)
    holder = Remote(crew, Gate.open, gate.name)
    holder.call("acquire")
    crew.start(acquire, gate, words, 0, way)
    wait_until(lambda: waiting(gate) == 1)
    if deed == "limit":
        holder.call("set_limit", "requests", 2)
    elif deed in ("reclaim", "death"):
        holder.kill()
        if deed == "reclaim":
            gate.reclaim()
    else:
        holder.call(deed)
    wait_until(lambda: words[0] == 1)
    assert waiting(gate) == 0
    told = gate.statistics().caps["requests"]
    assert (told.admitted, told.refused, told.repairs) == (2, 0, 0)


def ping(gate: Gate, results: Any, rounds: int, here: int, seated: AtomicArray) -> None:
    """Follow the other round a ring of three caps; tell how long each wait took that was one."""
    caps = gate.segment.caps
    gate.acquire(cap=caps[here])
    seated.fetch_add(0, 1)
    wait_until(lambda: seated[0] == 2)
    waits = []
    for _ in range(rounds):
        following = (here + 1) % 3
        began = time.perf_counter()
        gate.acquire(cap=caps[following], timeout=DEADLINE)
        waits.append(time.perf_counter() - began)
        gate.release(cap=caps[here])
        here = following
    gate.close()
    results.send(waits)


@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_a_release_wakes_at_once_and_not_by_a_look_now_and_then(crew: Crew, mode: str) -> None:
    rounds = scaled(500)
    with Gate.create(limits={"a": 1, "b": 1, "c": 1}, slots=3, mode=mode) as gate:
        seated = AtomicArray(1)
        pipes = [crew.context.Pipe() for _ in range(2)]
        for here, (_, there) in enumerate(pipes):
            crew.start(ping, gate, there, rounds, here, seated)
        waits = []
        for ours, _ in pipes:
            assert ours.poll(DEADLINE)
            waits += ours.recv()
        crew.join()
        slow = sum(wait > SLICE / 2 for wait in waits)
        assert slow < len(waits) / 20, f"{slow} of {len(waits)}: {sorted(waits)[-5:]}"
        assert sum(told.waiting for told in gate.statistics().caps.values()) == 0


class Line:
    """A process in which threads come to wait one after the other."""

    def __init__(self, name: str) -> None:
        self.gate = Gate.open(name)
        self.served: list[int] = []

    def wait(self, number: int) -> None:
        def work() -> None:
            self.gate.acquire(timeout=DEADLINE)
            self.served.append(number)

        before = self.gate.statistics().slots
        mine = sum(slot.waiting["requests"] for slot in before if slot.pid == os.getpid())
        threading.Thread(target=work, daemon=True).start()
        wait_until(lambda: self.counted() == mine + 1)

    def counted(self) -> int:
        slots = self.gate.statistics().slots
        return sum(slot.waiting["requests"] for slot in slots if slot.pid == os.getpid())

    def release(self) -> bool:
        if self.gate.held():
            self.gate.release()
            return True
        return False

    def order(self) -> list[int]:
        return self.served


def test_the_oldest_of_each_process_comes_first(gate: Gate, crew: Crew) -> None:
    gate.acquire()
    lines = [Remote(crew, Line, gate.name) for _ in range(2)]
    for number in range(4):
        for line in lines:
            line.call("wait", number)
    assert waiting(gate) == 8
    gate.release()
    for count in range(1, 9):
        # An approximate gate may let one of each process in at once.
        wait_until(lambda count=count: sum(len(line.call("order")) for line in lines) >= count)
        assert any(line.call("release") for line in lines)
    assert [line.call("order") for line in lines] == [[0, 1, 2, 3]] * 2


def test_max_waiting_bounds_all_processes_together(gate: Gate, crew: Crew) -> None:
    words = AtomicArray(1)
    gate.acquire()
    members = [crew.start(acquire, gate, words, 0) for _ in range(3)]
    wait_until(lambda: waiting(gate) == 3)
    began = time.monotonic()
    with pytest.raises(GateFull):
        gate.acquire(timeout=DEADLINE, max_waiting=3)
    assert time.monotonic() - began < DEADLINE / 2
    crew.kill(members[0])
    wait_until(lambda: waiting(gate) == 2)  # but for the instant in which another takes over its slot
    wait_until(lambda: refusal(gate) is GateTimeout)  # as soon as the dead are looked for
    assert waiting(gate) == 2


def test_a_killed_waiter_is_counted_no_more_before_anybody_looks_for_the_dead(
    gate: Gate, crew: Crew
) -> None:
    gate.acquire()
    waiter = crew.start(acquire, gate, AtomicArray(1), 0)
    wait_until(lambda: waiting(gate) == 1)
    crew.kill(waiter)  # and nobody else is there who would
    assert waiting(gate) == 0
    assert [alive for _, pid, alive, *_ in gate.owners() if pid == waiter.pid] == [False]


def refusal(gate: Gate) -> type[Exception]:
    with pytest.raises((GateFull, GateTimeout)) as caught:
        gate.acquire(timeout=0.01, max_waiting=3)
    return caught.type


def compete(gate: Gate, words: AtomicArray, rounds: int) -> None:
    """Come in the same instant as the others, round after round; count those who may not wait."""
    for number in range(1, rounds + 1):
        meet(words, 0, 6 * number)
        try:
            gate.acquire(timeout=2 * DEADLINE, max_waiting=2)
        except GateFull:
            words.fetch_add(8, 1)
        else:
            gate.release()
        meet(words, 16, 6 * number)


def test_never_more_wait_than_may_even_if_all_come_at_once(hard: Gate, crew: Crew) -> None:
    """What is counted as waiting tells too much for an instant: of those who are about to be refused."""
    words, rounds = AtomicArray(24), scaled(300)
    for _ in range(5):
        crew.start(compete, hard, words, rounds)
    for number in range(1, rounds + 1):
        refused = words[8]
        hard.acquire()
        meet(words, 0, 6 * number)
        wait_until(lambda refused=refused: words[8] >= refused + 3)
        hard.release()
        meet(words, 16, 6 * number)
    crew.join()
    assert waiting(hard) == 0
    told = hard.statistics().caps["requests"]
    assert told.refused == sum(told.refused_by.values())
    assert told.in_flight == 0


def test_a_waiter_killed_as_it_is_woken_does_not_strand_the_others(hard: Gate, crew: Crew) -> None:
    """Whether it was killed before its try or after: the other is woken, or finds it dead."""
    for _ in range(scaled(40)):
        kill_one_as_it_is_woken(hard, crew, AtomicArray(2))
        assert (hard.statistics().caps["requests"].in_flight, waiting(hard)) == (0, 0)


def kill_one_as_it_is_woken(gate: Gate, crew: Crew, words: AtomicArray) -> None:
    gate.acquire()
    victim, other = (crew.start(acquire, gate, words, at) for at in range(2))
    wait_until(lambda: waiting(gate) == 2)
    gate.release()
    crew.kill(victim)
    wait_until(lambda: words[1] == 1)
    crew.kill(other)
    gate.reclaim()


def test_a_storm_of_deaths_among_waiters_and_holders_leaves_the_gate_usable(
    gate: Gate, crew: Crew
) -> None:
    members = [crew.start(follow_others, gate) for _ in range(4)]
    for _ in range(scaled(40)):
        admitted = gate.statistics().caps["requests"].admitted
        wait_until(lambda admitted=admitted: gate.statistics().caps["requests"].admitted > admitted + 20)
        crew.kill(members.pop(0))
        members.append(crew.start(follow_others, gate))
    for member in members:
        crew.kill(member)
    gate.acquire(timeout=DEADLINE)
    told = gate.statistics().caps["requests"]
    assert (told.in_flight, told.waiting, told.repairs) == (1, 0, 0)
    if gate.segment.mode == "hard":
        assert told.peak == 1


def follow_others(gate: Gate) -> None:
    while True:
        gate.acquire(timeout=DEADLINE)
        os.sched_yield()
        gate.release()


CTRL_C = """
import sys
from gatecount import Gate
gate = Gate.open(sys.argv[1])
print("ready", flush=True)
try:
    gate.acquire(timeout=60)
except KeyboardInterrupt:
    print("held", gate.held(), "waiting", gate.statistics().caps["requests"].waiting, flush=True)
"""


def test_ctrl_c_ends_a_wait_with_nothing_half_done(gate: Gate) -> None:
    gate.acquire()
    assert gate.name
    with subprocess.Popen(
        python(CTRL_C, gate.name),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            wait_until(lambda: waiting(gate) == 1)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert out == "ready\nheld 0 waiting 0\n"
    assert process.returncode == 0
    assert waiting(gate) == 0


def wait_in_vain(gate: Gate, seconds: float, answer: Any) -> None:
    before = time.process_time()
    with contextlib.suppress(GateTimeout):
        gate.acquire(timeout=seconds)
    answer.send(time.process_time() - before)


def test_many_who_wait_long_take_next_to_no_processor_time(gate: Gate, crew: Crew) -> None:
    gate.acquire()
    ours, theirs = crew.context.Pipe()
    for _ in range(4):
        crew.start(wait_in_vain, gate, 1.5, theirs)
    crew.join()
    assert sum(ours.recv() for _ in range(4)) < 4 * 1.5 * 0.05


def test_a_stopped_waiter_blocks_nobody(gate: Gate, crew: Crew) -> None:
    words = AtomicArray(2)
    gate.acquire()
    stopped = crew.start(acquire, gate, words, 0)
    wait_until(lambda: waiting(gate) == 1)
    os.kill(stopped.pid, signal.SIGSTOP)
    crew.start(acquire, gate, words, 1)
    wait_until(lambda: waiting(gate) == 2)
    gate.release()
    wait_until(lambda: words[1] == 1)
    crew.kill(stopped)


def fork_a_waiter(gate: Gate, words: AtomicArray) -> None:
    """Wait in a thread, and fork meanwhile a child that waits, too, and outlives this process."""
    threading.Thread(target=gate.acquire, kwargs={"timeout": DEADLINE}, daemon=True).start()
    wait_until(lambda: waiting(gate) == 1)
    child = os.fork()
    if child == 0:
        gate.acquire(timeout=DEADLINE)
        words.fetch_add(0, 1)
        gate.release()
        os._exit(0)
    wait_until(lambda: waiting(gate) == 2)
    words.store(1, child)
    signal.pause()


def test_a_forked_waiter_outlives_its_waiting_parent(gate: Gate, crew: Crew) -> None:
    words = AtomicArray(2)
    gate.acquire()
    parent = crew.start(fork_a_waiter, gate, words)
    child = psutil.Process(wait_until(lambda: words[1]))
    parent.kill()
    wait_for_end(parent)
    wait_until(lambda: waiting(gate) == 1)
    gate.release()
    wait_until(lambda: words[0] == 1)
    wait_until(lambda: gone(child))
