"""Start-up work beside the engine's loading: after the fork, and on the thread that serves.

A thread must not run while its process forks: a lock that it holds at that moment is copied locked
into the child, where nobody will ever unlock it. So whoever starts a `BackgroundWarmup` does it once
the engine's process exists. And its steps must not run beside a request in a second thread: a
library may not bear that. So they run on the one thread on which the requests are rendered.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future

logger = logging.getLogger(__name__)

Step = tuple[str, Callable[[], object]]
"""A name for the log, and what to do."""


def run_steps(steps: Sequence[Step], clear: Sequence[Callable[[], object]]) -> None:
    """Run the steps in order, then clear the caches they filled; a failure is logged, and the next runs.

    With no steps, does nothing.
    """
    if not steps:
        return
    for name, step in steps:
        _run(f"warm-up step {name!r}", step)
    clear_caches(clear)


def clear_caches(clear: Sequence[Callable[[], object]]) -> None:
    """Clear every cache; a failure is logged, and the next is cleared."""
    for clear_one in clear:
        _run("clearing a cache", clear_one)


def _run(what: str, work: Callable[[], object]) -> None:
    try:
        work()
    # A library that calls sys.exit has failed like any other.
    except (Exception, SystemExit):
        logger.exception("%s failed", what)


class BackgroundWarmup:
    """Start-up work that runs once, in the background, on an executor that others use as well.

    `executor` is the serving path's own and has a single worker, so what is rendered meanwhile waits
    until all steps are done. `clear` are functions that clear the caches which the steps have filled;
    they run after the steps, on the same thread. All methods are thread-safe.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        executor: Executor,
        clear: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._steps = tuple(steps)
        self._executor = executor
        self._clear = tuple(clear)
        self._lock = threading.Lock()
        self._future: Future[None] | None = None
        self._thread: int | None = None

    def start(self) -> None:
        """Start the steps unless they have been started; return at once. Without steps, do nothing.

        Not before the last fork of this process. Raises RuntimeError if the executor was shut down.
        """
        with self._lock:
            if self._future is None and self._steps:
                self._future = self._executor.submit(self._work)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until started work is done; return whether it is, within timeout seconds (None: ever).

        What was not started is not waited for. Raises RuntimeError within a step, which would wait
        for itself.
        """
        future = self._started()
        if future is None:
            return True
        if self._thread == threading.get_ident():
            raise RuntimeError("a warm-up step waits for the warm-up: it would wait for ever")
        try:
            future.exception(timeout)
        except TimeoutError:
            return False
        except CancelledError:  # the executor was shut down, and has dropped it
            pass
        return True

    async def wait(self) -> None:
        """Wait until started work is done, as `join` does, without blocking the event loop."""
        future = self._started()
        if future is not None:
            await asyncio.wait([asyncio.wrap_future(future)])

    async def clear_caches(self) -> None:
        """Clear the caches on the executor's thread, and so behind the steps if they were started."""
        await asyncio.get_running_loop().run_in_executor(self._executor, clear_caches, self._clear)

    def _started(self) -> Future[None] | None:
        with self._lock:  # or a step could look before `start` has been told that it runs
            return self._future

    def _work(self) -> None:
        self._thread = threading.get_ident()
        try:
            run_steps(self._steps, self._clear)
        finally:
            self._thread = None
