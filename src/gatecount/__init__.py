"""Exact admission limits across processes.

`Gate` caps what all processes of a service have in flight; `AdmissionCounters` puts a hard cap behind
the shared array that a host may already have, and `SharedAdmissionStats` is a host's view of either;
`AtomicArray` is plain shared memory with atomic operations. See the README for guarantees.
"""

from gatecount.counters import AdmissionCounters, AtomicArray, SharedAdmissionStats, SharedTokenStats
from gatecount.errors import (
    GateClosed,
    GatecountError,
    GateExists,
    GateFull,
    GateNotFound,
    GateTimeout,
    LayoutMismatch,
    NotOwner,
    SlotsExhausted,
    UnknownCap,
)
from gatecount.gate import Gate, Permit
from gatecount.listing import FoundGate, gates
from gatecount.statistics import CapStatistics, GateStatistics, SlotStatistics

__version__ = "0.1.0"

__all__ = [
    "AdmissionCounters",
    "AtomicArray",
    "CapStatistics",
    "FoundGate",
    "Gate",
    "GateClosed",
    "GateExists",
    "GateFull",
    "GateNotFound",
    "GateStatistics",
    "GateTimeout",
    "GatecountError",
    "LayoutMismatch",
    "NotOwner",
    "Permit",
    "SharedAdmissionStats",
    "SharedTokenStats",
    "SlotStatistics",
    "SlotsExhausted",
    "UnknownCap",
    "gates",
]
