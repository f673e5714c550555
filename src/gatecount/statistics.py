"""What a gate tells about itself: frozen, and ready for JSON by `dataclasses.asdict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CapStatistics:
    """One cap. Units, but for `admitted`, `refused` and `waiting`, which count calls.

    Each number is true by itself at the instant it was read; they are not a snapshot together. The
    last operation of a killed process may be missing from all but `in_flight`, `limit` and `repairs`.
    """

    in_flight: int
    """Granted now; the units of a dead owner count until they are reclaimed."""
    limit: int
    peak: int
    """The most that was ever in flight. In approximate mode the highest sum that a call, granted or
    refused, or this reading found: over the limit only if so much was in flight at one instant, and too
    low if what went over came back before anybody looked, or while grants came all the time."""
    admitted: int
    refused: int
    reclaimed: int
    """Units taken back from dead owners."""
    repairs: int
    """Times an audit had to correct the total: 0, unless a wrapped tag or a foreign write cost units."""
    waiting: int
    """Calls that wait for this cap now, in all living processes. One that wants several caps counts
    under the one that refused it last."""
    refused_by: Mapping[str, int]
    """The refusals by reason; their sum is `refused`. "full"; "timeout": the call waited, in vain;
    "too_large": n + headroom was over the limit, so it could never have fitted as the limit stood."""


@dataclass(frozen=True)
class SlotStatistics:
    """One living owner of a slot."""

    slot: int
    pid: int
    """In the PID namespace of the owner."""
    age: float
    """Seconds since it claimed the slot."""
    held: Mapping[str, int]
    """Units per cap."""
    admitted: Mapping[str, int]
    """Calls granted per cap, by this owner and by those who had the slot before it; it never falls."""
    refused: Mapping[str, int]
    """Calls refused per cap, likewise."""
    waiting: Mapping[str, int]
    """Calls of this owner that wait now, per cap."""


@dataclass(frozen=True)
class GateStatistics:
    """A gate, its caps by name, and the living owners of its slots."""

    name: str | None
    mode: str
    slot_count: int
    caps: Mapping[str, CapStatistics]
    slots: tuple[SlotStatistics, ...]
