/* Kill a process at every single instruction of reserve, release and refusal, and find nothing lost.
 *
 * A victim is forked, claims slot 0 and stops. It is then single-stepped through one operation and killed after k
 * instructions, for every k until the operation is over. Before the kill or after it other slots act: not at all,
 * once, or several times, each action replacing the state word. Then the dead slot is reclaimed, and
 *
 *     the total is what the living hold, to the unit (nothing lost, nothing given back twice),
 *     no audit had to repair it, and
 *     the total never passed the limit.
 *
 * With an argument the two-stop grid runs as well: the others act at instruction j and the victim goes on to be
 * killed at instruction k, for every j < k. That is what a rival does to an operation in progress.
 */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT 6u
#define SLOTS 4u

enum operation { RESERVE, RELEASE, REFUSE, OPERATIONS };
static const char *const OPERATION[] = {"reserve", "release", "refuse"};

enum rivals { IDLE, ONCE, SEVERAL, RIVALS };

struct stage {
    struct segment segment;
    struct gate others[2];
    volatile int *done; /* shared with the victim: its operation is over */
    long killed, stepped;
};

/* What the others hold, by their own account. */
static uint32_t held_by_others(struct stage *stage)
{
    return gate_held(&stage->others[0], 0) + gate_held(&stage->others[1], 0);
}

static void check_limit(struct stage *stage) { CHECK(cap_total(&stage->others[0].caps[0]) <= LIMIT); }

/* Each action replaces the state word. cap_reserve and not gate_reserve: a refusal must not reclaim on its own. */
static void act(struct stage *stage, enum rivals rivals)
{
    int times = rivals == IDLE ? 0 : rivals == ONCE ? 1 : 5;
    for (int i = 0; i < times; i++) {
        struct gate *gate = &stage->others[i % 2];
        uint32_t slot = (uint32_t)gate->owner.slot;
        if (cap_reserve(&gate->caps[0], slot, 1, CAP_UNBOUNDED) != CAP_DONE)
            cap_release(&gate->caps[0], slot, 1);
        check_limit(stage);
    }
}

/* The others hold one each; in a refusal they hold all that the victim does not. */
static void set_stage(struct stage *stage, enum operation operation)
{
    for (int i = 0; i < 2; i++) {
        struct gate *gate = &stage->others[i];
        uint32_t held = gate_held(gate, 0), want = operation == REFUSE && i == 0 ? LIMIT - 3 : 1;
        if (held)
            REQUIRE(gate_release(gate, 0, held) == CAP_DONE);
        REQUIRE(gate_reserve(gate, 0, want, CAP_UNBOUNDED) == CAP_DONE);
    }
    *stage->done = 0;
}

static void be_victim(struct stage *stage, enum operation operation)
{
    struct gate gate;
    gate_initialise(&gate, &stage->segment);
    if (gate_claim(&gate, 0) != OWNER_OK || gate_reserve(&gate, 0, 2, CAP_UNBOUNDED) != CAP_DONE)
        _exit(3);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    if (operation == RELEASE)
        cap_release(&gate.caps[0], 0, 1);
    else
        cap_reserve(&gate.caps[0], 0, 1, CAP_UNBOUNDED);
    *stage->done = 1;
    raise(SIGSTOP);
    _exit(3);
}

/* Step a victim, letting the others act at instruction `meet` (-1: after the kill), and kill it at instruction `kill_at`.
 * False if the operation was over before that. */
static bool step_and_kill(struct stage *stage, enum operation operation, enum rivals rivals, long meet, long kill_at)
{
    set_stage(stage, operation);
    pid_t victim = fork();
    REQUIRE(victim >= 0);
    if (victim == 0)
        be_victim(stage, operation);
    int status;
    REQUIRE(waitpid(victim, &status, 0) == victim && WIFSTOPPED(status));
    for (long i = 0; i < kill_at && !*stage->done; i++) {
        if (i == meet)
            act(stage, rivals);
        REQUIRE(ptrace(PTRACE_SINGLESTEP, victim, NULL, NULL) == 0);
        REQUIRE(waitpid(victim, &status, 0) == victim && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
        stage->stepped++;
    }
    bool over = *stage->done;
    REQUIRE(kill(victim, SIGKILL) == 0 && waitpid(victim, &status, 0) == victim && WIFSIGNALED(status));
    stage->killed++;

    if (meet < 0)
        act(stage, rivals);
    int failures = check_failures;
    CHECK(gate_reclaim(&stage->others[0]) == 1);
    struct cap *cap = &stage->others[0].caps[0];
    CHECK(cap_total(cap) == held_by_others(stage));
    CHECK(atomic_load(&cap->shared->repairs) == 0);
    CHECK(check_settled(cap));
    check_limit(stage);
    if (check_failures != failures) {
        fprintf(stderr, "  killed at instruction %ld of %s, others acting %s (met at %ld)\n", kill_at,
                OPERATION[operation], rivals == IDLE ? "never" : rivals == ONCE ? "once" : "several times", meet);
        /* The books are wrong now; begin again with right ones, so that each failure counts once. */
        atomic_store(&cap->shared->state, (uint64_t)held_by_others(stage) << 32 | (uint64_t)LAYOUT_MAX_SLOTS << 22);
        atomic_store(&cap->shared->repairs, 0);
    }
    return !over;
}

int main(int argc, char **argv)
{
    (void)argv;
    bool grid = argc > 1;
    struct stage stage = {0};
    check_segment(&stage.segment, SLOTS, 1, LIMIT, LAYOUT_HARD);
    stage.done = mmap(NULL, sizeof *stage.done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(stage.done != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        gate_initialise(&stage.others[i], &stage.segment);
        REQUIRE(gate_claim(&stage.others[i], i + 1) == OWNER_OK);
    }
    for (int operation = 0; operation < OPERATIONS; operation++) {
        long length = 0;
        for (int rivals = 0; rivals < RIVALS; rivals++) {
            long k = 0;
            while (step_and_kill(&stage, operation, rivals, -1, k))
                k++;
            length = k;
        }
        printf("%s: %ld instructions\n", OPERATION[operation], length);
        CHECK(length > 10);
        for (int rivals = ONCE; grid && rivals < RIVALS; rivals++)
            for (long meet = 0; meet < length; meet++)
                for (long k = meet + 1; step_and_kill(&stage, operation, rivals, meet, k); k++)
                    ;
    }
    printf("killed %ld victims after %ld steps\n", stage.killed, stage.stepped);
    return check_report("single step");
}
