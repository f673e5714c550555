"""The three ways to decide whether a request may run."""

from typing import Protocol

from gatecount import Gate
from gatecount.overload.settings import Mode


class Admission(Protocol):
    """What a server asks before it runs a request, and tells when it has."""

    def try_acquire(self) -> bool:
        """Return whether one more request may run; if so, it must be released."""

    def release(self) -> None:
        """Give back what one `try_acquire` granted."""

    def close(self) -> None:
        """Let go of what is shared."""


class PerProcessLimit:
    """A limit that each process keeps by itself: N of them run N times as much.

    No lock: the handlers of one server share an event loop, and neither method awaits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0

    def try_acquire(self) -> bool:
        """Return whether one more request may run in this process."""
        if self._running >= self._limit:
            return False
        self._running += 1
        return True

    def release(self) -> None:
        """Give one place back."""
        self._running -= 1

    def close(self) -> None:
        """Do nothing: nothing is shared."""


def admission_for(mode: Mode, *, limit: int, servers: int) -> Admission:
    """Return what admits requests in `mode`, ready to be handed to `servers` child processes."""
    if mode == "off":
        return PerProcessLimit(limit)
    return Gate.create(limits={"requests": limit}, slots=servers, mode=mode)
