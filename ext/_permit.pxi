# A permit: what a reserve under one or several caps gave.

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

    def _keep(self):
        """Leave the units with the process, which gives them back by `Gate.release`."""
        self.held = False

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self.forks == owner_forks():  # a child forked inside the block leaves it, too, but holds nothing
            self.release()

    def __repr__(self):
        if self.gate is None:
            return "<Permit, never granted>"
        return f"<{type(self).__name__} {dict(self.amounts)} of {self.gate!r}, {'held' if self.held else 'released'}>"
