/* What an approximate cap promises: it decides by the sum of its counters, and tells the truth about its peak. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "approximate.h"

static void an_approximate_cap_decides_by_the_sum_of_the_counters(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 4, LAYOUT_APPROXIMATE);
    struct gate *one = new_gate(&segment, 0), *two = new_gate(&segment, 1);
    CHECK(gate_reserve(one, 0, cap_units(3)) == CAP_DONE);
    CHECK(gate_reserve(two, 0, cap_units(2)) == CAP_REFUSED);
    CHECK(gate_reserve(two, 0, cap_units(1)) == CAP_DONE);
    CHECK(gate_release(one, 0, 4) == CAP_NOT_HELD && gate_release(one, 0, 3) == CAP_DONE);
    CHECK(counters_sum(segment_counters(&segment, 0), 2) == 1);
    end_gate(one);
    end_gate(two);
    CHECK(counters_sum(segment_counters(&segment, 0), 2) == 0);
    segment_close(&segment);
}

static uint64_t peak_of(const struct segment *segment)
{
    struct gate_statistics statistics;
    gate_statistics(segment, 0, &statistics);
    return statistics.peak;
}

/* One has decided and not published yet when two decides. */
static void an_overshoot_stays_in_the_peak_of_whoever_asks_next(void)
{
    for (int how = 0; how < 3; how++) {
        struct segment segment;
        check_segment(&segment, 3, 1, 4, LAYOUT_APPROXIMATE);
        struct gate *one = new_gate(&segment, 0), *two = new_gate(&segment, 1), *three = new_gate(&segment, 2);
        CHECK(gate_take(one, 0, cap_units(2)) == CAP_DONE && gate_reserve(two, 0, cap_units(3)) == CAP_DONE);
        CHECK(peak_of(&segment) == 3);
        counter_store(gate_counter(one, 0), gate_held(one, 0));
        CHECK(peak_of(&segment) == 5); /* while it lasts, whoever looks finds it */
        struct cap_ask ask = cap_units(1);
        uint32_t refused_by;
        if (how == 1)
            CHECK(gate_reserve(three, 0, ask) == CAP_REFUSED);
        if (how == 2)
            CHECK(gate_reserve_all(three, &ask, &refused_by) == CAP_REFUSED);
        CHECK(gate_release(one, 0, 2) == CAP_DONE && gate_release(two, 0, 3) == CAP_DONE);
        CHECK(peak_of(&segment) == (how ? 5 : 3));
        end_gate(one);
        end_gate(two);
        end_gate(three);
        segment_close(&segment);
    }
}

/* A unit that goes from a near slot to a far one while somebody sums: between, on a page that cannot be read. */
static struct gate *near, *far;
static void *page;
static size_t page_size;
static volatile sig_atomic_t handed_over;

static void hand_over(int number)
{
    (void)number;
    REQUIRE(mprotect(page, page_size, PROT_READ | PROT_WRITE) == 0);
    CHECK(gate_release(near, 0, 1) == CAP_DONE && gate_reserve(far, 0, cap_units(1)) == CAP_DONE);
    handed_over = 1;
}

static void a_sum_of_two_instants_is_no_peak(void)
{
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    REQUIRE(signal(SIGSEGV, hand_over) != SIG_ERR);
    for (int reserves = 0; reserves < 2; reserves++) {
        struct segment segment;
        check_segment(&segment, LAYOUT_MAX_SLOTS, 1, 1, LAYOUT_APPROXIMATE);
        _Atomic int64_t *counters = segment_counters(&segment, 0);
        page = (void *)(((uintptr_t)counters / page_size + 1) * page_size);
        uint32_t slot = (uint32_t)(((uintptr_t)page - (uintptr_t)counters) / LAYOUT_LINE);
        REQUIRE(slot + page_size / LAYOUT_LINE <= LAYOUT_MAX_SLOTS); /* nothing else is on that page */
        near = new_gate(&segment, 0), far = new_gate(&segment, (int)slot);
        struct gate *asks = new_gate(&segment, 1);
        REQUIRE(gate_reserve(near, 0, cap_units(1)) == CAP_DONE);
        handed_over = 0;
        REQUIRE(mprotect(page, page_size, PROT_NONE) == 0);
        if (reserves)
            CHECK(gate_reserve(asks, 0, cap_units(1)) == CAP_REFUSED);
        else
            CHECK(approximate_proven_total(&asks->caps[0], counters) == 0);
        CHECK(handed_over && peak_of(&segment) == 1);
        end_gate(near);
        end_gate(far);
        end_gate(asks);
        segment_close(&segment);
    }
}

int main(void)
{
    an_approximate_cap_decides_by_the_sum_of_the_counters();
    an_overshoot_stays_in_the_peak_of_whoever_asks_next();
    a_sum_of_two_instants_is_no_peak();
    return check_report("approximate");
}
