"""Signals that come while processes are started, or before there is anybody to deal with them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it is treated as Ctrl-C is."""


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated at SIGTERM, unless that is ignored or has a handler. For the main thread."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


@contextlib.contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals in this thread; those that came meanwhile are delivered at the end.

    A terminal sends Ctrl-C to the children as well. Those started within the block inherit it, and so
    cannot be interrupted at whatever point of their start they are: their parent ends them.
    """
    # The tracker unblocks SIGINT and SIGTERM when it is started, so it has to be there before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
