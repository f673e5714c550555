"""What can go wrong, each kind by its own name.

Everything the package raises on its own account is a `GatecountError`. Each leaf also is the built-in
error that a caller of such a function would expect, and carries what it speaks of as attributes. A
wrong argument is a plain `TypeError` or `ValueError` that names the argument and the rule.

An error means that the call changed nothing and that no permit was lost.
"""

from __future__ import annotations

import errno


class GatecountError(Exception):
    """Base of every error of this package."""


class GateFull(GatecountError):
    """A cap had no room, and there was no time, no place or no reason to wait for it.

    Raised by `Gate.admit` and by the calls that wait, where `Gate.try_acquire` returns False.
    """

    def __init__(self, cap: str, limit: int, in_flight: int, requested: int, headroom: int = 0) -> None:
        more = f"{requested} more" + (f" and a headroom of {headroom}" if headroom else "")
        super().__init__(f"cap {cap!r} is full: {in_flight} of {limit} in flight, no room for {more}")
        self.cap = cap
        self.limit = limit
        self.in_flight = in_flight
        self.requested = requested
        self.headroom = headroom

    def __reduce__(self) -> tuple[type[GateFull], tuple[str, int, int, int, int]]:
        return type(self), (self.cap, self.limit, self.in_flight, self.requested, self.headroom)


class GateTimeout(GatecountError, TimeoutError):
    """A cap had no room for as long as the call could wait."""

    def __init__(self, cap: str, limit: int, in_flight: int, requested: int, timeout: float) -> None:
        super().__init__(
            f"cap {cap!r} was full for {timeout:g} s: {in_flight} of {limit} in flight, "
            f"no room for {requested} more"
        )
        self.cap = cap
        self.limit = limit
        self.in_flight = in_flight
        self.requested = requested
        self.timeout = timeout

    def __reduce__(self) -> tuple[type[GateTimeout], tuple[str, int, int, int, float]]:
        return type(self), (self.cap, self.limit, self.in_flight, self.requested, self.timeout)


class GateNotFound(GatecountError, FileNotFoundError):
    """There is no gate of that name, or no name was given where one was looked for."""

    def __init__(self, name: str | None, message: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOENT
        self.name = name

    def __reduce__(self) -> tuple[type[GateNotFound], tuple[str | None, str]]:
        return type(self), (self.name, str(self))


class GateExists(GatecountError, FileExistsError):
    """A gate of that name stands already."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"gate {name!r} exists already: open it with Gate.open({name!r}), adopt it with "
            f"exist_ok=True, or remove it with Gate.remove({name!r})"
        )
        self.errno = errno.EEXIST
        self.name = name

    def __reduce__(self) -> tuple[type[GateExists], tuple[str]]:
        return type(self), (self.name,)


class LayoutMismatch(GatecountError, ValueError):
    """What stands under the name is not a segment of this layout: foreign, damaged or another shape."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[LayoutMismatch], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class UnknownCap(GatecountError, KeyError, ValueError):
    """The gate has no cap of that name."""

    def __init__(self, cap: str, caps: tuple[str, ...]) -> None:
        super().__init__(f"cap {cap!r} does not exist; this gate has {', '.join(map(repr, caps))}")
        self.cap = cap
        self.caps = caps

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0])

    def __reduce__(self) -> tuple[type[UnknownCap], tuple[str, tuple[str, ...]]]:
        return type(self), (self.cap, self.caps)


class SlotsExhausted(GatecountError):
    """Every slot is owned by a living process."""

    def __init__(self, slots: int) -> None:
        super().__init__(
            f"all {slots} slots are owned by living processes: create with a larger slots= "
            "(at least one per process, twice that where reloads overlap)"
        )
        self.slots = slots

    def __reduce__(self) -> tuple[type[SlotsExhausted], tuple[int]]:
        return type(self), (self.slots,)


class NotOwner(GatecountError, ValueError):
    """A release of what this process does not hold, or the use of a slot that another process owns."""

    def __init__(self, message: str, *, requested: int | None = None, held: int | None = None) -> None:
        super().__init__(message)
        self.requested = requested
        self.held = held

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self),), {"requested": self.requested, "held": self.held}


class GateClosed(GatecountError, ValueError):
    """The gate was closed by this process."""

    def __init__(self) -> None:
        super().__init__("this gate is closed: open it again to use it")

    def __reduce__(self) -> tuple[type[GateClosed], tuple[()]]:
        return type(self), ()
