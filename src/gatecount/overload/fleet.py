"""Processes that are started together, watched, and never left behind."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from gatecount.interrupts import blocked
from gatecount.overload.errors import ServerDied

START_DEADLINE = 30.0
STOP_DEADLINE = 3.0


class Fleet:
    """One process for each of `arguments`, each running `target(ready, *arguments)`.

    `ready` is the writing end of a pipe: a process sends anything once it serves. Entering starts
    all and returns when all are ready, or raises ServerDied; leaving ends all, with SIGTERM and,
    after STOP_DEADLINE seconds, SIGKILL.
    """

    def __init__(self, target: Callable[..., None], arguments: Sequence[tuple[object, ...]]) -> None:
        self._target = target
        self._arguments = arguments
        self._processes: list[SpawnProcess] = []

    def __enter__(self) -> Self:
        """Start all processes and wait until each is ready."""
        try:
            self._wait_until_ready(self._start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all processes."""
        self._stop()

    def sentinel(self, index: int) -> int:
        """Return the descriptor that becomes readable when process `index` ends."""
        return self._processes[index].sentinel

    def kill(self, index: int) -> None:
        """Send SIGKILL to process `index`, without waiting for its end."""
        self._processes[index].kill()

    def exitcode(self, index: int) -> int | None:
        """Return how process `index` ended, which its sentinel or its pipe has shown; else None.

        The kernel closes the descriptors of a process a little before its exit code is there, so
        this waits for it, for STOP_DEADLINE seconds at most.
        """
        self._processes[index].join(STOP_DEADLINE)
        return self._processes[index].exitcode

    def _start(self) -> list[connection.Connection]:
        context = multiprocessing.get_context("spawn")
        pipes = []
        # A terminal sends Ctrl-C to the children as well. They inherit the block and so leave it to
        # the parent to end them, at whatever point of their start they are; the parent gets its own
        # as soon as the block is lifted.
        with blocked(signal.SIGINT):
            for arguments in self._arguments:
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=self._target, args=(sender, *arguments), daemon=True)
                self._processes.append(process)
                pipes.append(receiver)
                process.start()
                sender.close()
        return pipes

    def _wait_until_ready(self, pipes: list[connection.Connection]) -> None:
        deadline = time.monotonic() + START_DEADLINE
        pending = {pipe: index for index, pipe in enumerate(pipes)}
        while pending:
            readable = connection.wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not readable:
                raise ServerDied(min(pending.values()), None, f"within {START_DEADLINE:.0f} s")
            for pipe in [pipe for pipe in pending if pipe in readable]:
                index = pending.pop(pipe)
                try:
                    pipe.recv_bytes()
                except EOFError:
                    # Only the process held the other end.
                    raise ServerDied(index, self.exitcode(index), "while it was starting") from None
                finally:
                    pipe.close()

    def _stop(self) -> None:
        # All waits below have deadlines, so an impatient second Ctrl-C can wait for them.
        with blocked(signal.SIGINT):
            started = [process for process in self._processes if process.pid is not None]
            for process in started:
                process.terminate()
            deadline = time.monotonic() + STOP_DEADLINE
            for process in started:
                process.join(max(0.0, deadline - time.monotonic()))
            for process in started:
                process.kill()
            for process in started:
                process.join()
                process.close()
            self._processes.clear()
