# What the compiled core offers to _core.pyx. Structs stay opaque but for the fields that are converted.

from libc.stdint cimport UINT64_MAX as NO_BOUND
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.types cimport mode_t

cdef extern from "layout.h" nogil:
    enum:
        LAYOUT_PLAIN
        LAYOUT_HARD
        LAYOUT_APPROXIMATE
        LAYOUT_WORDS_PER_LINE
        LAYOUT_MAX_SLOTS
        LAYOUT_MAX_CAPS
        LAYOUT_CAP_NAME
    const int64_t LAYOUT_MAX_LIMIT
    const uint64_t LAYOUT_MAX_WORDS
    struct layout_cap_t "layout_cap":
        char name[32]

cdef extern from "counters.h" nogil:
    ctypedef int64_t word_t "_Atomic int64_t"
    word_t *counter_at(word_t *counters, uint64_t slot)
    int64_t counter_load(const word_t *counter)
    void counter_store(word_t *counter, int64_t count)
    int64_t counters_sum(const word_t *counters, uint64_t slots)
    bint counters_fit(const word_t *counters, uint64_t slots, int64_t n, int64_t limit, int64_t *sum)

cdef extern from "cap.h" nogil:
    const int64_t CAP_UNBOUNDED
    struct cap_t "cap":
        layout_cap_t *shared
    struct cap_ask:
        uint32_t n, bound
        int64_t headroom
    enum cap_result:
        CAP_DONE
    cap_ask cap_units(uint32_t n)
    void cap_initialise(const cap_t *cap, const char *name, uint32_t limit)
    void cap_set_limit(const cap_t *cap, uint32_t limit)
    uint32_t cap_limit(const cap_t *cap)
    uint32_t cap_total(const cap_t *cap)
    uint32_t cap_held(const cap_t *cap, uint32_t slot)

cdef extern from "segment.h" nogil:
    const char *SEGMENT_DIRECTORY
    struct shape_t "segment_shape":
        uint32_t slots, caps
        uint64_t words
        uint32_t mode
    struct segment_t "segment":
        unsigned char *base
        uint64_t size
        shape_t shape
        int fd
    enum segment_result:
        SEGMENT_OK
        SEGMENT_SYSTEM
    const char *segment_explain(segment_result result)
    segment_result segment_create(segment_t *segment, const shape_t *shape, const char *path, mode_t permissions)
    segment_result segment_publish(segment_t *segment, const char *path)
    segment_result segment_open(segment_t *segment, const char *path, int timeout_ms)
    segment_result segment_attach(segment_t *segment, int fd)
    segment_result segment_unlink(const segment_t *segment, const char *path)
    void segment_close(segment_t *segment)
    word_t *segment_counters(const segment_t *segment, uint32_t cap)
    word_t *segment_words(const segment_t *segment)
    cap_t segment_cap(const segment_t *segment, uint32_t index)

cdef extern from "owner.h" nogil:
    struct owner_t "owner":
        int slot
    enum owner_result:
        OWNER_OK
        OWNER_MOVING
        OWNER_SYSTEM
    struct owner_info_t "owner_info":
        uint32_t pid
        bint alive
        uint64_t generation, claimed_at
    bint owner_is_mine(const owner_t *owner)
    bint owner_look(owner_t *owner, uint32_t slot, owner_info_t *info)
    uint64_t owner_clock()
    uint32_t owner_forks()

cdef extern from "gate.h" nogil:
    const int GATE_ANY_SLOT
    struct gate_t "gate":
        owner_t owner
        bint hard
    struct statistics_t "gate_statistics":
        uint64_t in_flight, limit, peak, admitted, refused, reclaimed, repairs, waiting, timeouts, too_large
    struct gate_calls_t "gate_calls":
        uint64_t admitted, refused, waiting
    gate_calls_t gate_calls(const segment_t *segment, uint32_t cap, uint32_t slot)
    enum gate_reason:
        GATE_FULL
        GATE_TIMEOUT
        GATE_TOO_LARGE
    void gate_initialise(gate_t *gate, const segment_t *segment)
    owner_result gate_claim(gate_t *gate, int slot)
    cap_result gate_reserve(gate_t *gate, uint32_t cap, cap_ask ask)
    cap_result gate_release(gate_t *gate, uint32_t cap, uint32_t n)
    cap_result gate_reserve_all(gate_t *gate, const cap_ask *asks, uint32_t *refused_by)
    cap_result gate_reserve_or_wait(gate_t *gate, const cap_ask *asks, uint32_t *turns, uint32_t *refused_by)
    bint gate_too_large(const gate_t *gate, const cap_ask *asks, uint32_t *refused_by)
    bint gate_wait_enter(gate_t *gate, uint32_t cap, uint64_t most)
    void gate_wait_leave(gate_t *gate, uint32_t cap)
    void gate_refuse(gate_t *gate, uint32_t cap, gate_reason why)
    cap_result gate_take(gate_t *gate, uint32_t cap, cap_ask ask)
    uint32_t gate_reclaim(gate_t *gate)
    uint32_t gate_held(const gate_t *gate, uint32_t cap)
    word_t *gate_counter(const gate_t *gate, uint32_t cap)
    void gate_close(gate_t *gate)
    void gate_statistics(const segment_t *segment, uint32_t cap, statistics_t *statistics)

cdef extern from "wait.h" nogil:
    const uint64_t WAIT_SLICE
    const uint64_t WAIT_FIRST_LOOK
    const uint64_t WAIT_SPIN
    enum wait_result:
        WAIT_MOVED
    bint wait_spin(const layout_cap_t *cap, uint32_t seen, uint64_t nanoseconds)
    wait_result wait_sleep(const layout_cap_t *cap, uint32_t seen, uint64_t nanoseconds)
    void wait_wake(layout_cap_t *cap)

cdef extern from "tally.h" nogil:
    struct tally_t "tally":
        int64_t counted, reserved
    int64_t tally_reserve(tally_t *tally, int64_t n)
    int64_t tally_release(tally_t *tally, int64_t n)
    int64_t tally_count(tally_t *tally, int64_t count)
    void tally_charge(gate_t *gate, uint32_t cap, int64_t word)

cdef extern from "atomics.h" nogil:
    int64_t atomics_peek(const word_t *word)
    void atomics_poke(word_t *word, int64_t value)
    int64_t atomics_load(const word_t *word)
    void atomics_store(word_t *word, int64_t value)
    int64_t atomics_fetch_add(word_t *word, int64_t n)
    int64_t atomics_exchange(word_t *word, int64_t value)
    bint atomics_compare_exchange(word_t *word, int64_t expected, int64_t desired)
