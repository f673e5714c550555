"""What is told of gates to a monitoring system: which numbers there are, and how they are read.

One table of measures for every exporter, so that a dashboard works with each of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gatecount.errors import GateClosed, GateNotFound
from gatecount.gate import Gate
from gatecount.listing import names, open_now
from gatecount.names import check_gate_name, path_of
from gatecount.statistics import CapStatistics, GateStatistics, SlotStatistics

logger = logging.getLogger("gatecount.metrics")

Source = str | Gate | Mapping[str, Gate]
Labels = tuple[str, ...]
Sample = tuple[Labels, float]


@dataclass(frozen=True)
class Reading:
    """One gate at one moment; without statistics if it could not be read."""

    label: str
    statistics: GateStatistics | None


@dataclass(frozen=True)
class Measure:
    """One number that is told, of each thing that the labels name."""

    name: str
    """Without the `_total` that a counter's name ends with."""
    kind: Literal["gauge", "counter"]
    text: str
    labels: Labels
    samples: Callable[[Reading], Iterator[Sample]]


class Gates:
    """The gates to be read, found anew each time: by name, as objects, or all that have a name.

    "All" are those of this user and of root. Whoever may write to a gate's file can truncate it, which
    ends by SIGBUS who reads it then, so other users' gates are read only when they are named.
    A gate given by name may be missing, and may be removed and created again: what is read is what
    stands under the name then. Before it is read, the dead are reclaimed: what a killed process held is
    gone from the next reading. Safe from any thread; holds no file open in between.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._given: dict[str, str | Gate] = {}
        for source in sources:
            self._give(source)
        self._troubles: dict[str, str] = {}

    def _give(self, source: object) -> None:
        if isinstance(source, Mapping):
            for label, gate in source.items():
                if not isinstance(label, str) or not isinstance(gate, Gate):
                    raise TypeError(f"gates by label are {{str: Gate}}, not {{{label!r}: {gate!r}}}")
                self._add(label, gate)
        elif isinstance(source, Gate):
            self._add(source.name or "anonymous", source)
        elif isinstance(source, str):
            check_gate_name(source)  # raises for what can be no name
            self._add(source, source)
        else:
            raise TypeError(
                f"gates are given by name, as Gate objects, or as {{label: Gate}}, not as "
                f"{type(source).__name__} ({source!r})"
            )

    def _add(self, label: str, gate: str | Gate) -> None:
        if label in self._given:
            raise ValueError(f"two gates would be told of as {label!r}: give them as {{label: Gate}}")
        self._given[label] = gate

    def read(self) -> Iterator[Reading]:
        """Yield a reading of each; never raises for a gate that cannot be read, but logs it once."""
        if not self._given:
            yield from self._read_all()
        for label, gate in self._given.items():
            try:
                statistics = _read(gate)
            except (GateNotFound, GateClosed, ValueError, OSError) as error:
                self._say(label, str(error))
                yield Reading(label, None)
            else:
                self._troubles.pop(label, None)
                yield Reading(label, statistics)

    def _read_all(self) -> Iterator[Reading]:
        everywhere = path_of("*")
        try:
            found = names()
        except OSError as error:
            self._say(everywhere, str(error))
            return
        self._troubles.pop(everywhere, None)
        for name in found:
            try:
                if os.lstat(path_of(name)).st_uid in (0, os.geteuid()):
                    yield Reading(name, _read(name))
            except (ValueError, OSError):
                continue  # no gate, or gone: nobody asked for this one

    def _say(self, label: str, trouble: str) -> None:
        if self._troubles.get(label) != trouble:
            self._troubles[label] = trouble
            logger.warning("gate %r cannot be read: %s", label, trouble)


def _read(gate: str | Gate) -> GateStatistics:
    if isinstance(gate, Gate):
        gate.reclaim()
        return gate.statistics()
    with open_now(gate) as opened:
        opened.reclaim()
        return opened.statistics()


def _of_gate(value: Callable[[GateStatistics], float]) -> Callable[[Reading], Iterator[Sample]]:
    def samples(reading: Reading) -> Iterator[Sample]:
        if reading.statistics is not None:
            yield (reading.label,), value(reading.statistics)

    return samples


def _of_cap(value: Callable[[CapStatistics], float]) -> Callable[[Reading], Iterator[Sample]]:
    def samples(reading: Reading) -> Iterator[Sample]:
        if reading.statistics is not None:
            for cap, statistics in reading.statistics.caps.items():
                yield (reading.label, cap), value(statistics)

    return samples


def _of_slot(value: Callable[[SlotStatistics], float]) -> Callable[[Reading], Iterator[Sample]]:
    def samples(reading: Reading) -> Iterator[Sample]:
        if reading.statistics is not None:
            for slot in reading.statistics.slots:
                yield (reading.label, str(slot.slot)), value(slot)

    return samples


def _of_slot_and_cap(
    value: Callable[[SlotStatistics], Mapping[str, int]],
) -> Callable[[Reading], Iterator[Sample]]:
    def samples(reading: Reading) -> Iterator[Sample]:
        if reading.statistics is not None:
            for slot in reading.statistics.slots:
                for cap, number in value(slot).items():
                    yield (reading.label, cap, str(slot.slot)), number

    return samples


def _up(reading: Reading) -> Iterator[Sample]:
    yield (reading.label,), float(reading.statistics is not None)


def _refusals(reading: Reading) -> Iterator[Sample]:
    if reading.statistics is not None:
        for cap, statistics in reading.statistics.caps.items():
            for reason, number in statistics.refused_by.items():
                yield (reading.label, cap, reason), number


_GATE = ("gate",)
_CAP = ("gate", "cap")
_SLOT = ("gate", "slot")
_SLOT_AND_CAP = ("gate", "cap", "slot")

MEASURES = (
    Measure("gatecount_up", "gauge", "Whether the gate could be read: 1 or 0.", _GATE, _up),
    Measure(
        "gatecount_slots",
        "gauge",
        "How many processes may hold permits at a time.",
        _GATE,
        _of_gate(lambda gate: gate.slot_count),
    ),
    Measure(
        "gatecount_slots_used",
        "gauge",
        "Living processes that own a slot.",
        _GATE,
        _of_gate(lambda gate: len(gate.slots)),
    ),
    Measure(
        "gatecount_in_flight",
        "gauge",
        "Units granted now, over all processes.",
        _CAP,
        _of_cap(lambda cap: cap.in_flight),
    ),
    Measure(
        "gatecount_limit",
        "gauge",
        "Most units that may be in flight.",
        _CAP,
        _of_cap(lambda cap: cap.limit),
    ),
    Measure(
        "gatecount_peak",
        "gauge",
        "Most units that were ever in flight; in approximate mode, that a call or scrape found.",
        _CAP,
        _of_cap(lambda cap: cap.peak),
    ),
    Measure(
        "gatecount_waiting",
        "gauge",
        "Calls that wait for room now, over all processes.",
        _CAP,
        _of_cap(lambda cap: cap.waiting),
    ),
    Measure("gatecount_admitted", "counter", "Calls admitted.", _CAP, _of_cap(lambda cap: cap.admitted)),
    Measure(
        "gatecount_refused",
        "counter",
        "Calls refused: full, timeout (they waited in vain), too_large (could never fit).",
        (*_CAP, "reason"),
        _refusals,
    ),
    Measure(
        "gatecount_reclaimed",
        "counter",
        "Units taken back from dead processes.",
        _CAP,
        _of_cap(lambda cap: cap.reclaimed),
    ),
    Measure(
        "gatecount_repairs",
        "counter",
        "Times an audit had to correct the total; anything but 0 is worth a look.",
        _CAP,
        _of_cap(lambda cap: cap.repairs),
    ),
)
"""Of each gate and cap."""

SLOT_MEASURES = (
    Measure(
        "gatecount_slot_pid",
        "gauge",
        "The process that owns the slot.",
        _SLOT,
        _of_slot(lambda s: s.pid),
    ),
    Measure(
        "gatecount_slot_age_seconds",
        "gauge",
        "Time since that process claimed the slot.",
        _SLOT,
        _of_slot(lambda slot: slot.age),
    ),
    Measure(
        "gatecount_slot_in_flight",
        "gauge",
        "Units that the slot's process holds.",
        _SLOT_AND_CAP,
        _of_slot_and_cap(lambda slot: slot.held),
    ),
    Measure(
        "gatecount_slot_waiting",
        "gauge",
        "Calls of the slot's process that wait for room.",
        _SLOT_AND_CAP,
        _of_slot_and_cap(lambda slot: slot.waiting),
    ),
    Measure(
        "gatecount_slot_admitted",
        "counter",
        "Calls admitted through the slot.",
        _SLOT_AND_CAP,
        _of_slot_and_cap(lambda slot: slot.admitted),
    ),
    Measure(
        "gatecount_slot_refused",
        "counter",
        "Calls refused through the slot.",
        _SLOT_AND_CAP,
        _of_slot_and_cap(lambda slot: slot.refused),
    ),
)
"""Of each slot that a living process owns. By slot, not by process: or each restart would add series."""


def measures(per_slot: bool) -> tuple[Measure, ...]:
    """Return what is told, per slot too if so chosen."""
    return MEASURES + SLOT_MEASURES if per_slot else MEASURES
