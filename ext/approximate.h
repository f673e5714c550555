/* approximate.h - a cap decided by the sum of its counters: check the sum, then publish.
 *
 * Nothing is shared but the counters, each with one writer. Two processes that check at once may both get the last
 * place: between a check and the publication that follows (gate.c), each other process may add one grant of its own,
 * and that is the bound of the overshoot. What a slot holds stands in its ledger.
 *
 * THE PEAK
 *
 * Nobody who checks sees the overshoot that he is part of. It is noted by the next that asks, granted or refused: the
 * sum that he finds is over the limit. But a sum is no snapshot. Units that one process gave back, and another was then
 * granted, may be in it twice, and would look like an overshoot that never was. So such a sum is noted only if it is
 * taken once more between two looks at the admissions of all slots which find the same.
 *
 * An admission is counted before its units are published (release), and the counters are read between the looks
 * (acquire). So units that the sum has were counted by the second look, hence by the first: when that was over, all of
 * them had been granted, and none was published as given back. Whatever came back later is missing from the sum.
 * An overshoot that comes and goes between two calls, or while grants come all the time, is not noted.
 */
#ifndef GATECOUNT_APPROXIMATE_H
#define GATECOUNT_APPROXIMATE_H

#include "cap.h"
#include "counters.h"

/* A sum, from 0 to LAYOUT_MAX_LIMIT: a host may have written anything into the counters. */
static inline uint64_t approximate_clamped(int64_t sum)
{
    return sum < 0 ? 0 : sum > LAYOUT_MAX_LIMIT ? LAYOUT_MAX_LIMIT : (uint64_t)sum;
}

/* Return the sum of a cap's counters, which is no snapshot. Relaxed. */
static inline uint64_t approximate_total(const struct cap *cap, const _Atomic int64_t *counters)
{
    return approximate_clamped(counters_sum(counters, cap->slots));
}

static inline uint64_t approximate_admissions(const struct cap *cap)
{
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < cap->slots; slot++)
        /* acquire: what is read after it is no older */
        sum += atomic_load_explicit(&cap->ledgers[slot].admitted, memory_order_acquire);
    return sum;
}

/* Return a total that was in flight at one instant; 0 if somebody was granted meanwhile. */
static inline uint64_t approximate_proven_total(const struct cap *cap, const _Atomic int64_t *counters)
{
    uint64_t admissions = approximate_admissions(cap), sum = 0;
    for (uint64_t slot = 0; slot < cap->slots; slot++)
        /* acquire pairs with the release of each publication */
        sum += (uint64_t)atomic_load_explicit(counters + slot * LAYOUT_WORDS_PER_LINE, memory_order_acquire);
    return approximate_admissions(cap) == admissions ? approximate_clamped((int64_t)sum) : 0;
}

/* Apart, so that a grant need not carry it. */
static __attribute__((noinline, unused)) void approximate_note_overshoot(const struct cap *cap,
                                                                         const _Atomic int64_t *counters,
                                                                         struct layout_ledger *mine)
{
    cap_note_peak(mine, approximate_proven_total(cap, counters));
}

/* Tell whether an ask fits; *total gets the sum. Writes nothing but the caller's peak. */
static inline bool approximate_fits(const struct cap *cap, const _Atomic int64_t *counters,
                                    struct layout_ledger *mine, struct cap_ask ask, uint64_t *total)
{
    uint32_t limit = cap_limit(cap);
    *total = approximate_total(cap, counters);
    /* relaxed: a statistic of our own */
    if (__builtin_expect(*total > limit, 0) && *total > atomic_load_explicit(&mine->peak, memory_order_relaxed))
        approximate_note_overshoot(cap, counters, mine);
    return cap_fits(ask, *total, limit);
}

/* Reserve in a slot's ledger; the slot's owner only, who then counts the admission and publishes. */
static inline enum cap_result approximate_reserve(const struct cap *cap, const _Atomic int64_t *counters,
                                                  uint32_t slot, struct cap_ask ask)
{
    struct layout_ledger *mine = &cap->ledgers[slot];
    uint64_t total;
    if (!approximate_fits(cap, counters, mine, ask, &total))
        return CAP_REFUSED;
    /* relaxed: read by others as a statistic only */
    atomic_store_explicit(&mine->held, cap_held(cap, slot) + ask.n, memory_order_relaxed);
    cap_note_peak(mine, total + ask.n);
    return CAP_DONE;
}

/* Release in a slot's ledger; the slot's owner only, who then publishes. */
static inline enum cap_result approximate_release(const struct cap *cap, uint32_t slot, uint32_t n)
{
    uint32_t held = cap_held(cap, slot);
    if (n > held)
        return CAP_NOT_HELD;
    /* relaxed: as above */
    atomic_store_explicit(&cap->ledgers[slot].held, held - n, memory_order_relaxed);
    return CAP_DONE;
}

/* Take back all that a slot holds, and return how much that was; whoever has the right to recover the slot. */
static inline uint32_t approximate_recover(const struct cap *cap, uint32_t slot)
{
    uint32_t held = cap_held(cap, slot);
    atomic_store_explicit(&cap->ledgers[slot].held, 0, memory_order_relaxed); /* relaxed: freeing the slot orders it */
    return held;
}

#endif
