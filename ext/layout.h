/* layout.h - the segment, byte for byte.
 *
 * One mapping holds everything that processes share. Nothing in it is a pointer; every offset follows from the
 * three counts in the header, so a reader can check a file before it believes it.
 *
 *     offset                        size                 what
 *     0                             128                  header    who made it and how large everything is
 *     128                           64 x slots           owners    one line per slot: who owns it
 *     + 64 x slots                  128 x caps           caps      state word, limit, waiters; name
 *     + 128 x caps                  64 x slots x caps    counters  word 0 = visible count, words 1-7 the host's
 *     + 64 x slots x caps           64 x slots x caps    ledgers   the words that make every operation recoverable
 *     + 64 x slots x caps           8 x words            words     a plain array of counters (AtomicArray)
 *
 * Counters and ledgers are ordered cap by cap, so the counters of cap 0 are one array of 8 x slots words that a
 * host may index as it would index a RawArray("q"). A host that scribbles over it cannot harm a cap: nothing that
 * a cap decides by is in it.
 *
 * A line (64 bytes) is the unit that caches move. Who writes which line:
 *
 *     header    its creator, once, before anybody else can see it
 *     owner     whoever holds the slot, or holds the right to reclaim it; the word itself by compare-and-swap
 *     cap       line 0 (state, limit, turn, waiters): everybody; line 1: its creator, and whoever repairs, reclaims,
 *               or has waited in vain: nothing that happens often
 *     counter   the slot's owner; a host, if it likes
 *     ledger    the slot's owner (or its reclaimer), but for `helped`, which the owner's rivals raise
 *     words     everybody
 */
#ifndef GATECOUNT_LAYOUT_H
#define GATECOUNT_LAYOUT_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LAYOUT_LINE 64u
#define LAYOUT_WORD 8u
#define LAYOUT_WORDS_PER_LINE (LAYOUT_LINE / LAYOUT_WORD)

#define LAYOUT_MAX_SLOTS 1023u /* 10 bits in the state word; 1023 itself means "nobody" */
#define LAYOUT_MAX_CAPS 32u
#define LAYOUT_MAX_LIMIT UINT32_MAX
#define LAYOUT_MAX_WORDS (UINT64_C(1) << 40)
#define LAYOUT_CAP_NAME 32u /* bytes, the closing NUL included */

#define LAYOUT_MAGIC UINT64_C(0x31746e756f636e67) /* "gncount1" in memory on a little-endian machine */
#define LAYOUT_VERSION 3u

enum layout_mode {
    LAYOUT_PLAIN = 0,       /* words only: no slots, no caps */
    LAYOUT_HARD = 1,        /* caps decide by their state word */
    LAYOUT_APPROXIMATE = 2, /* caps decide by the sum of the counters */
};

struct layout_header {
    alignas(LAYOUT_LINE) _Atomic uint64_t magic; /* written last, with release: all below is then complete */
    uint64_t hash;                               /* LAYOUT_HASH of the program that made it */
    uint64_t size;                               /* of the whole segment, in bytes */
    uint32_t slots;
    uint32_t caps;
    uint64_t words;
    uint32_t mode; /* enum layout_mode */
    uint32_t creator_pid;
    uint8_t boot_id[16]; /* the kernel's; start times and pids mean nothing under another */
    uint64_t created_at; /* nanoseconds since the epoch */
    uint64_t reserved[7];
};

struct layout_owner {
    alignas(LAYOUT_LINE) _Atomic uint64_t word; /* role, locked, pid, start time: see owner.h */
    _Atomic uint64_t namespaces;                /* in which pid and start time mean something; 0: unknown */
    _Atomic uint64_t generation;                /* times this slot was claimed */
    _Atomic uint64_t claimed_at;                /* nanoseconds of the boot clock */
    uint64_t reserved[4];
};

struct layout_cap {
    alignas(LAYOUT_LINE) _Atomic uint64_t state; /* total:32 | slot:10 | tag:22, see cap.h */
    _Atomic uint64_t limit;                      /* 0 to LAYOUT_MAX_LIMIT */
    _Atomic uint32_t turn;                       /* how often sleepers were woken: the word they sleep on, see wait.h */
    uint32_t reserved;
    _Atomic uint64_t waiters; /* 1 if somebody may be asleep, or about to be */
    uint64_t reserved_too[4];
    alignas(LAYOUT_LINE) _Atomic uint64_t repairs; /* times an audit had to correct the total */
    _Atomic uint64_t reclaimed;                    /* units taken back from dead owners */
    _Atomic uint64_t timeouts;                     /* calls refused because their time was up */
    _Atomic uint64_t too_large;                    /* calls refused because they could never fit under the limit */
    char name[LAYOUT_CAP_NAME];
};

struct layout_counter {
    alignas(LAYOUT_LINE) _Atomic int64_t count;
    int64_t host[7];
};

struct layout_ledger {
    alignas(LAYOUT_LINE) _Atomic uint64_t op; /* (operation number - 1) x 2 + pending */
    _Atomic uint64_t held;                    /* units that the slot holds */
    _Atomic uint64_t next;                    /* what held becomes if the pending operation succeeds */
    _Atomic uint64_t helped;                  /* highest operation another process saw succeed */
    _Atomic uint64_t admitted;                /* calls granted */
    _Atomic uint64_t full;                    /* calls refused because there was no room */
    _Atomic uint64_t not_full;                /* and for another reason: told apart, or "full" were a difference that may fall */
    _Atomic uint32_t peak;                    /* highest total this slot ever brought about */
    _Atomic uint32_t waiting;                 /* calls that wait now, or whose owner died waiting */
};

/* Lock-free 64-bit atomics, or nothing here holds: a library lock would be per process. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(sizeof(_Atomic uint64_t) == LAYOUT_WORD, "an atomic word is eight bytes");
_Static_assert(sizeof(struct layout_header) == 128, "header: two lines");
_Static_assert(sizeof(struct layout_owner) == 64, "owner: one line");
_Static_assert(sizeof(struct layout_cap) == 128, "cap: two lines");
_Static_assert(sizeof(struct layout_counter) == 64, "counter: one line");
_Static_assert(sizeof(struct layout_ledger) == 64, "ledger: one line");
_Static_assert(offsetof(struct layout_header, slots) == 24 && offsetof(struct layout_header, words) == 32 &&
                   offsetof(struct layout_header, boot_id) == 48,
               "header fields stand where the map says");
_Static_assert(sizeof(_Atomic uint32_t) == 4, "the kernel's futex is four bytes");
_Static_assert(offsetof(struct layout_cap, limit) == 8 && offsetof(struct layout_cap, turn) == 16 &&
                   offsetof(struct layout_cap, waiters) == 24 && offsetof(struct layout_cap, repairs) == 64 &&
                   offsetof(struct layout_cap, name) == 96,
               "cap fields stand where the map says");
_Static_assert(offsetof(struct layout_ledger, helped) == 24 && offsetof(struct layout_ledger, waiting) == 60,
               "ledger fields stand where the map says");

/* Two programs agree on a segment only if they agree on this: version, byte order, and every size and bit width
 * that the map depends on (the odd factor spreads them; it is no cryptography). */
#define LAYOUT_MIX(hash, value) (((hash) ^ (uint64_t)(value)) * UINT64_C(0x9E3779B97F4A7C15))
#define LAYOUT_HASH                                                                                                  \
    LAYOUT_MIX(LAYOUT_MIX(LAYOUT_MIX(LAYOUT_MIX(LAYOUT_MIX(LAYOUT_VERSION, sizeof(struct layout_header)),            \
                                                sizeof(struct layout_owner)),                                        \
                                     sizeof(struct layout_cap)),                                                     \
                          sizeof(struct layout_ledger)),                                                             \
               LAYOUT_MAX_SLOTS)

static inline uint64_t layout_owners_at(void) { return sizeof(struct layout_header); }

static inline uint64_t layout_caps_at(uint32_t slots)
{
    return layout_owners_at() + (uint64_t)slots * sizeof(struct layout_owner);
}

static inline uint64_t layout_counters_at(uint32_t slots, uint32_t caps)
{
    return layout_caps_at(slots) + (uint64_t)caps * sizeof(struct layout_cap);
}

static inline uint64_t layout_ledgers_at(uint32_t slots, uint32_t caps)
{
    return layout_counters_at(slots, caps) + (uint64_t)slots * caps * sizeof(struct layout_counter);
}

static inline uint64_t layout_words_at(uint32_t slots, uint32_t caps)
{
    return layout_ledgers_at(slots, caps) + (uint64_t)slots * caps * sizeof(struct layout_ledger);
}

/* Bytes of a segment with these counts, each within its maximum (so no sum here can overflow). */
static inline uint64_t layout_size(uint32_t slots, uint32_t caps, uint64_t words)
{
    return layout_words_at(slots, caps) + words * LAYOUT_WORD;
}

#endif
