/* meetings.h - who meets a waiter, or one who makes room, in the middle of it: none dies, and no wake-up may be lost. */
#ifndef MEETINGS_H
#define MEETINGS_H

#include "sleeper.h"

/* What a waiter for one unit of cap 0 knows as it falls asleep. */
struct sight {
    uint32_t turn;
    bool refused; /* or it would not fall asleep */
};

/* The victim is stepped through a scene; at one instruction of it comes the other. */
struct meeting {
    struct scene scene;
    void (*come)(struct stage *);
    bool taken_again; /* the other took what room it made */
};

static struct layout_cap *first_cap(struct stage *stage) { return stage->others[0].caps[0].shared; }

static void fill_first_cap(struct stage *stage)
{
    all_hold_one(stage);
    hold(&stage->others[0], 0, LIMIT - 1);
    atomic_store(&first_cap(stage)->waiters, 0);
}

static void leave_two_to_the_victim(struct stage *stage)
{
    fill_all_caps(stage);
    atomic_store(&first_cap(stage)->waiters, 0);
}

static void leave_two_while_others_wait(struct stage *stage)
{
    fill_all_caps(stage);
    atomic_store(&first_cap(stage)->waiters, 1);
}

static void lower_the_limit(struct stage *stage)
{
    fill_first_cap(stage);
    hold(&stage->others[0], 0, LIMIT - 2);
    cap_set_limit(&stage->others[0].caps[0], LIMIT - 1);
    atomic_store(&first_cap(stage)->waiters, 0);
}

static void come_to_wait(struct stage *stage, struct gate *gate)
{
    come_with_nothing(stage, gate);
    gate->sweep_after = UINT64_MAX; /* a look for the dead is long and touches nothing here */
}

static void play_try(struct stage *stage, struct gate *gate)
{
    struct cap_ask asks[CAPS] = {cap_units(1)};
    uint32_t turns[CAPS], by;
    stage->sight->refused = gate_reserve_or_wait(gate, asks, turns, &by) != CAP_DONE;
    stage->sight->turn = turns[0];
}

static void try_and_be_about_to_sleep(struct stage *stage)
{
    const struct cap *cap = &stage->others[0].caps[0];
    stage->sight->turn = wait_announce(cap->shared);
    stage->sight->refused = !cap_fits(cap_units(1), cap_total(cap), cap_limit(cap));
}

static void release_one(struct stage *stage) { REQUIRE(gate_release(&stage->others[0], 0, 1) == CAP_DONE); }

static void release_one_and_take_it_again(struct stage *stage)
{
    release_one(stage);
    REQUIRE(gate_reserve(&stage->others[0], 0, cap_units(1)) == CAP_DONE);
}

/* Tell whether the waiter sleeps neither beside room nor so that the next to make some would overlook it. */
static bool no_wake_up_is_lost(struct stage *stage, const struct meeting *meeting)
{
    struct layout_cap *cap = first_cap(stage);
    bool awake = atomic_load(&cap->turn) != stage->sight->turn;
    if (meeting->taken_again || !stage->sight->refused)
        return awake || atomic_load(&cap->waiters) == 1;
    return awake;
}

static const struct meeting MEETINGS[] = {
    {{"release", leave_two_to_the_victim, come_with_two, play_release, NULL}, try_and_be_about_to_sleep, false},
    {{"release, others wait", leave_two_while_others_wait, come_with_two, play_release, NULL},
     try_and_be_about_to_sleep, false},
    {{"limit", lower_the_limit, come_with_nothing, play_raise_limit, NULL}, try_and_be_about_to_sleep, false},
    {{"wait", fill_first_cap, come_to_wait, play_try, NULL}, release_one, false},
    {{"wait for more", fill_first_cap, come_to_wait, play_try, NULL}, release_one_and_take_it_again, true},
};
#define MEETING_COUNT (sizeof MEETINGS / sizeof *MEETINGS)

#endif
