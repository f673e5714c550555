"""The gate of a program that runs a server: there for its workers, and for no longer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from multiprocessing.connection import Connection

import pytest

from gatecount import Gate, LayoutMismatch
from gatecount.gate import ENVIRONMENT
from gatecount.integrations.launch import gate_for_workers
from support import DEADLINE, path_of, python

LIMITS = {"requests": 3}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "another")  # and what stood there before comes back


def test_the_gate_stands_while_the_block_runs_and_the_environment_names_it(gate_name: str) -> None:
    with gate_for_workers(
        gate_name, limits=LIMITS, slots=2, mode="approximate", permissions=0o640
    ) as gate:
        assert os.environ[ENVIRONMENT] == gate_name
        with Gate.from_env() as found:
            assert (found.name, found.segment.slots, found.segment.mode) == (gate_name, 2, "approximate")
        assert path_of(gate_name).stat().st_mode & 0o777 == 0o640
        gate.claim()  # as a server does that runs its only worker itself
    assert gate.closed
    assert not path_of(gate_name).exists()


@pytest.mark.parametrize("end", [SystemExit(1), KeyboardInterrupt(), RuntimeError("boom")], ids=repr)
def test_the_name_goes_however_the_server_ends(gate_name: str, end: BaseException) -> None:
    with pytest.raises(type(end)), gate_for_workers(gate_name, limits=LIMITS):
        raise end
    assert not path_of(gate_name).exists()


def test_a_gate_that_stands_is_adopted_with_the_limits_asked_for(gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 9}):
        with pytest.raises(LayoutMismatch), gate_for_workers(gate_name, limits=LIMITS, slots=5):
            pytest.fail("it runs")
        with gate_for_workers(gate_name, limits=LIMITS) as gate:
            assert gate.statistics().caps["requests"].limit == 3


def drain(name: str, ready: Connection) -> None:
    """Be a worker that takes a while to end when it is told to."""
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), os._exit(0)))
    with Gate.open(name) as gate:
        gate.acquire()
        ready.send(None)
        signal.pause()


def test_workers_that_still_drain_are_waited_for(gate_name: str) -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("spawn").Process(target=drain, args=(gate_name, there))
    with gate_for_workers(gate_name, limits=LIMITS):
        worker.start()
        assert here.poll(DEADLINE)
        worker.terminate()
    assert worker.exitcode == 0
    assert not path_of(gate_name).exists()


OTHER = """
import sys
from gatecount import Gate
gate = Gate.from_env()
gate.claim()
print("claimed", flush=True)
sys.stdin.read()
"""


def test_the_name_stays_while_processes_of_another_start_own_slots(gate_name: str) -> None:
    with gate_for_workers(gate_name, limits=LIMITS, slots=4) as first:
        with gate_for_workers(gate_name, limits=LIMITS, slots=4) as second:
            second.claim()
            other = subprocess.Popen(python(OTHER), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert other.stdout
            assert other.stdout.readline() == b"claimed\n"
        with other:  # at whose end it ends
            assert [slot.pid for slot in first.statistics().slots] == [other.pid]
            assert path_of(gate_name).exists()
    assert not path_of(gate_name).exists()


def test_a_name_that_somebody_else_has_removed_and_given_anew_is_left_alone(gate_name: str) -> None:
    with gate_for_workers(gate_name, limits=LIMITS):
        Gate.remove(gate_name)
    with gate_for_workers(gate_name, limits=LIMITS):
        Gate.remove(gate_name)
        Gate.create(gate_name, limits=LIMITS).close()
    assert path_of(gate_name).exists()
