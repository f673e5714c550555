# cython: language_level=3, freethreading_compatible=True, auto_pickle=False, autotestdict=False
# cython: embedsignature=True, embedsignature.format=clinic, binding=False
"""The compiled core: converts arguments, maps errors, owns lifetimes. The algorithm is in the C files beside it.

Methods of one object exclude each other on builds without a GIL (a critical section on the object, process-local),
which is what the C code asks of its caller. Nothing here gives up the GIL but what may wait: opening a file that is
being created, claiming a slot that is being freed, and waiting for room.

Every class that points into a mapping is no_gc_clear: the collector of cycles must not take its segment away before
__dealloc__ has freed its slot, or while a finalizer may still use it. None of them can be a cycle by itself.
"""

cimport cython
from cpython.bool cimport PyBool_Check
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer)
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyNumber_AsSsize_t, PyNumber_Index
from cpython.ref cimport PyObject
from libc.errno cimport errno
from libc.string cimport memset

include "_c.pxi"

import os
import reprlib
import time
import warnings
import weakref
from _thread import allocate_lock, start_new_thread
from collections import deque
from types import MappingProxyType, MethodDescriptorType

from gatecount.errors import (
    GateClosed, GateFull, GateTimeout, LayoutMismatch, NotOwner, SlotsExhausted, UnknownCap)

cdef extern from "string.h":
    size_t strnlen(const char *text, size_t size)

cdef extern from "Python.h":
    int64_t as_int64 "PyLong_AsLongLongAndOverflow"(object value, int *overflow) except? -1

cdef extern from "Python.h":
    ctypedef struct PyTypeObject
    ctypedef struct PyMethodDef
    ctypedef struct PyMethodDescrObject:
        PyMethodDef *d_method
    object PyDescr_NewMethod(PyTypeObject *cls, PyMethodDef *method)


def adopt(cls):
    """Give a class methods of its own made from those that it inherits from a class of this module; a decorator.

    CPython calls a compiled method directly, without a bound method in between, only if the object is of the very
    class that the method was made for. This saves a fifth of the time of a reserve.
    """
    for base in cls.__mro__[1:]:
        for name, method in vars(base).items():
            if isinstance(method, MethodDescriptorType) and not name.startswith("__") and name not in vars(cls):
                setattr(cls, name, PyDescr_NewMethod(<PyTypeObject *>cls, (<PyMethodDescrObject *>method).d_method))
    return cls


MAX_SLOTS = LAYOUT_MAX_SLOTS
MAX_CAPS = LAYOUT_MAX_CAPS
MAX_LIMIT = LAYOUT_MAX_LIMIT
MAX_WORDS = LAYOUT_MAX_WORDS
MAX_CAP_NAME = LAYOUT_CAP_NAME - 1
WORDS_PER_SLOT = LAYOUT_WORDS_PER_LINE
DIRECTORY = SEGMENT_DIRECTORY.decode()
MODES = {"hard": LAYOUT_HARD, "approximate": LAYOUT_APPROXIMATE, "plain": LAYOUT_PLAIN}

cdef object _mode_names = {number: name for name, number in MODES.items()}


cdef str _shown(value):
    """Return how a value looks in a message, however large it is and whatever its repr does."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)


cdef object _index(value, str name):
    """Return value as an int; a bool or what has no __index__ raises TypeError."""
    if not PyBool_Check(value):
        try:
            return PyNumber_Index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(value).__name__} ({_shown(value)})")


def check_int(value, str name, int64_t low, int64_t high):
    """Return value if it is an int, not a bool, from low to high; else raise TypeError or ValueError with the rule."""
    cdef int overflow = 0
    cdef int64_t number
    value = _index(value, name)
    number = as_int64(value, &overflow)
    if overflow or number < low or number > high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {_shown(value)}")
    return number


cdef object _one = 1
cdef PyObject *ONE = <PyObject *>_one  # the interpreter has one object for it: most calls need no conversion
cdef object _zero = 0
cdef PyObject *ZERO = <PyObject *>_zero


cdef inline int64_t to_units(object value, str name, int64_t low) except -1:
    """Convert a count of units: from low, which is 0 or 1, to MAX_LIMIT."""
    return 1 if <PyObject *>value == ONE else convert_units(value, name, low)


cdef int64_t convert_units(object value, str name, int64_t low) except -1:
    cdef int overflow = 0
    cdef int64_t number
    if PyLong_CheckExact(value):
        number = as_int64(value, &overflow)
        if not overflow and low <= number <= LAYOUT_MAX_LIMIT:
            return number
    return check_int(value, name, low, LAYOUT_MAX_LIMIT)


cdef inline int64_t to_word(object value) except? -1:
    """Convert what is to be stored in a word, as RawArray does, but for values that do not fit: OverflowError."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(value):
        value = PyNumber_Index(value)
    number = as_int64(value, &overflow)
    if overflow:
        raise OverflowError(f"a word has 64 bits: {_shown(value)} does not fit")
    return number


def forks():
    """Return how many forks lie between the first process of this program and this one."""
    return owner_forks()


cdef object _failure(segment_result result, str name):
    """Return the error for a failed segment call; errno is still its."""
    if result == SEGMENT_SYSTEM:
        return OSError(errno, os.strerror(errno), name)
    return LayoutMismatch(name, segment_explain(result).decode())


@cython.no_gc_clear
cdef class Segment:
    """A mapped segment. Unmapped when the last object that uses it is gone; never before."""

    cdef segment_t c
    cdef readonly tuple caps  # names
    cdef object __weakref__

    def __cinit__(self):
        memset(&self.c, 0, sizeof(self.c))
        self.c.fd = -1

    def __dealloc__(self):
        segment_close(&self.c)

    @staticmethod
    def create(path, uint32_t slots, list limits, uint64_t words, uint32_t mode, uint32_t permissions):
        """Create a segment; path is None or bytes; limits a list of (name: bytes, limit). Arguments were checked."""
        cdef Segment self = Segment()
        cdef shape_t shape = [slots, <uint32_t>len(limits), words, mode]
        cdef const char *at = NULL
        cdef segment_result result
        cdef cap_t shared
        cdef str shown = "the anonymous segment" if path is None else os.fsdecode(path)
        if path is not None:
            at = path
        result = segment_create(&self.c, &shape, at, permissions)
        if result != SEGMENT_OK:
            raise _failure(result, shown)
        for i, (name, limit) in enumerate(limits):
            shared = segment_cap(&self.c, i)
            cap_initialise(&shared, name, limit)
        result = segment_publish(&self.c, at)
        if result != SEGMENT_OK:
            raise _failure(result, shown)
        return self._named()

    @staticmethod
    def open(bytes path, int timeout_ms):
        """Open the segment under a path."""
        cdef Segment self = Segment()
        cdef const char *at = path
        cdef segment_result result
        with nogil:
            result = segment_open(&self.c, at, timeout_ms)
        if result != SEGMENT_OK:
            raise _failure(result, os.fsdecode(path))
        return self._named()

    @staticmethod
    def attach(int fd):
        """Map an inherited descriptor and own it."""
        cdef Segment self = Segment()
        cdef segment_result result
        os.set_inheritable(fd, False)
        result = segment_attach(&self.c, fd)
        if result != SEGMENT_OK:
            raise _failure(result, "the inherited segment")
        return self._named()

    cdef Segment _named(self):
        cdef cap_t shared
        names = []
        for i in range(self.c.shape.caps):
            shared = segment_cap(&self.c, i)
            names.append(shared.shared.name[:strnlen(shared.shared.name, LAYOUT_CAP_NAME)].decode(errors="replace"))
        self.caps = tuple(names)
        return self

    @property
    def fd(self):
        return self.c.fd

    @property
    def size(self):
        return self.c.size

    @property
    def slots(self):
        return self.c.shape.slots

    @property
    def words(self):
        return self.c.shape.words

    @property
    def mode(self):
        return _mode_names[self.c.shape.mode]

    def unlink(self, bytes path):
        """Remove the name if it still is this segment's; else raise FileNotFoundError."""
        cdef segment_result result = segment_unlink(&self.c, path)
        if result != SEGMENT_OK:
            raise _failure(result, os.fsdecode(path))


include "_words.pxi"
include "_gate.pxi"
include "_permit.pxi"
include "_wait.pxi"
include "_stats.pxi"
