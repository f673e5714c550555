/* Sleepers and those who wake them: nobody oversleeps.
 *
 * Partners, threads or processes, follow each other round a ring of three caps, so that every release is the only one that
 * can wake the other; a crowd takes turns at caps that are nearly always full. All sleep for up to PATIENCE at a time,
 * longer than the whole test: were one wake-up lost, a sleep would last that long and be seen.
 *
 * test_wait [operations per waiter]
 */
#define _GNU_SOURCE
#include "pairs.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAITERS 4u
#define CAPS 3u
#define PATIENCE UINT64_C(5000000000) /* nanoseconds */
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

/* Where state says nothing. */
static void in_approximate_mode_a_release_and_a_close_move_the_turn(void)
{
    struct segment segment;
    struct gate gate;
    check_segment(&segment, 1, 1, 1, LAYOUT_APPROXIMATE);
    struct layout_cap *shared = segment_cap(&segment, 0).shared;
    gate_initialise(&gate, &segment);
    REQUIRE(gate_claim(&gate, 0) == OWNER_OK && gate_reserve(&gate, 0, cap_units(1)) == CAP_DONE);
    wait_announce(shared);
    CHECK(gate_release(&gate, 0, 1) == CAP_DONE && atomic_load(&shared->turn) == 1);
    REQUIRE(gate_reserve(&gate, 0, cap_units(1)) == CAP_DONE);
    wait_announce(shared);
    gate_close(&gate);
    CHECK(atomic_load(&shared->turn) == 2);
    segment_close(&segment);
}

static void a_sleep_ends_when_the_turn_has_moved_or_the_time_is_up(void)
{
    struct segment segment;
    check_segment(&segment, 1, 1, 1, LAYOUT_HARD);
    struct layout_cap *shared = segment_cap(&segment, 0).shared;
    uint32_t seen = wait_announce(shared);
    uint64_t begin = now();
    CHECK(!wait_spin(shared, seen, 0) && !wait_spin(shared, seen, SHORT) && now() - begin >= SHORT);
    begin = now();
    CHECK(wait_sleep(shared, seen, SHORT) == WAIT_TIME_UP && now() - begin >= SHORT);
    wait_wake(shared);
    begin = now();
    CHECK(wait_spin(shared, seen, 0) && wait_spin(shared, seen, PATIENCE) && now() - begin < PATIENCE / 2);
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
    atomic_fetch_add(&one.caps[0].ledgers[0].not_full, 1); /* half of a refusal: none that a total would have to take back */
    gate_statistics(&segment, 0, &told);
    CHECK(told.refused == 5 && gate_calls(&segment, 0, 0).refused == 6);
    gate_close(&one);
    segment_close(&segment);
}

/* ---- many at once -------------------------------------------------------------------------------------------- */

/* What all waiters share; in shared memory, for some are processes. */
struct table {
    struct segment segment;
    void (*play)(struct table *, uint32_t);
    uint32_t waiters;
    _Atomic uint32_t seated;
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

/* Sleep until it is granted, or until a sleep was so long that something is broken. */
static bool wait_for(struct table *table, struct gate *gate, const struct cap_ask *asks)
{
    uint32_t turns[CAPS], by;
    while (gate_reserve_or_wait(gate, asks, turns, &by) != CAP_DONE) {
        atomic_fetch_add(&table->slept, 1);
        if (wait_spin(gate->caps[by].shared, turns[by], atomic_load(&table->slept) % 2 * WAIT_SPIN))
            continue;
        if (wait_sleep(gate->caps[by].shared, turns[by], PATIENCE) == WAIT_TIME_UP)
            atomic_fetch_add(&table->overslept, 1);
        if (atomic_load(&table->overslept))
            return false;
    }
    atomic_fetch_add(&table->granted, 1);
    return true;
}

static void spin(uint64_t *seed, uint64_t most)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    for (volatile uint64_t i = 0; i < (*seed >> 33) % most; i++)
        ;
}

static void sit_down(struct table *table)
{
    atomic_fetch_add(&table->seated, 1);
    while (atomic_load(&table->seated) < table->waiters)
        sched_yield();
}

/* Hold one of the caps, take the next, let go of the first, and so on. Of three caps two are held: only who stands behind
 * the free one can go on, and makes room for the other by it. At moments that differ by a little more or less. */
static void follow(struct table *table, uint32_t number)
{
    struct gate gate;
    uint64_t seed = number + 1;
    uint32_t here = number;
    struct cap_ask asks[CAPS] = {[0] = {.n = 0}};
    gate_initialise(&gate, &table->segment);
    REQUIRE(gate_claim(&gate, (int)number) == OWNER_OK);
    asks[here] = cap_units(1);
    REQUIRE(gate_reserve(&gate, here, asks[here]) == CAP_DONE);
    sit_down(table);
    for (long i = 0; i < table->operations; i++) {
        uint32_t next = (here + 1) % CAPS;
        asks[here] = (struct cap_ask){0};
        asks[next] = cap_units(1);
        if (!wait_for(table, &gate, asks))
            break;
        spin(&seed, i % 8 ? 200 : 4000);
        REQUIRE(gate_release(&gate, here, 1) == CAP_DONE);
        here = next;
        spin(&seed, i % 8 == 4 ? 4000 : 200);
    }
    gate_close(&gate);
}

/* Wait for one cap or two, hold them for a moment, give them back; so many times. */
static void take_turns(struct table *table, uint32_t number)
{
    struct gate gate;
    gate_initialise(&gate, &table->segment);
    REQUIRE(gate_claim(&gate, (int)number) == OWNER_OK);
    for (long i = 0; i < table->operations; i++) {
        struct cap_ask asks[CAPS] = {cap_units(1 + (uint32_t)(i + number) % 2), cap_units((uint32_t)(i / 2) % 2)};
        if (!wait_for(table, &gate, asks))
            break;
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

/* Get in line, where there is one place, and out again. */
static void squeeze(struct table *table, uint32_t number)
{
    struct gate gate;
    gate_initialise(&gate, &table->segment);
    REQUIRE(gate_claim(&gate, (int)number) == OWNER_OK);
    gate.sweep_after = UINT64_MAX; /* or looks for the dead would take most of the time */
    sit_down(table);
    for (long i = 0; i < table->operations; i++) {
        atomic_fetch_add(&table->granted, 1);
        if (!gate_wait_enter(&gate, 0, 1)) {
            atomic_fetch_add(&table->slept, 1);
            continue;
        }
        note(table, 0, 1);
        if (i % 16 == 0)
            sched_yield();
        atomic_fetch_sub(&table->out[0], 1);
        gate_wait_leave(&gate, 0);
    }
    gate_close(&gate);
}

static struct table *lay(void (*play)(struct table *, uint32_t), uint32_t waiters, uint32_t first_limit,
                         long operations)
{
    struct table *table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(table != MAP_FAILED);
    check_segment(&table->segment, waiters, CAPS, 1, LAYOUT_HARD);
    struct cap first = segment_cap(&table->segment, 0);
    cap_set_limit(&first, first_limit);
    table->play = play;
    table->waiters = waiters;
    table->operations = operations;
    return table;
}

static void clear(struct table *table, const char *who)
{
    CHECK(atomic_load(&table->granted) == (long)table->waiters * table->operations);
    CHECK(atomic_load(&table->overslept) == 0 && atomic_load(&table->slept) > 0);
    CHECK(atomic_load(&table->most[0]) <= (table->play == squeeze ? 1 : 3) && atomic_load(&table->most[1]) <= 1);
    for (uint32_t i = 0; i < CAPS; i++) {
        struct cap cap = segment_cap(&table->segment, i);
        CHECK(cap_total(&cap) == 0 && check_settled(&cap) && atomic_load(&cap.shared->repairs) == 0);
    }
    printf("%u %s: granted %ld, slept %ld times, overslept %ld\n", table->waiters, who, atomic_load(&table->granted),
           atomic_load(&table->slept), atomic_load(&table->overslept));
    fflush(stdout); /* or the next to be forked would print it again */
    segment_close(&table->segment);
    munmap(table, sizeof *table);
}

struct seat {
    struct table *table;
    uint32_t number;
    _Atomic bool over;
};

static void *sit(void *argument)
{
    struct seat *seat = argument;
    seat->table->play(seat->table, seat->number);
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
    cap_set_limit(&cap, 3);
    return NULL;
}

static void no_thread_oversleeps(struct table *table)
{
    bool moves = table->play == take_turns;
    struct seat seats[WAITERS + 1];
    pthread_t threads[WAITERS + 1];
    for (uint32_t i = 0; i < table->waiters + moves; i++) {
        seats[i] = (struct seat){.table = table, .number = i};
        REQUIRE(pthread_create(&threads[i], NULL, i < table->waiters ? sit : move_the_limit, &seats[i]) == 0);
    }
    for (uint32_t i = 0; i < table->waiters + moves; i++) {
        if (i == table->waiters)
            atomic_store(&seats[i].over, true);
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    clear(table, "threads");
}

static void no_process_oversleeps(struct table *table)
{
    for (uint32_t i = 0; i < table->waiters; i++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            table->play(table, i);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < table->waiters; i++) {
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
    in_approximate_mode_a_release_and_a_close_move_the_turn();
    a_sleep_ends_when_the_turn_has_moved_or_the_time_is_up();
    a_sleep_ends_when_a_signal_comes();
    never_more_wait_than_may();
    the_second_sees_what_the_first_did();
    no_process_oversleeps(lay(follow, 2, 1, operations));
    no_process_oversleeps(lay(take_turns, WAITERS, 2, operations));
    no_thread_oversleeps(lay(follow, 2, 1, operations));
    no_thread_oversleeps(lay(squeeze, WAITERS, 2, 10 * operations));
    no_thread_oversleeps(lay(take_turns, WAITERS, 2, operations));
    return check_report("wait");
}
