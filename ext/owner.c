#define _GNU_SOURCE
#include "owner.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum role { ROLE_FREE = 0, ROLE_CLAIMING, ROLE_LIVE, ROLE_RECLAIMING };

#define WORD_FREE UINT64_C(0)
#define WORD_ROLE_SHIFT 62
#define WORD_LOCKED (UINT64_C(1) << 61)
#define WORD_PID_SHIFT 39
#define WORD_PID_MASK UINT64_C(0x3FFFFF) /* 22 bits: Linux allows no pid above 4,194,304 */
#define WORD_START_MASK ((UINT64_C(1) << WORD_PID_SHIFT) - 1)

/* What the calling process is, worked out once and again after a fork. */
struct self {
    bool known;
    bool sees_processes; /* /proc shows the processes of our own PID namespace under the pids that we use */
    uint32_t pid;
    uint64_t start;
    uint64_t namespaces;
};

_Atomic uint32_t owner_fork_count __attribute__((visibility("hidden")));
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards self and the list; held across fork */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct self self;
static struct owner *open_owners;

static enum role word_role(uint64_t word) { return (enum role)(word >> WORD_ROLE_SHIFT); }

static uint32_t word_pid(uint64_t word) { return (uint32_t)(word >> WORD_PID_SHIFT & WORD_PID_MASK); }

static uint64_t word_make(enum role role, bool locked, const struct self *who)
{
    return (uint64_t)role << WORD_ROLE_SHIFT | (locked ? WORD_LOCKED : 0) |
           (who->pid & WORD_PID_MASK) << WORD_PID_SHIFT | (who->start & WORD_START_MASK);
}

/* ---- fork ---------------------------------------------------------------------------------------------------- */

static void close_description(struct owner *owner)
{
    if (segment_owns(owner->segment, owner->lock_fd))
        close(owner->lock_fd);
    owner->lock_fd = -1;
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&mutex); }

static void after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&owner_fork_count, 1, memory_order_relaxed); /* relaxed: one thread */
    self.known = false;
    for (struct owner *owner = open_owners; owner; owner = owner->next) {
        close_description(owner);
        owner->link = NULL;
    }
    open_owners = NULL;
    pthread_mutex_unlock(&mutex);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

uint32_t owner_forks(void)
{
    return atomic_load_explicit(&owner_fork_count, memory_order_relaxed); /* relaxed: written by one-threaded children */
}

/* ---- processes ----------------------------------------------------------------------------------------------- */

#ifdef __linux__
static ssize_t read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return length;
}

/* Return when a process started, in clock ticks since boot (field 22 of its stat); 0 if that cannot be read. From its
 * first thread's file, which says the same: a user-mode emulator makes up the process's own. */
static uint64_t process_start(uint32_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/task/%u/stat", pid, pid);
    if (read_file(path, text, sizeof text) <= 0)
        return 0;
    char *field = strrchr(text, ')'); /* the name before it may hold spaces and brackets */
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) & WORD_START_MASK : 0;
}

/* Tell whether /proc is mounted for our own PID namespace: then this process has one pid there, not a list. */
static bool sees_own_processes(void)
{
    char text[4096];
    if (read_file("/proc/self/status", text, sizeof text) <= 0)
        return false;
    const char *line = strstr(text, "\nNSpid:");
    if (!line)
        return false;
    char *end;
    unsigned long pid = strtoul(line + 7, &end, 10);
    return *end == '\n' && pid == (unsigned long)getpid();
}

static uint64_t read_namespaces(void)
{
    struct stat pid, time = {0};
    if (stat("/proc/self/ns/pid", &pid) != 0)
        return 0;
    (void)stat("/proc/self/ns/time", &time); /* kernels before 5.6 have none: then all processes share it */
    return (uint64_t)pid.st_ino << 32 ^ (uint64_t)time.st_ino;
}
#else
static uint64_t process_start(uint32_t pid) { return (void)pid, 0; }
static bool sees_own_processes(void) { return false; }
static uint64_t read_namespaces(void) { return 1; } /* there is only one */
#endif

static struct self who_am_i(void)
{
    pthread_once(&once, watch_forks); /* or a child would take itself for its parent */
    pthread_mutex_lock(&mutex);
    if (!self.known) {
        self = (struct self){.known = true, .pid = (uint32_t)getpid(), .namespaces = read_namespaces()};
        self.sees_processes = sees_own_processes();
        self.start = self.sees_processes ? process_start(self.pid) : 0;
    }
    struct self copy = self;
    pthread_mutex_unlock(&mutex);
    return copy;
}

/* Prove that the process in an owner word is gone, or return false. namespaces are those in which it was written. */
static bool process_gone(const struct self *me, uint64_t word, uint64_t namespaces)
{
    if (namespaces == 0 || namespaces != me->namespaces)
        return false;
    uint32_t pid = word_pid(word);
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    uint64_t start = word & WORD_START_MASK;
    if ((word & WORD_LOCKED) || !me->sees_processes || start == 0)
        return false;
    uint64_t now = process_start(pid);
    return now != 0 && now != start;
}

/* ---- the lock on a slot's byte ------------------------------------------------------------------------------- */

enum lock { LOCK_GOT, LOCK_BUSY, LOCK_UNAVAILABLE };

#ifdef F_OFD_SETLK
static struct flock lock_of(uint32_t slot, short type)
{
    off_t at = (off_t)(layout_owners_at() + slot * sizeof(struct layout_owner));
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}
#endif

/* Open our own description of the segment; false with errno if the process is out of descriptors or memory. Where
 * /proc is missing there is no description, and the second proof must do. */
static bool open_description(struct owner *owner)
{
    if (owner->lock_fd >= 0)
        return true;
    pthread_once(&once, watch_forks);
#ifdef F_OFD_SETLK
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", owner->segment->fd);
    pthread_mutex_lock(&mutex); /* no fork between the opening and the registration */
    owner->lock_fd = open(path, O_RDWR | O_CLOEXEC);
    int error = errno;
    if (owner->lock_fd >= 0 && !segment_owns(owner->segment, owner->lock_fd)) {
        close(owner->lock_fd); /* somebody closed our descriptor, and its number is another file's now */
        owner->lock_fd = -1;
        error = ENOENT;
    }
    if (owner->lock_fd >= 0) {
        owner->next = open_owners;
        owner->link = &open_owners;
        if (open_owners)
            open_owners->link = &owner->next;
        open_owners = owner;
    }
    pthread_mutex_unlock(&mutex);
    errno = error;
    return owner->lock_fd >= 0 || error == ENOENT || error == EACCES || error == EPERM;
#else
    return true;
#endif
}

static enum lock take_lock(struct owner *owner, uint32_t slot)
{
#ifdef F_OFD_SETLK
    struct flock lock = lock_of(slot, F_WRLCK);
    if (segment_owns(owner->segment, owner->lock_fd)) {
        if (fcntl(owner->lock_fd, F_OFD_SETLK, &lock) == 0)
            return LOCK_GOT;
        if (errno == EAGAIN || errno == EACCES)
            return LOCK_BUSY;
    }
#else
    (void)owner, (void)slot;
#endif
    return LOCK_UNAVAILABLE;
}

static void drop_lock(struct owner *owner, uint32_t slot)
{
#ifdef F_OFD_SETLK
    struct flock lock = lock_of(slot, F_UNLCK);
    if (owner->lock_fd >= 0)
        fcntl(owner->lock_fd, F_OFD_SETLK, &lock);
#else
    (void)owner, (void)slot;
#endif
}

/* ---- claim and release --------------------------------------------------------------------------------------- */

void owner_initialise(struct owner *owner, const struct segment *segment)
{
    *owner = (struct owner){.segment = segment, .slot = OWNER_NONE, .lock_fd = -1};
}

uint64_t owner_clock(void)
{
    struct timespec now;
#ifdef CLOCK_BOOTTIME
    clock_gettime(CLOCK_BOOTTIME, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct layout_owner *line_of(const struct owner *owner, uint32_t slot)
{
    return &segment_owners(owner->segment)[slot];
}

enum owner_result owner_claim(struct owner *owner, uint32_t slot)
{
    if (!open_description(owner))
        return OWNER_SYSTEM;
    struct layout_owner *line = line_of(owner, slot);
    /* relaxed: the swap below decides */
    uint64_t word = atomic_load_explicit(&line->word, memory_order_relaxed);
    if (word != WORD_FREE)
        return word_role(word) == ROLE_LIVE ? OWNER_TAKEN : OWNER_MOVING;
    enum lock lock = take_lock(owner, slot);
    if (lock == LOCK_BUSY)
        return OWNER_MOVING;
    struct self me = who_am_i();
    /* acquire pairs with the release in free_slot: the last owner's books are settled and seen */
    if (!atomic_compare_exchange_strong_explicit(&line->word, &word,
                                                 word_make(ROLE_CLAIMING, lock == LOCK_GOT, &me),
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        if (lock == LOCK_GOT)
            drop_lock(owner, slot);
        return OWNER_MOVING;
    }
    /* relaxed, all three: ordered before the word by its release */
    atomic_store_explicit(&line->namespaces, me.namespaces, memory_order_relaxed);
    atomic_store_explicit(&line->claimed_at, owner_clock(), memory_order_relaxed);
    atomic_fetch_add_explicit(&line->generation, 1, memory_order_relaxed);
    /* release pairs with the acquire in owner_reclaim and owner_look */
    atomic_store_explicit(&line->word, word_make(ROLE_LIVE, lock == LOCK_GOT, &me), memory_order_release);
    owner->slot = (int)slot;
    owner->forks = owner_forks();
    return OWNER_OK;
}

/* Free first, unlock second: "locked" in a word must never be true of a word without its lock. */
static void free_slot(struct owner *owner, uint32_t slot)
{
    /* release pairs with the acquire in owner_claim */
    atomic_store_explicit(&line_of(owner, slot)->word, WORD_FREE, memory_order_release);
    drop_lock(owner, slot);
}

void owner_release(struct owner *owner)
{
    if (owner_is_mine(owner))
        free_slot(owner, (uint32_t)owner->slot);
    owner->slot = OWNER_NONE;
}

void owner_close(struct owner *owner)
{
    pthread_mutex_lock(&mutex);
    if (owner->link) {
        *owner->link = owner->next;
        if (owner->next)
            owner->next->link = owner->link;
        owner->link = NULL;
    }
    close_description(owner);
    pthread_mutex_unlock(&mutex);
}

/* ---- the dead ------------------------------------------------------------------------------------------------ */

/* Prove the owner in this word dead. *lock says whether the proof left us holding the slot's lock. */
static bool prove_dead(struct owner *owner, const struct self *me, uint32_t slot, uint64_t word, enum lock *lock)
{
    bool locked = word & WORD_LOCKED;
    *lock = take_lock(owner, slot);
    if (locked && *lock == LOCK_GOT)
        return true;
    /* The namespaces on the line belong to the process in the word while it is live, or while an unlocked reclaimer,
     * which had to share them with the dead, has it; not in the instant of claiming. */
    bool told = word_role(word) == ROLE_LIVE || (word_role(word) == ROLE_RECLAIMING && !locked);
    /* relaxed: read after the word, whose acquire ordered it */
    uint64_t namespaces = atomic_load_explicit(&line_of(owner, slot)->namespaces, memory_order_relaxed);
    if (told && process_gone(me, word, namespaces))
        return true;
    if (*lock == LOCK_GOT)
        drop_lock(owner, slot);
    return false;
}

bool owner_reclaim(struct owner *owner, uint32_t slot)
{
    struct layout_owner *line = line_of(owner, slot);
    /* acquire pairs with the release in owner_claim */
    uint64_t word = atomic_load_explicit(&line->word, memory_order_acquire);
    if (word == WORD_FREE || (owner_is_mine(owner) && owner->slot == (int)slot) || !open_description(owner))
        return false;
    struct self me = who_am_i();
    enum lock lock;
    if (!prove_dead(owner, &me, slot, word, &lock))
        return false;
    /* The right to reclaim. From the exact word that was proved dead, or not at all.
     * Acquire: what a dead reclaimer did is seen; what the dead owner did came with its death. */
    if (atomic_compare_exchange_strong_explicit(&line->word, &word, word_make(ROLE_RECLAIMING, lock == LOCK_GOT, &me),
                                                memory_order_acq_rel, memory_order_relaxed))
        return true;
    if (lock == LOCK_GOT)
        drop_lock(owner, slot);
    return false;
}

void owner_reclaimed(struct owner *owner, uint32_t slot) { free_slot(owner, slot); }

bool owner_look(struct owner *owner, uint32_t slot, struct owner_info *info)
{
    struct layout_owner *line = line_of(owner, slot);
    /* acquire pairs with the release in owner_claim: the line below is this owner's or a later one's */
    uint64_t word = atomic_load_explicit(&line->word, memory_order_acquire);
    if (word == WORD_FREE)
        return false;
    /* relaxed: a snapshot for people */
    info->pid = word_pid(word);
    info->generation = atomic_load_explicit(&line->generation, memory_order_relaxed);
    info->claimed_at = atomic_load_explicit(&line->claimed_at, memory_order_relaxed);
    info->alive = true;
    struct self me = who_am_i();
    uint64_t namespaces = atomic_load_explicit(&line->namespaces, memory_order_relaxed);
    if (word_role(word) == ROLE_LIVE && process_gone(&me, word, namespaces))
        info->alive = false;
#ifdef F_OFD_GETLK
    if ((word & WORD_LOCKED) && !(owner_is_mine(owner) && owner->slot == (int)slot) && open_description(owner) &&
        owner->lock_fd >= 0) {
        struct flock lock = lock_of(slot, F_WRLCK);
        if (fcntl(owner->lock_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
            info->alive = false;
    }
#endif
    return true;
}
