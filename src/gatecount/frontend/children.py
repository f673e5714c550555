"""How a child process ends, and how its parent sees it."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.context import SpawnProcess


def exit_code(process: SpawnProcess) -> int | None:
    """Return how a process that has ended did end."""
    process.join()
    while process.exitcode is None:
        # Another thread, inside multiprocessing.active_children(), has reaped it and not said yet how.
        time.sleep(0.001)
    return process.exitcode


def how(exitcode: int | None) -> str:
    """Return how a process with that exit code has ended, for people."""
    if exitcode is not None and exitcode < 0:
        try:
            name = f" ({signal.Signals(-exitcode).name})"
        except ValueError:
            name = ""
        return f"was ended by signal {-exitcode}{name}"
    return f"ended with exit code {exitcode}"


def pidfd(process: SpawnProcess) -> int | None:
    """Return a descriptor that is readable once a process itself has ended, where there are such.

    The sentinel is the end of a pipe that a server's own forked children inherit, so with those alive
    it would not tell of their server's death.
    """
    assert process.pid is not None
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None
