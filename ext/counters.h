/* counters.h - one visible counter per cache line.
 *
 * A counter has one writer, its slot's owner, and any number of readers. That is why plain relaxed loads and stores
 * are enough: no counter promises anything about another one, so there is nothing to order. (An approximate cap's
 * promises that what it shows was counted as admitted before: gate.c publishes it by a release.) It is also why a sum is
 * an estimate: it reads one line after the other, and a counter that was read may have moved when the last is.
 */
#ifndef GATECOUNT_COUNTERS_H
#define GATECOUNT_COUNTERS_H

#include <stdbool.h>

#include "layout.h"

/* The counter of a slot in an array of them, one line apart: a segment's, or a host's plain array, which need not be
 * aligned to more than a word. */
static inline _Atomic int64_t *counter_at(_Atomic int64_t *counters, uint64_t slot)
{
    return counters + slot * LAYOUT_WORDS_PER_LINE;
}

/* Return the count. May be stale by as long as the caller takes to look at it. Relaxed. */
static inline int64_t counter_load(const _Atomic int64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Publish a count; the slot's owner only. Relaxed: a count vouches for nothing but itself. */
static inline void counter_store(_Atomic int64_t *counter, int64_t count)
{
    atomic_store_explicit(counter, count, memory_order_relaxed);
}

/* Sum the counts of the first slots. Wraps like any 64-bit addition. Estimates: not a snapshot. Relaxed. */
static inline int64_t counters_sum(const _Atomic int64_t *counters, uint64_t slots)
{
    const uint64_t line = LAYOUT_WORDS_PER_LINE;
    uint64_t a = 0, b = 0, slot = 0; /* two sums: no addition waits for the one before */
    for (; slot + 4 <= slots; slot += 4, counters += 4 * line) {
        a += (uint64_t)counter_load(counters) + (uint64_t)counter_load(counters + line);
        b += (uint64_t)counter_load(counters + 2 * line) + (uint64_t)counter_load(counters + 3 * line);
    }
    for (; slot < slots; slot++, counters += line)
        a += (uint64_t)counter_load(counters);
    return (int64_t)(a + b);
}

/* Tell whether n >= 1 more would fit under limit by the sum of the counts: the approximate cap's whole decision.
 * Two processes may both be told yes for the last place, so between this and the publication that follows each
 * other process may add one grant of its own: that is the bound of the overshoot. *sum gets the sum. Relaxed. */
static inline bool counters_fit(const _Atomic int64_t *counters, uint64_t slots, int64_t n, int64_t limit,
                                int64_t *sum)
{
    *sum = counters_sum(counters, slots);
    return *sum <= limit - n;
}

#endif
