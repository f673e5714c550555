/* pairs.h - of a waiter and one who makes room, one comes first: what he did before, the other sees after. */
#ifndef PAIRS_H
#define PAIRS_H

#include "check.h"

#include <pthread.h>
#include <sched.h>

#include "wait.h"

static void announce(struct cap *cap) { wait_announce(cap->shared); }
static void wake(struct cap *cap) { wait_wake(cap->shared); }
static void release(struct cap *cap) { CHECK(cap_release(cap, 0, 1) == CAP_DONE); }
static void set_limit(struct cap *cap) { cap_set_limit(cap, 2); }

struct pair {
    void (*first)(struct cap *), (*second)(struct cap *);
    struct cap cap;
    int word;             /* an ordinary one: only the pair's own accesses keep the two threads from a race on it */
    _Atomic bool is_over; /* the first one's part; orders nothing */
};

static void *come_first(void *argument)
{
    struct pair *pair = argument;
    pair->word = 1;
    pair->first(&pair->cap);
    atomic_store_explicit(&pair->is_over, true, memory_order_relaxed);
    return NULL;
}

/* A processor may show it whatever the code says; built to look for races, this finds out what the code says. */
static void the_second_sees_what_the_first_did(void)
{
    static const struct pair PAIRS[] = {
        {.first = announce, .second = release},   {.first = release, .second = announce},
        {.first = announce, .second = set_limit}, {.first = set_limit, .second = announce},
        {.first = wake, .second = announce},
    };
    for (size_t i = 0; i < sizeof PAIRS / sizeof *PAIRS; i++) {
        struct segment segment;
        struct pair pair = PAIRS[i];
        pthread_t thread;
        check_segment(&segment, 1, 1, 1, LAYOUT_HARD);
        pair.cap = segment_cap(&segment, 0);
        REQUIRE(cap_reserve(&pair.cap, 0, cap_units(1)) == CAP_DONE);
        REQUIRE(pthread_create(&thread, NULL, come_first, &pair) == 0);
        while (!atomic_load_explicit(&pair.is_over, memory_order_relaxed))
            sched_yield();
        pair.second(&pair.cap);
        CHECK(pair.word == 1);
        REQUIRE(pthread_join(thread, NULL) == 0);
        segment_close(&segment);
    }
}

#endif
