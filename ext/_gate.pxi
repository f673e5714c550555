# A gate: one process's slot, and reserves by cap.

# Seconds for which a claim waits: for a slot that another is just claiming or freeing; and for one that looks taken,
# for a reclaimer that has the lock of a dead owner's slot looks like that owner until it has written its own word.
cdef double MOVING_PATIENCE = 1.0
cdef double TAKEN_PATIENCE = 0.1


cdef bint claim(gate_t *c, int slot, double patience) except -1:
    """Claim a slot, or any; False if all have living owners, which is believed after `patience` seconds. Lets other
    threads run while it waits: one of them may have claimed for us."""
    cdef owner_result result
    begin = time.monotonic()
    while not owner_is_mine(&c.owner):
        result = gate_claim(c, slot)
        if result == OWNER_OK:
            break
        if result == OWNER_SYSTEM:
            raise OSError(errno, os.strerror(errno))
        if time.monotonic() - begin > (MOVING_PATIENCE if result == OWNER_MOVING else patience):
            return False
        time.sleep(0.001)
    return True


@cython.no_gc_clear
cdef class GateCore:
    """Reserve and release under the caps of a segment. Claims a slot by itself at the first reserve, and again in a
    forked child, which owns nothing of its parent's."""

    cdef gate_t c
    cdef readonly Segment segment
    cdef dict _index  # cap name -> index
    cdef int _default  # index of the cap meant where none is named; -1: there is none
    cdef bint _closed
    cdef double _exhausted_until  # monotonic
    cdef object __weakref__

    def __cinit__(self, Segment segment not None, *_args, **_kwargs):
        self._closed = True
        self.segment = segment
        self._index = {name: i for i, name in enumerate(segment.caps)}
        self._default = self._index.get("requests", -1)
        gate_initialise(&self.c, &segment.c)
        self._closed = False

    def __dealloc__(self):
        if self.segment is not None:
            gate_close(&self.c)

    cdef int _open(self) except -1:
        if self._closed:
            raise GateClosed()
        return 0

    cdef int _claim(self) except -1:
        self._open()
        # Who has just waited in vain and asks again gets the answer at once: a server may ask for every request.
        now = time.monotonic()
        if not claim(&self.c, GATE_ANY_SLOT, 0.0 if now < self._exhausted_until else TAKEN_PATIENCE):
            self._exhausted_until = now + 1.0
            raise SlotsExhausted(self.segment.c.shape.slots)
        if self._closed:  # by another thread, while this one waited
            gate_close(&self.c)
            raise GateClosed()
        return 0

    cdef inline int _ready(self) except -1:
        if not owner_is_mine(&self.c.owner):  # also once it is closed
            self._claim()
        return 0

    cdef inline int _cap(self, object name) except -1:
        if name is None and self._default >= 0:
            return self._default
        if name is not None and not isinstance(name, str):
            raise TypeError(f"cap must be a str, not {type(name).__name__} ({_shown(name)})")
        cdef object index = self._index.get("requests" if name is None else name)
        if index is None:
            raise UnknownCap("requests" if name is None else name, self.segment.caps)
        return index

    def claim(self):
        """Claim a slot for this process now rather than at its first reserve, and return its index.

        Does nothing if it has one. Raises SlotsExhausted if every slot is owned by a living process, GateClosed.
        """
        with cython.critical_section(self):
            self._ready()
            return self.c.owner.slot

    def try_acquire(self, n=1, *, cap=None, headroom=0):
        """Reserve n units and return True, or return False if there is no room. Never waits for room.

        n is from 1 to 4,294,967,295. cap is a name; "requests" if left out. headroom, from 0 to 4,294,967,295, is how
        many units must stay free beside n: work that can wait stops first if it leaves room for work that cannot. In
        hard mode the answer is exact: False only if at one instant during the call granted + n + headroom exceeded
        the limit. In approximate mode each other process may add one grant of its own on top. Threads of one process
        share its slot; a forked child gets its own. The first call in a process claims the slot, and waits up to a
        second if one is just being freed.
        Raises GateClosed, SlotsExhausted (first use in a process), UnknownCap, TypeError, ValueError.
        """
        cdef int64_t units = to_units(n, "n", 1)
        cdef cap_ask ask = cap_units(<uint32_t>units)
        if <PyObject *>headroom != ZERO:
            ask.headroom = to_units(headroom, "headroom", 0)
        cdef int index = self._cap(cap)
        with cython.critical_section(self):
            self._ready()
            return gate_reserve(&self.c, index, ask) == CAP_DONE

    def release(self, n=1, *, cap=None):
        """Give back n units that this process reserved. Never waits.

        Raises NotOwner if this process holds fewer than n under that cap, and then changes nothing.
        """
        cdef int64_t units = to_units(n, "n", 1)
        cdef int index = self._cap(cap)
        with cython.critical_section(self):
            self._open()
            if not owner_is_mine(&self.c.owner) or gate_release(&self.c, index, <uint32_t>units) != CAP_DONE:
                raise self._not_held(index, units)

    cdef object _not_held(self, int index, int64_t units):
        held = gate_held(&self.c, index) if owner_is_mine(&self.c.owner) else 0
        return NotOwner(
            f"n is {units}, but this process holds {held} of cap {self.segment.caps[index]!r}: "
            "release only what this process reserved", requested=units, held=held)

    def _admit(self, kind, dict amounts, headroom):
        """Reserve units per cap name, all or nothing, and return a permit of that kind, or the name of the cap that
        refused. Nothing can come between the reserve and the permit, not even a signal handler that raises."""
        cdef PermitCore permit = kind.__new__(kind)
        cdef cap_ask asks[32]
        cdef uint32_t refused_by = 0
        cdef int64_t free = to_units(headroom, "headroom", 0)
        cdef int index
        memset(asks, 0, sizeof(asks))
        for name, n in amounts.items():
            index = self._cap(name)
            asks[index] = cap_units(<uint32_t>to_units(n, name, 1))
            asks[index].headroom = free
            permit.units[index] = asks[index].n
        permit.gate = self
        permit.amounts = MappingProxyType(amounts)
        with cython.critical_section(self):
            self._ready()
            if gate_reserve_all(&self.c, asks, &refused_by) != CAP_DONE:
                return self.segment.caps[refused_by]
            permit.forks = owner_forks()
            permit.held = True
        return permit

    def held(self, *, cap=None):
        """Return the units that this process holds under a cap."""
        cdef int index = self._cap(cap)
        with cython.critical_section(self):
            self._open()
            return gate_held(&self.c, index) if owner_is_mine(&self.c.owner) else 0

    def set_limit(self, cap, limit):
        """Set a cap's limit, from 0 to 4,294,967,295, for every process at once.

        It holds for every reserve that starts after this returned. Units granted stay granted: below what is in
        flight, nobody is admitted until it has drained. Raises UnknownCap, TypeError, ValueError, GateClosed.
        """
        cdef int64_t units = to_units(limit, "limit", 0)
        if cap is None:
            raise TypeError("cap must be a str, not None: which limit is to be set is to be said")
        cdef int index = self._cap(cap)
        self._open()
        cdef cap_t shared = segment_cap(&self.segment.c, index)
        cap_set_limit(&shared, <uint32_t>units)

    def reclaim(self):
        """Recover what dead owners held and return how many owners that were.

        An owner counts as dead only on proof: the kernel dropped its lock, or no process has its pid and start time.
        Processes do this by themselves when they are about to refuse. Safe from any thread and process.
        """
        with cython.critical_section(self):
            self._open()
            return gate_reclaim(&self.c)

    def cap_statistics(self, int index):
        """Return (in_flight, limit, peak, admitted, refused, reclaimed, repairs) of a cap. Writes nothing."""
        cdef statistics_t s
        self._open()
        if not 0 <= index < len(self.segment.caps):
            raise IndexError(f"cap {index} of {len(self.segment.caps)}")
        gate_statistics(&self.segment.c, index, &s)
        return s.in_flight, s.limit, s.peak, s.admitted, s.refused, s.reclaimed, s.repairs

    def owners(self):
        """Return (slot, pid, alive, age in seconds, units held per cap) of each owned slot. Writes nothing shared."""
        cdef owner_info_t info
        cdef uint64_t now = owner_clock()
        cdef uint32_t slot, i
        cdef cap_t shared
        found = []
        with cython.critical_section(self):
            self._open()
            for slot in range(self.segment.c.shape.slots):
                if not owner_look(&self.c.owner, slot, &info):
                    continue
                held = []
                for i in range(self.segment.c.shape.caps):
                    shared = segment_cap(&self.segment.c, i)
                    held.append(cap_held(&shared, slot))
                age = (now - info.claimed_at) / 1e9 if now > info.claimed_at else 0.0
                found.append((slot, info.pid, bool(info.alive), age, tuple(held)))
        return found

    def counters(self, *, cap=None):
        """Return a cap's visible counters as a read-only memoryview of format "q", 8 words per slot, word 0 the count.

        Readable like a RawArray("q"), by SharedAdmissionStats too; stays valid when the gate is closed.
        """
        cdef int index = self._cap(cap)
        self._open()
        cdef GateCounters words = GateCounters(self.segment)
        words.words = segment_counters(&self.segment.c, index)
        return memoryview(words).toreadonly()

    @property
    def closed(self):
        """Whether this process has closed the gate."""
        return self._closed

    def close(self):
        """Give back everything this process holds, free its slot and stop using the gate. Closing twice is fine."""
        with cython.critical_section(self):
            self._closed = True
            gate_close(&self.c)


@cython.no_gc_clear
cdef class PermitCore:
    """Units granted under one or several caps, given back once: by whoever comes first, or when dropped."""

    cdef readonly GateCore gate
    cdef readonly object amounts  # units per cap name, read-only
    cdef uint32_t units[32]  # the same by index
    cdef uint32_t forks
    cdef bint held
    cdef object __weakref__

    def __dealloc__(self):
        # Not in a forked child: there it is the parent's.
        if self.held and self.forks == owner_forks() and not self.gate._closed:
            self._give_back()
            # Where warnings are errors, Cython shows it as from any finalizer.
            warnings.warn(f"Permit {dict(self.amounts)} was dropped without release", ResourceWarning)

    cdef int _give_back(self) except? -2:
        """Release what is held; return the index of the first cap of which less was left, or -1."""
        cdef int short_of = -1
        cdef uint32_t i
        self.held = False
        with cython.critical_section(self.gate):
            if owner_is_mine(&self.gate.c.owner):
                for i in range(self.gate.segment.c.shape.caps):
                    if self.units[i] and gate_release(&self.gate.c, i, self.units[i]) != CAP_DONE and short_of < 0:
                        short_of = i
        return short_of

    @property
    def released(self):
        """Whether the units were given back."""
        return not self.held

    def release(self):
        """Give the units back; a second call does nothing.

        Raises NotOwner in a process other than the one they were granted to, and if `Gate.release` has given them
        back already; what is left of them under other caps is given back all the same.
        """
        cdef int short_of
        if self.forks != owner_forks():
            raise NotOwner("this permit was granted to the parent process, which still holds it")
        with cython.critical_section(self):
            if not self.held:
                return
            short_of = self._give_back()
        if short_of >= 0 and not self.gate._closed:
            raise self.gate._not_held(short_of, self.units[short_of])

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self.forks == owner_forks():  # a child forked inside the block leaves it, too, but holds nothing
            self.release()

    def __repr__(self):
        if self.gate is None:
            return "<Permit, never granted>"
        return f"<{type(self).__name__} {dict(self.amounts)} of {self.gate!r}, {'held' if self.held else 'released'}>"


@cython.no_gc_clear
cdef class GateCounters(Words):
    """One cap's counters of a gate."""

    def __cinit__(self, Segment segment not None):
        self.segment = segment
        self.n = segment.c.shape.slots * LAYOUT_WORDS_PER_LINE
