/* bench_core.c - what the hard cap costs in C, against the least that could count at all.
 *
 *     bench_core time ROUNDS PAIRS      JSON: nanoseconds per pair of every round of every variant
 *     bench_core count SLOTS N          N reserves with so many slots, for an instruction counter to watch
 *     bench_core size SLOTS CAPS        bytes of a segment
 *
 * Every variant is a pair of calls that are not inlined, as the package's own are not: the same call, the same loop.
 * The variants take turns, round by round, so that each gets its share of the machine's quiet moments.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cap.h"

#define NOINLINE __attribute__((noinline))
#define LIMIT 10
#define ROOM 1000000000 /* a limit that reserves alone do not reach */

static alignas(LAYOUT_LINE) _Atomic uint64_t word;
static struct cap few, many;
static uint32_t few_slot, many_slot;

static NOINLINE bool plain_reserve(uint64_t n, uint64_t limit)
{
    /* the orders are the cap's own, so that the variants differ in what they do and not in how strictly */
    uint64_t w = atomic_load_explicit(&word, memory_order_acquire);
    do
        if (w + n > limit)
            return false;
    while (!atomic_compare_exchange_strong_explicit(&word, &w, w + n, memory_order_acq_rel, memory_order_acquire));
    return true;
}

static NOINLINE bool plain_release(uint64_t n)
{
    uint64_t w = atomic_load_explicit(&word, memory_order_acquire);
    do
        if (n > w)
            return false;
    while (!atomic_compare_exchange_strong_explicit(&word, &w, w - n, memory_order_acq_rel, memory_order_acquire));
    return true;
}

static NOINLINE void add(uint64_t n) { atomic_fetch_add_explicit(&word, n, memory_order_acq_rel); }

static NOINLINE void subtract(uint64_t n) { atomic_fetch_sub_explicit(&word, n, memory_order_acq_rel); }

static void fail(const char *why)
{
    fprintf(stderr, "bench_core: %s\n", why);
    exit(1);
}

static void run_cap(const struct cap *cap, uint32_t slot, long pairs)
{
    for (long i = 0; i < pairs; i++)
        if (cap_reserve(cap, slot, cap_units(1)) != CAP_DONE || cap_release(cap, slot, 1) != CAP_DONE)
            fail("a pair was refused");
}

static void run_few(long pairs) { run_cap(&few, few_slot, pairs); }

static void run_many(long pairs) { run_cap(&many, many_slot, pairs); }

static void run_plain(long pairs)
{
    for (long i = 0; i < pairs; i++)
        if (!plain_reserve(1, LIMIT) || !plain_release(1))
            fail("a plain pair was refused");
}

static void run_add(long pairs)
{
    for (long i = 0; i < pairs; i++) {
        add(1);
        subtract(1);
    }
}

static const struct variant {
    const char *name;
    void (*run)(long pairs);
} variants[] = {
    {"cap", run_few},
    {"cap_1023", run_many},
    {"compare_and_swap", run_plain},
    {"fetch_add", run_add},
};

#define VARIANTS (sizeof variants / sizeof *variants)

static struct cap new_cap(uint32_t slots, uint32_t limit)
{
    void *base = mmap(NULL, layout_size(slots, 1, 0), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        fail("no memory");
    struct cap cap = {
        .shared = (struct layout_cap *)((char *)base + layout_caps_at(slots)),
        .ledgers = (struct layout_ledger *)((char *)base + layout_ledgers_at(slots, 1)),
        .slots = slots,
    };
    cap_initialise(&cap, "requests", limit);
    return cap;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void time_variants(long rounds, long pairs)
{
    double *spent = calloc((size_t)rounds * VARIANTS, sizeof *spent);
    if (spent == NULL || rounds < 1 || pairs < 1)
        fail("rounds and pairs must be at least 1");
    few = new_cap(4, LIMIT);
    few_slot = 1;
    many = new_cap(LAYOUT_MAX_SLOTS, LIMIT);
    many_slot = 511;
    for (long round = -1; round < rounds; round++) /* round -1 warms up */
        for (size_t v = 0; v < VARIANTS; v++) {
            double start = now();
            variants[v].run(pairs);
            if (round >= 0)
                spent[(size_t)round * VARIANTS + v] = (now() - start) / (double)pairs;
        }
    for (size_t v = 0; v < VARIANTS; v++) {
        printf("%s\"%s\": [", v ? ", " : "{", variants[v].name);
        for (long round = 0; round < rounds; round++)
            printf("%s%.3f", round ? ", " : "", spent[(size_t)round * VARIANTS + v]);
        printf("]");
    }
    printf("}\n");
    free(spent);
}

static void count_reserves(uint32_t slots, long n)
{
    struct cap cap = new_cap(slots, ROOM);
    for (long i = 0; i < n; i++)
        if (cap_reserve(&cap, slots / 2, cap_units(1)) != CAP_DONE)
            fail("a reserve was refused");
}

int main(int count, char **arguments)
{
    const char *what = count == 4 ? arguments[1] : "";
    if (strcmp(what, "time") == 0)
        time_variants(atol(arguments[2]), atol(arguments[3]));
    else if (strcmp(what, "count") == 0)
        count_reserves((uint32_t)atol(arguments[2]), atol(arguments[3]));
    else if (strcmp(what, "size") == 0)
        printf("%llu\n",
               (unsigned long long)layout_size((uint32_t)atol(arguments[2]), (uint32_t)atol(arguments[3]), 0));
    else
        fail("usage: bench_core time ROUNDS PAIRS | count SLOTS N | size SLOTS CAPS");
    return 0;
}
