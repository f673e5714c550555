/* stage.h - who is on the stage of test_single_step.c: the victim, two others, one who died before; what each can do. */
#ifndef STAGE_H
#define STAGE_H

#include "check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT 6u
#define SLOTS 5u
#define CAPS 2u
#define VICTIM 0     /* slots */
#define OTHER(i) (1 + (i))
#define DEAD 3

enum rivals { IDLE, ONCE, SEVERAL, RECLAIMING, RIVALS };
static const char *const RIVALS_ACT[] = {"never", "once", "several times", "by reclaiming"};

struct stage {
    struct segment segment;
    struct gate others[2];
    volatile int *done; /* shared with the victim: its operation is over */
    volatile struct sight *sight; /* so is this (meetings.h) */
    pid_t sleeper;      /* waits for one unit of cap 0; 0: there is none */
};

/* One operation: what the parent sets up, what the victim does before it is stepped, and what it is stepped through; and
 * where somebody sleeps meanwhile, what must be enough to wake him when the victim is dead. */
struct scene {
    const char *name;
    void (*set)(struct stage *);
    void (*arrive)(struct stage *, struct gate *);
    void (*play)(struct stage *, struct gate *);
    void (*wake)(struct stage *);
};

static uint32_t held_by_others(struct stage *stage, uint32_t cap)
{
    return gate_held(&stage->others[0], cap) + gate_held(&stage->others[1], cap);
}

static void check_limits(struct stage *stage)
{
    for (uint32_t cap = 0; cap < CAPS; cap++)
        CHECK(cap_total(&stage->others[0].caps[cap]) <= LIMIT);
}

/* cap_reserve and not gate_reserve: a refusal must not reclaim on its own here. */
static void act(struct stage *stage, enum rivals rivals)
{
    static const int TIMES[] = {[IDLE] = 0, [ONCE] = 1, [SEVERAL] = 5, [RECLAIMING] = 1};
    for (int i = 0; i < TIMES[rivals]; i++) {
        struct gate *gate = &stage->others[i % 2];
        if (rivals == RECLAIMING)
            gate_reclaim(gate);
        for (uint32_t cap = 0; cap < CAPS && rivals != RECLAIMING; cap++) {
            uint32_t slot = (uint32_t)gate->owner.slot;
            if (cap_reserve(&gate->caps[cap], slot, cap_units(1)) != CAP_DONE)
                cap_release(&gate->caps[cap], slot, 1);
        }
        check_limits(stage);
    }
}

static void hold(struct gate *gate, uint32_t cap, uint32_t want)
{
    uint32_t held = gate_held(gate, cap);
    if (held)
        REQUIRE(gate_release(gate, cap, held) == CAP_DONE);
    if (want)
        REQUIRE(gate_reserve(gate, cap, cap_units(want)) == CAP_DONE);
}

static void all_hold_one(struct stage *stage)
{
    for (uint32_t cap = 0; cap < CAPS; cap++) {
        cap_set_limit(&stage->others[0].caps[cap], LIMIT);
        for (int i = 0; i < 2; i++)
            hold(&stage->others[i], cap, 1);
    }
}

/* With the two that the victim takes, nothing is left. */
static void fill_last_cap(struct stage *stage)
{
    all_hold_one(stage);
    hold(&stage->others[0], CAPS - 1, LIMIT - 3);
}

static void fill_all_caps(struct stage *stage)
{
    fill_last_cap(stage);
    hold(&stage->others[0], 0, LIMIT - 3);
}

/* The victim's slot is as new: no operation ever, nobody in the state words. */
static void renew_the_slot(struct stage *stage)
{
    all_hold_one(stage);
    for (uint32_t i = 0; i < CAPS; i++) {
        struct cap *cap = &stage->others[0].caps[i];
        memset(&cap->ledgers[VICTIM], 0, sizeof cap->ledgers[VICTIM]);
        atomic_store(&cap->shared->state, (uint64_t)cap_total(cap) << 32 | (uint64_t)LAYOUT_MAX_SLOTS << 22);
    }
}

static void come_with_nothing(struct stage *stage, struct gate *gate)
{
    gate_initialise(gate, &stage->segment);
    if (gate_claim(gate, VICTIM) != OWNER_OK)
        _exit(3);
}

static void come_with_two(struct stage *stage, struct gate *gate)
{
    gate_initialise(gate, &stage->segment);
    uint32_t refused_by;
    struct cap_ask two[CAPS] = {cap_units(2), cap_units(2)};
    if (gate_claim(gate, VICTIM) != OWNER_OK || gate_reserve_all(gate, two, &refused_by) != CAP_DONE)
        _exit(3);
}

static void come_without_slot(struct stage *stage, struct gate *gate)
{
    gate_initialise(gate, &stage->segment);
    gate_reclaim(gate); /* it knows by now who it is: that is not what is being tested */
}

static void play_reserve(struct stage *stage, struct gate *gate)
{
    (void)stage;
    cap_reserve(&gate->caps[0], VICTIM, cap_units(1));
}

static void play_release(struct stage *stage, struct gate *gate)
{
    (void)stage;
    cap_release(&gate->caps[0], VICTIM, 1);
}

static void play_reserve_all(struct stage *stage, struct gate *gate)
{
    (void)stage;
    uint32_t refused_by;
    struct cap_ask one[CAPS] = {cap_units(1), cap_units(1)};
    gate_reserve_all(gate, one, &refused_by);
}

/* Past the look that finds a cap full, into the release of what an earlier cap granted. */
static void play_undo(struct stage *stage, struct gate *gate)
{
    (void)stage;
    if (gate_reserve(gate, 0, cap_units(1)) == CAP_DONE && gate_reserve(gate, 1, cap_units(1)) != CAP_DONE)
        gate_release(gate, 0, 1);
}

static void play_set_limit(struct stage *stage, struct gate *gate)
{
    (void)stage;
    cap_set_limit(&gate->caps[0], LIMIT - 1);
}

static void play_close(struct stage *stage, struct gate *gate)
{
    (void)stage;
    gate_close(gate);
}

static void play_claim(struct stage *stage, struct gate *gate)
{
    (void)stage;
    gate_claim(gate, VICTIM);
}

/* The gate that the parent claimed is not the child's: it claims anew, and must leave the parent's slot alone. */
static void play_fork_and_claim(struct stage *stage, struct gate *gate)
{
    (void)gate;
    if (gate_claim(&stage->others[1], GATE_ANY_SLOT) == OWNER_OK)
        gate_reserve(&stage->others[1], 0, cap_units(1));
}

static void play_reclaim(struct stage *stage, struct gate *gate)
{
    (void)stage;
    gate_reclaim(gate);
}

/* Start an owner of slot DEAD that holds one unit of each cap. */
static pid_t start_one_to_die(struct stage *stage)
{
    all_hold_one(stage);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct gate gate;
        uint32_t refused_by;
        struct cap_ask one[CAPS] = {cap_units(1), cap_units(1)};
        gate_initialise(&gate, &stage->segment);
        if (gate_claim(&gate, DEAD) == OWNER_OK)
            gate_reserve_all(&gate, one, &refused_by);
        raise(SIGSTOP);
    }
    int status;
    REQUIRE(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    REQUIRE(cap_held(&stage->others[0].caps[0], DEAD) == 1);
    return child;
}

static void let_it_die(pid_t child)
{
    int status;
    REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

static void leave_a_dead_owner(struct stage *stage) { let_it_die(start_one_to_die(stage)); }

static struct layout_ledger *books_of_the_dead(struct stage *stage)
{
    leave_a_dead_owner(stage);
    return &stage->others[0].caps[0].ledgers[DEAD];
}

/* Killed before the swap of a second reserve. */
static void leave_an_intent(struct stage *stage)
{
    struct layout_ledger *ledger = books_of_the_dead(stage);
    atomic_store(&ledger->next, 2);
    atomic_fetch_or(&ledger->op, 1);
}

/* Killed after the swap of its reserve; the state still says so. */
static void leave_a_swap(struct stage *stage)
{
    struct layout_ledger *ledger = books_of_the_dead(stage);
    uint64_t op = atomic_load(&ledger->op);
    atomic_store(&ledger->next, 1);
    atomic_store(&ledger->held, 0);
    atomic_store(&ledger->op, op - 1);
}

/* The same, and another has replaced the state since. */
static void leave_a_helped_swap(struct stage *stage)
{
    leave_a_swap(stage);
    act(stage, ONCE);
}

#endif
