/* Threads over one mapping: each with a slot of its own, or sharing one slot under a lock of the process.
 *
 * Made for ThreadSanitizer as much as for its own checks: a counter that the cap does not use tells how many units are
 * really out, and never passes the limit.
 *
 * test_threads [operations per thread]
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sched.h>

#define THREADS 4u
#define LIMIT 3u

struct work {
    struct segment segment;
    struct cap cap;
    pthread_mutex_t lock; /* process-local, as a build without a GIL has one per slot */
    bool share;
    long operations;
    _Atomic uint32_t out, most, next_slot;
    _Atomic long granted, refused;
};

static void note_most(struct work *work, uint32_t now)
{
    uint32_t most = atomic_load(&work->most);
    while (most < now && !atomic_compare_exchange_weak(&work->most, &most, now))
        ;
}

static enum cap_result locked(struct work *work, uint32_t slot, uint32_t n, bool reserve)
{
    if (work->share)
        pthread_mutex_lock(&work->lock);
    enum cap_result result =
        reserve ? cap_reserve(&work->cap, slot, cap_units(n)) : cap_release(&work->cap, slot, n);
    if (work->share)
        pthread_mutex_unlock(&work->lock);
    return result;
}

static void *reserve_and_release(void *argument)
{
    struct work *work = argument;
    uint32_t mine = atomic_fetch_add(&work->next_slot, 1), slot = work->share ? 0 : mine;
    for (long i = 0; i < work->operations; i++) {
        uint32_t n = 1 + (uint32_t)((i + mine) % 2);
        if (locked(work, slot, n, true) != CAP_DONE) {
            atomic_fetch_add(&work->refused, 1);
            continue;
        }
        note_most(work, atomic_fetch_add(&work->out, n) + n);
        atomic_fetch_add(&work->granted, 1);
        if (i % 64 == 0) /* with units out, so that the others meet a cap that is taken */
            sched_yield();
        atomic_fetch_sub(&work->out, n);
        if (locked(work, slot, n, false) != CAP_DONE)
            abort();
    }
    return NULL;
}

/* Meanwhile: audits, which must find nothing to repair, and limits set to what they are. */
static void *look_on(void *argument)
{
    struct work *work = argument;
    for (long i = 0; i < work->operations / 10; i++) {
        if (cap_audit(&work->cap))
            abort();
        cap_set_limit(&work->cap, LIMIT);
        if (cap_total(&work->cap) > LIMIT)
            abort();
    }
    return NULL;
}

static void run(bool share, long operations)
{
    struct work work = {.lock = PTHREAD_MUTEX_INITIALIZER, .share = share, .operations = operations};
    check_segment(&work.segment, THREADS, 1, LIMIT, LAYOUT_HARD);
    work.cap = segment_cap(&work.segment, 0);
    pthread_t threads[THREADS + 1];
    for (uint32_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, reserve_and_release, &work) == 0);
    REQUIRE(pthread_create(&threads[THREADS], NULL, look_on, &work) == 0);
    for (uint32_t i = 0; i <= THREADS; i++)
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    CHECK(atomic_load(&work.most) <= LIMIT);
    CHECK(atomic_load(&work.granted) > 0);
    CHECK(atomic_load(&work.granted) + atomic_load(&work.refused) == (long)THREADS * operations);
    CHECK(cap_total(&work.cap) == 0 && check_settled(&work.cap));
    CHECK(atomic_load(&work.cap.shared->repairs) == 0);
    printf("%s: granted %ld, refused %ld, at most %u of %u out\n", share ? "one shared slot" : "a slot each",
           atomic_load(&work.granted), atomic_load(&work.refused), atomic_load(&work.most), LIMIT);
    segment_close(&work.segment);
}

/* With a headroom of 1 - n whoever reaches the limit may pass it, and nobody else: never LIMIT - 1 + n or more. */
static void *reserve_past(void *argument)
{
    struct work *work = argument;
    uint32_t slot = atomic_fetch_add(&work->next_slot, 1);
    struct cap_ask ask = {.n = 100, .bound = CAP_UNBOUNDED, .headroom = 1 - 100};
    for (long i = 0; i < work->operations / 4; i++) {
        if (cap_reserve(&work->cap, slot, ask) != CAP_DONE) {
            atomic_fetch_add(&work->refused, 1);
            continue;
        }
        note_most(work, atomic_fetch_add(&work->out, ask.n) + ask.n);
        atomic_fetch_add(&work->granted, 1);
        if (i % 64 == 0)
            sched_yield();
        atomic_fetch_sub(&work->out, ask.n);
        if (cap_release(&work->cap, slot, ask.n) != CAP_DONE)
            abort();
    }
    return NULL;
}

static void only_the_grant_that_reaches_the_limit_may_pass_it(long operations)
{
    struct work work = {.operations = operations};
    check_segment(&work.segment, THREADS, 1, LIMIT, LAYOUT_HARD);
    work.cap = segment_cap(&work.segment, 0);
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, reserve_past, &work) == 0);
    for (uint32_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    CHECK(atomic_load(&work.most) == 100 && atomic_load(&work.granted) > 0);
    CHECK(cap_total(&work.cap) == 0 && check_settled(&work.cap));
    segment_close(&work.segment);
}

/* Several threads claim, fork and close at once: the list of open descriptors and the sense of self are shared. */
static void *claim_and_close(void *argument)
{
    struct work *work = argument;
    for (long i = 0; i < work->operations / 50; i++) {
        struct gate gate;
        gate_initialise(&gate, &work->segment);
        enum owner_result result = gate_claim(&gate, GATE_ANY_SLOT);
        if (result == OWNER_OK && gate_reserve(&gate, 0, cap_units(1)) == CAP_DONE)
            atomic_fetch_add(&work->granted, 1);
        if (result == OWNER_SYSTEM)
            abort();
        gate_close(&gate);
    }
    return NULL;
}

static void claims_from_many_threads_leave_nothing(long operations)
{
    struct work work = {.operations = operations};
    check_segment(&work.segment, THREADS, 1, LIMIT, LAYOUT_HARD);
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, claim_and_close, &work) == 0);
    for (uint32_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    struct cap cap = segment_cap(&work.segment, 0);
    CHECK(cap_total(&cap) == 0 && check_settled(&cap) && atomic_load(&work.granted) > 0);
    for (uint32_t slot = 0; slot < THREADS; slot++)
        CHECK(atomic_load(&segment_owners(&work.segment)[slot].word) == 0);
    segment_close(&work.segment);
}

int main(int argc, char **argv)
{
    long operations = argc > 1 ? atol(argv[1]) : 200000;
    run(false, operations);
    run(true, operations);
    only_the_grant_that_reaches_the_limit_may_pass_it(operations);
    claims_from_many_threads_leave_nothing(operations);
    return check_report("threads");
}
