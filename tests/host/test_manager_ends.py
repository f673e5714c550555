"""How a server process manager ends: told to, shortly, before all are ready, collected, or forgotten."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatecount.frontend.errors import StartError
from gatecount.frontend.manager import ServerProcessManager
from host import targets
from host.targets import alive, settings
from support import DEADLINE, wait_until

TESTS = Path(__file__).parents[1]


def test_a_server_that_ignores_being_told_to_stop_is_killed_when_its_time_is_over() -> None:
    with ServerProcessManager(targets.ignore_sigterm, settings()) as manager:
        pids = manager.pids
        began = time.monotonic()
        manager.shutdown(0.3)

        assert 0.3 <= time.monotonic() - began < 5
        assert not any(alive(pid) for pid in pids)
        assert manager.failure is None


def test_a_second_shutdown_can_shorten_the_first() -> None:
    with ServerProcessManager(targets.ignore_sigterm, settings()) as manager:
        manager.ask_to_stop(1000.0)
        began = time.monotonic()
        manager.shutdown(0.1)
        manager.shutdown(1000.0)

        assert time.monotonic() - began < 5


def test_shutdown_before_the_servers_are_ready_ends_those_that_are_starting() -> None:
    manager = ServerProcessManager(targets.fail_at, settings(workers=3), (1, "is never ready"))
    manager.start()
    wait_until(lambda: manager.pids[0] is not None)
    manager.shutdown()

    assert manager.ended
    assert multiprocessing.active_children() == []
    with pytest.raises(StartError, match="told to stop"):
        manager.wait_until_ready()


def test_a_manager_that_was_never_started_has_nothing_to_end() -> None:
    manager = ServerProcessManager(targets.ignore_sigterm, settings())
    manager.shutdown()

    assert manager.ended
    with pytest.raises(RuntimeError, match="started already"):
        manager.start()


def test_a_manager_that_is_collected_ends_its_servers() -> None:
    manager = ServerProcessManager(targets.fail_at, settings(), (-1, ""))
    manager.start()
    manager.wait_until_ready()
    pids = manager.pids
    assert all(alive(pid) for pid in pids)
    manager.again = manager  # type: ignore[attr-defined]  # only the collector of cycles finds it
    del manager
    gc.collect()

    assert not any(alive(pid) for pid in pids)


NEVER_SHUT_DOWN = """
import gc, os, sys, weakref

class Early: pass
early = Early()
weakref.finalize(early, int)  # so weakref's exit function comes after multiprocessing's

from gatecount.frontend.manager import ServerProcessManager
from gatecount.frontend.settings import ServeSettings
from host import targets
from host.targets import alive, settings

if __name__ == "__main__":
    manager = ServerProcessManager(targets.fail_at, ServeSettings(workers=2), (-1, ""))
    manager.start()
    manager.wait_until_ready()
    pids = manager.pids
    if os.fork() == 0:
        gone = manager
        del manager, gone
        gc.collect()
        sys.exit(0)  # with every exit function
    os.wait()
    for pid in pids:
        os.kill(pid, 0)  # a copy has ended nothing
    print(*pids)
"""


def test_servers_end_with_an_interpreter_that_forgets_them_and_not_with_its_forked_child(
    tmp_path: Path,
) -> None:
    program = tmp_path / "never_shut_down.py"
    program.write_text(NEVER_SHUT_DOWN)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(alive(pid) for pid in pids))
