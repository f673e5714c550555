/* Sleepers and those who wake them: nobody oversleeps.
 *
 * Waiters of threads and of processes take turns at caps that are nearly always full, each sleeping for up to PATIENCE
 * seconds at a time, far longer than the whole test. Were one wake-up lost, a sleep would last that long and be seen.
 *
 * test_wait [operations per waiter]
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "wait.h"

#define WAITERS 4u
#define CAPS 2u
#define PATIENCE UINT64_C(20000000000) /* nanoseconds */
#define SHORT UINT64_C(20000000)

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- the contract, without anybody else ---------------------------------------------------------------------- */

static void a_release_moves_the_turn_only_for_those_who_said_that_they_wait(void)
{
    struct segment segment;
    check_segment(&segment, 1, 1, 1, LAYOUT_HARD);
    struct cap cap = segment_cap(&segment, 0);
    struct layout_cap *shared = cap.shared;
    CHECK(cap_reserve(&cap, 0, cap_units(1)) == CAP_DONE && cap_release(&cap, 0, 1) == CAP_DONE);
    CHECK(atomic_load(&shared->turn) == 0);
    CHECK(cap_reserve(&cap, 0, cap_units(1)) == CAP_DONE);
    uint64_t before = atomic_load(&shared->state);
    uint32_t seen = wait_announce(shared);
    CHECK(seen == 0 && atomic_load(&shared->waiters) == 1 && atomic_load(&shared->state) == before);
    CHECK(cap_release(&cap, 0, 1) == CAP_DONE);
    CHECK(atomic_load(&shared->turn) == 1 && atomic_load(&shared->waiters) == 0);
    CHECK(cap_reserve(&cap, 0, cap_units(1)) == CAP_DONE && cap_release(&cap, 0, 1) == CAP_DONE);
    CHECK(atomic_load(&shared->turn) == 1);
    wait_announce(shared);
    cap_set_limit(&cap, 2);
    CHECK(atomic_load(&shared->turn) == 2 && atomic_load(&shared->waiters) == 0);
    cap_set_limit(&cap, 3);
    CHECK(atomic_load(&shared->turn) == 2);
    wait_announce(shared);
    atomic_fetch_add(&shared->state, UINT64_C(3) << 32); /* the repair of a total makes room */
    CHECK(cap_audit(&cap) && atomic_load(&shared->turn) == 3);
    segment_close(&segment);
}

static void a_sleep_ends_when_the_turn_has_moved_or_the_time_is_up(void)
{
    struct segment segment;
    check_segment(&segment, 1, 1, 1, LAYOUT_HARD);
    struct layout_cap *shared = segment_cap(&segment, 0).shared;
    uint32_t seen = wait_announce(shared);
    uint64_t begin = now();
    CHECK(wait_sleep(shared, seen, SHORT) == WAIT_TIME_UP && now() - begin >= SHORT);
    wait_wake(shared);
    begin = now();
    CHECK(wait_sleep(shared, seen, PATIENCE) == WAIT_MOVED && now() - begin < PATIENCE / 2);
    segment_close(&segment);
}

static void nothing(int signal) { (void)signal; }

static void a_sleep_ends_when_a_signal_comes(void)
{
    struct segment segment;
    check_segment(&segment, 1, 1, 1, LAYOUT_HARD);
    struct layout_cap *shared = segment_cap(&segment, 0).shared;
    struct sigaction action = {.sa_handler = nothing}, before;
    struct timespec soon = {.tv_nsec = (long)SHORT};
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    REQUIRE(sigaction(SIGALRM, &action, &before) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    /* again and again: the first may come before the sleep */
    REQUIRE(timer_settime(timer, 0, &(struct itimerspec){soon, soon}, NULL) == 0);
    uint64_t begin = now();
    CHECK(wait_sleep(shared, wait_announce(shared), PATIENCE) == WAIT_INTERRUPTED && now() - begin < PATIENCE / 2);
    REQUIRE(timer_delete(timer) == 0 && sigaction(SIGALRM, &before, NULL) == 0);
    segment_close(&segment);
}

static void never_more_wait_than_may(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 1, LAYOUT_HARD);
    struct gate one, two;
    struct gate_statistics told;
    gate_initialise(&one, &segment);
    gate_initialise(&two, &segment);
    REQUIRE(gate_claim(&one, 0) == OWNER_OK && gate_claim(&two, 1) == OWNER_OK);
    CHECK(!gate_wait_enter(&one, 0, 0) && gate_wait_enter(&one, 0, 2) && gate_wait_enter(&two, 0, 2));
    CHECK(!gate_wait_enter(&one, 0, 2) && !gate_wait_enter(&two, 0, 1));
    gate_wait_leave(&one, 0);
    CHECK(gate_wait_enter(&two, 0, 2) && gate_wait_enter(&two, 0, UINT64_MAX));
    gate_statistics(&segment, 0, &told);
    CHECK(told.waiting == 3);
    gate_close(&two); /* its places in line are given back with all else */
    gate_statistics(&segment, 0, &told);
    CHECK(told.waiting == 0);
    gate_refuse(&one, 0, GATE_FULL);
    gate_refuse(&one, 0, GATE_TIMEOUT);
    gate_refuse(&one, 0, GATE_TOO_LARGE);
    CHECK(gate_reserve(&one, 0, cap_units(2)) == CAP_REFUSED); /* could never fit */
    CHECK(gate_reserve(&one, 0, cap_units(1)) == CAP_DONE && gate_reserve(&one, 0, cap_units(1)) == CAP_REFUSED);
    gate_statistics(&segment, 0, &told);
    CHECK(told.refused == 5 && told.timeouts == 1 && told.too_large == 2);
    gate_close(&one);
    segment_close(&segment);
}

/* ---- many at once -------------------------------------------------------------------------------------------- */

/* What all waiters share; in shared memory, for some are processes. */
struct table {
    struct segment segment;
    long operations;
    _Atomic uint32_t out[CAPS], most[CAPS];
    _Atomic long slept, overslept, granted;
};

static void note(struct table *table, uint32_t cap, uint32_t n)
{
    uint32_t out = atomic_fetch_add(&table->out[cap], n) + n, most = atomic_load(&table->most[cap]);
    while (most < out && !atomic_compare_exchange_weak(&table->most[cap], &most, out))
        ;
}

/* Wait for one or two caps, hold them for a moment, give them back; so many times. */
static void take_turns(struct table *table, uint32_t number)
{
    struct gate gate;
    gate_initialise(&gate, &table->segment);
    REQUIRE(gate_claim(&gate, (int)number) == OWNER_OK);
    for (long i = 0; i < table->operations; i++) {
        struct cap_ask asks[CAPS] = {cap_units(1 + (uint32_t)(i + number) % 2), cap_units((uint32_t)(i / 2) % 2)};
        uint32_t turns[CAPS], by;
        while (gate_reserve_or_wait(&gate, asks, turns, &by) != CAP_DONE) {
            atomic_fetch_add(&table->slept, 1);
            if (wait_sleep(gate.caps[by].shared, turns[by], PATIENCE) == WAIT_TIME_UP)
                atomic_fetch_add(&table->overslept, 1);
        }
        atomic_fetch_add(&table->granted, 1);
        for (uint32_t cap = 0; cap < CAPS; cap++)
            note(table, cap, asks[cap].n);
        if (i % 8 == 0)
            sched_yield();
        for (uint32_t cap = 0; cap < CAPS; cap++) {
            atomic_fetch_sub(&table->out[cap], asks[cap].n);
            if (asks[cap].n)
                REQUIRE(gate_release(&gate, cap, asks[cap].n) == CAP_DONE);
        }
    }
    gate_close(&gate);
}

static struct table *lay(long operations)
{
    struct table *table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(table != MAP_FAILED);
    check_segment(&table->segment, WAITERS, CAPS, 2, LAYOUT_HARD);
    struct cap second = segment_cap(&table->segment, 1);
    cap_set_limit(&second, 1);
    table->operations = operations;
    return table;
}

static void clear(struct table *table, const char *who)
{
    CHECK(atomic_load(&table->granted) == (long)WAITERS * table->operations);
    CHECK(atomic_load(&table->overslept) == 0 && atomic_load(&table->slept) > 0);
    CHECK(atomic_load(&table->most[0]) <= 3 && atomic_load(&table->most[1]) == 1);
    for (uint32_t i = 0; i < CAPS; i++) {
        struct cap cap = segment_cap(&table->segment, i);
        CHECK(cap_total(&cap) == 0 && check_settled(&cap) && atomic_load(&cap.shared->repairs) == 0);
    }
    printf("%s: granted %ld, slept %ld times, overslept %ld\n", who, atomic_load(&table->granted),
           atomic_load(&table->slept), atomic_load(&table->overslept));
    segment_close(&table->segment);
    munmap(table, sizeof *table);
}

struct seat {
    struct table *table;
    uint32_t number;
    _Atomic bool over;
};

static void *take_turns_in_a_thread(void *argument)
{
    struct seat *seat = argument;
    take_turns(seat->table, seat->number);
    return NULL;
}

/* Lower and raise a limit: each rise must wake those for whom it makes room. */
static void *move_the_limit(void *argument)
{
    struct seat *seat = argument;
    struct cap cap = segment_cap(&seat->table->segment, 0);
    for (uint32_t i = 0; !atomic_load(&seat->over); i++) {
        cap_set_limit(&cap, 2 + i % 2);
        sched_yield();
    }
    return NULL;
}

static void no_thread_oversleeps(long operations)
{
    struct table *table = lay(operations);
    struct seat seats[WAITERS + 1];
    pthread_t threads[WAITERS + 1];
    for (uint32_t i = 0; i <= WAITERS; i++) {
        seats[i] = (struct seat){.table = table, .number = i};
        REQUIRE(pthread_create(&threads[i], NULL, i < WAITERS ? take_turns_in_a_thread : move_the_limit,
                               &seats[i]) == 0);
    }
    for (uint32_t i = 0; i <= WAITERS; i++) {
        if (i == WAITERS)
            atomic_store(&seats[i].over, true);
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    clear(table, "threads");
}

static void no_process_oversleeps(long operations)
{
    struct table *table = lay(operations);
    for (uint32_t i = 0; i < WAITERS; i++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            take_turns(table, i);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < WAITERS; i++) {
        int status;
        REQUIRE(wait(&status) > 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    clear(table, "processes");
}

int main(int argc, char **argv)
{
    long operations = argc > 1 ? atol(argv[1]) : 20000;
    a_release_moves_the_turn_only_for_those_who_said_that_they_wait();
    a_sleep_ends_when_the_turn_has_moved_or_the_time_is_up();
    a_sleep_ends_when_a_signal_comes();
    never_more_wait_than_may();
    no_process_oversleeps(operations);
    no_thread_oversleeps(operations);
    return check_report("wait");
}
