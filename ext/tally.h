/* tally.h - what a host publishes in its slot: requests counted, plus permits reserved and not yet counted.
 *
 * A host that tests admission before it adds a request reserves first and counts later. So its slot shows two
 * things in one word: the count that the host last published (absolute, idempotent), and the reservations that no
 * published request has used up yet. Publishing a higher count uses them up; publishing a lower one never frees them.
 *
 *     word = counted + reserved
 *
 * Over a plain array that word is all there is. Behind it, a hard cap charges the slot with the same number as far as
 * the limit allows: a host may publish requests that it never reserved, and they are charged as room is found, but
 * nothing is ever granted over the limit.
 *
 * Process-local, and used by one thread at a time.
 */
#ifndef GATECOUNT_TALLY_H
#define GATECOUNT_TALLY_H

#include "gate.h"

struct tally {
    int64_t counted;
    int64_t reserved;
};

/* Note n more units reserved, and return the word to publish. */
static inline int64_t tally_reserve(struct tally *tally, int64_t n)
{
    tally->reserved += n;
    return tally->counted + tally->reserved;
}

/* Note n units given back, uncounted reservations first, and return the word to publish. */
static inline int64_t tally_release(struct tally *tally, int64_t n)
{
    int64_t uncounted = n < tally->reserved ? n : tally->reserved;
    tally->reserved -= uncounted;
    tally->counted -= n - uncounted;
    return tally->counted + tally->reserved;
}

/* Note the count that the host publishes, and return the word to publish. */
static inline int64_t tally_count(struct tally *tally, int64_t count)
{
    int64_t more = count - tally->counted;
    if (more > 0)
        tally->reserved -= more < tally->reserved ? more : tally->reserved;
    tally->counted = count;
    return count + tally->reserved;
}

/* Publish a word in a cap of a gate that has a slot, and bring what the slot holds to it, as far as the limit allows
 * on the way up. Lock-free. */
static inline void tally_charge(struct gate *gate, uint32_t cap, int64_t word)
{
    int64_t held = gate_held(gate, cap);
    if (word < held)
        gate_give(gate, cap, (uint32_t)(held - word));
    else if (word > held)
        gate_reserve_up_to(gate, cap, (uint32_t)(word - held));
    counter_store(gate_counter(gate, cap), word);
}

#endif
