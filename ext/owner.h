/* owner.h - claim a slot; prove its owner dead; win the right to reclaim it.
 *
 * A false "dead" hands out permits twice, so only proof counts, and "cannot tell" means alive. Either proof will do:
 *
 *   1. The kernel says so. An owner holds an open-file-description lock on one byte of the segment, at its slot's
 *      offset, through a descriptor that nobody else shares. The kernel drops it when the process is gone, however
 *      it went; it works across PID namespaces and knows nothing of pids that could be reused. Taking that lock is
 *      the proof, and keeps other reclaimers away while it is held.
 *   2. Within one PID and time namespace: no process has that pid. This also finds an owner whose lock lives on in a
 *      child that was not forked through fork(3). For an owner that could not get a lock (no /proc, no such locks, no
 *      permission to open the file again) also: the process that has that pid started at another time. Where there is
 *      a lock it is believed: a start time read under an emulator or a foreign /proc need not be the true one.
 *
 * The idea of slots guarded by kernel locks is that of LMDB's reader table.
 *
 * The owner word packs
 *
 *     63  62 61     60       39 38            0
 *     +------+------+----------+---------------+
 *     | role | lock |   pid    |  start time   |
 *     +------+------+----------+---------------+
 *
 * role free, claiming, live or reclaiming; whether the process named here took the byte lock before it wrote the
 * word; its pid; the low bits of its start in clock ticks since boot (0: unknown). A word of 0 is a free slot.
 *
 *     free --claim--> claiming --> live --release--> free
 *                        |          |
 *                        +--death---+--> reclaiming --> free
 *                                           ^   |
 *                                           +---+ death of the reclaimer: the next one takes over
 *
 * Every arrow out of a word is one compare-and-swap from the exact identity that was proved dead, or a store by the
 * process that the word names. The lock is always taken before the word is written and dropped after it, so "locked"
 * in a word means: dead as soon as the lock can be had.
 *
 * Not guaranteed. A process that closes all its descriptors, as some do to become daemons, drops its locks: do that
 * before the first claim. (Whoever does it later is taken for dead. Whoever did it before gets no lock unless the
 * segment's own descriptor survived, and is proved dead by its pid.)
 *
 * Fork. A child inherits the descriptor and with it the lock, so that the parent's death would go unseen while the
 * child lives. Therefore a handler closes the child's copies, and counts the fork: a claim made before it is not the
 * child's (owner_is_mine).
 */
#ifndef GATECOUNT_OWNER_H
#define GATECOUNT_OWNER_H

#include <stdbool.h>

#include "segment.h"

#define OWNER_NONE (-1) /* no slot */

/* One claim on a segment: a slot, and the descriptor whose lock guards it. Registered while the descriptor is open,
 * so that a fork can find it; must not move in memory. */
struct owner {
    const struct segment *segment;
    int slot; /* OWNER_NONE: none claimed */
    int lock_fd;
    uint32_t forks; /* owner_forks() when it was claimed */
    struct owner *next, **link;
};

enum owner_result {
    OWNER_OK = 0,
    OWNER_TAKEN,  /* by a process that is not known to be dead */
    OWNER_MOVING, /* about to be claimed or freed by another: look again */
    OWNER_SYSTEM, /* see errno */
};

/* Who a slot belongs to, as a snapshot. */
struct owner_info {
    uint32_t pid; /* in the namespace of its owner */
    bool alive;   /* false only if proved dead */
    uint64_t generation;
    uint64_t claimed_at; /* nanoseconds of the boot clock */
};

/* Prepare for claims on a segment, which must outlive it. Claims nothing, opens nothing. */
void owner_initialise(struct owner *owner, const struct segment *segment);

/* Claim this free slot for the calling process; owner has none yet (or had one before a fork).
 * Acquire on success: the last owner's books are settled. */
enum owner_result owner_claim(struct owner *owner, uint32_t slot);

/* Free the slot again; what it held was given back before. Release. */
void owner_release(struct owner *owner);

/* Close the descriptor. A slot still claimed then looks like a dead process's. */
void owner_close(struct owner *owner);

/* Win the right to reclaim a slot whose owner is proved dead; false if it is free, alive or somebody else's by now.
 * The winner recovers every cap, then calls owner_reclaimed. Acquire: the dead owner's writes are seen. */
bool owner_reclaim(struct owner *owner, uint32_t slot);

/* Free a slot that was won by owner_reclaim. Release. */
void owner_reclaimed(struct owner *owner, uint32_t slot);

/* Look at a slot without touching it; false if nobody owns it. Relaxed: a snapshot for people. */
bool owner_look(struct owner *owner, uint32_t slot, struct owner_info *info);

/* Nanoseconds since boot, on the clock of claimed_at. */
uint64_t owner_clock(void);

/* Count of forks between the first process and this one, through fork(3). */
uint32_t owner_forks(void);

/* Tell whether the slot was claimed by this very process, not by a parent that forked it. */
static inline bool owner_is_mine(const struct owner *owner)
{
    extern _Atomic uint32_t owner_fork_count;
    /* relaxed: only ever written in a child that has one thread */
    return owner->slot >= 0 &&
           owner->forks == atomic_load_explicit(&owner_fork_count, memory_order_relaxed);
}

#endif
