/* wait.h - sleep until there may be room, and be woken by whoever makes it.
 *
 * A waiter and whoever makes room (a release, a higher limit, a reclaim) meet in three words of the cap's first line:
 *
 *     waiter                                   whoever makes room
 *     1  seen = turn                           1  change state: swap it, or add 0 if something else changed
 *     2  waiters = 1                           2  waiters is 0: done
 *     3  add 0 to state                        3  waiters = 0
 *     4  try; granted: done                    4  turn = turn + 1
 *     5  sleep unless turn != seen; then 1     5  wake all that sleep on turn
 *
 * WHY NO WAKE-UP IS LOST
 *
 * Both change state by a read-modify-write (waiter 3, other 1), so one of the two comes first, and acquires what the
 * other released by it. Room made first: the waiter's try sees it. The waiter first: the other sees waiters = 1 in its
 * step 2, or a 0 that somebody stored in step 3 after the waiter's 1. That somebody goes on to move turn. Had it moved
 * turn before the waiter's step 1, its 0 would have come before the waiter's 1 (release in 4, acquire in 1). So
 * turn moves after the waiter has read it, and the kernel, which compares and falls asleep in one step, either refuses
 * the waiter its sleep or wakes it.
 *
 * So whoever makes room pays, if nobody waits, for one look at a word on a line that it has just written. Adding 0
 * rather than reading `state` costs the waiter a write that nobody minds, and makes the argument one about a single
 * word, where two words would need sequentially consistent accesses on the fast path too.
 *
 * A death. A waiter killed at any step leaves, at worst, waiters = 1: somebody wakes nobody, once. Woken and killed, it
 * takes no wake-up along, for all are woken. A process killed between steps 1 and 5 of making room leaves sleepers
 * unwoken. If it had a slot, it will be reclaimed, and whoever reclaims wakes everybody, whatever `waiters` says. But
 * first somebody must look, and nobody releases what the dead hold. So nobody sleeps for longer than WAIT_SLICE
 * without a try and a look for the dead: that bounds what any death can cost, also that of one without a slot who
 * was just raising a limit.
 *
 * Approximate mode makes room by a plain store to a counter and adds nothing to state, for that would cost more than
 * the store. It can so overlook a waiter that comes within the nanoseconds that the store needs to be seen: a waiter's first
 * sleep there is short (WAIT_FIRST_LOOK).
 *
 * SPINNING
 *
 * To fall asleep and be woken takes the kernel some microseconds, which is longer than many a permit is held. So before
 * its first sleep a wait looks at turn for about as long (wait_spin): it has then cost at most twice what the better of
 * spinning and sleeping would have (Karlin, Li, Manasse, Owicki, "Empirical studies of competitive spinning for a
 * shared-memory multiprocessor", SOSP 1991). To the argument above it adds nothing but a try more: whoever sees turn
 * move goes back to step 1 as after a sleep, and step 5 compares turn again for whoever does not. Only before the first,
 * for each wake-up is for all that sleep, and those that come too late would spin again every time.
 *
 * turn wraps after 2^32 wake-ups; a waiter that missed exactly so many between its steps 1 and 5 sleeps one slice.
 *
 * Not guaranteed: order. All sleepers are woken and try; who comes first is served. Within a process only the
 * oldest waiter sleeps here, so a release wakes at most one thread of each (_wait.pxi).
 *
 * Where the kernel has no futex (not Linux, or built with -DWAIT_POLLS) a sleeper looks at turn with pauses that grow.
 */
#ifndef GATECOUNT_WAIT_H
#define GATECOUNT_WAIT_H

#include <stdbool.h>

#include "layout.h"

#define WAIT_SLICE UINT64_C(50000000)     /* nanoseconds between two looks for the dead by one that waits */
#define WAIT_FIRST_LOOK UINT64_C(1000000) /* nanoseconds until the second try of a wait in approximate mode */
#define WAIT_SPIN UINT64_C(3000)          /* nanoseconds for which turn is looked at before the first sleep */

enum wait_result {
    WAIT_MOVED = 0,   /* turn is not, or may not be, what it was: try again */
    WAIT_TIME_UP,     /* it still is: try again all the same */
    WAIT_INTERRUPTED, /* a signal came */
};

/* Steps 1 to 3: say that somebody may be about to sleep, and return the turn to sleep on if the try that follows is
 * refused. Acquire and release. */
uint32_t wait_announce(struct layout_cap *cap);

/* Look at turn for that many nanoseconds, at least once; return whether it is not `seen` any more. */
bool wait_spin(const struct layout_cap *cap, uint32_t seen, uint64_t nanoseconds);

/* Step 5: sleep until turn is not `seen`, or that many nanoseconds are over, or a signal comes; may wake for no reason.
 * Needs no lock and touches nothing but turn. Relaxed: what the waker did is acquired by the next announcement. */
enum wait_result wait_sleep(const struct layout_cap *cap, uint32_t seen, uint64_t nanoseconds);

/* Steps 3 to 5, whether or not anybody said that it waits. Release. */
void wait_wake(struct layout_cap *cap);

/* Steps 2 to 5, after room was made by a swap of state that acquired and released. */
static inline void wait_notify(struct layout_cap *cap)
{
    /* relaxed: the swap before it acquired what a waiter released in wait_announce */
    if (__builtin_expect(atomic_load_explicit(&cap->waiters, memory_order_relaxed) != 0, 0))
        wait_wake(cap);
}

/* Steps 1 to 5, after something other than state has changed so that there may be room. */
void wait_notify_change(struct layout_cap *cap);

#endif
