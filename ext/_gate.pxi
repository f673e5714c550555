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
            gate_reclaim(c)  # also where it needed no dead owner's slot: whom we replace may have left something behind
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
    cdef dict lines  # of those who wait, by what for (_wait.pxi)
    cdef uint32_t line_forks
    cdef object __weakref__

    def __cinit__(self, Segment segment not None, *_args, **_kwargs):
        self._closed = True
        self.segment = segment
        self._index = {name: i for i, name in enumerate(segment.caps)}
        self._default = self._index.get("requests", -1)
        self.lines = {}
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

        Takes back what dead owners held. Does nothing if it has a slot. Raises SlotsExhausted if every slot is owned by a
        living process, GateClosed.
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

    def acquire(self, n=1, *, cap=None, timeout=None, headroom=0, max_waiting=None):
        """Reserve n units, waiting for room if there is none. Give them back with `release`.

        n, cap and headroom are as for `try_acquire`. timeout is how many seconds to wait at most: None is for ever, 0
        not at all. max_waiting is how many calls, over all processes, may wait for the cap already; None is no bound.
        The thread sleeps in the kernel, and is woken by a release in any process, a higher limit, or a death that is
        found out (looked for every 50 ms). Of those who wait in one process, with the same headroom, threads and tasks
        alike, the oldest comes first; a call that does not wait, and another process, may come before it. Ctrl-C and
        other signal handlers run at once and may wait themselves; who stands behind the call that one interrupts waits
        for it, too. If one raises while the call waits, nothing is reserved and nobody waits any more; in the instant of
        the grant that comes too late, as with any lock: `admit` loses nothing then either.
        Raises GateTimeout when the time is up; GateFull at once if timeout is 0, if max_waiting calls wait already, and
        if n + headroom is over the limit as it stands, since waiting could not help; GateClosed, also if the gate is
        closed meanwhile; and all else that `try_acquire` does.
        """
        cdef cap_ask asks[32]
        cdef int index = self._cap(cap)
        cdef PermitCore permit
        cdef double seconds = to_seconds(timeout)
        cdef uint64_t most = to_most(max_waiting)
        memset(asks, 0, sizeof(asks))
        asks[index] = cap_units(<uint32_t>to_units(n, "n", 1))
        asks[index].headroom = to_units(headroom, "headroom", 0)
        with cython.critical_section(self):
            if self._granted(asks, seconds):
                return
        permit = self._permit(PermitCore, asks, None)
        self._wait_for(permit, asks, seconds, most)
        permit.held = False  # the units are the caller's

    def _admit(self, kind, dict amounts, headroom, timeout, max_waiting):
        """Reserve units per cap name, all or nothing, waiting for room, and return a permit of that kind.

        Nothing can come between the reserve and the permit, not even a signal handler that raises."""
        cdef cap_ask asks[32]
        cdef double seconds = to_seconds(timeout)
        cdef uint64_t most = to_most(max_waiting)
        self._ask(asks, amounts, headroom)
        cdef PermitCore permit = self._permit(kind, asks, amounts)
        with cython.critical_section(self):
            if self._granted(asks, seconds):
                permit.forks = owner_forks()
                permit.held = True
                return permit
        self._wait_for(permit, asks, seconds, most)
        return permit

    def _waiter(self, kind, dict amounts, headroom, timeout, max_waiting):
        """Return one who will wait as `_admit` does, and does not yet."""
        cdef cap_ask asks[32]
        self._ask(asks, amounts, headroom)
        return self._waiter_for(self._permit(kind, asks, amounts), asks, to_seconds(timeout), to_most(max_waiting))

    cdef int _ask(self, cap_ask *asks, dict amounts, headroom) except -1:
        cdef int64_t free = to_units(headroom, "headroom", 0)
        cdef int index
        memset(asks, 0, 32 * sizeof(cap_ask))
        for name, n in amounts.items():
            index = self._cap(name)
            asks[index] = cap_units(<uint32_t>to_units(n, name, 1))
            asks[index].headroom = free
        return 0

    cdef PermitCore _permit(self, kind, const cap_ask *asks, dict amounts):
        cdef PermitCore permit = kind.__new__(kind)
        cdef uint32_t i
        for i in range(self.segment.c.shape.caps):
            permit.units[i] = asks[i].n
        permit.gate = self
        permit.amounts = None if amounts is None else MappingProxyType(amounts)
        return permit

    cdef bint _granted(self, const cap_ask *asks, double seconds) except -1:
        """Reserve at once if nobody of this process waits; false if that is refused and there is time to wait."""
        cdef uint32_t refused_by = 0
        self._ready()
        if seconds == 0.0:
            if gate_reserve_all(&self.c, asks, &refused_by) != CAP_DONE:
                raise GateFull(*self.state_of(refused_by), asks[refused_by].n, asks[refused_by].headroom)
            return True
        return not self.lines and gate_reserve_or_wait(&self.c, asks, NULL, &refused_by) == CAP_DONE

    cdef int _wait_for(self, PermitCore permit, const cap_ask *asks, double seconds, uint64_t most) except -1:
        """Wait as a thread does until the permit is granted."""
        cdef Waiter waiter = self._waiter_for(permit, asks, seconds, most)
        waiter.thread = PyThread_get_thread_ident()
        try:
            if not waiter.join():
                waiter.stay()
            waiter.take()
        finally:
            waiter.leave()
        return 0

    cdef Waiter _waiter_for(self, PermitCore permit, const cap_ask *asks, double timeout, uint64_t most):
        cdef Waiter waiter = Waiter.__new__(Waiter)
        cdef uint32_t i
        waiter.gate, waiter.permit, waiter.timeout, waiter.most = self, permit, timeout, most
        waiter.key = self.line_key(asks)
        for i in range(self.segment.c.shape.caps):
            waiter.asks[i] = asks[i]
        return waiter

    cdef tuple line_key(self, const cap_ask *asks):
        """Return what those have in common who stand in one line: caps and headroom."""
        cdef uint64_t caps = 0
        cdef int64_t headroom = 0
        cdef uint32_t i
        for i in range(self.segment.c.shape.caps):
            if asks[i].n:
                caps |= <uint64_t>1 << i
                headroom = asks[i].headroom
        return caps, headroom

    cdef int wake(self, uint32_t cap) except -1:
        """Wake all that sleep on a cap, in all processes."""
        cdef cap_t shared = segment_cap(&self.segment.c, cap)
        wait_wake(shared.shared)
        return 0

    cdef tuple state_of(self, uint32_t cap):
        """Return name, limit and units in flight of a cap: what its errors tell."""
        cdef statistics_t s
        gate_statistics(&self.segment.c, cap, &s)
        return self.segment.caps[cap], s.limit, s.in_flight

    def held(self, *, cap=None):
        """Return the units that this process holds under a cap."""
        cdef int index = self._cap(cap)
        with cython.critical_section(self):
            self._open()
            return gate_held(&self.c, index) if owner_is_mine(&self.c.owner) else 0

    def set_limit(self, cap, limit):
        """Set a cap's limit, from 0 to 4,294,967,295, for every process at once, and wake those who wait.

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
        """Return (in_flight, limit, peak, admitted, refused, reclaimed, repairs, waiting, timeouts, too_large) of a cap.
        Writes nothing."""
        cdef statistics_t s
        self._open()
        if not 0 <= index < len(self.segment.caps):
            raise IndexError(f"cap {index} of {len(self.segment.caps)}")
        gate_statistics(&self.segment.c, index, &s)
        return (s.in_flight, s.limit, s.peak, s.admitted, s.refused, s.reclaimed, s.repairs, s.waiting, s.timeouts,
                s.too_large)

    def slot_statistics(self, uint32_t slot):
        """Return (admitted, refused, waiting) of a slot, each a tuple by cap. Writes nothing."""
        cdef uint32_t i
        cdef gate_calls_t calls
        self._open()
        if slot >= self.segment.c.shape.slots:
            raise IndexError(f"slot {slot} of {self.segment.c.shape.slots}")
        told = []
        for i in range(self.segment.c.shape.caps):
            calls = gate_calls(&self.segment.c, i, slot)
            told.append((calls.admitted, calls.refused, calls.waiting))
        return tuple(zip(*told))

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
        """Give back everything this process holds, free its slot and stop using the gate. Closing twice is fine.

        Calls of this process that wait get GateClosed."""
        with cython.critical_section(self):
            self._closed = True
            gate_close(&self.c)
            if self.lines and self.line_forks == owner_forks():
                for line in list(self.lines.values()):
                    (<Line>line).disperse()


@cython.no_gc_clear
cdef class GateCounters(Words):
    """One cap's counters of a gate."""

    def __cinit__(self, Segment segment not None):
        self.segment = segment
        self.n = segment.c.shape.slots * LAYOUT_WORDS_PER_LINE
