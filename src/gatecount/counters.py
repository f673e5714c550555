"""Shared arrays of 64-bit words, with and without a hard cap, and a host's view of one.

What a host does today with `RawArray("q", n)` works unchanged over `AdmissionCounters`; the hard cap
behind it is in memory that the host never sees.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Mapping
from typing import Any, Self, SupportsIndex

from gatecount import _core
from gatecount._core import MAX_LIMIT, MAX_SLOTS, MAX_WORDS, WORDS_PER_SLOT, check_int
from gatecount.sharing import attach, reduce_to_descriptor

_BUFFER_KEY = "mp_admission_counters"


@_core.adopt
class AtomicArray(_core.AtomicWords):
    """Signed 64-bit words in shared memory, with atomic operations on each.

    n_or_values is a length, for zeros, or the values to begin with. Index, slice, iteration, `in` and
    the buffer protocol (format "q", writable) are those of `RawArray("q")`; a value outside 64 bits
    raises OverflowError where RawArray wraps. The first word is aligned to 64 bytes; words follow each
    other, so words that different processes write often should lie 8 apart.

    Anonymous memory: no name to leak, inherited by forked children, and picklable while a child is
    being started (spawn, forkserver). Safe to use from any thread and process. Raises TypeError,
    ValueError, OverflowError, and OSError if there is no memory for it.
    """

    __slots__ = ()

    def __new__(cls, n_or_values: int | Iterable[int]) -> Self:
        values = None
        if isinstance(n_or_values, Iterable) and not isinstance(n_or_values, (str, bytes)):
            values = list(n_or_values)
            n_or_values = len(values)
        n = check_int(n_or_values, "n_or_values", 0, MAX_WORDS)
        segment = _core.Segment.create(None, 0, [], n, _core.MODES["plain"], 0o600)
        self = super().__new__(cls, segment)
        if values:
            self[:] = values
        return self

    def __reduce__(self) -> Any:
        return reduce_to_descriptor(self, self.segment, _rebuild_atomic, type(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} words>"


class AdmissionCounters(_core.CounterWords):
    """The buffer of `RawArray("q", SharedAdmissionStats.num_counters(client_count))`, and hard caps.

    client_count is how many processes publish in it, from 1 to 1,023; limit, in requests, from 0 to
    4,294,967,295, is what all of them together may hold; token_limit, if given, likewise in tokens (see
    `SharedTokenStats`). Word 8 * i is what client i shows, the seven after it are the host's. As a
    sequence it behaves like the RawArray (see `AtomicArray`); writing any of its words cannot corrupt a
    cap, which decides by words that it does not show.

    Works with fork, spawn and forkserver; picklable only while a child is being started; leaves no name
    in /dev/shm and nothing to a resource tracker; stays mapped in a child when the parent drops it.
    Raises TypeError, ValueError, and OSError if there is no memory for it.
    """

    __slots__ = ()

    def __new__(cls, client_count: int, limit: int, token_limit: int | None = None) -> Self:
        slots = check_int(client_count, "client_count", 1, MAX_SLOTS)
        units = check_int(limit, "limit", 0, MAX_LIMIT)
        limits = [(b"requests", units)]
        if token_limit is not None:
            limits.append((b"tokens", check_int(token_limit, "token_limit", 0, MAX_LIMIT)))
        segment = _core.Segment.create(None, slots, limits, 0, _core.MODES["hard"], 0o600)
        return super().__new__(cls, segment)

    def __reduce__(self) -> Any:
        return reduce_to_descriptor(self, self.segment, _rebuild_counters, type(self))

    def __repr__(self) -> str:
        clients = len(self) // WORDS_PER_SLOT
        return f"<{type(self).__name__} of {clients} clients: {self.in_flight} of {self.limit}>"


def _rebuild_atomic(descriptor: object, cls: type[AtomicArray]) -> AtomicArray:
    return _core.AtomicWords.__new__(cls, attach(descriptor))


def _rebuild_counters(descriptor: object, cls: type[AdmissionCounters]) -> AdmissionCounters:
    return _core.CounterWords.__new__(cls, attach(descriptor))


def _attach(
    stats: _core.StatsCore, config: object, client_count: int, client_index: int, cap: int
) -> None:
    """Check what a host gives and attach to its buffer, or to one of this process's own."""
    if not isinstance(config, Mapping):
        raise TypeError(f"client_config must be a mapping, not {type(config).__name__}")
    count = check_int(client_count, "client_count", 1, MAX_SLOTS)
    index = check_int(client_index, "client_index", 0, count - 1)
    buffer = config.get(_BUFFER_KEY)
    if buffer is None:
        buffer = array.array("q", bytes(8 * SharedAdmissionStats.num_counters(count)))
    stats._attach(buffer, count, index, cap)


@_core.adopt
class SharedAdmissionStats(_core.RequestStats):
    """What one process shows of its requests, and what it sees of everybody's.

    client_config holds the shared buffer under "mp_admission_counters": a `RawArray("q")` or anything
    like it, then reserves are approximate; or `AdmissionCounters`, then they are exact. Without the
    key (a single server, or no cap) the count is this process's own. client_count is how many
    processes share the buffer; client_index, from 0, is this one. One process may hold several
    indices, each in an object of its own.

    Threads of one process may share an object. Over a hard buffer the slot is claimed at the first
    write; a forked child that goes on with its living parent's index gets NotOwner. Raises TypeError,
    ValueError.
    """

    __slots__ = ()

    def __init__(self, client_config: Mapping[str, Any], client_count: int, client_index: int) -> None:
        _attach(self, client_config, client_count, client_index, _core.REQUESTS)

    @staticmethod
    def num_counters(client_count: SupportsIndex) -> int:
        """Return how many 64-bit words a buffer for client_count processes has: one line of 8 each."""
        return WORDS_PER_SLOT * check_int(client_count, "client_count", 1, MAX_SLOTS)

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "approximate"
        return f"<{type(self).__name__} ({kind}): {self.get_num_requests()} requests>"


@_core.adopt
class SharedTokenStats(_core.TokenStats):
    """The tokens that processes have in flight, such as prompt tokens in prefill: see one, see all.

    The arguments are those of `SharedAdmissionStats`, and so are threads, forks and errors. Tokens are
    reserved while the limit is not reached, and n is added whatever its size: one long prompt can always
    run, and only the first admission that reaches the limit may pass it.

    Over `AdmissionCounters` made with a token_limit that is exact; without one, ValueError. Over a
    `RawArray("q")` they are shown in word 8 * i + 1, and each other process may add a grant of its own.
    """

    __slots__ = ()

    def __init__(self, client_config: Mapping[str, Any], client_count: int, client_index: int) -> None:
        _attach(self, client_config, client_count, client_index, _core.TOKENS)

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "approximate"
        return f"<{type(self).__name__} ({kind}): {self.get_num_tokens()} tokens>"
