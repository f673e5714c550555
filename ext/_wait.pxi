# Waiting: the steps of it, none of which can be interrupted half-way.
#
# A signal handler may raise between any two bytecodes. So whatever changes who stands in line, who is counted as
# waiting and who was granted what is done here, in calls that run no bytecode; and a thread waits in a compiled frame, whose
# `finally` cannot be jumped over. waiting.py strings the same steps together for asyncio.
#
# The gate's critical section guards its lines and their waiters. Nobody sleeps or blocks inside it.

from cpython.exc cimport PyErr_CheckSignals
from cpython.float cimport PyFloat_CheckExact
from cpython.pythread cimport PyThread_get_thread_ident

cdef object monotonic = time.monotonic
cdef double FOREVER = float("inf")
cdef double LINGER = 0.05  # seconds for which a watcher without tasks waits for the next one
cdef double FORK_LOOK = 1.0  # seconds after which a thread in line looks whether it was forked out of it


cdef double to_seconds(object timeout) except -1.0:
    """Convert a timeout: seconds, not negative; None is for ever."""
    cdef double seconds
    if timeout is None:
        return FOREVER
    if not PyFloat_CheckExact(timeout) and (PyBool_Check(timeout) or not hasattr(timeout, "__float__")):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__} ({_shown(timeout)})")
    try:
        seconds = timeout
    except OverflowError:
        seconds = -1.0
    if not seconds >= 0.0:
        raise ValueError(f"timeout must be seconds from 0 on, or None, not {_shown(timeout)}")
    return seconds


cdef uint64_t to_most(object max_waiting) except? 0:
    """Convert max_waiting: None is no bound."""
    return NO_BOUND if max_waiting is None else <uint64_t>to_units(max_waiting, "max_waiting", 0)


cdef object new_lock():
    """Return a lock that is taken: who acquires it sleeps until another thread releases it."""
    lock = allocate_lock()
    lock.acquire()
    return lock


@cython.no_gc_clear
cdef class Line:
    """The calls of this process that wait for the same caps with the same headroom, oldest first: threads and tasks.

    Only the oldest tries, and sleeps in the kernel when it was refused. All tasks together have one thread, the watcher, that
    does so for whichever of them is the oldest; it is there while any of them waits.
    """

    cdef GateCore gate
    cdef tuple key
    cdef object queue
    cdef Py_ssize_t tasks  # how many in the queue are
    cdef bint watched  # there is a watcher
    cdef object baton  # what it sleeps on while a thread is the oldest; None until there is a watcher
    cdef bint called  # the baton was released and not taken since
    cdef int asleep  # the cap that the watcher sleeps on in the kernel, or -1

    def __cinit__(self, GateCore gate, tuple key):
        self.gate, self.key, self.queue, self.asleep = gate, key, deque(), -1

    cdef int rouse(self) except -1:
        """Let the oldest know that it is: it tries at once, for it may want less than the one before."""
        cdef Waiter oldest
        if not self.queue:
            return 0
        oldest = self.queue[0]
        if oldest.future is None:
            oldest.call()
        else:
            self.call()
        return 0

    cdef int call(self) except -1:
        """Get the watcher to look, wherever it sleeps."""
        if self.watched and not self.called:
            self.called = True
            self.baton.release()
        if self.asleep >= 0:
            self.gate.wake(self.asleep)
        return 0

    cdef int disperse(self) except -1:
        """The gate was closed: wake the oldest, who finds that out and leaves; and so on down the line."""
        self.call()
        if self.queue:
            self.rouse()
            self.gate.wake((<Waiter>self.queue[0]).cap)
        return 0

    cdef int retire(self) except -1:
        """Forget the line if nobody stands in it."""
        if not self.queue and not self.watched and self.gate.lines.get(self.key) is self:
            del self.gate.lines[self.key]
        return 0

    def next_task(self):
        """Return the oldest waiter once it is a task; None, and the watcher ends, if there is no task any more."""
        cdef bint roused = False, alone = False
        cdef Waiter oldest
        while True:
            with cython.critical_section(self.gate):
                self.called = self.called and not roused
                if self.queue:
                    oldest = self.queue[0]
                    if oldest.future is not None:
                        return oldest
                if not self.tasks and (alone or self.gate._closed):
                    self.watched = False
                    self.retire()
                    return None
            roused = self.baton.acquire(True, -1 if self.tasks else LINGER)
            alone = not roused


@cython.no_gc_clear
cdef class Waiter:
    """One call that may have to wait: what it asks for, its place in line, and the permit that it is granted."""

    cdef readonly GateCore gate
    cdef readonly double timeout  # seconds
    cdef public object future  # of a task; None for a thread
    cdef unsigned long thread  # 0 for a task
    cdef PermitCore permit
    cdef tuple key  # of its line
    cdef cap_ask asks[32]
    cdef uint32_t turns[32]
    cdef uint64_t most
    cdef Line line  # None: not in line
    cdef uint32_t cap  # that refused it last
    cdef bint counted  # as waiting for that cap
    cdef uint32_t forks
    cdef object lock  # of a thread: what it sleeps on until it is the oldest; None if it was that from the start
    cdef bint called
    cdef bint patient  # it has slept before
    cdef bint taken

    cdef int call(self) except -1:
        if self.lock is not None and not self.called:
            self.called = True
            self.lock.release()
        return 0

    def join(self, watch=None):
        """Try, and get in line if that is refused; tell whether it was granted.

        Raises GateFull if it could never fit or if as many wait as may. watch is run in a thread for a line of tasks.
        """
        with cython.critical_section(self.gate):
            return self.enter(watch)

    cdef bint enter(self, watch) except -1:
        cdef GateCore gate = self.gate
        cdef Line line
        cdef Py_ssize_t place
        gate._ready()
        self.forks = owner_forks()
        if gate_too_large(&gate.c, self.asks, &self.cap):
            raise self.refused(GATE_TOO_LARGE)
        if gate.line_forks != owner_forks():  # those of our parent are not ours
            gate.lines, gate.line_forks = {}, owner_forks()
        line = gate.lines.get(self.key)
        place = self.place_in(line)
        if place and self.timeout > 0.0:
            self.cap = (<Waiter>line.queue[0]).cap
        elif self.grant():
            return True
        elif self.timeout == 0.0:
            raise self.refused(GATE_FULL)
        if line is None:
            line = Line(gate, self.key)
        if self.future is not None:
            line.baton = line.baton or new_lock()
        elif place:
            self.lock, self.called = new_lock(), False
        if not gate_wait_enter(&gate.c, self.cap, self.most):
            raise self.refused(GATE_FULL)
        self.counted = True
        gate.lines[self.key] = line
        self.line = line
        line.queue.insert(place, self)
        if self.future is None:
            return False
        line.tasks += 1
        if not line.watched:
            start_new_thread(watch, (line,))
            line.watched = True
        elif line.queue[0] is self:
            line.call()
        return False

    cdef Py_ssize_t place_in(self, Line line) except -1:
        """Return how many stand before it: all, but where a signal handler waits, only those before the wait that it
        interrupted, which cannot go on before the handler has returned."""
        cdef Py_ssize_t place = 0
        cdef Waiter other
        if line is None:
            return 0
        if self.thread:
            for other in line.queue:
                if other.thread == self.thread:
                    return place
                place += 1
        return len(line.queue)

    def attempt(self):
        """Try if it is this one's turn, and leave the line if it was granted; tell whether it was.

        Raises GateFull if it could not fit any more, for the limit was lowered; GateClosed.
        """
        cdef GateCore gate = self.gate
        with cython.critical_section(gate):
            gate._ready()
            if self.forks != owner_forks():  # we are a child that was forked from the middle of this
                self.line = None
                self.lock = None
                self.counted = False
                return self.enter(None)
            if self.line is None:  # it has left, since its task was cancelled
                return False
            if self.line.queue[0] is not self:
                return False
            if gate_too_large(&gate.c, self.asks, &self.cap):
                raise self.refused(GATE_TOO_LARGE)
            if not self.grant():
                return False
            self.step_out()
            return True

    cdef bint grant(self) except -1:
        """Try; if it is refused, `cap` is which cap did, and its turn the one to sleep on."""
        cdef GateCore gate = self.gate
        cdef uint32_t cap = self.cap
        if gate_reserve_or_wait(&gate.c, self.asks, self.turns, &cap) == CAP_DONE:
            self.permit.forks = owner_forks()
            self.permit.held = True
            return True
        if self.counted and cap != self.cap:
            gate_wait_leave(&gate.c, self.cap)
            gate_wait_enter(&gate.c, cap, NO_BOUND)
        self.cap = cap
        return False

    def sleep(self, double seconds):
        """Sleep until a try may succeed, but no longer than that, and now and then for no reason."""
        cdef Line line = self.line
        cdef cap_t shared
        cdef uint32_t seen
        cdef uint64_t nanoseconds = WAIT_SLICE
        cdef bint first = not self.patient
        if line is None:
            return
        if line.queue[0] is not self:
            self.lock.acquire(True, min(seconds, FORK_LOOK))
            return
        if first and not self.gate.c.hard:
            nanoseconds = WAIT_FIRST_LOOK
        self.patient = True
        if seconds * 1e9 < nanoseconds:
            nanoseconds = <uint64_t>(seconds * 1e9) + 1
        shared = segment_cap(&self.gate.segment.c, self.cap)
        seen = self.turns[self.cap]
        if self.future is not None:
            line.asleep = self.cap
        with nogil:
            if not (first and wait_spin(shared.shared, seen, WAIT_SPIN)):
                wait_sleep(shared.shared, seen, nanoseconds)
        if self.future is not None:
            line.asleep = -1

    cdef int stay(self) except -1:
        """Wait as a thread does, until it is granted; raises what ends it."""
        cdef double end = monotonic() + self.timeout, left
        while True:
            left = end - <double>monotonic()
            if left <= 0.0:
                raise self.time_up()
            self.sleep(left)
            PyErr_CheckSignals()
            if self.attempt():
                return 0

    def expire(self):
        """Leave the line because the time is up; too late if it was granted in this moment."""
        with cython.critical_section(self.gate):
            if not self.permit.held:
                self.step_out()

    def time_up(self):
        """Leave the line because the time is up, count that, and return the error."""
        with cython.critical_section(self.gate):
            self.gate._open()
            self.step_out()
            return self.refused(GATE_TIMEOUT)

    @property
    def granted(self):
        """Whether it was granted."""
        return self.permit.held

    cdef object refused(self, gate_reason why):
        cdef GateCore gate = self.gate
        if owner_is_mine(&gate.c.owner):
            gate_refuse(&gate.c, self.cap, why)
        if why == GATE_TIMEOUT:
            return GateTimeout(*gate.state_of(self.cap), self.asks[self.cap].n, self.timeout)
        return GateFull(*gate.state_of(self.cap), self.asks[self.cap].n, self.asks[self.cap].headroom)

    def take(self):
        """Return the permit, which is the caller's from now on."""
        self.taken = True
        return self.permit

    def leave(self):
        """Get out of line, and give back what was granted and not taken. Does nothing a second time."""
        with cython.critical_section(self.gate):
            self.step_out()
            if self.permit.held and not self.taken and self.permit.forks == owner_forks():
                self.permit._give_back()

    cdef int step_out(self) except -1:
        cdef Line line = self.line
        cdef bint first
        if line is None:
            return 0
        self.line = None
        first = line.queue[0] is self
        line.queue.remove(self)
        line.tasks -= self.future is not None
        if self.counted and self.forks == owner_forks() and owner_is_mine(&self.gate.c.owner):
            gate_wait_leave(&self.gate.c, self.cap)
        self.counted = False
        if first:
            line.rouse()
        line.retire()
        return 0
