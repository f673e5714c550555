#define _GNU_SOURCE
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#define POLL_NS 1000000L /* between two looks for the magic */

static const struct segment CLOSED = {.base = NULL, .fd = -1};

const char *segment_explain(enum segment_result result)
{
    switch (result) {
    case SEGMENT_OK:
        return "is a segment";
    case SEGMENT_SYSTEM:
        return "could not be used";
    case SEGMENT_NOT_REGULAR:
        return "is not a regular file";
    case SEGMENT_UNFINISHED:
        return "is empty or was never finished by its creator";
    case SEGMENT_FOREIGN:
        return "is not a gatecount segment";
    case SEGMENT_OTHER_LAYOUT:
        return "has the layout of another version of gatecount";
    case SEGMENT_BAD_COUNTS:
        return "has counts in its header that are out of range";
    case SEGMENT_BAD_SIZE:
        return "is not as large as its header says: truncated or damaged";
    case SEGMENT_OTHER_BOOT:
        return "was made before this machine was last started";
    }
    return "is of an unknown kind";
}

static enum segment_result fail(struct segment *segment, enum segment_result result)
{
    int error = errno;
    segment_close(segment);
    errno = error;
    return result;
}

/* Tell this start of the machine from every other; zeros where the kernel does not say. */
static void read_boot_id(uint8_t id[16])
{
    memset(id, 0, 16);
#ifdef __linux__
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    int nibbles = 0;
    for (ssize_t i = 0; i < length && nibbles < 32; i++) {
        char digit[2] = {text[i], 0}, *end;
        unsigned long value = strtoul(digit, &end, 16);
        if (end == digit)
            continue;
        id[nibbles / 2] = (uint8_t)(id[nibbles / 2] << 4 | value);
        nibbles++;
    }
#elif defined(__APPLE__)
    struct timeval boot = {0};
    size_t length = sizeof boot;
    if (sysctlbyname("kern.boottime", &boot, &length, NULL, 0) == 0)
        memcpy(id, &boot.tv_sec, sizeof boot.tv_sec);
#endif
}

static uint64_t clock_now(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Give the file its size, with the space behind it where the system can promise that. */
static bool reserve_space(int fd, uint64_t size)
{
#ifdef __linux__
    int error;
    do
        error = posix_fallocate(fd, 0, (off_t)size);
    while (error == EINTR);
    errno = error;
    return error == 0;
#else
    return ftruncate(fd, (off_t)size) == 0;
#endif
}

/* Tell whether the machine has that much memory at all. Nothing else bounds a file that lives in memory alone: filling
 * it would end in this process, or another, being killed. */
static bool fits_in_memory(uint64_t size)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0 || size <= (uint64_t)pages * (uint64_t)page)
        return true;
    errno = ENOMEM;
    return false;
}

static int open_anonymous(void)
{
#ifdef __linux__
    int fd = -1;
#ifdef MFD_NOEXEC_SEAL
    fd = memfd_create("gatecount", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
#endif
    return fd >= 0 ? fd : memfd_create("gatecount", MFD_CLOEXEC | MFD_ALLOW_SEALING);
#else
    char path[] = SEGMENT_DIRECTORY "/gatecount-anonymous-XXXXXX";
    int fd = mkstemp(path);
    if (fd >= 0) {
        unlink(path);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    return fd;
#endif
}

/* Open a file that will get the name at path: without any name yet where the system can do that. */
static int open_named(const char *path, mode_t permissions)
{
    int fd = -1;
#ifdef O_TMPFILE
    char directory[4096];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof directory) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(directory, path, length);
    directory[length] = 0;
    if (access("/proc/self/fd", X_OK) == 0) /* or it could not be linked later */
        fd = open(length ? directory : ".", O_TMPFILE | O_RDWR | O_CLOEXEC, permissions);
#endif
    if (fd < 0)
        fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, permissions);
    if (fd >= 0 && fchmod(fd, permissions) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static bool map(struct segment *segment)
{
    struct stat file;
    if (fstat(segment->fd, &file) != 0)
        return false;
    segment->device = file.st_dev;
    segment->inode = file.st_ino;
    void *base = mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
    segment->base = base == MAP_FAILED ? NULL : base;
    return segment->base != NULL;
}

/* Tell whether the open file has a name: one made by O_TMPFILE has none until it is linked. */
static bool has_name(int fd)
{
    struct stat file;
    return fstat(fd, &file) == 0 && file.st_nlink > 0;
}

enum segment_result segment_create(struct segment *segment, const struct segment_shape *shape, const char *path,
                                   mode_t permissions)
{
    *segment = CLOSED;
    segment->shape = *shape;
    segment->size = layout_size(shape->slots, shape->caps, shape->words);
    segment->fd = path ? open_named(path, permissions) : open_anonymous();
    if (segment->fd < 0)
        return fail(segment, SEGMENT_SYSTEM);
    bool made = (path || fits_in_memory(segment->size)) && reserve_space(segment->fd, segment->size) && map(segment);
#ifdef F_ADD_SEALS
    if (made && !path)
        made = fcntl(segment->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
#endif
    if (!made) {
        int error = errno;
        if (path && has_name(segment->fd))
            unlink(path);
        errno = error;
        return fail(segment, SEGMENT_SYSTEM);
    }
    struct layout_header *header = segment_header(segment);
    header->hash = LAYOUT_HASH;
    header->size = segment->size;
    header->slots = shape->slots;
    header->caps = shape->caps;
    header->words = shape->words;
    header->mode = shape->mode;
    header->creator_pid = (uint32_t)getpid();
    header->created_at = clock_now(CLOCK_REALTIME);
    read_boot_id(header->boot_id);
    return SEGMENT_OK;
}

enum segment_result segment_publish(struct segment *segment, const char *path)
{
    /* release pairs with the acquire in segment_attach: who sees the magic sees everything */
    atomic_store_explicit(&segment_header(segment)->magic, LAYOUT_MAGIC, memory_order_release);
    if (!path || has_name(segment->fd))
        return SEGMENT_OK;
    char unnamed[64];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", segment->fd);
    if (linkat(AT_FDCWD, unnamed, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
        return fail(segment, SEGMENT_SYSTEM);
    return SEGMENT_OK;
}

/* Read the header without mapping anything; false if the file is shorter. */
static bool read_header(int fd, struct layout_header *header)
{
    ssize_t got;
    do
        got = pread(fd, header, sizeof *header, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *header;
}

static enum segment_result validate(int fd, struct segment *segment)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return SEGMENT_SYSTEM;
    if (!S_ISREG(file.st_mode))
        return SEGMENT_NOT_REGULAR;
    struct layout_header header;
    if (!read_header(fd, &header))
        return file.st_size == 0 ? SEGMENT_UNFINISHED : SEGMENT_FOREIGN;
    uint64_t magic = atomic_load_explicit(&header.magic, memory_order_relaxed); /* a private copy */
    if (magic != LAYOUT_MAGIC)
        return magic == 0 ? SEGMENT_UNFINISHED : SEGMENT_FOREIGN;
    if (header.hash != LAYOUT_HASH)
        return SEGMENT_OTHER_LAYOUT;
    bool plain = header.mode == LAYOUT_PLAIN;
    if (header.mode > LAYOUT_APPROXIMATE || header.slots > LAYOUT_MAX_SLOTS || header.caps > LAYOUT_MAX_CAPS ||
        header.words > LAYOUT_MAX_WORDS || plain != (header.slots == 0) || plain != (header.caps == 0))
        return SEGMENT_BAD_COUNTS;
    segment->shape = (struct segment_shape){header.slots, header.caps, header.words, header.mode};
    segment->size = layout_size(header.slots, header.caps, header.words);
    if (segment->size != header.size || file.st_size < 0 || (uint64_t)file.st_size != segment->size)
        return SEGMENT_BAD_SIZE;
    uint8_t boot_id[16];
    read_boot_id(boot_id);
    if (memcmp(boot_id, header.boot_id, sizeof boot_id) != 0)
        return SEGMENT_OTHER_BOOT;
    return SEGMENT_OK;
}

enum segment_result segment_attach(struct segment *segment, int fd)
{
    *segment = CLOSED;
    segment->fd = fd;
    enum segment_result result = validate(fd, segment);
    if (result != SEGMENT_OK)
        return fail(segment, result);
    if (!map(segment))
        return fail(segment, SEGMENT_SYSTEM);
    /* acquire pairs with the release in segment_publish */
    if (atomic_load_explicit(&segment_header(segment)->magic, memory_order_acquire) != LAYOUT_MAGIC)
        return fail(segment, SEGMENT_FOREIGN);
    return SEGMENT_OK;
}

enum segment_result segment_open(struct segment *segment, const char *path, int timeout_ms)
{
    uint64_t deadline = clock_now(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        *segment = CLOSED;
        /* O_NONBLOCK: a FIFO under the name must not hang us */
        int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            return SEGMENT_SYSTEM;
        enum segment_result result = segment_attach(segment, fd);
        if (result != SEGMENT_UNFINISHED || clock_now(CLOCK_MONOTONIC) >= deadline)
            return result;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

bool segment_owns(const struct segment *segment, int fd)
{
    struct stat file;
    return fd >= 0 && fstat(fd, &file) == 0 && file.st_dev == segment->device && file.st_ino == segment->inode;
}

void segment_close(struct segment *segment)
{
    if (segment->fd >= 0 && (!segment->base || segment_owns(segment, segment->fd)))
        close(segment->fd);
    if (segment->base)
        munmap(segment->base, segment->size);
    *segment = CLOSED;
}

enum segment_result segment_unlink(const struct segment *segment, const char *path)
{
    struct stat named;
    if (lstat(path, &named) != 0)
        return SEGMENT_SYSTEM;
    if (segment->device != named.st_dev || segment->inode != named.st_ino) {
        errno = ENOENT; /* our file has lost its name already */
        return SEGMENT_SYSTEM;
    }
    return unlink(path) == 0 ? SEGMENT_OK : SEGMENT_SYSTEM;
}
