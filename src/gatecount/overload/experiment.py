"""All modes, one after the other: each with new processes, a new socket and new counters."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

from gatecount.overload.admission import admission_for
from gatecount.overload.errors import ListenFailed
from gatecount.overload.fleet import Fleet
from gatecount.overload.measure import Measured, Measurement, Notify
from gatecount.overload.server import serve
from gatecount.overload.settings import Mode, Settings
from gatecount.overload.witness import Witness

BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ModeResult:
    """What one mode has shown. Peaks are exact, counted inside the handlers."""

    mode: Mode
    limit: int
    peak: int
    """The most requests that ran at one instant: in the whole run, so after the kill too."""
    peak_after_kill: int
    measured: Measured

    @property
    def overshoot(self) -> int:
        """By how many requests the limit was passed at worst."""
        return max(0, self.peak - self.limit)


class Watcher(Protocol):
    """Somebody to be told how the experiment goes on."""

    def begin(self, mode: Mode) -> None:
        """A mode begins: its servers are being started."""

    def update(self, mode: Mode, phase: str, running: int) -> None:
        """The load is on, in this `phase`. Called some hundred times a second."""

    def end(self, result: ModeResult) -> None:
        """A mode has ended."""


def run(settings: Settings, watcher: Watcher) -> list[ModeResult]:
    """Run the experiment and return a result for each mode, in order.

    Raises ListenFailed, ServerDied or LoadFailed. However it ends, all servers have ended with it.
    """
    results = []
    for mode in settings.modes:
        watcher.begin(mode)

        def notify(phase: str, running: int, mode: Mode = mode) -> None:
            watcher.update(mode, phase, running)

        result = run_mode(mode, settings, notify)
        watcher.end(result)
        results.append(result)
    return results


def run_mode(mode: Mode, settings: Settings, notify: Notify) -> ModeResult:
    """Run the experiment in one mode, as `run` does in all."""
    witness = Witness(settings.limit)
    with (
        _listening(settings.host, settings.port) as listener,
        closing(admission_for(mode, limit=settings.limit, servers=settings.servers)) as admission,
        Fleet(
            serve,
            [
                (index, listener, admission, witness, settings.service_time)
                for index in range(settings.servers)
            ],
        ) as fleet,
    ):
        measurement = Measurement(
            mode, settings, fleet=fleet, witness=witness, url=_url(listener), notify=notify
        )
        measured = asyncio.run(measurement.run())
    return ModeResult(
        mode=mode,
        limit=settings.limit,
        peak=witness.peak,
        peak_after_kill=witness.peak_after_kill,
        measured=measured,
    )


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on `host` and `port`, for all servers: none of them binds by itself."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # With its protocol named (create_server leaves it 0): asyncio sets TCP_NODELAY only on
        # sockets that say they are TCP, and accepted ones take after this one. Without it many an
        # answer is 40 ms late.
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ListenFailed(host, port, reason or str(error)) from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise ListenFailed(host, port, error.strerror or str(error)) from error
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
