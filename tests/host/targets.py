"""What the manager's tests let server processes do, importable by name in a spawned one."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

from gatecount import AtomicArray, SharedAdmissionStats, SharedTokenStats
from gatecount.frontend.seat import Seat
from gatecount.frontend.settings import ServeSettings
from support import wait_until


def mappings() -> list[str]:
    """Return every mapping of this process that has memory of ours or of multiprocessing's behind it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "gatecount" in line.rpartition("/")[2] and ".so" not in line] + [
        line for line in lines if "/pym-" in line
    ]


def serve(seat: Seat) -> NoReturn:
    """Be ready, and end with exit code 0 at SIGTERM or SIGUSR1."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: sys.exit(0))
    seat.ready()
    while True:
        signal.pause()


def hold(seat: Seat, report: Connection, n: int, starts: AtomicArray | None = None) -> None:
    """Reserve n requests, once so many may if starts are counted, and serve until told to end."""
    if starts is not None:
        number = starts.fetch_add(0, 1)
        wait_until(lambda: starts[1] > number)
    config = seat.client_config
    stats = SharedAdmissionStats(config, config["client_count"], config["client_index"])
    granted = stats.try_reserve(n, limit=10)
    seat.row.connections = n
    report.send((seat.index, os.getpid(), granted))
    serve(seat)


def hold_tokens(seat: Seat, report: Connection, tokens: int) -> None:
    """Charge so many prompt tokens, tell what all servers hold then, and serve until told to end."""
    config = seat.client_config
    stats = SharedTokenStats(config, config["client_count"], config["client_index"])
    stats.try_reserve(tokens, limit=1000)
    report.send((seat.index, os.getpid(), stats.get_num_tokens()))
    serve(seat)


def tell(seat: Seat, report: Connection) -> None:
    """Tell what this server was handed."""
    config = {**seat.client_config}
    if "mp_admission_counters" in config:  # memory travels to a process that is being started only
        config["mp_admission_counters"] = config["mp_admission_counters"].limit
    report.send((config, len(seat.board), seat.board.shared, mappings()))
    serve(seat)


def fail_at(seat: Seat, index: int, how: str) -> None:
    """End before it is ready, if this is server `index`; else serve."""
    if seat.index != index:
        serve(seat)
    if how == "says why":
        seat.failed("there is no\nmodel of that name")
        sys.exit(1)
    if how == "exit code 3":
        os._exit(3)
    if how == "exit code 0":
        os._exit(0)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:  # never ready
        signal.pause()


def start_when_let(seat: Seat, steps: AtomicArray) -> None:
    """Count this start, and serve once so many may."""
    number = steps.fetch_add(0, 1)
    wait_until(lambda: steps[1] > number)
    serve(seat)


def crash_after_the_first(seat: Seat, starts: AtomicArray, crashes: int) -> None:
    """Serve at the first start, crash before being ready at so many that follow, then serve again."""
    start = starts.fetch_add(0, 1)
    starts.store(8 + start, time.monotonic_ns())
    if 0 < start <= crashes:
        os._exit(5)
    serve(seat)


def ignore_sigterm(seat: Seat) -> None:
    """Serve, and do not end when told to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    seat.ready()
    while True:
        signal.pause()


def hold_with_a_child(seat: Seat, report: Connection) -> None:
    """Serve, with a forked child that outlives it and has all of its descriptors."""
    child = os.fork()
    if child == 0:
        signal.pause()
    report.send((seat.index, os.getpid(), child))
    serve(seat)


def settings(**changed: Any) -> ServeSettings:
    return ServeSettings(**{"workers": 2, "max_num_queued_reqs": 10, "shutdown_timeout": 1.0, **changed})


def alive(pid: int | None) -> bool:
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
