/* Kill a process at every single instruction of everything it can do to a segment, and find nothing lost.
 *
 * A victim is forked, made ready and stopped. It is then single-stepped through one operation and killed after k
 * instructions, for every k until the operation is over; but not within the C library, whose instructions touch no
 * segment: a kill there is a kill at the return from there. Two others have slots of their own and act meanwhile: never,
 * once, several times (each action replaces the state words), or by reclaiming. Then the dead are reclaimed, and
 *
 *     each total is what the living hold, to the unit (nothing lost, nothing given back twice),
 *     every slot but the living ones' is free again,
 *     no audit had to repair anything,
 *     no total ever passed its limit, and
 *     who slept meanwhile was woken: by the victim, or by what is named in its scene (in time even if he would sleep on).
 *
 * Nor may a wake-up be lost if nobody dies: a victim that waits or makes room meets another that makes room or waits, at
 * every instruction (meetings.h).
 *
 * test_single_step         the others act after the kill; long operations are sampled               (seconds)
 * test_single_step short   of that, only reserve, release and refuse
 * test_single_step sleep   of that, only where somebody sleeps
 * test_single_step meet    of that, only the meetings
 * test_single_step every   the same at every instruction of the core, and rivals that reclaim meanwhile   (minutes)
 * test_single_step grid    the others act at instruction j and the victim goes on to be killed at instruction k,
 *                          for every j < k of reserve, release and refuse                           (minutes)
 */
#define _GNU_SOURCE
#include "meetings.h"
#include "scenes.h"

#include <elf.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

#define LONG 1000      /* instructions: an operation that makes system calls */
#define SAMPLED 120    /* instructions of the core: an operation of which only samples are tried unless every is asked for */
#define SAMPLES 10     /* kills of a long operation, where not every instruction is asked for */
#define MOST_POINTS 8192
#define ENOUGH 5 /* failures, to see that the core is broken: each may take its time */

static long killed, stepped;

static void be_victim(struct stage *stage, const struct scene *scene)
{
    struct gate gate;
    scene->arrive(stage, &gate);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    scene->play(stage, &gate);
    *stage->done = 1;
    raise(SIGSTOP);
    _exit(3);
}

static void check_aftermath(struct stage *stage, const struct scene *scene)
{
    check_limits(stage);
    if (scene->wake) {
        scene->wake(stage);
        check_woken(stage);
    }
    while (gate_reclaim(&stage->others[0]) > 0)
        ;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        bool living = slot == OTHER(0) || slot == OTHER(1);
        CHECK((atomic_load(&segment_owners(&stage->segment)[slot].word) != 0) == living);
    }
    for (uint32_t i = 0; i < CAPS; i++) {
        struct cap *cap = &stage->others[0].caps[i];
        CHECK(cap_total(cap) == held_by_others(stage, i));
        CHECK(atomic_load(&cap->shared->repairs) == 0);
        CHECK(check_settled(cap));
    }
    check_limits(stage);
}

/* Make the books right after a failure, so that each failure counts once. */
static void start_afresh(struct stage *stage)
{
    for (uint32_t i = 0; i < CAPS; i++) {
        struct cap *cap = &stage->others[0].caps[i];
        atomic_store(&cap->shared->state,
                     (uint64_t)held_by_others(stage, i) << 32 | (uint64_t)LAYOUT_MAX_SLOTS << 22);
        atomic_store(&cap->shared->repairs, 0);
    }
}

/* Tell whether a stopped victim is in this program's own code, not in a library. */
static bool in_the_core(pid_t victim)
{
    extern const char __executable_start, etext;
    struct user_regs_struct registers;
    struct iovec vector = {&registers, sizeof registers};
    REQUIRE(ptrace(PTRACE_GETREGSET, victim, (void *)NT_PRSTATUS, &vector) == 0);
#if defined(__x86_64__)
    uintptr_t at = registers.rip;
#elif defined(__aarch64__)
    uintptr_t at = registers.pc;
#endif
    return at >= (uintptr_t)&__executable_start && at < (uintptr_t)&etext;
}

static pid_t start_victim(struct stage *stage, const struct scene *scene)
{
    scene->set(stage);
    *stage->done = 0;
    pid_t victim = fork();
    REQUIRE(victim >= 0);
    if (victim == 0)
        be_victim(stage, scene);
    int status;
    REQUIRE(waitpid(victim, &status, 0) == victim && WIFSTOPPED(status));
    return victim;
}

static void step(pid_t victim)
{
    int status;
    REQUIRE(ptrace(PTRACE_SINGLESTEP, victim, NULL, NULL) == 0);
    REQUIRE(waitpid(victim, &status, 0) == victim && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    stepped++;
}

static void kill_victim(pid_t victim)
{
    int status;
    REQUIRE(kill(victim, SIGKILL) == 0 && waitpid(victim, &status, 0) == victim && WIFSIGNALED(status));
    killed++;
}

/* Step a victim, letting the others act at instruction `meet` (-1: after the kill), and kill it at instruction
 * `kill_at`. False if the operation was over before that. */
static bool step_and_kill(struct stage *stage, const struct scene *scene, enum rivals rivals, long meet, long kill_at)
{
    pid_t victim = start_victim(stage, scene);
    for (long i = 0; i < kill_at && !*stage->done; i++) {
        if (i == meet)
            act(stage, rivals);
        step(victim);
    }
    bool over = *stage->done;
    kill_victim(victim);
    if (meet < 0)
        act(stage, rivals);
    int failures = check_failures;
    check_aftermath(stage, scene);
    if (check_failures != failures) {
        fprintf(stderr, "  killed at instruction %ld of %s, others acting %s (met at %ld)\n", kill_at, scene->name,
                RIVALS_ACT[rivals], meet);
        start_afresh(stage);
    }
    return !over;
}

/* Play a scene once to its end and note at which instructions to kill: those of the core. Return its length. */
static long plan(struct stage *stage, const struct scene *scene, long points[MOST_POINTS], long *count)
{
    pid_t victim = start_victim(stage, scene);
    long length = 0;
    *count = 0;
    for (; !*stage->done; length++) {
        if (*count < MOST_POINTS && in_the_core(victim))
            points[(*count)++] = length;
        step(victim);
    }
    kill_victim(victim);
    check_aftermath(stage, scene);
    CHECK(*count > 5 && *count < MOST_POINTS);
    return length;
}

/* Rivals that reclaim while the victim is in the middle of a long operation, and the victim killed soon after. */
static void meet_reclaimers(struct stage *stage, const struct scene *scene, const long *points, long count)
{
    for (long i = 0; i < count; i += 1 + count / SAMPLES)
        for (long soon = 1; soon < LONG; soon *= 6)
            step_and_kill(stage, scene, RECLAIMING, points[i], points[i] + soon);
}

/* Kill at each point after which nothing, something, much or a reclaim by others follows; in a long operation only
 * something or a reclaim, and `every` that-many-th point. */
static void kill_everywhere(struct stage *stage, const struct scene *scene, const long *points, long count,
                            bool is_long, long every)
{
    for (int rivals = IDLE; rivals < RIVALS; rivals++)
        for (long i = 0; i < count && !(is_long && (rivals == IDLE || rivals == SEVERAL)) && check_failures < ENOUGH;
             i += every)
            step_and_kill(stage, scene, rivals, -1, points[i]);
}

static void kill_on_the_grid(struct stage *stage, const struct scene *scene, long length)
{
    for (int rivals = ONCE; rivals < RIVALS; rivals++)
        for (long meet = 0; meet < length; meet++)
            for (long k = meet + 1; step_and_kill(stage, scene, rivals, meet, k); k++)
                ;
}

/* Let a victim be met at an instruction of the core (counted from 0) and go on to its end. False if it has fewer. */
static bool meet(struct stage *stage, const struct meeting *meeting, long at)
{
    pid_t victim = start_victim(stage, &meeting->scene);
    bool met = false;
    while (!*stage->done) {
        if (!met && in_the_core(victim) && at-- == 0) {
            meeting->come(stage);
            met = true;
        }
        step(victim);
    }
    kill_victim(victim);
    int failures = check_failures;
    CHECK(!met || no_wake_up_is_lost(stage, meeting));
    if (check_failures != failures)
        fprintf(stderr, "  when %s was met\n", meeting->scene.name);
    while (gate_reclaim(&stage->others[0]) > 0)
        ;
    return met;
}

static void meet_everywhere(struct stage *stage)
{
    for (size_t i = 0; i < MEETING_COUNT; i++) {
        long at = 0;
        while (check_failures < ENOUGH && meet(stage, &MEETINGS[i], at))
            at++;
        printf("%-26s met at %ld instructions\n", MEETINGS[i].scene.name, at);
        CHECK(at > 10);
    }
    killed = stepped = 0; /* nobody was killed in the middle of anything */
}

int main(int argc, char **argv)
{
    static long points[MOST_POINTS];
    const char *how = argc > 1 ? argv[1] : "";
    bool every = !strcmp(how, "every"), grid = !strcmp(how, "grid"), few = grid || !strcmp(how, "short");
    size_t first = !strcmp(how, "sleep") ? SCENE_COUNT - SLEEPER_SCENES : !strcmp(how, "meet") ? SCENE_COUNT : 0;
    struct stage stage = {0};
    check_segment(&stage.segment, SLOTS, CAPS, LIMIT, LAYOUT_HARD);
    stage.done = mmap(NULL, sizeof *stage.done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stage.sight = mmap(NULL, sizeof *stage.sight, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(stage.done != MAP_FAILED && stage.sight != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        gate_initialise(&stage.others[i], &stage.segment);
        REQUIRE(gate_claim(&stage.others[i], OTHER(i)) == OWNER_OK);
    }
    if (!few && first % SCENE_COUNT == 0)
        meet_everywhere(&stage);
    for (size_t i = first; i < (few ? FIRST_SCENES : SCENE_COUNT); i++) {
        const struct scene *scene = &SCENES[i];
        long before = killed, count, length = plan(&stage, scene, points, &count);
        if (grid)
            kill_on_the_grid(&stage, scene, length);
        else
            kill_everywhere(&stage, scene, points, count, length > LONG,
                            !every && count > SAMPLED ? 1 + count / SAMPLES : 1);
        if (every && length > LONG)
            meet_reclaimers(&stage, scene, points, count);
        printf("%-26s %5ld instructions, %4ld of the core, killed %ld times\n", scene->name, length, count,
               killed - before);
        fflush(stdout);
    }
    printf("killed %ld victims after %ld steps\n", killed, stepped);
    return check_report("single step");
}
