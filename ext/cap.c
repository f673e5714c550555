#define _GNU_SOURCE
#include "cap.h"

#include <string.h>

#include "wait.h"

#define STATE_SLOT_SHIFT 22
#define STATE_TOTAL_SHIFT 32
#define STATE_TAG_MASK ((UINT64_C(1) << STATE_SLOT_SHIFT) - 1)
#define STATE_NOBODY LAYOUT_MAX_SLOTS /* the slot of a state that no operation made */

#define OP_PENDING UINT64_C(1)

_Static_assert(LAYOUT_MAX_SLOTS == (1u << (STATE_TOTAL_SHIFT - STATE_SLOT_SHIFT)) - 1, "the slot field's last value");

static inline uint64_t state_make(uint32_t total, uint32_t slot, uint64_t sequence)
{
    return (uint64_t)total << STATE_TOTAL_SHIFT | (uint64_t)slot << STATE_SLOT_SHIFT | (sequence & STATE_TAG_MASK);
}

static inline uint32_t state_total(uint64_t state) { return (uint32_t)(state >> STATE_TOTAL_SHIFT); }

static inline uint32_t state_slot(uint64_t state) { return (uint32_t)(state >> STATE_SLOT_SHIFT) & STATE_NOBODY; }

static inline bool state_names(uint64_t state, uint32_t slot, uint64_t sequence)
{
    return state_slot(state) == slot && (state & STATE_TAG_MASK) == (sequence & STATE_TAG_MASK);
}

/* Operations are numbered from 1, so that a ledger of zeros means: number 1 is next, and no number was ever helped. */
static inline uint64_t op_sequence(uint64_t op) { return (op >> 1) + 1; }

static inline uint64_t op_idle(uint64_t sequence) { return (sequence - 1) << 1; }

/* Write the intent: what `held` will be, then that operation `sequence` is pending.
 * Release on op, so that next is there for whoever sees it pending (pairs with the acquire in cap_recover). */
static inline void intend(struct layout_ledger *mine, uint64_t sequence, uint32_t next)
{
    /* relaxed: ordered before `op` by its release */
    atomic_store_explicit(&mine->next, next, memory_order_relaxed);
    atomic_store_explicit(&mine->op, op_idle(sequence) | OP_PENDING, memory_order_release);
}

/* Settle the books after the swap, and only then say so.
 * Release on held (pairs with the acquire in cap_audit) and on op (pairs with the acquire in help and cap_audit). */
static inline void settle(struct layout_ledger *mine, uint64_t sequence, uint32_t held)
{
    atomic_store_explicit(&mine->held, held, memory_order_release);
    atomic_store_explicit(&mine->op, op_idle(sequence + 1), memory_order_release);
}

/* Before w is replaced: note for the slot in it that its operation was applied, if it has not settled that itself.
 * Without the second look at state, a w as old as a wrap of the tag could vouch for a later operation that is
 * pending but not applied. The maximum, not a store: a helper that was held up must not take back a later one.
 * Release on the raise, though the swap that follows would do: it pairs with the acquire in cap_recover. */
static inline void help(const struct cap *cap, uint32_t slot, uint64_t w)
{
    uint32_t last = state_slot(w);
    if (last == slot || last >= cap->slots)
        return;
    struct layout_ledger *theirs = &cap->ledgers[last];
    /* acquire pairs with the release in settle and intend: what the owner did before is seen by the look below */
    uint64_t op = atomic_load_explicit(&theirs->op, memory_order_acquire);
    uint64_t sequence = op_sequence(op);
    if (!(op & OP_PENDING) || !state_names(w, last, sequence))
        return;
    /* relaxed: if the owner has gone on since w, its later swaps came before the pending op that was just acquired,
     * so this read cannot return w any more */
    if (atomic_load_explicit(&cap->shared->state, memory_order_relaxed) != w)
        return;
    /* relaxed: only a starting point for the loop */
    uint64_t helped = atomic_load_explicit(&theirs->helped, memory_order_relaxed);
    while (helped < sequence &&
           !atomic_compare_exchange_weak_explicit(&theirs->helped, &helped, sequence, memory_order_release,
                                                  memory_order_relaxed))
        ;
}

/* Replace *w by the state after this operation; on failure *w is the state that stood instead.
 * Release pairs with every acquire of state: who sees our name there sees our intent. Acquire on failure, as for any
 * read of state. */
static inline bool swap(const struct cap *cap, uint64_t *w, uint32_t total, uint32_t slot, uint64_t sequence)
{
    return atomic_compare_exchange_strong_explicit(&cap->shared->state, w, state_make(total, slot, sequence),
                                                   memory_order_acq_rel, memory_order_acquire);
}

static inline uint64_t load_state(const struct cap *cap)
{
    /* acquire pairs with the release in swap */
    return atomic_load_explicit(&cap->shared->state, memory_order_acquire);
}

void cap_initialise(const struct cap *cap, const char *name, uint32_t limit)
{
    /* relaxed: nobody else can see the segment before its magic is stored with release */
    atomic_store_explicit(&cap->shared->state, state_make(0, STATE_NOBODY, 0), memory_order_relaxed);
    atomic_store_explicit(&cap->shared->limit, limit, memory_order_relaxed);
    strncpy(cap->shared->name, name, LAYOUT_CAP_NAME - 1);
}

enum cap_result cap_reserve(const struct cap *cap, uint32_t slot, struct cap_ask ask)
{
    struct layout_ledger *mine = &cap->ledgers[slot];
    /* relaxed, here and below: op, held and the statistics of a ledger are read by the one who writes them */
    uint64_t sequence = op_sequence(atomic_load_explicit(&mine->op, memory_order_relaxed));
    uint32_t next = (uint32_t)atomic_load_explicit(&mine->held, memory_order_relaxed) + ask.n;
    bool pending = false;
    uint64_t w = load_state(cap);
    for (;;) {
        if (!cap_fits(ask, state_total(w), cap_limit(cap))) {
            uint64_t again = load_state(cap);
            if (again != w) { /* no instant yet at which this total stood against this limit */
                w = again;
                continue;
            }
            if (pending) /* not applied: the number is free again; release keeps op's writes in one order */
                atomic_store_explicit(&mine->op, op_idle(sequence), memory_order_release);
            return CAP_REFUSED;
        }
        if (!pending) {
            intend(mine, sequence, next);
            pending = true;
        }
        help(cap, slot, w);
        if (swap(cap, &w, state_total(w) + ask.n, slot, sequence))
            break;
    }
    settle(mine, sequence, next);
    cap_note_peak(mine, (uint64_t)state_total(w) + ask.n);
    return CAP_DONE;
}

enum cap_result cap_release(const struct cap *cap, uint32_t slot, uint32_t n)
{
    struct layout_ledger *mine = &cap->ledgers[slot];
    /* relaxed: read by the one who writes them */
    uint64_t sequence = op_sequence(atomic_load_explicit(&mine->op, memory_order_relaxed));
    uint32_t held = (uint32_t)atomic_load_explicit(&mine->held, memory_order_relaxed);
    if (n > held)
        return CAP_NOT_HELD;
    intend(mine, sequence, held - n);
    uint64_t w = load_state(cap);
    do
        help(cap, slot, w);
    while (!swap(cap, &w, state_total(w) - n, slot, sequence));
    settle(mine, sequence, held - n);
    wait_notify(cap->shared);
    return CAP_DONE;
}

uint32_t cap_recover(const struct cap *cap, uint32_t slot)
{
    struct layout_ledger *dead = &cap->ledgers[slot];
    /* acquire pairs with the release in intend: a pending operation's next is there */
    uint64_t op = atomic_load_explicit(&dead->op, memory_order_acquire);
    uint64_t sequence = op_sequence(op);
    if (op & OP_PENDING) {
        /* state first, helped second: see the essay. Acquire pairs with the release in help. */
        bool applied = state_names(load_state(cap), slot, sequence) ||
                       atomic_load_explicit(&dead->helped, memory_order_acquire) == sequence;
        if (applied)
            settle(dead, sequence, (uint32_t)atomic_load_explicit(&dead->next, memory_order_relaxed));
        else
            atomic_store_explicit(&dead->op, op_idle(sequence), memory_order_release);
    }
    uint32_t held = cap_held(cap, slot);
    if (held)
        cap_release(cap, slot, held);
    return held;
}

bool cap_audit(const struct cap *cap)
{
    uint64_t w = load_state(cap);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cap->slots; i++) {
        /* acquire pairs with the releases in intend and settle: an operation that state already shows cannot look
         * as if it had not begun, and a held that state does not show yet makes the second read of state differ */
        if (atomic_load_explicit(&cap->ledgers[i].op, memory_order_acquire) & OP_PENDING)
            return false;
        sum += atomic_load_explicit(&cap->ledgers[i].held, memory_order_acquire);
    }
    if (load_state(cap) != w || sum == state_total(w) || sum > LAYOUT_MAX_LIMIT)
        return false;
    /* Nothing was pending, so w names no operation that would need help. */
    uint64_t repairs = atomic_load_explicit(&cap->shared->repairs, memory_order_relaxed);
    if (!swap(cap, &w, (uint32_t)sum, STATE_NOBODY, repairs + 1))
        return false;
    /* relaxed: a statistic */
    atomic_fetch_add_explicit(&cap->shared->repairs, 1, memory_order_relaxed);
    wait_notify(cap->shared);
    return true;
}

void cap_set_limit(const struct cap *cap, uint32_t limit)
{
    /* release pairs with the acquire in cap_limit */
    atomic_store_explicit(&cap->shared->limit, limit, memory_order_release);
    wait_notify_change(cap->shared);
}
