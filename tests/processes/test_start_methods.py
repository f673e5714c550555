"""Every start method, over a plain and a hard buffer: what is shared arrives and leaves no trace."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import pytest

from gatecount import AdmissionCounters, AtomicArray, Gate, SharedAdmissionStats
from processes.workers import publish_and_read
from support import DEADLINE, START_METHODS, Crew, Remote, path_of, python, same

SERVERS = 3
BUFFERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: RawArray("q", SharedAdmissionStats.num_counters(SERVERS)),
    "hard": lambda: AdmissionCounters(client_count=SERVERS, limit=10),
}

methods = pytest.mark.parametrize("method", START_METHODS)


@methods
@pytest.mark.parametrize("kind", BUFFERS)
def test_three_servers_that_publish_index_plus_1_all_read_6(kind: str, method: str) -> None:
    with Crew(method) as crew:
        here, there = crew.context.Pipe(duplex=False)
        barrier = crew.context.Barrier(SERVERS)
        config = {"mp_admission_counters": BUFFERS[kind]()}
        for index in range(SERVERS):
            crew.start(publish_and_read, config, SERVERS, index, barrier, there)
        del config  # the parent's last reference, while the servers may not even have begun
        gc.collect()
        read = []
        for _ in range(SERVERS):
            assert here.poll(DEADLINE)
            read.append(here.recv())
        crew.join()
    assert sorted(read) == [(index, 6, kind == "hard") for index in range(SERVERS)]


@methods
def test_a_gate_that_the_parent_drops_right_after_start_stands_for_its_children(
    method: str,
) -> None:
    with Crew(method) as crew:
        gate = Gate.create(limits={"requests": 10}, slots=2)
        first, second = (Remote(crew, same, gate) for _ in range(2))
        del gate
        gc.collect()
        assert first.call("try_acquire", 6)
        assert not second.call("try_acquire", 5)
        assert second.call("try_acquire", 4)
        first.call("release", 6)
        assert second.call("statistics").caps["requests"].in_flight == 4
        assert second.call("try_acquire", 6)


@methods
def test_an_array_that_the_parent_drops_right_after_start_stands_for_its_children(
    method: str,
) -> None:
    with Crew(method) as crew:
        words = AtomicArray([5, 6])
        first, second = (Remote(crew, same, words) for _ in range(2))
        del words
        gc.collect()
        assert first.call("fetch_add", 0, 10) == 5
        assert second.call("load", 0) == 15
        assert second.call("compare_exchange", 1, 6, -1) is True
        assert first.call("load", 1) == -1


@methods
def test_parent_and_children_write_the_same_words(method: str) -> None:
    words = AtomicArray(4)
    buffer = AdmissionCounters(client_count=1, limit=1)
    with Crew(method) as crew:
        mine, theirs = Remote(crew, same, words), Remote(crew, same, buffer)
        words[1], buffer[2] = 3, 4
        assert mine.call("__getitem__", 1) == 3
        assert theirs.call("__getitem__", 2) == 4
        mine.call("__setitem__", slice(2, 4), [8, 9])
        theirs.call("__setitem__", -1, -7)
        assert list(words) == [0, 3, 8, 9]
        assert buffer[7] == -7


@methods
def test_a_named_gate_can_be_handed_over_too(method: str, gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 3}, slots=2) as gate, Crew(method) as crew:
        child = Remote(crew, same, gate)
        assert child.call("name") == gate_name
        assert child.call("try_acquire", 2)
        assert not gate.try_acquire(2)
        child.end()
        assert path_of(gate_name).exists()
        assert gate.reclaim() == 1
        assert gate.try_acquire(3)


@methods
def test_a_child_can_hand_on_what_it_was_given(method: str) -> None:
    with Gate.create(limits={"requests": 3}, slots=3) as gate, Crew(method) as crew:
        process = crew.context.Process(  # type: ignore[attr-defined]
            target=_start_another, args=(method, gate)
        )
        process.start()
        crew.members.append(process)
        crew.join()
        assert gate.reclaim() >= 1
        assert gate.statistics().caps["requests"].admitted == 2


def _start_another(method: str, gate: Gate) -> None:
    from processes.workers import acquire_and_exit

    with Crew(method) as crew:
        assert gate.try_acquire()
        crew.start(acquire_and_exit, gate, 1)
        crew.join()


UNTOUCHED = """
import multiprocessing, os, re, sys
from multiprocessing import resource_tracker

registered = []
def overheard(original):
    def heard(*call):
        registered.append(call)
        original(*call)
    return heard

for name in ("register", "unregister"):
    setattr(resource_tracker, name, overheard(getattr(resource_tracker, name)))

from gatecount import AdmissionCounters, AtomicArray, Gate, SharedAdmissionStats
from support import Crew, Remote, same

method, name = sys.argv[1:]
if __name__ == "__main__":
    before = set(os.listdir("/dev/shm"))
    buffer, words = AdmissionCounters(client_count=2, limit=10), AtomicArray(8)
    anonymous = Gate.create(limits={"requests": 1}, slots=2)
    named = Gate.create(name, limits={"requests": 1}, slots=2)
    opened = Gate.open(name)
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, 2, 0)
    assert stats.try_reserve(2)
    with Crew(method) as crew:
        for shared in (buffer, words, anonymous, named):
            Remote(crew, same, shared).end()
    if method == "fork":
        assert resource_tracker._resource_tracker._fd is None, "the tracker was started"
    assert not registered, registered
    new = set(os.listdir("/dev/shm")) - before
    # The names of the tests' own gates have a pid and a number in them, and none of ours.
    others = {file for file in new if file.startswith("gatecount-test-")}
    mine = {file for file in new - others if re.search(rf"\\b{os.getpid()}\\b", file)}
    assert not mine, mine
    named.close()
"""


@methods
def test_the_resource_tracker_hears_of_nothing(method: str, gate_name: str) -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        python(UNTOUCHED, method, gate_name),
        env={**os.environ, "PYTHONPATH": paths},
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert path_of(gate_name).exists()
    Gate.open(gate_name).close()


def test_an_exec_inherits_no_descriptor() -> None:
    kept: list[Any] = [AtomicArray(1), AdmissionCounters(1, 1), Gate.create(limits={"requests": 3})]
    assert kept[2].try_acquire()
    done = subprocess.run(
        ["ls", "-l", "/proc/self/fd"],
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        check=True,
        close_fds=False,
    )
    assert "gatecount" not in done.stdout
