"""What can go wrong while the manager starts its servers, and the end of their engine."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket

import pytest

from gatecount import AtomicArray
from gatecount.frontend import keeper
from gatecount.frontend.errors import StartError
from gatecount.frontend.manager import ServerProcessManager
from gatecount.frontend.settings import EngineSettings
from host import targets
from host.targets import alive, settings
from support import DEADLINE, wait_until


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("says why", "server 2 failed: there is no model of that name"),
        ("exit code 3", "server 2 ended with exit code 3 before it was ready"),
        ("exit code 0", "server 2 ended with exit code 0 before it was ready"),
        ("SIGKILL", r"server 2 was ended by signal 9 \(SIGKILL\) before it was ready"),
        ("is never ready", r"server \d was not ready within 1.5 s \(--start-timeout\)$"),
    ],
)
def test_if_one_fails_while_it_starts_all_are_ended_and_one_line_says_why(how: str, said: str) -> None:
    changed = settings(workers=3)
    if how == "is never ready":  # for so long beside what engine and warm-up are told to take
        told = {"engine": EngineSettings(load_time=0.3), "warmup_time": 0.2}
        changed = settings(workers=3, start_timeout=1.0, **told)
    manager = ServerProcessManager(targets.fail_at, changed, (2, how))
    manager.start()
    with pytest.raises(StartError, match=said):
        manager.wait_until_ready()

    assert manager.ended
    assert manager.pids == (None, None, None)
    assert multiprocessing.active_children() == []


def test_only_so_many_start_at_a_time_and_each_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "AT_ONCE", 2, raising=False)
    steps = AtomicArray(8)
    manager = ServerProcessManager(targets.start_when_let, settings(workers=5), (steps,))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(manager.shutdown, 0.0)
        manager.start()
        for started in (2, 3, 5):
            wait_until(lambda started=started: steps[0] == started)
            up = [index < started for index in range(5)]
            # One may run before the manager has noted it.
            wait_until(lambda up=up: [pid is not None for pid in manager.pids] == up)
            steps.fetch_add(1, {2: 1, 3: 2, 5: 2}[started])
        manager.wait_until_ready()


class PretendedEngine:
    """As far as the manager knows engines; it ends when told to."""

    def __init__(self, connections: int = 100) -> None:
        self._here, self._there = multiprocessing.Pipe(duplex=False)
        self._connections = connections

    @property
    def sentinel(self) -> int:
        return self._here.fileno()

    def end(self) -> None:
        self._there.close()

    def cause_of_end(self) -> str:
        return "was ended by signal 9"

    def connect(self) -> socket.socket:
        if not self._connections:
            raise OSError("too many open files")
        self._connections -= 1
        here, there = socket.socketpair()
        there.close()
        return here

    def wait_until_ready(self, timeout: float) -> None:
        raise StartError("the engine could not load its model")


def test_if_the_third_process_cannot_even_be_made_the_others_are_ended() -> None:
    manager = ServerProcessManager(
        targets.fail_at, settings(workers=4), (-1, ""), engine=PretendedEngine(connections=2)
    )
    manager.start()
    with pytest.raises(StartError, match="server 2 cannot be started: too many open files"):
        manager.wait_until_ready()

    assert multiprocessing.active_children() == []


def test_what_cannot_be_pickled_is_a_start_error_and_leaves_no_process() -> None:
    manager = ServerProcessManager(lambda _: None, settings())
    manager.start()
    with pytest.raises(StartError, match="pickle"):
        manager.wait_until_ready()

    assert multiprocessing.active_children() == []


def test_the_end_of_the_engine_is_the_end_of_all() -> None:
    engine = PretendedEngine()
    with ServerProcessManager(targets.fail_at, settings(), (-1, ""), engine=engine) as manager:
        engine.end()
        wait_until(lambda: manager.ended)

        assert manager.failure == "the engine was ended by signal 9"
        assert manager.pids == (None, None)


def test_an_engine_that_ends_while_it_loads_is_the_reason_given_and_not_its_servers() -> None:
    engine = PretendedEngine()
    manager = ServerProcessManager(targets.fail_at, settings(), (0, "is never ready"), engine=engine)
    manager.start()
    engine.end()
    with pytest.raises(StartError, match="the engine could not load its model"):
        manager.wait_until_ready()

    assert multiprocessing.active_children() == []


def test_a_server_that_ends_a_moment_before_the_engine_is_not_the_reason_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "ENGINE_FIRST", DEADLINE)  # however long a moment is
    engine = PretendedEngine()
    manager = ServerProcessManager(
        targets.fail_at, settings(workers=1), (0, "exit code 3"), engine=engine
    )
    manager.start()
    pid = wait_until(lambda: manager.pids[0])
    wait_until(lambda: not alive(pid))
    engine.end()
    with pytest.raises(StartError, match="the engine could not load its model"):
        manager.wait_until_ready()
