/* gate.h - one process's use of a segment: a claimed slot, and reserves under one or several caps in either mode.
 *
 * The layer in which the parts meet. A hard cap decides by its state word (cap.h), an approximate one by the sum of
 * the counters (counters.h); either way the slot's ledger says what it holds and its counters show that. When a
 * reserve is about to be refused, the dead are reclaimed first (owner.h), at most every SWEEP_INTERVAL and never for
 * more than a fiftieth of the time, so that a flood of refusals does not become a flood of system calls.
 *
 * Several caps are reserved in their order, and those already granted are released if a later one refuses. To keep
 * such a passing grant from being seen by rivals, no cap is touched while one of them is visibly too full.
 *
 * A process killed at any instruction leaves each ledger recoverable on its own; between two caps it leaves one
 * granted and one not, and recovery gives back what was granted.
 *
 * A struct gate is used by one thread at a time: the caller's lock, or the GIL, sees to that. It must not move.
 */
#ifndef GATECOUNT_GATE_H
#define GATECOUNT_GATE_H

#include "owner.h"

#define GATE_ANY_SLOT (-1)

struct gate {
    const struct segment *segment;
    bool hard;
    struct owner owner;
    uint64_t sweep_after; /* coarse monotonic nanoseconds */
    struct cap caps[LAYOUT_MAX_CAPS];
    _Atomic int64_t *counters[LAYOUT_MAX_CAPS]; /* slot 0's, per cap */
};

/* What people want to know of a cap. Units, but for admitted, refused and waiting, which count calls. Of those refused,
 * so many were because their time was up or because they were too large; the others, because the cap was full. */
struct gate_statistics {
    uint64_t in_flight, limit, peak, admitted, refused, reclaimed, repairs, waiting, timeouts, too_large;
};

/* What one slot's owners have called: admitted and refused since the segment was made, waiting now. */
struct gate_calls {
    uint64_t admitted, refused, waiting;
};

/* Why a call was refused. */
enum gate_reason {
    GATE_FULL,
    GATE_TIMEOUT,   /* it waited, and its time was up */
    GATE_TOO_LARGE, /* it would not fit if nothing were in flight */
};

/* Prepare to use a segment that has caps; it must outlive the gate. Claims nothing. */
void gate_initialise(struct gate *gate, const struct segment *segment);

/* Claim that slot, or any free one (GATE_ANY_SLOT), reclaiming dead owners on the way. OWNER_TAKEN if it, or each of
 * them, has an owner not known to be dead; OWNER_MOVING if one may be free in a moment: call again. Never waits. */
enum owner_result gate_claim(struct gate *gate, int slot);

/* Reserve under one cap. The gate has a slot (owner_is_mine). */
enum cap_result gate_reserve(struct gate *gate, uint32_t cap, struct cap_ask ask);

/* Give back n >= 1 of one cap; CAP_NOT_HELD if the slot holds fewer. The gate has a slot. */
enum cap_result gate_release(struct gate *gate, uint32_t cap, uint32_t n);

/* Reserve what asks[i] says of each cap i, none where its n is 0, all or nothing; *refused_by gets the cap that
 * refused. */
enum cap_result gate_reserve_all(struct gate *gate, const struct cap_ask *asks, uint32_t *refused_by);

/* Reserve as much of n as fits and return how much that was: not an admission, so not counted as one. */
uint32_t gate_reserve_up_to(struct gate *gate, uint32_t cap, uint32_t n);

/* Reserve or release as above, counting admissions and refusals but leaving the visible counter alone: for a caller
 * that publishes more than what the slot holds (tally.h). */
enum cap_result gate_take(struct gate *gate, uint32_t cap, struct cap_ask ask);
enum cap_result gate_give(struct gate *gate, uint32_t cap, uint32_t n);

/* Reserve as gate_reserve_all does, for a caller that waits if it is refused: that is not counted as a refusal, and
 * turns[*refused_by] gets the turn to sleep on (wait_sleep); turns is NULL if it will try once more before that. */
enum cap_result gate_reserve_or_wait(struct gate *gate, const struct cap_ask *asks, uint32_t *turns,
                                     uint32_t *refused_by);

/* Tell whether what is asked could not be granted even if nothing were in flight; *refused_by gets the first such cap. */
bool gate_too_large(const struct gate *gate, const struct cap_ask *asks, uint32_t *refused_by);

/* Count one more caller that waits for a cap, unless `most` do already, over all processes (UINT64_MAX: no bound). There
 * are never more; of processes that want the last place at one instant all may be refused it. The gate has a slot. */
bool gate_wait_enter(struct gate *gate, uint32_t cap, uint64_t most);

/* Count one fewer. The gate has the slot that it had. */
void gate_wait_leave(struct gate *gate, uint32_t cap);

/* Count a refusal that no reserve has counted. The gate has a slot. */
void gate_refuse(struct gate *gate, uint32_t cap, enum gate_reason why);

/* Recover the slots of all owners proved dead, wake who waits, and return how many owners there were. */
uint32_t gate_reclaim(struct gate *gate);

/* Give back everything the slot holds, its callers' places in line too, and free it. */
void gate_close(struct gate *gate);

void gate_statistics(const struct segment *segment, uint32_t cap, struct gate_statistics *statistics);

/* Read a slot's counts of calls. Relaxed: statistics, each true by itself. */
static inline struct gate_calls gate_calls(const struct segment *segment, uint32_t cap, uint32_t slot)
{
    const struct layout_ledger *ledger = &segment_cap(segment, cap).ledgers[slot];
    return (struct gate_calls){
        .admitted = atomic_load_explicit(&ledger->admitted, memory_order_relaxed),
        .refused = atomic_load_explicit(&ledger->full, memory_order_relaxed) +
                   atomic_load_explicit(&ledger->not_full, memory_order_relaxed),
        .waiting = atomic_load_explicit(&ledger->waiting, memory_order_relaxed),
    };
}

static inline _Atomic int64_t *gate_counter(const struct gate *gate, uint32_t cap)
{
    return counter_at(gate->counters[cap], (uint32_t)gate->owner.slot);
}

static inline uint32_t gate_held(const struct gate *gate, uint32_t cap)
{
    return cap_held(&gate->caps[cap], (uint32_t)gate->owner.slot);
}

#endif
