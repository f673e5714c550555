/* sleeper.h - one more on the stage of test_single_step.c: who waits for a unit of cap 0 while the victim is killed. */
#ifndef SLEEPER_H
#define SLEEPER_H

#include "stage.h"

#include <sched.h>
#include <time.h>

#include "wait.h"

#define SLEEPER 4 /* its slot */
#define PATIENCE UINT64_C(60000000000) /* nanoseconds for which it would sleep if nobody woke it and nobody looked */
#define LOOKS 5000                     /* at one that sleeps, after which nobody will wake it any more */
#define PAUSE 100000                   /* nanoseconds between two */

static void wait_for_one(struct stage *stage)
{
    struct gate gate;
    struct cap_ask asks[CAPS] = {cap_units(1)};
    uint32_t turns[CAPS], by;
    gate_initialise(&gate, &stage->segment);
    if (gate_claim(&gate, SLEEPER) != OWNER_OK)
        _exit(3);
    while (gate_reserve_or_wait(&gate, asks, turns, &by) != CAP_DONE)
        if (!wait_spin(gate.caps[by].shared, turns[by], 0) &&
            wait_sleep(gate.caps[by].shared, turns[by], PATIENCE) == WAIT_TIME_UP)
            _exit(4);
    gate_close(&gate);
    _exit(0);
}

static bool is_asleep(pid_t process)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    REQUIRE(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *name = length ? strrchr(text, ')') : NULL;
    return name && name[1] && name[2] == 'S';
}

static void let_one_sleep(struct stage *stage)
{
    struct cap *cap = &stage->others[0].caps[0];
    atomic_store(&cap->shared->waiters, 0);
    stage->sleeper = fork();
    REQUIRE(stage->sleeper >= 0);
    if (stage->sleeper == 0)
        wait_for_one(stage);
    while (!atomic_load(&cap->shared->waiters) || !is_asleep(stage->sleeper))
        sched_yield();
}

/* The others hold all but so many units of cap 0, which are kept back by a lower limit. */
static void sleep_at(struct stage *stage, uint32_t kept_back)
{
    all_hold_one(stage);
    hold(&stage->others[0], 0, LIMIT - 1 - kept_back);
    cap_set_limit(&stage->others[0].caps[0], LIMIT - kept_back);
    let_one_sleep(stage);
}

static void sleep_at_the_limit(struct stage *stage) { sleep_at(stage, 0); }

static void sleep_at_a_lower_limit(struct stage *stage) { sleep_at(stage, 1); }

static void sleep_while_the_victim_takes_two(struct stage *stage) { sleep_at(stage, 2); }

static void sleep_while_a_dead_owner_holds_one(struct stage *stage)
{
    pid_t dead = start_one_to_die(stage); /* later: before he sleeps, the sleeper looks for the dead */
    cap_set_limit(&stage->others[0].caps[0], cap_total(&stage->others[0].caps[0]));
    let_one_sleep(stage);
    let_it_die(dead);
}

/* Takes what was kept back, without a word to the sleeper. */
static void come_and_take_two(struct stage *stage, struct gate *gate)
{
    come_with_nothing(stage, gate);
    atomic_store(&gate->caps[0].shared->limit, LIMIT);
    if (gate_reserve(gate, 0, cap_units(2)) != CAP_DONE)
        _exit(3);
}

static void play_wait(struct stage *stage, struct gate *gate)
{
    (void)stage;
    struct cap_ask asks[CAPS] = {cap_units(1)};
    uint32_t turns[CAPS], by;
    if (gate_reserve_or_wait(gate, asks, turns, &by) != CAP_DONE && !wait_spin(gate->caps[by].shared, turns[by], 0))
        wait_sleep(gate->caps[by].shared, turns[by], 1000);
}

static void play_raise_limit(struct stage *stage, struct gate *gate)
{
    (void)stage;
    cap_set_limit(&gate->caps[0], LIMIT);
}

static void wake_by_a_release(struct stage *stage)
{
    gate_release(&stage->others[gate_held(&stage->others[0], 0) ? 0 : 1], 0, 1);
}

static void wake_by_reclaiming(struct stage *stage)
{
    gate_reclaim(&stage->others[0]);
    if (held_by_others(stage, 0) == cap_limit(&stage->others[0].caps[0])) /* a rival was faster */
        wake_by_a_release(stage);
}

/* Or by raising the limit, if the victim did not come to that. */
static void wake_by_reclaiming_or_the_limit(struct stage *stage)
{
    if (cap_limit(&stage->others[0].caps[0]) < LIMIT)
        cap_set_limit(&stage->others[0].caps[0], LIMIT);
    wake_by_reclaiming(stage);
}

/* All was done that has to wake it. If it sleeps on it is killed; if it, or who looks, has no processor, nothing is proved. */
static void check_woken(struct stage *stage)
{
    int status, looks = 0;
    while (waitpid(stage->sleeper, &status, looks < LOOKS ? WNOHANG : 0) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
        looks = is_asleep(stage->sleeper) ? looks + 1 : 0;
        if (looks == LOOKS)
            REQUIRE(kill(stage->sleeper, SIGKILL) == 0);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    stage->sleeper = 0;
}

#endif
