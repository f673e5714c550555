"""The server process manager with real processes: what it hands out, and every death."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from gatecount import AdmissionCounters, AtomicArray, SharedAdmissionStats
from gatecount.frontend import keeper
from gatecount.frontend.keeper import back_off
from gatecount.frontend.manager import ServerProcessManager
from host import targets
from host.targets import alive, settings
from support import DEADLINE, wait_until

TESTS = Path(__file__).parents[1]


@pytest.fixture
def report() -> Iterator[tuple[Connection, Connection]]:
    """A pipe: what the servers send into its second end comes out of the first."""
    here, there = multiprocessing.Pipe(duplex=False)
    with here, there:
        yield here, there


def heard(connection: Connection) -> Any:
    assert connection.poll(DEADLINE), "no server said anything"
    return connection.recv()


def pid_of(manager: ServerProcessManager, index: int) -> int:
    """Return a server's process; it may run and say something before the manager has noted it."""
    pid = wait_until(lambda: manager.pids[index])
    assert pid is not None
    return pid


def held(manager: ServerProcessManager) -> int:
    """What all servers hold, as one who holds nothing sees it: word by word, and by the cap itself."""
    count = len(manager.board)
    shown = sum(manager.counters[8 * index] for index in range(count))
    if isinstance(manager.counters, AdmissionCounters):
        assert manager.counters.in_flight >= 0
        return manager.counters.in_flight
    return int(shown)


@contextlib.contextmanager
def holding(
    report: tuple[Connection, Connection],
    n: int = 3,
    on_exit: Any = "respawn",
    starts: AtomicArray | None = None,
    **changed: Any,
) -> Iterator[ServerProcessManager]:
    """Two servers that hold n each."""
    here, there = report
    arguments = there, n, starts
    with ServerProcessManager(targets.hold, settings(**changed), arguments, on_exit=on_exit) as manager:
        first = sorted(heard(here) for _ in range(2))
        assert first == [(index, pid_of(manager, index), True) for index in range(2)]
        assert held(manager) == 2 * n
        yield manager


def test_each_server_is_told_its_place_and_all_share_one_hard_cap(
    report: tuple[Connection, Connection],
) -> None:
    here, there = report
    with ServerProcessManager(targets.tell, settings(workers=3), (there,)) as manager:
        told = sorted((heard(here) for _ in range(3)), key=lambda what: what[0]["client_index"])
        for index, (config, rows, shared, _) in enumerate(told):
            assert config == {
                "client_count": 3,
                "client_index": index,
                "mp_admission_counters": 10,
            }
            assert (rows, shared) == (3, True)
        assert isinstance(manager.counters, AdmissionCounters)
        assert manager.board.shared


def test_an_approximate_cap_is_a_plain_raw_array(report: tuple[Connection, Connection]) -> None:
    with ServerProcessManager(
        targets.hold, settings(admission="approximate"), (report[1], 2)
    ) as manager:
        assert type(manager.counters).__name__ == f"c_long_Array_{SharedAdmissionStats.num_counters(2)}"
        assert held(manager) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"workers": 1},
        {"workers": 1, "max_num_queued_tokens": 5, "admission": "approximate"},
        {"workers": 1, "accept": "least-loaded"},
        {"max_num_queued_reqs": None},
        {"max_num_queued_reqs": None, "admission": "approximate", "accept": "any"},
    ],
    ids=str,
)
def test_a_single_server_or_no_cap_shares_no_memory_and_has_no_key_for_it(
    report: tuple[Connection, Connection], changed: dict[str, Any]
) -> None:
    here, there = report
    gc.collect()
    before = targets.mappings()
    with ServerProcessManager(targets.tell, settings(**changed), (there,)) as manager:
        assert manager.counters is None
        assert not manager.board.shared
        # Some may be gone by now: those of servers' keepers before, threads that are just ending.
        assert set(targets.mappings()) <= set(before)
        for _ in manager.pids:
            config, _, shared, mappings = heard(here)
            assert sorted(config) == ["client_count", "client_index"]
            assert not shared
            assert mappings == []


def test_servers_that_share_a_cap_do_share_memory(report: tuple[Connection, Connection]) -> None:
    # Or the test above would find nothing whatever is there.
    here, there = report
    with ServerProcessManager(targets.tell, settings(), (there,)):
        *_, mappings = heard(here)
        assert len(mappings) >= 2


def test_admission_off_shares_no_counters_but_the_board_of_least_loaded_accept(
    report: tuple[Connection, Connection],
) -> None:
    here, there = report
    with ServerProcessManager(targets.tell, settings(admission="off"), (there,)) as manager:
        config, _, shared, _ = heard(here)
        assert manager.counters is None
        assert sorted(config) == ["client_count", "client_index"]
        assert shared


@pytest.mark.parametrize("admission", ["hard", "approximate"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR1], ids=["SIGKILL", "exit code 0"])
def test_what_a_server_held_is_back_when_it_ends_and_another_takes_its_index(
    report: tuple[Connection, Connection], admission: str, how: signal.Signals
) -> None:
    starts = AtomicArray([0, 2])
    with holding(report, starts=starts, admission=admission) as manager:
        survivor, victim = manager.pids
        os.kill(pid_of(manager, 1), how)
        wait_until(lambda: held(manager) == 3)
        wait_until(lambda: manager.board.at(1).connections is None)

        starts.fetch_add(1, 1)  # its successor has waited for that
        index, pid, granted = heard(report[0])
        assert (index, granted) == (1, True)
        wait_until(lambda: manager.pids == (survivor, pid))
        assert pid != victim
        assert held(manager) == 6
        wait_until(lambda: manager.board.at(1).connections == 3)
    assert held(manager) == 0


@pytest.mark.parametrize("admission", ["hard", "approximate"])
def test_prompt_tokens_that_a_server_held_are_back_when_it_ends(
    report: tuple[Connection, Connection], admission: Any
) -> None:
    here, there = report
    changed = settings(admission=admission, max_num_queued_tokens=1000)
    with ServerProcessManager(targets.hold_tokens, changed, (there, 50)):
        pids = {index: pid for index, pid, _ in (heard(here), heard(here))}
        assert sorted(pids) == [0, 1]
        for index in (1, 1, 0):
            os.kill(pids[index], signal.SIGKILL)
            its_index, pids[index], tokens = heard(here)
            assert (its_index, tokens) == (index, 100)  # its successor's and the other's


def test_a_server_comes_back_ten_times_in_a_row_and_nothing_is_lost(
    report: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "back_off", lambda *_, **__: 0.0)
    with holding(report, n=5) as manager:  # 10 of 10: a lost permit would refuse the next
        survivor, victim = manager.pids
        seen = {victim}
        for _ in range(10):
            os.kill(victim, signal.SIGKILL)
            index, victim, granted = heard(report[0])
            assert (index, granted) == (1, True)
            seen.add(victim)
        assert len(seen) == 11
        assert manager.pids[0] == survivor
        assert held(manager) == 10
        assert manager.failure is None


def test_a_death_is_seen_although_the_dead_server_s_own_child_lives_on(
    report: tuple[Connection, Connection],
) -> None:
    here, there = report
    children = []
    with ServerProcessManager(targets.hold_with_a_child, settings(workers=1), (there,)) as manager:
        _, victim, child = heard(here)
        children.append(child)
        os.kill(victim, signal.SIGKILL)
        _, pid, child = heard(here)
        children.append(child)
        assert pid != victim
        assert alive(children[0])
        wait_until(lambda: manager.pids == (pid,))
        manager.shutdown()
        assert not alive(pid)
    for child in children:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (signal.SIGKILL, "server 1 was ended by signal 9 (SIGKILL)"),
        (signal.SIGUSR1, "server 1 ended with exit code 0"),
    ],
)
def test_with_on_exit_stop_one_end_is_the_end_of_all(
    report: tuple[Connection, Connection], how: signal.Signals, said: str
) -> None:
    with holding(report, on_exit="stop") as manager:
        os.kill(pid_of(manager, 1), how)
        wait_until(lambda: manager.ended)
        assert manager.failure == said
        assert manager.pids == (None, None)
        assert held(manager) == 0


def test_a_crash_loop_is_backed_off_and_said(caplog: pytest.LogCaptureFixture) -> None:
    starts = AtomicArray(64)
    caplog.set_level(logging.INFO, logger="gatecount.frontend")
    with ServerProcessManager(
        targets.crash_after_the_first, settings(workers=1), (starts, 3)
    ) as manager:
        os.kill(pid_of(manager, 0), signal.SIGKILL)
        wait_until(lambda: any("serves again" in line for line in caplog.messages))

    assert starts[0] == 5
    times = [starts[8 + start] / 1e9 for start in range(5)]
    # Killed: at once. Then each crash before it was ready doubles the wait.
    for start, at_least in ((2, 0.2), (3, 0.4), (4, 0.8)):
        assert times[start] - times[start - 1] >= at_least
    crash = "server 0 ended with exit code 5 before it was ready"
    assert [line.partition(" (process")[0] for line in caplog.messages] == [
        "server 0 was ended by signal 9 (SIGKILL); another takes its index now",
        f"{crash}, 2 times in a row; another takes its index in 0.2 s",
        f"{crash}, 3 times in a row; another takes its index in 0.4 s",
        f"{crash}, 4 times in a row; another takes its index in 0.8 s",
        "server 0 serves again",
    ]


def test_the_end_of_one_that_has_served_long_begins_a_new_row(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SETTLED", 0.0)
    caplog.set_level(logging.INFO, logger="gatecount.frontend")
    with ServerProcessManager(targets.serve, settings(workers=1)) as manager:
        for times in (1, 2, 3):
            os.kill(pid_of(manager, 0), signal.SIGKILL)
            wait_until(lambda times=times: caplog.text.count("serves again") == times)

    said = "server 0 was ended by signal 9 (SIGKILL); another takes its index now"
    assert [line for line in caplog.messages if "takes its index" in line] == [said] * 3


def test_the_wait_before_a_start_doubles_up_to_a_bound() -> None:
    assert [back_off(k, served=False) for k in range(9)] == [
        0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0,
    ]  # fmt: skip
    assert back_off(10_000, served=False) == 10.0
    assert [back_off(k, served=True) for k in range(9)] == [
        0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: ServerProcessManager(targets.tell, settings(workers=0)), "workers"),
        (lambda: ServerProcessManager(targets.tell, settings(), on_exit="retry"), "on_exit"),  # type: ignore[arg-type]
    ],
)
def test_misuse_names_the_argument(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()
