"""All modes, one after the other: each with new processes, a new socket and new counters."""

import asyncio
import socket
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from gatecount.listening import CannotListen, listen, url
from gatecount.overload.admission import admission_for
from gatecount.overload.errors import ListenFailed
from gatecount.overload.fleet import Fleet
from gatecount.overload.measure import Measured, Measurement, Notify
from gatecount.overload.server import serve
from gatecount.overload.settings import Mode, Settings
from gatecount.overload.witness import Witness


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
            mode, settings, fleet=fleet, witness=witness, url=f"{url(listener)}/", notify=notify
        )
        measured = asyncio.run(measurement.run())
    return ModeResult(
        mode=mode,
        limit=settings.limit,
        peak=witness.peak,
        peak_after_kill=witness.peak_after_kill,
        measured=measured,
    )


def _listening(host: str, port: int) -> socket.socket:
    """Listen on `host` and `port`, for all servers."""
    try:
        return listen(host, port)
    except CannotListen as error:
        raise ListenFailed(host, port, error.reason) from error
