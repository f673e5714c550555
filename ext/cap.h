/* cap.h - the hard cap: exact, lock-free, O(1), and recoverable to the last unit after a kill at any instruction.
 *
 * WHY IT WORKS
 *
 * Invariant. state.total is the sum over all slots of what each holds, where a slot holds ledger.held, or
 * ledger.next if its pending operation has been applied to state. A grant is made only if total + n + headroom <= the
 * limit in force: with a headroom of 0, total <= that limit. A positive headroom leaves so much free for others; a
 * negative one is for costs that must never exclude themselves: 1 - n admits as long as the limit is not reached, so
 * that at most one grant passes it. Either way the test is a function of the state word that the swap replaces, so
 * all that is said below holds for it; and total never passes LAYOUT_MAX_LIMIT, whatever was asked for.
 *
 * One word decides. `state` packs
 *
 *     63            32 31        22 21          0
 *     +---------------+------------+------------+
 *     |     total     |    slot    |    tag     |
 *     +---------------+------------+------------+
 *
 * the units granted, the slot that changed it last, and the low bits of that slot's operation number. A successful
 * compare-and-swap of it is the linearization point of reserve and of release. So no two reserves can both take the
 * last unit, and a loser writes nothing that another could see: nobody is refused because somebody else was.
 *
 * A refusal linearizes between two equal reads of `state` with the read of the limit in between: at that instant
 * total + n + headroom was over the limit, even while limits change.
 *
 * Intent before effect. A process can die between the compare-and-swap and the note of it in its own books. So it
 * first writes what its books will say (`next`), then that an operation is pending (`op`), then does the swap, then
 * settles the books (`held`, then `op` idle again with the next number). Who finds a dead slot with a pending
 * operation must only learn whether the swap took place:
 *
 *   - if state still carries the dead slot and its operation's tag, it did;
 *   - if another process has overwritten that, it must have seen it, so it is made to say so first: before anybody
 *     replaces a state word, it raises `helped` of the slot in that word to the operation's number, if that
 *     operation is still pending (help). A helper that dies has only told the truth.
 *
 * What a crash leaves, at each step of an operation numbered s:
 *
 *     after                    books say          recovery does
 *     next stored              idle, s            nothing: not begun
 *     op = pending s           pending, s         state and helped do not name s: back to idle, s
 *     the swap                 pending, s         one of them names s: held = next, idle, s + 1
 *     held = next              pending, s         the same again: storing next twice is storing it once
 *     op = idle s + 1          idle, s + 1        nothing: done
 *
 * Then recovery releases what the slot holds, by the same code in the dead slot's name, so a reclaimer that is
 * killed leaves a slot in one of the states of this table and the next one goes on from there.
 *
 * Who writes what. state: everybody, by read-modify-writes only, so every write continues the release sequence of the
 * one before it; who waits adds 0 to it, which is seen by the next to swap it (wait.h). op, held, next and the statistics of a ledger: the slot's owner, or the one process that holds the
 * right to reclaim it (owner.h). helped: everybody else, upwards only. limit: whoever sets it.
 *
 * Orders. A rival that reads state with acquire and finds slot p in it sees p's `op` pending (p stored it before its
 * swap with release), and therefore helps unless p has finished. Recovery that reads state with acquire and does not
 * find p's operation sees the `helped` that was raised before the overwriting swap (release). This is why recovery
 * reads state first and helped second: in the other order the overwriting can fall between the two reads. `held` is
 * stored with release so that an audit that reads a settled `held` also sees the swap that it stems from.
 *
 * op and helped are never reset, not even for the slot's next owner: a late helper of the last owner's operation s
 * must not be able to vouch for a new owner's s. Numbers begin at 1, for helped begins at 0: in a new slot that would
 * vouch for an operation 0 that never took place.
 *
 * Not guaranteed. The tag wraps after 2^22 operations of one slot. A process stalled between its read of state and
 * its swap for exactly a multiple of that, with the same total and slot at the end, overwrites an operation that it
 * did not help. If moreover that slot's owner is killed in the few instructions between this operation's swap and its
 * settling, recovery takes it for not applied: after a reserve its units stay granted, after a release they are given
 * back twice. Likewise an audit stalled for such a round between its reads and its swap corrects to an old sum. Each
 * lasts until the next audit. (tests/model shows all three with a tag of one bit.)
 *
 * Threads. Calls for one slot must not overlap: its ledger is written like a single-threaded program's. Calls for
 * different slots may, from any thread of any process.
 */
#ifndef GATECOUNT_CAP_H
#define GATECOUNT_CAP_H

#include <stdbool.h>

#include "layout.h"

#define CAP_UNBOUNDED LAYOUT_MAX_LIMIT /* as `bound`: the cap's own limit decides alone */

/* What a reserve asks for. */
struct cap_ask {
    uint32_t n;       /* units, at least 1 */
    uint32_t bound;   /* the smaller of this and the cap's limit decides */
    int64_t headroom; /* units that must stay free beside n; from 1 - n to LAYOUT_MAX_LIMIT */
};

/* A cap as one process sees it: pointers into its own mapping. */
struct cap {
    struct layout_cap *shared;
    struct layout_ledger *ledgers; /* one per slot */
    uint32_t slots;
};

/* Ask for n units within the cap's own limit, as most do. */
static inline struct cap_ask cap_units(uint32_t n)
{
    return (struct cap_ask){.n = n, .bound = CAP_UNBOUNDED};
}

enum cap_result {
    CAP_DONE = 0,
    CAP_REFUSED,  /* there was no room; nothing changed */
    CAP_NOT_HELD, /* the slot holds fewer than n; nothing changed */
};

/* Set a new cap's words; the segment is not visible to anybody else yet. Relaxed: its publication orders them. */
void cap_initialise(const struct cap *cap, const char *name, uint32_t limit);

/* Reserve units for a slot that the caller owns. CAP_REFUSED if at one instant during the call they did not fit.
 * Lock-free; O(1). Acquire and release on success; acquire on refusal. */
enum cap_result cap_reserve(const struct cap *cap, uint32_t slot, struct cap_ask ask);

/* Give back n >= 1 units of a slot that the caller owns, and wake who waits for them. CAP_NOT_HELD if it holds fewer.
 * Lock-free; O(1), and a system call if somebody may be asleep. Acquire and release on success. */
enum cap_result cap_release(const struct cap *cap, uint32_t slot, uint32_t n);

/* Finish what the dead owner of a slot began, then release all it held; return how many units that were.
 * The caller holds the right to reclaim the slot (owner.h). May be cut short by a kill and repeated by another.
 * Acquire and release. */
uint32_t cap_recover(const struct cap *cap, uint32_t slot);

/* Correct the total if it provably differs from the sum of what the slots hold; true if it did and this call
 * repaired it (counted in `repairs`). Gives up at once, without harm, while anything is moving. O(slots).
 * Acquire and release on repair; acquire otherwise. */
bool cap_audit(const struct cap *cap);

/* Set the limit, and wake who waits. It holds for every call that starts after this returns; units granted stay granted.
 * Acquire and release. */
void cap_set_limit(const struct cap *cap, uint32_t limit);

/* Tell whether an ask fits on top of total. */
static inline bool cap_fits(struct cap_ask ask, uint64_t total, uint32_t limit)
{
    uint64_t after = total + ask.n;
    return (int64_t)after + ask.headroom <= (limit < ask.bound ? limit : ask.bound) && after <= LAYOUT_MAX_LIMIT;
}

/* Return the limit. Acquire: a refusal orders its reads of state around it. */
static inline uint32_t cap_limit(const struct cap *cap)
{
    return (uint32_t)atomic_load_explicit(&cap->shared->limit, memory_order_acquire);
}

/* Return the units granted at one instant. Acquire. */
static inline uint32_t cap_total(const struct cap *cap)
{
    return (uint32_t)(atomic_load_explicit(&cap->shared->state, memory_order_acquire) >> 32);
}

/* Return what a slot's books say it holds: exact for its owner, an instant old for others. Relaxed: a statistic. */
static inline uint32_t cap_held(const struct cap *cap, uint32_t slot)
{
    return (uint32_t)atomic_load_explicit(&cap->ledgers[slot].held, memory_order_relaxed);
}

/* Raise a slot's peak to a total; the slot's owner only. Relaxed: a statistic. */
static inline void cap_note_peak(struct layout_ledger *mine, uint64_t total)
{
    if (total > atomic_load_explicit(&mine->peak, memory_order_relaxed))
        atomic_store_explicit(&mine->peak, (uint32_t)total, memory_order_relaxed);
}

#endif
