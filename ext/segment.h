/* segment.h - create, open, validate and map a segment.
 *
 * A segment is anonymous (a memfd, sealed against resizing, reached by inheriting its descriptor) or named (a file in
 * memory, reached by its path). Both are complete before anybody else can see them: an anonymous one because its
 * descriptor has not been handed out, a named one because it is written under no name and then linked (O_TMPFILE), or,
 * where that does not exist, because its magic is stored last and an opener waits for it.
 *
 * What is opened is not trusted: it must be a regular file, not a symbolic link, whose header is ours, of this
 * layout and boot, and whose counts account for its size to the byte. Only then is it mapped, and nothing is written
 * before. Space is reserved at creation, so a full file system is an error there and not a SIGBUS later.
 *
 * Not guaranteed: a named file can be truncated by whoever may write to it, and then a mapping of it faults. That is
 * impossible for anonymous segments (sealed).
 *
 * Nothing here is safe to call for one struct segment from two threads at once.
 */
#ifndef GATECOUNT_SEGMENT_H
#define GATECOUNT_SEGMENT_H

#include <stdbool.h>
#include <sys/types.h>

#include "cap.h"
#include "counters.h"
#include "layout.h"

/* Where named segments live, one file each. */
#ifdef __linux__
#define SEGMENT_DIRECTORY "/dev/shm"
#else
#define SEGMENT_DIRECTORY "/tmp"
#endif

struct segment_shape {
    uint32_t slots;
    uint32_t caps;
    uint64_t words;
    uint32_t mode; /* enum layout_mode */
};

/* A segment as one process sees it. */
struct segment {
    unsigned char *base; /* NULL: closed */
    uint64_t size;
    struct segment_shape shape;
    int fd;
    dev_t device; /* of the mapped file: tells whether a descriptor still is ours */
    ino_t inode;
};

enum segment_result {
    SEGMENT_OK = 0,
    SEGMENT_SYSTEM,      /* a system call failed: see errno */
    SEGMENT_NOT_REGULAR, /* a directory, FIFO, device, … */
    SEGMENT_UNFINISHED,  /* no magic came before the deadline: empty, or its creator died */
    SEGMENT_FOREIGN,     /* its first bytes are not ours */
    SEGMENT_OTHER_LAYOUT,
    SEGMENT_BAD_COUNTS, /* a count in the header is out of its range */
    SEGMENT_BAD_SIZE,   /* the file is not as large as its header says */
    SEGMENT_OTHER_BOOT, /* made before this machine was last started */
};

/* Say in words what a result means; for SEGMENT_SYSTEM the caller has errno. */
const char *segment_explain(enum segment_result result);

/* Create and map a segment that nobody else can reach yet: to be filled, then published. With a path it will be
 * named, with these permission bits whatever the umask; without, it is anonymous. The shape is within its maxima. */
enum segment_result segment_create(struct segment *segment, const struct segment_shape *shape, const char *path,
                                   mode_t permissions);

/* Declare a created segment complete and, if named, give it its name. errno is EEXIST if the name is taken; then, as
 * on any failure, the segment is closed and nothing of it stays behind. Release. */
enum segment_result segment_publish(struct segment *segment, const char *path);

/* Open and map the file of that name; wait up to timeout_ms for a creator that has not finished. Acquire. */
enum segment_result segment_open(struct segment *segment, const char *path, int timeout_ms);

/* Map a segment from a descriptor, which it owns from now on (on failure the descriptor is closed). Acquire. */
enum segment_result segment_attach(struct segment *segment, int fd);

/* Unmap and close. Does nothing to a closed one. */
void segment_close(struct segment *segment);

/* Tell whether a descriptor is one of the mapped file. A program may close descriptors that it did not open, and get
 * their numbers for files of its own: those must be neither locked nor closed. */
bool segment_owns(const struct segment *segment, int fd);

/* Remove the name if it still is this segment's (a newer one of the same name is left alone). */
enum segment_result segment_unlink(const struct segment *segment, const char *path);

static inline struct layout_header *segment_header(const struct segment *segment)
{
    return (struct layout_header *)segment->base;
}

static inline struct layout_owner *segment_owners(const struct segment *segment)
{
    return (struct layout_owner *)(segment->base + layout_owners_at());
}

/* Return word 0 of the first counter of that cap (counters.h). */
static inline _Atomic int64_t *segment_counters(const struct segment *segment, uint32_t cap)
{
    uint32_t slots = segment->shape.slots;
    struct layout_counter *first =
        (struct layout_counter *)(segment->base + layout_counters_at(slots, segment->shape.caps));
    return &first[(size_t)cap * slots].count;
}

static inline _Atomic int64_t *segment_words(const struct segment *segment)
{
    return (_Atomic int64_t *)(segment->base + layout_words_at(segment->shape.slots, segment->shape.caps));
}

/* Return the cap of that index as this process sees it. */
static inline struct cap segment_cap(const struct segment *segment, uint32_t index)
{
    uint32_t slots = segment->shape.slots, caps = segment->shape.caps;
    struct layout_cap *shared = (struct layout_cap *)(segment->base + layout_caps_at(slots));
    struct layout_ledger *ledgers = (struct layout_ledger *)(segment->base + layout_ledgers_at(slots, caps));
    return (struct cap){shared + index, ledgers + (size_t)index * slots, slots};
}

#endif
