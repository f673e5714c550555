"""One or several limits that all processes of a service share.

gate = Gate.create("api", limits={"requests": 10})
if gate.try_acquire():
    try:
        ...
    finally:
        gate.release()
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from gatecount import _core
from gatecount._core import MAX_CAPS, MAX_LIMIT, MAX_SLOTS, MODES, check_int
from gatecount.errors import GateExists, GateNotFound, LayoutMismatch
from gatecount.names import check_cap_name, check_gate_name, path_of
from gatecount.sharing import attach, reduce_to_descriptor
from gatecount.statistics import CapStatistics, GateStatistics, SlotStatistics
from gatecount.waiting import wait_for

ENVIRONMENT = "GATECOUNT_GATE"
"""The environment variable by which a gate's name travels to processes that open it."""

_CREATION_TIMEOUT_MS = 1000
_NOT_A_FILE = {
    errno.ELOOP: "is a symbolic link",
    errno.EISDIR: "is a directory",
    errno.ENXIO: "is not a regular file",  # a socket
}


def _check_limits(limits: object) -> dict[str, int]:
    if not isinstance(limits, Mapping):
        raise TypeError(
            f"limits must be a mapping from cap to limit, such as {{'requests': 10}}, not "
            f"{type(limits).__name__} ({limits!r})"
        )
    if not 1 <= len(limits) <= MAX_CAPS:
        raise ValueError(f"limits must name 1 to {MAX_CAPS} caps, not {len(limits)}")
    return {
        check_cap_name(cap): check_int(limit, f"limits[{cap!r}]", 0, MAX_LIMIT)
        for cap, limit in limits.items()
    }


def _check_mode(mode: object) -> str:
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str, not {type(mode).__name__} ({mode!r})")
    if mode not in ("hard", "approximate"):
        raise ValueError(f"mode must be 'hard' or 'approximate', not {mode!r}")
    return mode


class Permit(_core.PermitCore):
    """Units granted under one or several caps, to be released once: by `release`, or by `with`.

    Belongs to the process that was granted it: a forked child that releases it gets NotOwner, and one
    that leaves the `with` block leaves it alone. May be released from any thread; a second release does
    nothing, nor does one after the gate was closed, which gave everything back. A permit dropped
    unreleased is released and warned of (ResourceWarning). An exception from a signal handler loses
    none: it is held by the permit, or it was not granted.
    """

    __slots__ = ()


@_core.adopt
class Gate(_core.GateCore):
    """Limits that all processes of a service share; made by `create`, `open` or `from_env`.

    In hard mode every limit is exact: what is granted never sums to more than the limit, a refusal has
    a cause, nothing blocks, and a process killed at any instruction gives back what it held. In
    approximate mode a reserve checks the sum over all processes and then publishes, so that each other
    process may add one grant of its own on top; recovery is the same.

    A process claims one of the gate's slots at its first reserve (or by `claim`), for all its threads,
    taking back what the dead held, and frees it by `close` or by dying. A forked child owns nothing of
    its parent's and claims a slot of its own. Reading never writes to shared memory. Anonymous gates,
    and named ones too, can be pickled to a child while it is being started. A context manager: leaving
    it closes the gate.
    """

    __slots__ = ("name",)

    name: str | None
    """The name that `open` takes; None for an anonymous gate."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        raise TypeError("use Gate.create(), Gate.open() or Gate.from_env()")

    @classmethod
    def _over(cls, segment: _core.Segment, name: str | None) -> Self:
        self = _core.GateCore.__new__(cls, segment)
        self.name = name
        return self

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        limits: Mapping[str, int],
        slots: int = 16,
        mode: str = "hard",
        exist_ok: bool = False,
        permissions: int = 0o600,
    ) -> Self:
        """Create a gate.

        With a name, unrelated processes of this machine may open it: 1 to 200 letters, digits, "_",
        "-", "."; it stands until `remove`. Without one it is anonymous and reaches child processes
        only. limits maps 1 to 32 caps to their limits in units, 0 to 4,294,967,295. slots, 1 to 1,023,
        bounds how many processes may hold permits at a time: at least one each, twice that where the
        old and the new overlap in a reload. mode is "hard" or "approximate". permissions are the bits
        of the named file, whatever the umask: by default nobody else may open it.

        With exist_ok a gate that stands with the same caps, slots and mode is opened instead (a
        restart): its limits become the given ones, dead owners are reclaimed, living ones stay.

        Raises GateExists, LayoutMismatch (exist_ok: what stands differs), TypeError, ValueError, and
        OSError, with nothing left behind: ENOSPC if there is no room for it.
        """
        checked = _check_limits(limits)
        count = check_int(slots, "slots", 1, MAX_SLOTS)
        number = MODES[_check_mode(mode)]
        bits = check_int(permissions, "permissions", 0, 0o777)
        path = None
        if name is not None:
            path = os.fsencode(path_of(check_gate_name(name)))
        elif exist_ok:
            raise ValueError("exist_ok needs a name: an anonymous gate cannot exist already")
        encoded = [(cap.encode(), limit) for cap, limit in checked.items()]
        while True:
            try:
                segment = _core.Segment.create(path, count, encoded, 0, number, bits)
            except FileExistsError:
                if name is None or not exist_ok:
                    raise GateExists(name or "") from None
            else:
                return cls._over(segment, name)
            try:
                return cls._adopt(name, checked, count, mode)
            except GateNotFound:
                continue  # removed since: the name is free again

    @classmethod
    def _adopt(cls, name: str, limits: Mapping[str, int], slots: int, mode: str) -> Self:
        """Open the gate that stands under the name, if it is the one that was to be created."""
        self = cls.open(name)
        segment = self.segment
        stands = (set(segment.caps), segment.slots, segment.mode)
        if stands != (set(limits), slots, mode):
            self.close()
            raise LayoutMismatch(
                f"gate {name!r}",
                f"stands with caps {sorted(segment.caps)}, {segment.slots} slots, mode "
                f"{segment.mode!r}, but caps {sorted(limits)}, {slots} slots, mode {mode!r} were "
                f"asked for: end its processes and remove it with Gate.remove({name!r})",
            )
        for cap, limit in limits.items():
            self.set_limit(cap, limit)
        self.reclaim()
        return self

    @classmethod
    def open(cls, name: str) -> Self:
        """Open the gate of that name; waits up to a second for one that is just being created.

        Raises GateNotFound, LayoutMismatch (what is there is foreign, damaged or of another version),
        PermissionError (it is another user's), TypeError, ValueError.
        """
        return cls._open(name, _CREATION_TIMEOUT_MS)

    @classmethod
    def _open(cls, name: str, timeout_ms: int) -> Self:
        """Open as `open` does, waiting for so many milliseconds for one that is just being created."""
        path = path_of(check_gate_name(name))
        try:
            segment = _core.Segment.open(os.fsencode(path), timeout_ms)
        except FileNotFoundError:
            raise GateNotFound(name, f"there is no gate {name!r} on this machine") from None
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise LayoutMismatch(path, _NOT_A_FILE[error.errno]) from None
            raise
        if segment.mode == "plain":
            raise LayoutMismatch(path, "has no caps")
        return cls._over(segment, name)

    @classmethod
    def from_env(cls) -> Self:
        """Open the gate whose name the environment variable GATECOUNT_GATE holds.

        Raises GateNotFound if it is not set, and as `open` does.
        """
        name = os.environ.get(ENVIRONMENT)
        if not name:
            raise GateNotFound(None, f"the environment variable {ENVIRONMENT} names no gate")
        try:
            return cls.open(name)
        except ValueError as error:
            if isinstance(error, LayoutMismatch):
                raise
            raise ValueError(f"the environment variable {ENVIRONMENT}: {error}") from None

    @staticmethod
    def remove(name: str) -> None:
        """Remove a gate's name. Processes that have it open go on with it; nobody else can open it.

        Raises GateNotFound, LayoutMismatch (a file that is not a gate is left alone), PermissionError,
        TypeError, ValueError.
        """
        gate = Gate.open(name)
        try:
            gate.segment.unlink(os.fsencode(path_of(name)))
        except FileNotFoundError:
            raise GateNotFound(name, f"gate {name!r} was just removed by another process") from None
        finally:
            gate.close()

    def admit(
        self,
        /,  # or no cap could be named self
        *,
        headroom: int = 0,
        timeout: float | None = 0.0,
        max_waiting: int | None = None,
        **amounts: int,
    ) -> Permit:
        """Reserve units of one or several caps, all or nothing: `admit(requests=1, tokens=512)`.

        Without amounts, one unit of cap "requests". headroom is how many units must stay free beside
        them, under each of these caps. Waits for room for up to timeout seconds, by default not at all,
        and with None for ever; how, and what max_waiting means, says `acquire`. Returns a permit to be
        released, best by `with`.
        Raises GateFull for the first cap without room, the others being untouched; GateTimeout if it
        has waited; GateClosed, SlotsExhausted, UnknownCap, TypeError, ValueError.
        """
        return self._admit(Permit, amounts or {"requests": 1}, headroom, timeout, max_waiting)

    async def admit_async(
        self,
        /,
        *,
        headroom: int = 0,
        timeout: float | None = None,
        max_waiting: int | None = None,
        **amounts: int,
    ) -> Permit:
        """Reserve as `admit` does, from a task of asyncio, which alone waits, by default for ever.

        A cancelled task holds nothing and waits no more. All tasks that wait for the same caps share
        one thread of this process. A forked child must not go on with the loop it inherits.
        """
        permit = await wait_for(
            self._waiter(Permit, amounts or {"requests": 1}, headroom, timeout, max_waiting)
        )
        assert isinstance(permit, Permit)
        return permit

    async def acquire_async(
        self,
        n: int = 1,
        *,
        cap: str | None = None,
        timeout: float | None = None,
        headroom: int = 0,
        max_waiting: int | None = None,
    ) -> None:
        """Reserve as `acquire` does, from a task of asyncio; see `admit_async`."""
        amounts = {"requests" if cap is None else cap: n}
        permit = await wait_for(self._waiter(Permit, amounts, headroom, timeout, max_waiting))
        permit._keep()

    def statistics(self) -> GateStatistics:
        """Return what can be told about the gate now, without writing to it. Raises GateClosed."""
        caps = self.segment.caps
        slots = tuple(
            SlotStatistics(
                slot,
                pid,
                age,
                *(dict(zip(caps, each, strict=True)) for each in (held, *self.slot_statistics(slot))),
            )
            for slot, pid, alive, age, held in self.owners()
            if alive
        )
        return GateStatistics(
            name=self.name,
            mode=self.segment.mode,
            slot_count=self.segment.slots,
            caps={cap: self._cap_statistics(i, cap, slots) for i, cap in enumerate(caps)},
            slots=slots,
        )

    def _cap_statistics(self, index: int, cap: str, slots: tuple[SlotStatistics, ...]) -> CapStatistics:
        told = self.cap_statistics(index)
        in_flight, limit, peak, admitted, refused, reclaimed, repairs, _, timeouts, too_large = told
        return CapStatistics(
            in_flight,
            limit,
            peak,
            admitted,
            refused,
            reclaimed,
            repairs,
            waiting=sum(slot.waiting[cap] for slot in slots),  # not what the dead left behind
            refused_by={
                "full": refused - timeouts - too_large,
                "timeout": timeouts,
                "too_large": too_large,
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return reduce_to_descriptor(self, self.segment, _rebuild_gate, type(self), self.name)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.segment.mode
        caps = ", ".join(self.segment.caps)
        return f"<{type(self).__name__} {self.name or 'anonymous'!r} ({state}): {caps}>"


def _rebuild_gate(descriptor: object, cls: type[Gate], name: str | None) -> Gate:
    return cls._over(attach(descriptor), name)
