# What a host publishes per process, over a plain array or over the counters of a hard cap.

@cython.no_gc_clear
cdef class Seat:
    """One process's claim on one slot of a hard buffer, and its tallies. Claimed at first use, and again after a fork."""

    cdef gate_t c
    cdef tally_t t[2]  # of requests, of tokens
    cdef Segment segment
    cdef int index

    def __cinit__(self, Segment segment not None, int index):
        self.segment = segment
        self.index = index
        gate_initialise(&self.c, &segment.c)

    def __dealloc__(self):
        if self.segment is not None:
            gate_close(&self.c)

    cdef int claim(self) except -1:
        if not claim(&self.c, self.index, TAKEN_PATIENCE):
            raise NotOwner(f"client_index {self.index} is in use by another living process: "
                           "each process needs an index of its own")
        memset(self.t, 0, sizeof(self.t))
        return 0

    cdef inline int ready(self) except -1:
        if not owner_is_mine(&self.c.owner):
            self.claim()
        return 0


cdef class PlainTally:
    """The tally of one word of a plain array, shared by all objects of this process that publish in it."""

    cdef tally_t t
    cdef object __weakref__


cdef object _plain_tallies = weakref.WeakValueDictionary()  # by the address of the word


cdef enum:
    REQUESTS_CAP
    TOKENS_CAP

REQUESTS, TOKENS = REQUESTS_CAP, TOKENS_CAP


@cython.no_gc_clear
cdef class StatsCore:
    """What one process shows of one kind of thing, and what it sees of everybody's."""

    cdef int cap  # REQUESTS_CAP or TOKENS_CAP: a cap of a hard buffer; a word of each line of a plain one
    cdef Seat seat  # None over a plain array
    cdef PlainTally plain  # None over a hard buffer
    cdef Py_buffer view
    cdef word_t *counters
    cdef word_t *mine
    cdef Py_ssize_t clients
    cdef readonly object buffer
    cdef object __weakref__

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def _attach(self, buffer, Py_ssize_t clients, Py_ssize_t index, int cap):
        """Use a buffer for that many clients as one of them; the numbers were checked, the buffer is checked here."""
        self.seat, self.plain, self.clients, self.mine = None, None, 0, NULL
        PyBuffer_Release(&self.view)
        if not PyObject_CheckBuffer(buffer):
            raise self._wrong(buffer)
        try:
            try:
                PyObject_GetBuffer(buffer, &self.view, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
            except BufferError:  # read-only: good for reading
                PyObject_GetBuffer(buffer, &self.view, PyBUF_FORMAT | PyBUF_STRIDES)
        except BufferError:  # lends itself to nobody
            raise self._wrong(buffer) from None
        try:
            self._check(buffer, clients)
            if isinstance(buffer, CounterWords) and cap >= len((<CounterWords>buffer).segment.caps):
                raise ValueError("mp_admission_counters has no cap of tokens: make it with AdmissionCounters(…, "
                                 "token_limit=…)")
        except BaseException:
            PyBuffer_Release(&self.view)
            raise
        self.buffer = buffer
        self.clients = clients
        self.cap = cap
        if isinstance(buffer, CounterWords):
            self.seat = (<CounterWords>buffer)._seat(index)
            self.counters = segment_counters(&self.seat.segment.c, cap)
            self.mine = counter_at(self.counters, index)
        else:
            self.counters = <word_t *>self.view.buf + cap
            self.mine = counter_at(self.counters, index)
            self.plain = _plain_tallies.setdefault(<size_t>self.mine, PlainTally())

    cdef object _wrong(self, buffer):
        return TypeError("mp_admission_counters must be a buffer of signed 64-bit words: RawArray('q', …), "
                         f"AdmissionCounters or the like, not {type(buffer).__name__}")

    cdef int _check(self, buffer, Py_ssize_t clients) except -1:
        if self.view.itemsize != sizeof(word_t) or self.view.ndim != 1 or \
                self.view.format == NULL or self.view.format.decode().lstrip("@=<") not in ("q", "l"):
            raise self._wrong(buffer)
        if self.view.strides != NULL and self.view.strides[0] != sizeof(word_t):  # ctypes arrays give none
            raise ValueError("mp_admission_counters must be contiguous, not every so many words of another array")
        if self.view.len < clients * <Py_ssize_t>(LAYOUT_WORDS_PER_LINE * sizeof(word_t)):
            raise ValueError(f"mp_admission_counters has {self.view.len // 8} words, but client_count {clients} "
                             f"needs num_counters({clients}) = {clients * LAYOUT_WORDS_PER_LINE}")
        if <size_t>self.view.buf % sizeof(word_t):
            raise ValueError("mp_admission_counters must be aligned to 8 bytes")
        return 0

    cdef int _writable(self) except -1:
        if self.mine == NULL:
            raise TypeError("SharedAdmissionStats.__init__ was not called")
        if self.view.readonly:
            raise TypeError("mp_admission_counters is read-only")
        return 0

    @property
    def exact(self):
        """Whether the buffer has a hard cap behind it, so that try_reserve is exact over all processes."""
        return self.seat is not None

    def try_reserve(self, n=1, limit=None):
        """Reserve n units and return True, or return False if there is no room. Never waits for room.

        n is from 1, limit from 0 to 4,294,967,295. Of requests n more must fit under the limit; of tokens the limit
        must not be reached yet, and n is then added, however large: so one long prompt can always run, and at most
        one passes the limit. Over a hard buffer this is exact, and a limit smaller than the buffer's bounds this
        call. Over a plain one limit must be given, and each other process may add one grant of its own on top.
        Raises TypeError, ValueError, NotOwner (the slot is another living process's).
        """
        cdef cap_ask ask = cap_units(<uint32_t>to_units(n, "n", 1))
        cdef int64_t bound = CAP_UNBOUNDED
        cdef int64_t sum
        cdef Seat seat = self.seat
        if self.cap == TOKENS_CAP:
            ask.headroom = 1 - <int64_t>ask.n
        if limit is not None:
            bound = to_units(limit, "limit", 0)
            ask.bound = <uint32_t>bound
        elif seat is None:
            raise TypeError("limit is needed: this buffer is a plain array and has no limit of its own")
        if seat is None:
            self._writable()
            with cython.critical_section(self.plain):
                if not counters_fit(self.counters, self.clients, ask.n + ask.headroom, bound, &sum):
                    return False
                counter_store(self.mine, counter_load(self.mine) + ask.n)
                tally_reserve(&self.plain.t, ask.n)
                return True
        with cython.critical_section(seat):
            seat.ready()
            if gate_take(&seat.c, self.cap, ask) != CAP_DONE:
                return False
            counter_store(self.mine, tally_reserve(&seat.t[self.cap], ask.n))
            return True

    def release(self, n=1):
        """Give back n units, those reserved and not yet counted first.

        Raises NotOwner if this process has fewer than n, and then changes nothing.
        """
        cdef int64_t units = to_units(n, "n", 1)
        cdef int64_t has = 0
        cdef Seat seat = self.seat
        if seat is None:
            self._writable()
            with cython.critical_section(self.plain):
                has = counter_load(self.mine)
                if units <= has:
                    counter_store(self.mine, has - units)
                    tally_release(&self.plain.t, units)
                    return
        else:
            with cython.critical_section(seat):
                if owner_is_mine(&seat.c.owner):
                    has = seat.t[self.cap].counted + seat.t[self.cap].reserved
                    if units <= has:
                        tally_charge(&seat.c, self.cap, tally_release(&seat.t[self.cap], units))
                        return
        raise NotOwner(f"n is {units}, but this process has {has}: release only what it reserved",
                       requested=units, held=has)


cdef class RequestStats(StatsCore):
    """Requests: counted by the host, reserved by admission."""

    def get_num_requests(self):
        """Return the sum over all slots. Not a snapshot: slots are read one after the other. Never writes."""
        return counters_sum(self.counters, self.clients)

    def set_num_requests(self, count):
        """Publish how many requests this process has unfinished: absolute, so safe to repeat.

        count is from 0 to 4,294,967,295. Permits reserved and not yet counted stay reserved: a rise uses them up, a
        fall leaves them alone. Over a hard buffer the slot is charged with the same number; a count that was never
        reserved is charged as far as the limit has room. Raises TypeError, ValueError, NotOwner.
        """
        cdef int64_t number = to_units(count, "count", 0)
        cdef Seat seat = self.seat
        if seat is None:
            self._writable()
            with cython.critical_section(self.plain):
                counter_store(self.mine, tally_count(&self.plain.t, number))
            return
        with cython.critical_section(seat):
            seat.ready()
            tally_charge(&seat.c, REQUESTS_CAP, tally_count(&seat.t[REQUESTS_CAP], number))


cdef class TokenStats(StatsCore):
    """Tokens: reserved, and released; nothing counts them apart."""

    def get_num_tokens(self):
        """Return the sum over all slots. Not a snapshot: slots are read one after the other. Never writes."""
        return counters_sum(self.counters, self.clients)
