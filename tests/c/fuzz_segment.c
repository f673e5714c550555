/* Open many damaged segments: each is refused with a reason or safe to use, none crashes or hangs, and none that is
 * refused was written to.
 *
 * Every case takes the bytes of a good segment and damages them: bits, bytes, words set to telling values, whole
 * fields at random, a cut or an added tail; mostly in the header, sometimes anywhere. What opens all the same is used:
 * statistics, audit, claim, reserve, release, reclaim.
 *
 * fuzz_segment [cases [seed]]
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 3u
#define CAPS 2u
#define MOST_BYTES 4096u
#define PATIENCE_S 10u /* for one case: a hang ends the program by SIGALRM */

static uint64_t seed = 1;

/* xorshift64: the same cases for the same seed on every machine. */
static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static uint64_t below(uint64_t n) { return next_random() % n; }

static uint64_t telling_value(void)
{
    static const uint64_t VALUES[] = {0,          1,          2,           3,         31,        32,
                                      33,         1022,       1023,        1024,      0x7FFFFFFF, 0x80000000,
                                      0xFFFFFFFF, 1ull << 32, 1ull << 40, 1ull << 63, INT64_MAX, UINT64_MAX};
    return VALUES[below(sizeof VALUES / sizeof *VALUES)];
}

/* Damage bytes in place and return their new length. */
static size_t damage(unsigned char *bytes, size_t size)
{
    for (uint64_t times = 1 + below(3); times > 0; times--) {
        size_t range = below(4) ? sizeof(struct layout_header) : size;
        size_t at = below(range), word = at / 8 * 8;
        uint64_t value = below(2) ? telling_value() : next_random();
        switch (below(6)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << below(8));
            break;
        case 1:
            bytes[at] = (unsigned char)next_random();
            break;
        case 2:
            memcpy(bytes + word, &value, 8);
            break;
        case 3:
            memcpy(bytes + at / 4 * 4, &value, 4);
            break;
        case 4:
            size = below(size + 1);
            return size ? size : 1;
        default:
            value = below(64);
            memset(bytes + size, 0, value);
            return size + value;
        }
    }
    return size;
}

/* Use what was opened, whatever its words say; all of it must return. */
static void use(struct segment *segment)
{
    if (segment->shape.mode == LAYOUT_PLAIN)
        return;
    struct gate_statistics statistics;
    struct owner_info info;
    struct gate gate;
    gate_initialise(&gate, segment);
    for (uint32_t cap = 0; cap < segment->shape.caps; cap++) {
        gate_statistics(segment, cap, &statistics);
        if (gate.hard)
            cap_audit(&gate.caps[cap]);
    }
    for (uint32_t slot = 0; slot < segment->shape.slots; slot++)
        owner_look(&gate.owner, slot, &info);
    if (gate_claim(&gate, GATE_ANY_SLOT) == OWNER_OK) {
        uint32_t refused_by;
        struct cap_ask asks[LAYOUT_MAX_CAPS] = {cap_units(1), cap_units(1)};
        if (gate_reserve(&gate, 0, cap_units(1)) == CAP_DONE)
            gate_release(&gate, 0, 1);
        gate_reserve_all(&gate, asks, &refused_by);
    }
    gate_close(&gate);
}

int main(int argc, char **argv)
{
    long cases = argc > 1 ? atol(argv[1]) : 20000, refused[SEGMENT_OTHER_BOOT + 1] = {0};
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
    struct segment good;
    check_segment(&good, SLOTS, CAPS, 5, LAYOUT_HARD);
    REQUIRE(good.size + 64 <= MOST_BYTES);
    for (long i = 0; i < cases; i++) {
        unsigned char bytes[MOST_BYTES], after[MOST_BYTES];
        memcpy(bytes, good.base, good.size);
        size_t size = damage(bytes, good.size);
        int fd = memfd_create("damaged", MFD_CLOEXEC), again = dup(fd);
        REQUIRE(fd >= 0 && again >= 0 && write(fd, bytes, size) == (ssize_t)size);
        struct segment segment;
        alarm(PATIENCE_S);
        enum segment_result result = segment_attach(&segment, fd);
        CHECK((unsigned)result <= SEGMENT_OTHER_BOOT && result != SEGMENT_SYSTEM);
        refused[result]++;
        if (result == SEGMENT_OK) {
            CHECK(segment.size == size && segment.shape.slots <= LAYOUT_MAX_SLOTS);
            use(&segment);
            segment_close(&segment);
        } else {
            CHECK(segment.base == NULL && segment.fd == -1 && strlen(segment_explain(result)) > 10);
            CHECK(pread(again, after, sizeof after, 0) == (ssize_t)size && memcmp(bytes, after, size) == 0);
        }
        alarm(0);
        close(again);
    }
    segment_close(&good);
    for (int result = 0; result <= SEGMENT_OTHER_BOOT; result++)
        printf("%7ld %s\n", refused[result], segment_explain(result));
    CHECK(refused[SEGMENT_OK] > 0 && refused[SEGMENT_FOREIGN] > 0 && refused[SEGMENT_BAD_SIZE] > 0);
    printf("opened %ld damaged segments\n", cases);
    return check_report("fuzz");
}
