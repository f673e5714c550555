"""What `gatecount serve` runs: the listening socket, the engine, the servers, and the signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Final

from gatecount.frontend.apps import working_directory
from gatecount.frontend.engine import EngineStatistics
from gatecount.frontend.engine_process import EngineProcess
from gatecount.frontend.errors import EngineDead, StartError
from gatecount.frontend.manager import ServerProcessManager, has_cap
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.server import serve
from gatecount.frontend.settings import OnExit, ServeSettings
from gatecount.listening import CannotListen, listen, url

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
HASTE: Final = 1.0
"""Seconds that servers which do not serve yet have to end."""
LAST_WORD: Final = 3.0
"""Seconds that the engine has to tell its peak in, when all servers have ended."""


class ServiceEnded(StartError):
    """The service ended by itself after it had been ready."""


@contextlib.contextmanager
def _system_errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of no file that it opens: descriptors, memory, where it writes to
        raise StartError(f"the service cannot run: {error.strerror or error}") from error


@_system_errors_in_one_line()
def run(
    settings: ServeSettings,
    *,
    host: str,
    port: int,
    on_exit: OnExit,
    log_level: str,
    say: Callable[[str], None],
) -> signal.Signals:
    """Serve until SIGTERM or SIGINT and return which; nothing that was started is left then.

    `say` is called with what an operator should read. Raises StartError with one line if anything
    fails before all servers are ready, ServiceEnded if they end by themselves later; nothing is left
    then either. For the main thread, whose handlers of these two signals are put back. The app is the
    servers' alone: what it starts, opens or loads where it is imported is none of this process.
    """
    working_directory()  # every process that is started is handed it
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(_Signals())
        listener = stack.enter_context(_listening(host, port))
        engine = None
        if settings.app is None:
            engine = EngineProcess(settings.engine)
            stack.callback(engine.shutdown)
        manager = ServerProcessManager(
            serve, settings, (settings, log_level), listener=listener, engine=engine, on_exit=on_exit
        )
        stack.callback(manager.shutdown, 0.0)
        manager.start()
        if told.first is None and not told.wait([manager.ready_fd, manager.ended_fd]):
            if manager.ready and not manager.ended:
                say(f"Serving {what(settings)} on {url(listener)} with {caps(settings)}")
            told.wait([manager.ended_fd])
        if told.first is not None:
            manager.ask_to_stop(None if manager.ready else HASTE)
            while told.wait([manager.ended_fd]):
                manager.ask_to_stop(0.0)  # asked twice
        if engine is not None and manager.ready:
            report_peak(settings, engine, say)
        if told.first is None:
            kind = ServiceEnded if manager.ready else StartError
            raise kind(manager.failure or "the servers have ended")
        return told.first


class _Signals:
    """SIGTERM and SIGINT as something to wait for: no point of the code is interrupted by them.

    What this process was started to ignore, as a shell's background job does Ctrl-C, stays ignored.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None

    def __enter__(self) -> _Signals:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno())
        self._before = [(number, signal.signal(number, lambda *_: None)) for number in numbers]
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def wait(self, descriptors: Sequence[int]) -> bool:
        """Wait for one of the descriptors or a signal; return whether there was a signal."""
        while True:
            ready = connection.wait([self._reader.fileno(), *descriptors])
            # Any other signal that somebody has a handler for comes this way too.
            asked = [number for number in self._received() if number in _ENDING]
            if asked and self.first is None:
                self.first = signal.Signals(asked[0])
            if asked or ready != [self._reader.fileno()]:
                return bool(asked)

    def _received(self) -> bytes:
        try:
            return self._reader.recv(64)
        except BlockingIOError:
            return b""


def _listening(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except CannotListen as error:
        raise StartError(str(error)) from error


def what(settings: ServeSettings) -> str:
    """Return what is served, for people."""
    return "the reference app" if settings.app is None else settings.app


def caps(settings: ServeSettings) -> str:
    """Return how many servers there are and what limits them, for people."""
    servers = f"{settings.workers} server{'s' if settings.workers > 1 else ''}"
    if not has_cap(settings):
        return f"{servers}; no cap"
    limits = []
    if settings.max_num_queued_reqs is not None:
        limits.append(f"{settings.max_num_queued_reqs:,} requests")
    if settings.max_num_queued_tokens is not None:
        limits.append(f"{settings.max_num_queued_tokens:,} prompt tokens in prefill")
    limited = " and ".join(limits)
    if settings.workers == 1 or settings.admission == "hard":
        return f"{servers}; exact global cap of {limited}"
    if settings.admission == "approximate":
        return f"{servers}; approximate global cap of {limited}"
    return f"{servers}; each has a cap of its own of {limited}"


def report_peak(settings: ServeSettings, engine: EngineProcess, say: Callable[[str], None]) -> None:
    """Say how much the engine ran at worst, as it counted itself, if requests are limited."""
    limit = settings.max_num_queued_reqs
    if limit is None:
        return
    try:
        peak = asyncio.run(_statistics(engine)).running_peak
    except (EngineDead, TimeoutError):
        return
    over = max(0, peak - limit)
    line = f"peak running {peak}, limit {limit}: overshoot {over}"
    if settings.admission == "approximate" and settings.workers > 1:
        line += f" (documented bound: one request of each other server, {settings.workers - 1})"
    say(line)


async def _statistics(engine: EngineProcess) -> EngineStatistics:
    client = MPEngineClient(engine)
    try:
        return await client.statistics(LAST_WORD)
    finally:
        client.shutdown()
