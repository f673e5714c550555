/* check.h - what the C tests share: a check that counts, and segments to try things on. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gate.h"

static int check_failures;
static long check_count;

/* Note whether something holds; a failure is printed, counted, and does not stop the test. */
#define CHECK(condition)                                                                                             \
    do {                                                                                                             \
        check_count++;                                                                                               \
        if (!(condition)) {                                                                                          \
            check_failures++;                                                                                        \
            fprintf(stderr, "%s:%d: in %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition);               \
        }                                                                                                            \
    } while (0)

/* End the program when the test itself could not go on. */
#define REQUIRE(condition)                                                                                           \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            fprintf(stderr, "%s:%d: cannot go on: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));       \
            exit(2);                                                                                                 \
        }                                                                                                            \
    } while (0)

static inline void check_segment(struct segment *segment, uint32_t slots, uint32_t caps, uint32_t limit,
                                 uint32_t mode)
{
    struct segment_shape shape = {slots, caps, 0, mode};
    REQUIRE(segment_create(segment, &shape, NULL, 0) == SEGMENT_OK);
    for (uint32_t i = 0; i < caps; i++) {
        struct cap cap = segment_cap(segment, i);
        char name[] = {'c', (char)('0' + i % 10), 0};
        cap_initialise(&cap, name, limit);
    }
    REQUIRE(segment_publish(segment, NULL) == SEGMENT_OK);
}

static inline struct gate *new_gate(struct segment *segment, int slot)
{
    struct gate *gate = malloc(sizeof *gate);
    REQUIRE(gate);
    gate_initialise(gate, segment);
    REQUIRE(gate_claim(gate, slot) == OWNER_OK);
    return gate;
}

static inline void end_gate(struct gate *gate)
{
    gate_close(gate);
    free(gate);
}

/* Tell whether a cap's total is what its slots hold together, with nothing pending. */
static inline bool check_settled(const struct cap *cap)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cap->slots; i++) {
        if (atomic_load(&cap->ledgers[i].op) & 1)
            return false;
        sum += cap_held(cap, i);
    }
    return sum == cap_total(cap);
}

static inline int check_report(const char *what)
{
    printf("%s: %ld checks, %d failed\n", what, check_count, check_failures);
    return check_failures ? 1 : 0;
}

#endif
