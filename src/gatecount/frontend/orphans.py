"""A child process that ends with its parent, whatever either of them is doing then."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; end it now if the parent has gone.

    No loop has to run for it, and a stopped process is killed too. What the kernel waits for is the end
    of the *thread* that has started this process: it must outlive it. Only Linux has this; elsewhere
    others have to watch the parent. Not for what a fork server starts, which is the parent then.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent.pid:  # it may have ended a moment before that was asked for
        os._exit(1)
