/* What each part of the core promises to its caller, without a second process. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atomics.h"
#include "tally.h"

/* The first of all tests: nothing has asked to be told of forks before the look. */
static void a_child_does_not_take_itself_for_a_parent_that_only_looked(void)
{
    struct segment segment;
    struct owner_info info;
    check_segment(&segment, 1, 1, 5, LAYOUT_HARD);
    struct owner looker;
    owner_initialise(&looker, &segment);
    struct layout_owner *line = segment_owners(&segment);
    atomic_store(&line->word, UINT64_C(2) << 62 | UINT64_C(1) << 39); /* live, pid 1, without a lock */
    CHECK(owner_look(&looker, 0, &info) && info.pid == 1 && info.alive);
    atomic_store(&line->word, 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct gate *gate = new_gate(&segment, 0);
        CHECK(owner_look(&gate->owner, 0, &info) && info.pid == (uint32_t)getpid());
        end_gate(gate);
        _exit(check_failures ? 1 : 0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    owner_close(&looker);
    segment_close(&segment);
}

static void a_cap_grants_up_to_its_limit_and_not_one_more(void)
{
    struct segment segment;
    check_segment(&segment, 3, 1, 5, LAYOUT_HARD);
    struct cap cap = segment_cap(&segment, 0);
    CHECK(cap_reserve(&cap, 0, cap_units(3)) == CAP_DONE);
    CHECK(cap_reserve(&cap, 1, cap_units(3)) == CAP_REFUSED);
    CHECK(cap_reserve(&cap, 1, cap_units(2)) == CAP_DONE);
    CHECK(cap_reserve(&cap, 2, cap_units(1)) == CAP_REFUSED);
    CHECK(cap_reserve(&cap, 2, cap_units(UINT32_MAX)) == CAP_REFUSED);
    CHECK(cap_total(&cap) == 5 && cap_held(&cap, 0) == 3 && cap_held(&cap, 1) == 2 && cap_held(&cap, 2) == 0);
    CHECK(cap_release(&cap, 1, 3) == CAP_NOT_HELD && cap_total(&cap) == 5);
    CHECK(cap_release(&cap, 1, 2) == CAP_DONE && cap_total(&cap) == 3);
    CHECK(cap_reserve(&cap, 1, (struct cap_ask){.n = 1, .bound = 3}) == CAP_REFUSED); /* a bound below the limit */
    CHECK(cap_reserve(&cap, 1, (struct cap_ask){.n = 1, .bound = 4}) == CAP_DONE);
    cap_set_limit(&cap, 2); /* below what is granted: nobody gets in until it has drained */
    CHECK(cap_reserve(&cap, 2, cap_units(1)) == CAP_REFUSED && cap_total(&cap) == 4);
    CHECK(cap_release(&cap, 0, 3) == CAP_DONE && cap_reserve(&cap, 2, cap_units(1)) == CAP_DONE);
    cap_set_limit(&cap, LAYOUT_MAX_LIMIT);
    CHECK(cap_reserve(&cap, 2, cap_units(LAYOUT_MAX_LIMIT - 2)) == CAP_DONE);
    CHECK(cap_total(&cap) == LAYOUT_MAX_LIMIT && cap_reserve(&cap, 0, cap_units(1)) == CAP_REFUSED);
    CHECK(check_settled(&cap) && !cap_audit(&cap));
    segment_close(&segment);
}

static void headroom_stays_free_and_a_negative_one_admits_until_the_limit_is_reached(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 10, LAYOUT_HARD);
    struct cap cap = segment_cap(&segment, 0);
    struct cap_ask modest = {.n = 2, .bound = CAP_UNBOUNDED, .headroom = 5};
    CHECK(cap_reserve(&cap, 0, modest) == CAP_DONE && cap_reserve(&cap, 0, cap_units(1)) == CAP_DONE);
    CHECK(cap_reserve(&cap, 0, modest) == CAP_DONE && cap_total(&cap) == 5);
    CHECK(cap_reserve(&cap, 0, (struct cap_ask){.n = 1, .bound = CAP_UNBOUNDED, .headroom = 5}) == CAP_REFUSED);
    CHECK(cap_reserve(&cap, 1, (struct cap_ask){.n = 1, .bound = 9, .headroom = 4}) == CAP_REFUSED);
    CHECK(cap_reserve(&cap, 1, (struct cap_ask){.n = 1, .bound = CAP_UNBOUNDED, .headroom = LAYOUT_MAX_LIMIT}) ==
          CAP_REFUSED);
    struct cap_ask prompt = {.n = 100, .bound = CAP_UNBOUNDED, .headroom = 1 - 100};
    CHECK(cap_reserve(&cap, 1, cap_units(4)) == CAP_DONE && cap_reserve(&cap, 1, prompt) == CAP_DONE);
    CHECK(cap_total(&cap) == 109 && cap_reserve(&cap, 0, prompt) == CAP_REFUSED);
    CHECK(cap_release(&cap, 1, 99) == CAP_DONE && cap_total(&cap) == 10);
    CHECK(cap_reserve(&cap, 0, prompt) == CAP_REFUSED);
    CHECK(cap_release(&cap, 1, 1) == CAP_DONE);
    struct cap_ask huge = {.n = UINT32_MAX, .bound = CAP_UNBOUNDED, .headroom = 1 - (int64_t)UINT32_MAX};
    CHECK(cap_reserve(&cap, 0, huge) == CAP_REFUSED && cap_total(&cap) == 9); /* 32 bits hold no such total */
    huge.n -= 9;
    CHECK(cap_reserve(&cap, 0, huge) == CAP_DONE && cap_total(&cap) == LAYOUT_MAX_LIMIT);
    CHECK(check_settled(&cap) && !cap_audit(&cap));
    segment_close(&segment);
}

static void recovery_finishes_what_the_books_say_was_pending(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 10, LAYOUT_HARD);
    struct cap cap = segment_cap(&segment, 0);
    struct layout_ledger *dead = &cap.ledgers[0];
    CHECK(cap_reserve(&cap, 0, cap_units(2)) == CAP_DONE);
    uint64_t op = atomic_load(&dead->op);

    atomic_store(&dead->next, 5); /* intent written, swap not done */
    atomic_store(&dead->op, op | 1);
    CHECK(cap_recover(&cap, 0) == 2 && cap_total(&cap) == 0 && cap_held(&cap, 0) == 0);

    CHECK(cap_reserve(&cap, 0, cap_units(3)) == CAP_DONE); /* swap done, books as they stood before it */
    op = atomic_load(&dead->op);
    atomic_store(&dead->held, 0);
    atomic_store(&dead->op, op - 2 + 1);
    CHECK(cap_recover(&cap, 0) == 3 && cap_total(&cap) == 0);

    CHECK(cap_reserve(&cap, 0, cap_units(4)) == CAP_DONE); /* the same, and a rival overwrites the state */
    op = atomic_load(&dead->op);
    atomic_store(&dead->held, 0);
    atomic_store(&dead->op, op - 2 + 1);
    CHECK(cap_reserve(&cap, 1, cap_units(1)) == CAP_DONE);
    CHECK(atomic_load(&dead->helped) == op >> 1); /* op is (number - 1) x 2, and has gone on by one */
    CHECK(cap_recover(&cap, 0) == 4 && cap_total(&cap) == 1 && cap_recover(&cap, 0) == 0);
    segment_close(&segment);
}

static void recovery_gives_nothing_back_for_a_first_operation_that_was_not_applied(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 1, LAYOUT_HARD);
    struct cap cap = segment_cap(&segment, 0);
    struct layout_ledger *dead = &cap.ledgers[0];
    CHECK(atomic_load(&dead->op) == 0 && atomic_load(&dead->helped) == 0);
    atomic_store(&dead->next, 1); /* killed in the first reserve this slot ever saw, before the swap */
    atomic_store(&dead->op, 1);
    CHECK(cap_reserve(&cap, 1, cap_units(1)) == CAP_DONE);
    CHECK(cap_recover(&cap, 0) == 0 && cap_total(&cap) == 1 && cap_held(&cap, 0) == 0);
    segment_close(&segment);
}

static void an_audit_repairs_a_wrong_total_and_nothing_else(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 10, LAYOUT_HARD);
    struct cap cap = segment_cap(&segment, 0);
    CHECK(cap_reserve(&cap, 0, cap_units(2)) == CAP_DONE && !cap_audit(&cap));
    atomic_fetch_add(&cap.shared->state, UINT64_C(3) << 32);
    CHECK(cap_total(&cap) == 5);
    atomic_fetch_or(&cap.ledgers[1].op, 1); /* something is moving: hands off */
    CHECK(!cap_audit(&cap) && cap_total(&cap) == 5);
    atomic_fetch_and(&cap.ledgers[1].op, ~UINT64_C(1));
    CHECK(cap_audit(&cap) && cap_total(&cap) == 2 && atomic_load(&cap.shared->repairs) == 1);
    CHECK(!cap_audit(&cap) && cap_release(&cap, 0, 2) == CAP_DONE && cap_total(&cap) == 0);
    segment_close(&segment);
}

static void several_caps_are_reserved_all_or_nothing(void)
{
    struct segment segment;
    check_segment(&segment, 2, 3, 10, LAYOUT_HARD);
    struct gate *gate = new_gate(&segment, GATE_ANY_SLOT);
    uint32_t refused_by = 9;
    const struct cap_ask none = {0}, some[] = {cap_units(2), none, cap_units(11)};
    const struct cap_ask all[] = {cap_units(2), none, cap_units(10)};
    CHECK(gate_reserve_all(gate, some, &refused_by) == CAP_REFUSED && refused_by == 2);
    CHECK(gate_held(gate, 0) == 0 && atomic_load(&gate->caps[0].ledgers[0].op) == 0); /* not even for a moment */
    CHECK(gate_reserve_all(gate, all, &refused_by) == CAP_DONE);
    CHECK(gate_held(gate, 0) == 2 && gate_held(gate, 1) == 0 && gate_held(gate, 2) == 10);
    CHECK(counter_load(gate_counter(gate, 2)) == 10);
    struct gate_statistics statistics;
    gate_statistics(&segment, 2, &statistics);
    CHECK(statistics.in_flight == 10 && statistics.peak == 10 && statistics.admitted == 1 && statistics.refused == 1);
    end_gate(gate);
    gate_statistics(&segment, 2, &statistics);
    CHECK(statistics.in_flight == 0);
    segment_close(&segment);
}

static void a_slot_has_one_owner_and_a_forked_child_is_another(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 4, LAYOUT_HARD);
    struct gate *one = new_gate(&segment, 0);
    struct gate other;
    gate_initialise(&other, &segment);
    CHECK(gate_claim(&other, 0) == OWNER_TAKEN); /* the same process, but another claim */
    CHECK(gate_claim(&other, GATE_ANY_SLOT) == OWNER_OK && other.owner.slot == 1);
    CHECK(gate_reserve(one, 0, cap_units(3)) == CAP_DONE);
    CHECK(gate_reclaim(&other) == 0 && gate_reclaim(one) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CHECK(!owner_is_mine(&one->owner) && one->owner.lock_fd == -1);
        CHECK(gate_claim(one, GATE_ANY_SLOT) == OWNER_TAKEN);
        gate_close(one); /* not ours: frees nothing */
        CHECK(cap_total(&other.caps[0]) == 3);
        _exit(check_failures ? 1 : 0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(owner_is_mine(&one->owner) && gate_held(one, 0) == 3);
    gate_close(&other);
    end_gate(one);
    segment_close(&segment);
}

/* Words as owner.h draws them: what an owner without a lock would have left behind. */
/* A process closes what it did not open, and opens files of its own: they get the numbers of ours. */
static void a_descriptor_that_became_another_file_is_neither_locked_nor_closed(void)
{
    struct segment segment;
    check_segment(&segment, 2, 1, 4, LAYOUT_HARD);
    struct gate *judge = new_gate(&segment, 1);
    int started[2], go_on[2];
    char byte;
    REQUIRE(pipe(started) == 0 && pipe(go_on) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        REQUIRE(dup2(open("/dev/zero", O_RDWR), segment.fd) == segment.fd);
        struct gate gate;
        gate_initialise(&gate, &segment);
        CHECK(gate_claim(&gate, 0) == OWNER_OK && gate.owner.lock_fd == -1);
        CHECK(gate_reserve(&gate, 0, cap_units(2)) == CAP_DONE);
        REQUIRE(write(started[1], "x", 1) == 1 && read(go_on[0], &byte, 1) == 1);
        gate_close(&gate);
        int fd = segment.fd;
        segment_close(&segment);
        CHECK(fcntl(fd, F_GETFD) != -1); /* not ours any more: still open */
        _exit(check_failures ? 1 : 0);
    }
    REQUIRE(read(started[0], &byte, 1) == 1);
    CHECK(gate_reclaim(judge) == 0 && cap_total(&judge->caps[0]) == 2);
    REQUIRE(write(go_on[1], "x", 1) == 1);
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && cap_total(&judge->caps[0]) == 0);

    int lock_fd = judge->owner.lock_fd; /* the same after the claim, in this process */
    REQUIRE(dup2(open("/dev/zero", O_RDWR), lock_fd) == lock_fd);
    end_gate(judge);
    CHECK(fcntl(lock_fd, F_GETFD) != -1);
    close(lock_fd);
    segment_close(&segment);
}

static void an_owner_without_a_lock_is_dead_only_if_its_pid_is_gone_or_was_reused(void)
{
    const uint64_t locked = UINT64_C(1) << 61;
    struct segment segment;
    check_segment(&segment, 2, 1, 4, LAYOUT_HARD);
    struct gate *one = new_gate(&segment, 0), *two = new_gate(&segment, 1);
    struct layout_owner *line = &segment_owners(&segment)[0];
    uint64_t word = atomic_load(&line->word), spaces = atomic_load(&line->namespaces);
    CHECK((word & locked) && spaces != 0);
    CHECK(gate_reserve(one, 0, cap_units(2)) == CAP_DONE);

    atomic_store(&line->word, word & ~locked); /* our own pid and start time */
    CHECK(gate_reclaim(two) == 0);
    atomic_store(&line->word, word ^ 1); /* another start time, but locked: the lock is believed */
    CHECK(gate_reclaim(two) == 0);
    atomic_store(&line->word, (word & ~locked) ^ 1); /* the pid was reused, in a namespace that we cannot see */
    atomic_store(&line->namespaces, spaces + 1);
    CHECK(gate_reclaim(two) == 0 && gate_held(one, 0) == 2);
    atomic_store(&line->namespaces, spaces); /* the pid was reused */
    CHECK(gate_reclaim(two) == 1 && gate_held(one, 0) == 0 && cap_total(&one->caps[0]) == 0);
    one->owner.slot = OWNER_NONE;
    end_gate(one);
    end_gate(two);
    segment_close(&segment);
}

static void a_tally_keeps_reservations_that_are_not_counted_yet(void)
{
    struct tally tally = {0, 0};
    CHECK(tally_reserve(&tally, 3) == 3);
    CHECK(tally_count(&tally, 0) == 3); /* nothing arrived: all three stay */
    CHECK(tally_count(&tally, 2) == 3); /* two arrived: one is left */
    CHECK(tally_count(&tally, 2) == 3); /* again: the same */
    CHECK(tally_count(&tally, 1) == 2); /* one finished */
    CHECK(tally_release(&tally, 1) == 1 && tally.reserved == 0 && tally.counted == 1);
    CHECK(tally_count(&tally, 4) == 4 && tally_release(&tally, 1) == 3 && tally.counted == 3);

    struct segment segment;
    check_segment(&segment, 2, 1, 4, LAYOUT_HARD);
    struct gate *one = new_gate(&segment, 0), *two = new_gate(&segment, 1);
    tally_charge(one, 0, 3);
    tally_charge(two, 0, 3); /* published as it is, charged as far as the limit allows */
    CHECK(gate_held(one, 0) == 3 && gate_held(two, 0) == 1 && cap_total(&one->caps[0]) == 4);
    CHECK(counters_sum(segment_counters(&segment, 0), 2) == 6);
    tally_charge(one, 0, 1);
    tally_charge(two, 0, 3);
    CHECK(gate_held(two, 0) == 3 && cap_total(&one->caps[0]) == 4);
    end_gate(one);
    end_gate(two);
    segment_close(&segment);
}

static void words_are_atomic_and_wrap(void)
{
    _Atomic int64_t word = INT64_MAX;
    CHECK(atomics_fetch_add(&word, 1) == INT64_MAX && atomics_load(&word) == INT64_MIN);
    CHECK(atomics_exchange(&word, 7) == INT64_MIN && !atomics_compare_exchange(&word, 8, 9));
    CHECK(atomics_compare_exchange(&word, 7, 9) && atomics_peek(&word) == 9);
}

static void a_segment_has_the_documented_size_and_is_sealed(void)
{
    for (uint32_t caps = 1; caps <= LAYOUT_MAX_CAPS; caps *= 2)
        for (uint32_t slots = 1; slots <= LAYOUT_MAX_SLOTS; slots += 73)
            CHECK(layout_size(slots, caps, 0) <= 200u * slots * caps + 4096u);
    struct segment segment, again;
    struct segment_shape huge = {0, 0, LAYOUT_MAX_WORDS, LAYOUT_PLAIN};
    CHECK(segment_create(&segment, &huge, NULL, 0) == SEGMENT_SYSTEM && errno == ENOMEM && segment.fd == -1);
    check_segment(&segment, 3, 2, 4, LAYOUT_HARD);
    CHECK((uintptr_t)segment_counters(&segment, 0) % LAYOUT_LINE == 0);
    CHECK(ftruncate(segment.fd, 10) != 0 && ftruncate(segment.fd, 1 << 20) != 0);
    CHECK(segment_attach(&again, dup(segment.fd)) == SEGMENT_OK && again.size == segment.size);
    CHECK(again.shape.slots == 3 && again.shape.caps == 2);
    segment_close(&again);
    CHECK(segment_attach(&again, open("/dev/null", O_RDWR)) == SEGMENT_NOT_REGULAR);
    CHECK(segment_attach(&again, memfd_create("empty", 0)) == SEGMENT_UNFINISHED && again.base == NULL);
    segment_header(&segment)->size++;
    CHECK(segment_attach(&again, dup(segment.fd)) == SEGMENT_BAD_SIZE);
    segment_header(&segment)->size--;
    segment_header(&segment)->slots = LAYOUT_MAX_SLOTS + 1;
    CHECK(segment_attach(&again, dup(segment.fd)) == SEGMENT_BAD_COUNTS);
    segment_header(&segment)->slots = 3;
    segment_header(&segment)->hash++;
    CHECK(segment_attach(&again, dup(segment.fd)) == SEGMENT_OTHER_LAYOUT);
    segment_close(&segment);
    segment_close(&segment);
}

int main(void)
{
    a_child_does_not_take_itself_for_a_parent_that_only_looked();
    a_cap_grants_up_to_its_limit_and_not_one_more();
    headroom_stays_free_and_a_negative_one_admits_until_the_limit_is_reached();
    recovery_finishes_what_the_books_say_was_pending();
    recovery_gives_nothing_back_for_a_first_operation_that_was_not_applied();
    an_audit_repairs_a_wrong_total_and_nothing_else();
    several_caps_are_reserved_all_or_nothing();
    a_slot_has_one_owner_and_a_forked_child_is_another();
    a_descriptor_that_became_another_file_is_neither_locked_nor_closed();
    an_owner_without_a_lock_is_dead_only_if_its_pid_is_gone_or_was_reused();
    a_tally_keeps_reservations_that_are_not_counted_yet();
    words_are_atomic_and_wrap();
    a_segment_has_the_documented_size_and_is_sealed();
    return check_report("core");
}
