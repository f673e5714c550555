"""The parent's view of the server processes: what they share, their start, their end."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import weakref
from collections.abc import Callable
from multiprocessing import connection
from types import TracebackType
from typing import Any, Final, Self

from gatecount import AdmissionCounters, SharedAdmissionStats
from gatecount._core import MAX_LIMIT, WORDS_PER_SLOT
from gatecount.frontend.board import Board
from gatecount.frontend.errors import StartError
from gatecount.frontend.keeper import Engine, Keeper
from gatecount.frontend.seat import Seat
from gatecount.frontend.settings import OnExit, ServeSettings

GRACE: Final = 3.0
"""Seconds that a server has beyond settings.shutdown_timeout before it is killed."""


class ServerProcessManager:
    """Run `settings.workers` processes, each calling `target(seat, *arguments)`, until shutdown.

    target and arguments are pickled: target must be importable by name. A target calls `seat.ready()`
    once it serves, or `seat.failed(reason)` before it ends. If one fails before all have been ready,
    all are ended and `wait_until_ready` raises StartError. Later, one that ends by itself (exit code 0
    too) first has what it held given back; then on_exit="respawn" puts another in its place, with the
    same client_index, and "stop" ends all.

    A thread of the manager's own does all of this; it needs no help, and no method that blocks keeps it
    from doing so. Methods may be called from any thread. The manager ends its processes when it is
    collected, left as a context, and at interpreter exit; a forked child's copy does nothing.
    """

    def __init__(
        self,
        target: Callable[..., None],
        settings: ServeSettings,
        arguments: tuple[object, ...] = (),
        *,
        listener: socket.socket | None = None,
        engine: Engine | None = None,
        on_exit: OnExit = "respawn",
    ) -> None:
        if settings.workers < 1:
            raise ValueError(f"workers must be at least 1, not {settings.workers}")
        if on_exit not in ("respawn", "stop"):
            raise ValueError(f'on_exit must be "respawn" or "stop", not {on_exit!r}')
        self._shutdown_timeout = settings.shutdown_timeout + GRACE
        self.counters = shared_counters(settings)
        """What all servers count in: `AdmissionCounters`, a `RawArray("q")`, or None."""
        self.board = Board(settings.workers, shared=board_is_shared(settings))
        counters, board, count = self.counters, self.board, settings.workers

        def seat(index: int, engine: socket.socket | None, answer: connection.Connection) -> Seat:
            return Seat(client_config(count, index, counters), board, listener, engine, answer)

        def reclaim(index: int) -> None:
            give_back(counters, index)
            board.at(index).connections = None

        self._keeper = Keeper(
            target,
            arguments,
            servers=count,
            seat=seat,
            reclaim=reclaim,
            engine=engine,
            respawn=on_exit == "respawn",
            start_timeout=settings.start_timeout + settings.engine.load_time + settings.warmup_time,
            stop_timeout=self._shutdown_timeout,
        )
        self._end = weakref.finalize(self, _stop, self._keeper, self._shutdown_timeout, os.getpid())
        # Not left to weakref: its exit function may run after multiprocessing's, which waits for all
        # children first and for ever. One that is registered later, like this, runs earlier.
        self._end.atexit = False
        atexit.register(self._end)

    def start(self) -> None:
        """Begin to start the processes, and return at once."""
        self._keeper.start()

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Return once every server serves.

        Raises StartError with one line if one fails before, if the engine ends, or after `timeout`
        seconds; all processes have ended then.
        """
        keeper = self._keeper
        if not connection.wait([keeper.all_ready.fileno(), keeper.all_ended.fileno()], timeout):
            self.shutdown(0.0)
            raise StartError(f"the servers were not ready within {timeout:g} s")
        if self.ended:
            raise StartError(self.failure or "the servers were told to stop before they were ready")

    @property
    def ready(self) -> bool:
        """Whether every server has been ready at once at the start."""
        return self._keeper.all_ready.is_set

    @property
    def ended(self) -> bool:
        """Whether all processes have ended and none will be started any more."""
        return self._keeper.all_ended.is_set

    @property
    def failure(self) -> str | None:
        """In one line, why it ended though nobody had asked it to; None while it has not."""
        return self._keeper.failure

    @property
    def ready_fd(self) -> int:
        """A descriptor that becomes readable, for good, once every server has been ready."""
        return self._keeper.all_ready.fileno()

    @property
    def ended_fd(self) -> int:
        """A descriptor that becomes readable, for good, once all have ended."""
        return self._keeper.all_ended.fileno()

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process of each server, in order; None where there is none at the moment."""
        return self._keeper.pids()

    def ask_to_stop(self, timeout: float | None = None) -> None:
        """Tell all servers to end (SIGTERM) and return at once; after `timeout` seconds kill them.

        The default is the settings' shutdown_timeout and a little more. A later call can shorten the
        time that is left, never lengthen it.
        """
        self._keeper.ask_to_stop(self._shutdown_timeout if timeout is None else timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """End all servers as `ask_to_stop` does, and return when all have ended. Idempotent."""
        self._keeper.stop(self._shutdown_timeout if timeout is None else timeout)
        atexit.unregister(self._end)

    def __enter__(self) -> Self:
        """Start, and return when all are ready, as `start` and `wait_until_ready` do."""
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.shutdown(0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all servers."""
        self.shutdown()


def has_cap(settings: ServeSettings) -> bool:
    """Tell whether anything is limited at all."""
    return settings.max_num_queued_reqs is not None or settings.max_num_queued_tokens is not None


def board_is_shared(settings: ServeSettings) -> bool:
    """Tell whether the servers see each other's rows: where memory is shared anyhow, or for this."""
    return settings.workers > 1 and (has_cap(settings) or settings.accept == "least-loaded")


def shared_counters(settings: ServeSettings) -> Any:
    """Return what several servers count in; None if there is nothing that they share."""
    if settings.workers == 1 or not has_cap(settings) or settings.admission == "off":
        return None
    if settings.admission == "approximate":
        words = SharedAdmissionStats.num_counters(settings.workers)
        return multiprocessing.get_context("spawn").RawArray("q", words)
    requests, tokens = settings.max_num_queued_reqs, settings.max_num_queued_tokens
    limit = MAX_LIMIT if requests is None else requests
    return AdmissionCounters(settings.workers, limit=limit, token_limit=tokens)


def client_config(count: int, index: int, counters: Any) -> dict[str, Any]:
    """Return what server `index` of `count` is told about itself."""
    config = {"client_count": count, "client_index": index}
    return config if counters is None else {**config, "mp_admission_counters": counters}


def give_back(counters: Any, index: int) -> None:
    """Give back what server `index`, which has ended, still held."""
    if isinstance(counters, AdmissionCounters):
        # Finds the dead by proof and not by what it is told, so it is safe beside a living server.
        counters.reclaim()
    elif counters is not None:
        # Requests and tokens. Nobody else writes these words, and their only writer has ended.
        first = WORDS_PER_SLOT * index
        counters[first] = counters[first + 1] = 0


def _stop(keeper: Keeper, timeout: float, owner: int) -> None:
    if os.getpid() == owner:
        keeper.stop(timeout)
