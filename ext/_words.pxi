# The sequences of 64-bit words that a segment shows: what RawArray("q") is to a host.

cdef char *FORMAT = b"q"


@cython.no_gc_clear
cdef class Words:
    """Shared signed 64-bit words as a sequence and a buffer: the contract of RawArray("q"), but for values outside
    64 bits, which raise OverflowError where RawArray wraps."""

    cdef readonly Segment segment
    cdef word_t *words
    cdef Py_ssize_t n
    cdef Py_ssize_t strides[1]
    cdef object __weakref__

    def __len__(self):
        return self.n

    cdef inline Py_ssize_t _at(self, object index) except -1:
        cdef Py_ssize_t i
        i = PyNumber_AsSsize_t(index, IndexError)
        if i < 0:
            i += self.n
        if i < 0 or i >= self.n:
            raise IndexError(f"index {_shown(index)} is out of range for {self.n} words")
        return i

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [atomics_peek(&self.words[i]) for i in range(*index.indices(self.n))]
        return atomics_peek(&self.words[self._at(index)])

    def __setitem__(self, index, value):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            at = range(*index.indices(self.n))
            values = [to_word(one) for one in value]  # all of them before the first is stored
            if len(at) != len(values):
                raise ValueError(f"a slice of {len(at)} words takes {len(at)} values, not {len(values)}")
            for i, one in zip(at, values):
                atomics_poke(&self.words[i], one)
            return
        i = self._at(index)
        atomics_poke(&self.words[i], to_word(value))

    def __delitem__(self, index):
        raise TypeError("words cannot be deleted")

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self.n):
            yield atomics_peek(&self.words[i])

    def __contains__(self, value):
        cdef Py_ssize_t i
        for i in range(self.n):
            if atomics_peek(&self.words[i]) == value:
                return True
        return False

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self.strides[0] = sizeof(word_t)
        buffer.buf = self.words
        buffer.obj = self
        buffer.len = self.n * <Py_ssize_t>sizeof(word_t)
        buffer.itemsize = sizeof(word_t)
        buffer.readonly = 0
        buffer.ndim = 1
        buffer.format = FORMAT if flags & PyBUF_FORMAT else NULL
        buffer.shape = &self.n if flags & PyBUF_ND else NULL
        buffer.strides = self.strides
        buffer.suboffsets = NULL
        buffer.internal = NULL

    @property
    def address(self):
        """Where the first word is mapped in this process: a multiple of 64."""
        return <size_t>self.words


@cython.no_gc_clear
cdef class AtomicWords(Words):
    """Plain words with atomic operations."""

    def __cinit__(self, Segment segment not None, *_args, **_kwargs):
        self.segment = segment
        self.words = segment_words(&segment.c)
        self.n = segment.c.shape.words

    def load(self, index):
        """Return word `index`. Sequentially consistent."""
        return atomics_load(&self.words[self._at(index)])

    def store(self, index, value):
        """Set word `index`. Sequentially consistent."""
        cdef Py_ssize_t i = self._at(index)
        atomics_store(&self.words[i], to_word(value))

    def fetch_add(self, index, n):
        """Add n to word `index`, wrapping at 64 bits, and return what it was. Sequentially consistent."""
        cdef Py_ssize_t i = self._at(index)
        return atomics_fetch_add(&self.words[i], to_word(n))

    def exchange(self, index, value):
        """Set word `index` and return what it was. Sequentially consistent."""
        cdef Py_ssize_t i = self._at(index)
        return atomics_exchange(&self.words[i], to_word(value))

    def compare_exchange(self, index, expected, desired):
        """Set word `index` to desired if it equals expected, and tell whether it did. Sequentially consistent."""
        cdef Py_ssize_t i = self._at(index)
        cdef int64_t old = to_word(expected), new = to_word(desired)
        return atomics_compare_exchange(&self.words[i], old, new)


@cython.no_gc_clear
cdef class CounterWords(Words):
    """The counters of cap 0 of a segment, 8 words per slot, and the seats that this process has taken behind them."""

    cdef dict _seats

    def __cinit__(self, Segment segment not None, *_args, **_kwargs):
        self.segment = segment
        self.words = segment_counters(&segment.c, 0)
        self.n = segment.c.shape.slots * LAYOUT_WORDS_PER_LINE
        self._seats = {}

    cdef Seat _seat(self, int index):
        """Return this process's one seat for a slot, so that everybody who names the slot shares one tally."""
        seat = self._seats.get(index)
        return seat if seat is not None else self._seats.setdefault(index, Seat(self.segment, index))

    @property
    def limit(self):
        """The limit of requests, live."""
        cdef cap_t shared = segment_cap(&self.segment.c, 0)
        return cap_limit(&shared)

    @limit.setter
    def limit(self, value):
        cdef cap_t shared = segment_cap(&self.segment.c, 0)
        cap_set_limit(&shared, to_units(value, "limit", 0))

    @property
    def in_flight(self):
        """The requests granted at this instant."""
        cdef cap_t shared = segment_cap(&self.segment.c, 0)
        return cap_total(&shared)

    cdef cap_t _tokens(self) except *:
        if len(self.segment.caps) < 2:
            raise ValueError("there is no cap of tokens: make it with AdmissionCounters(…, token_limit=…)")
        return segment_cap(&self.segment.c, 1)

    @property
    def token_limit(self):
        """The limit of tokens, live; None if there is no cap of tokens."""
        cdef cap_t shared
        if len(self.segment.caps) < 2:
            return None
        shared = self._tokens()
        return cap_limit(&shared)

    @token_limit.setter
    def token_limit(self, value):
        cdef int64_t units = to_units(value, "token_limit", 0)
        cdef cap_t shared = self._tokens()
        cap_set_limit(&shared, <uint32_t>units)

    @property
    def tokens_in_flight(self):
        """The tokens granted at this instant; ValueError if there is no cap of tokens."""
        cdef cap_t shared = self._tokens()
        return cap_total(&shared)

    def reclaim(self):
        """Recover what dead owners held and return how many owners that were. Safe from any thread and process."""
        cdef Seat seat = Seat(self.segment, GATE_ANY_SLOT)
        return gate_reclaim(&seat.c)
