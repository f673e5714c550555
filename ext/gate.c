#define _GNU_SOURCE
#include "gate.h"

#include <time.h>

#include "approximate.h"
#include "wait.h"

#define SWEEP_INTERVAL UINT64_C(20000000) /* nanoseconds between two looks for the dead by one process */
#define SWEEP_SHARE 50                    /* and 1/50 of its time at most */

#ifdef CLOCK_MONOTONIC_COARSE
#define SWEEP_CLOCK CLOCK_MONOTONIC_COARSE /* no slower than the refusal that asks for it */
#else
#define SWEEP_CLOCK CLOCK_MONOTONIC
#endif

/* Add to a statistic of the caller's own ledger. Relaxed: one writer, and nothing depends on it. */
static inline void count(_Atomic uint64_t *statistic, uint64_t n)
{
    uint64_t now = atomic_load_explicit(statistic, memory_order_relaxed);
    atomic_store_explicit(statistic, now + n, memory_order_relaxed);
}

static inline struct layout_ledger *ledger_of(const struct gate *gate, uint32_t cap)
{
    return &gate->caps[cap].ledgers[gate->owner.slot];
}

void gate_initialise(struct gate *gate, const struct segment *segment)
{
    gate->segment = segment;
    gate->hard = segment->shape.mode == LAYOUT_HARD;
    gate->sweep_after = 0;
    owner_initialise(&gate->owner, segment);
    for (uint32_t i = 0; i < segment->shape.caps; i++) {
        gate->caps[i] = segment_cap(segment, i);
        gate->counters[i] = segment_counters(segment, i);
    }
}

/* ---- claim and reclaim --------------------------------------------------------------------------------------- */

static enum owner_result claim_once(struct gate *gate, int slot)
{
    if (slot != GATE_ANY_SLOT)
        return owner_claim(&gate->owner, (uint32_t)slot);
    enum owner_result all = OWNER_TAKEN;
    for (uint32_t i = 0; i < gate->segment->shape.slots; i++) {
        enum owner_result one = owner_claim(&gate->owner, i);
        if (one == OWNER_OK || one == OWNER_SYSTEM)
            return one;
        if (one == OWNER_MOVING)
            all = OWNER_MOVING;
    }
    return all;
}

enum owner_result gate_claim(struct gate *gate, int slot)
{
    enum owner_result result = claim_once(gate, slot);
    if (result == OWNER_OK || result == OWNER_SYSTEM)
        return result;
    gate_reclaim(gate);
    return claim_once(gate, slot);
}

/* Take back all that a slot holds, in its own name. */
static uint32_t recover(struct gate *gate, uint32_t cap, uint32_t slot)
{
    struct cap *shared = &gate->caps[cap];
    uint32_t units = gate->hard ? cap_recover(shared, slot) : approximate_recover(shared, slot);
    counter_store(counter_at(gate->counters[cap], slot), 0);
    atomic_store_explicit(&shared->ledgers[slot].waiting, 0, memory_order_relaxed); /* relaxed: a statistic */
    if (!gate->hard)
        wait_notify_change(shared->shared);
    return units;
}

/* Recover what a dead owner held of a cap. It may have died between making room and waking those who wait for it: so
 * they are woken, whatever it left written (wait.h). */
static void recover_dead(struct gate *gate, uint32_t cap, uint32_t slot)
{
    struct layout_cap *shared = gate->caps[cap].shared;
    uint32_t units = recover(gate, cap, slot);
    atomic_fetch_add_explicit(&shared->reclaimed, units, memory_order_relaxed); /* relaxed: a statistic */
    wait_wake(shared);
}

uint32_t gate_reclaim(struct gate *gate)
{
    uint32_t reclaimed = 0;
    const struct segment_shape *shape = &gate->segment->shape;
    for (uint32_t slot = 0; slot < shape->slots; slot++) {
        if (!owner_reclaim(&gate->owner, slot))
            continue;
        for (uint32_t cap = 0; cap < shape->caps; cap++)
            recover_dead(gate, cap, slot);
        owner_reclaimed(&gate->owner, slot);
        reclaimed++;
    }
    if (reclaimed && gate->hard)
        for (uint32_t cap = 0; cap < shape->caps; cap++)
            cap_audit(&gate->caps[cap]);
    return reclaimed;
}

static uint64_t coarse_now(void)
{
    struct timespec now;
    clock_gettime(SWEEP_CLOCK, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Look for the dead because a reserve is about to be refused; true if any was found, so that a retry may succeed. */
static bool sweep(struct gate *gate)
{
    uint64_t begin = coarse_now();
    if (begin < gate->sweep_after)
        return false;
    uint32_t reclaimed = gate_reclaim(gate);
    uint64_t end = coarse_now();
    gate->sweep_after = end + SWEEP_INTERVAL + SWEEP_SHARE * (end - begin);
    return reclaimed > 0;
}

void gate_close(struct gate *gate)
{
    if (owner_is_mine(&gate->owner)) {
        uint32_t slot = (uint32_t)gate->owner.slot;
        for (uint32_t cap = 0; cap < gate->segment->shape.caps; cap++)
            recover(gate, cap, slot);
        owner_release(&gate->owner);
    }
    owner_close(&gate->owner);
}

/* ---- reserve and release ------------------------------------------------------------------------------------- */

static inline void publish(struct gate *gate, uint32_t cap)
{
    /* release: whoever sees the units sees their admission counted (approximate.h) */
    atomic_store_explicit(gate_counter(gate, cap), gate_held(gate, cap), memory_order_release);
}

static inline enum cap_result reserve_once(struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    uint32_t slot = (uint32_t)gate->owner.slot;
    return gate->hard ? cap_reserve(&gate->caps[cap], slot, ask)
                      : approximate_reserve(&gate->caps[cap], gate->counters[cap], slot, ask);
}

/* Tell whether an ask could not be granted even if nothing were in flight. */
static bool too_large(const struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    return !cap_fits(ask, 0, cap_limit(&gate->caps[cap]));
}

void gate_refuse(struct gate *gate, uint32_t cap, enum gate_reason why)
{
    struct layout_cap *shared = gate->caps[cap].shared;
    struct layout_ledger *mine = ledger_of(gate, cap);
    count(why == GATE_FULL ? &mine->full : &mine->not_full, 1);
    /* relaxed: a statistic */
    if (why != GATE_FULL)
        atomic_fetch_add_explicit(why == GATE_TIMEOUT ? &shared->timeouts : &shared->too_large, 1,
                                  memory_order_relaxed);
}

static void refuse(struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    gate_refuse(gate, cap, too_large(gate, cap, ask) ? GATE_TOO_LARGE : GATE_FULL);
}

/* Once more, if anybody was dead. Apart, so that a grant need not carry it. */
static __attribute__((noinline)) enum cap_result reserve_again(struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    enum cap_result result = sweep(gate) ? reserve_once(gate, cap, ask) : CAP_REFUSED;
    if (result != CAP_DONE)
        refuse(gate, cap, ask);
    return result;
}

static inline enum cap_result take(struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    enum cap_result result = reserve_once(gate, cap, ask);
    if (result != CAP_DONE)
        result = reserve_again(gate, cap, ask);
    if (result == CAP_DONE)
        count(&ledger_of(gate, cap)->admitted, 1);
    return result;
}

enum cap_result gate_take(struct gate *gate, uint32_t cap, struct cap_ask ask) { return take(gate, cap, ask); }

enum cap_result gate_give(struct gate *gate, uint32_t cap, uint32_t n)
{
    uint32_t slot = (uint32_t)gate->owner.slot;
    return gate->hard ? cap_release(&gate->caps[cap], slot, n) : approximate_release(&gate->caps[cap], slot, n);
}

enum cap_result gate_reserve(struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    enum cap_result result = take(gate, cap, ask);
    if (result == CAP_DONE)
        publish(gate, cap);
    return result;
}

enum cap_result gate_release(struct gate *gate, uint32_t cap, uint32_t n)
{
    enum cap_result result = gate_give(gate, cap, n);
    if (result != CAP_DONE)
        return result;
    publish(gate, cap);
    if (!gate->hard)
        wait_notify(gate->caps[cap].shared);
    return CAP_DONE;
}

/* Tell whether a cap is visibly too full for an ask, without writing anything that others read to decide. */
static bool looks_full(const struct gate *gate, uint32_t cap, struct cap_ask ask)
{
    const struct cap *shared = &gate->caps[cap];
    uint64_t total;
    if (!gate->hard)
        return !approximate_fits(shared, gate->counters[cap], ledger_of(gate, cap), ask, &total);
    return !cap_fits(ask, cap_total(shared), cap_limit(shared));
}

static enum cap_result reserve_all_once(struct gate *gate, const struct cap_ask *asks, uint32_t *refused_by)
{
    uint32_t caps = gate->segment->shape.caps;
    for (*refused_by = 0; *refused_by < caps; (*refused_by)++)
        if (asks[*refused_by].n && looks_full(gate, *refused_by, asks[*refused_by]))
            return CAP_REFUSED;
    for (*refused_by = 0; *refused_by < caps; (*refused_by)++) {
        uint32_t cap = *refused_by;
        if (!asks[cap].n || reserve_once(gate, cap, asks[cap]) == CAP_DONE)
            continue;
        while (cap-- > 0)
            if (asks[cap].n)
                gate_release(gate, cap, asks[cap].n);
        return CAP_REFUSED;
    }
    return CAP_DONE;
}

/* Reserve, look for the dead before giving up, and count what was granted. */
static enum cap_result try_all(struct gate *gate, const struct cap_ask *asks, uint32_t *refused_by)
{
    enum cap_result result = reserve_all_once(gate, asks, refused_by);
    if (result != CAP_DONE && sweep(gate))
        result = reserve_all_once(gate, asks, refused_by);
    for (uint32_t cap = 0; result == CAP_DONE && cap < gate->segment->shape.caps; cap++) {
        if (!asks[cap].n)
            continue;
        count(&ledger_of(gate, cap)->admitted, 1);
        publish(gate, cap);
    }
    return result;
}

enum cap_result gate_reserve_all(struct gate *gate, const struct cap_ask *asks, uint32_t *refused_by)
{
    enum cap_result result = try_all(gate, asks, refused_by);
    if (result != CAP_DONE)
        refuse(gate, *refused_by, asks[*refused_by]);
    return result;
}

uint32_t gate_reserve_up_to(struct gate *gate, uint32_t cap, uint32_t n)
{
    uint32_t got = 0;
    while (got < n) {
        uint32_t limit = cap_limit(&gate->caps[cap]), total = cap_total(&gate->caps[cap]);
        uint32_t room = total < limit ? limit - total : 0;
        uint32_t want = n - got < room ? n - got : room;
        if (want == 0 || reserve_once(gate, cap, cap_units(want)) != CAP_DONE) {
            if (want == 0 && !sweep(gate))
                break;
            continue;
        }
        got += want;
    }
    return got;
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

enum cap_result gate_reserve_or_wait(struct gate *gate, const struct cap_ask *asks, uint32_t *turns,
                                     uint32_t *refused_by)
{
    for (uint32_t cap = 0; cap < gate->segment->shape.caps; cap++)
        if (turns && asks[cap].n)
            turns[cap] = wait_announce(gate->caps[cap].shared);
    return try_all(gate, asks, refused_by);
}

bool gate_too_large(const struct gate *gate, const struct cap_ask *asks, uint32_t *refused_by)
{
    for (uint32_t cap = 0; cap < gate->segment->shape.caps; cap++)
        if (asks[cap].n && too_large(gate, cap, asks[cap])) {
            *refused_by = cap;
            return true;
        }
    return false;
}

/* Return how many wait for a cap, in all processes. Sequentially consistent: see gate_wait_enter. */
static uint64_t waiting(const struct gate *gate, uint32_t cap)
{
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < gate->segment->shape.slots; slot++)
        sum += atomic_load_explicit(&gate->caps[cap].ledgers[slot].waiting, memory_order_seq_cst);
    return sum;
}

bool gate_wait_enter(struct gate *gate, uint32_t cap, uint64_t most)
{
    _Atomic uint32_t *mine = &ledger_of(gate, cap)->waiting;
    if (most < UINT64_MAX && waiting(gate, cap) >= most && (!sweep(gate) || waiting(gate, cap) >= most))
        return false;
    /* seq_cst, and counted before the look: of two that enter at once, at least one sees the other */
    atomic_fetch_add_explicit(mine, 1, memory_order_seq_cst);
    if (most == UINT64_MAX || waiting(gate, cap) <= most)
        return true;
    gate_wait_leave(gate, cap);
    return false;
}

void gate_wait_leave(struct gate *gate, uint32_t cap)
{
    /* relaxed: a bound that is seen late refuses one too many for an instant */
    atomic_fetch_sub_explicit(&ledger_of(gate, cap)->waiting, 1, memory_order_relaxed);
}

void gate_statistics(const struct segment *segment, uint32_t cap, struct gate_statistics *statistics)
{
    struct cap shared = segment_cap(segment, cap);
    const _Atomic int64_t *counters = segment_counters(segment, cap);
    bool hard = segment->shape.mode == LAYOUT_HARD;
    *statistics = (struct gate_statistics){
        .in_flight = hard ? cap_total(&shared) : approximate_total(&shared, counters),
        .peak = hard ? 0 : approximate_proven_total(&shared, counters),
        .limit = cap_limit(&shared),
        /* relaxed: statistics, each true by itself */
        .repairs = atomic_load_explicit(&shared.shared->repairs, memory_order_relaxed),
        .reclaimed = atomic_load_explicit(&shared.shared->reclaimed, memory_order_relaxed),
        .timeouts = atomic_load_explicit(&shared.shared->timeouts, memory_order_relaxed),
        .too_large = atomic_load_explicit(&shared.shared->too_large, memory_order_relaxed),
    };
    statistics->refused = statistics->timeouts + statistics->too_large;
    for (uint32_t slot = 0; slot < segment->shape.slots; slot++) {
        struct layout_ledger *ledger = &shared.ledgers[slot];
        /* relaxed: as above */
        uint32_t peak = atomic_load_explicit(&ledger->peak, memory_order_relaxed);
        if (peak > statistics->peak)
            statistics->peak = peak;
        statistics->refused += atomic_load_explicit(&ledger->full, memory_order_relaxed);
        struct gate_calls calls = gate_calls(segment, cap, slot);
        statistics->admitted += calls.admitted;
        statistics->waiting += calls.waiting;
    }
}
