"""Ctrl-C while child processes are started: the children leave it to their parent."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread; one that came meanwhile is delivered at the end.

    A terminal sends Ctrl-C to the children as well. Those started within the block inherit it, and so
    cannot be interrupted at whatever point of their start they are: their parent ends them.
    """
    # The tracker unblocks SIGINT when it is started, so it has to be there before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
