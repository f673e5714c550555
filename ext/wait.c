#define _GNU_SOURCE
#include "wait.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

#if defined(__linux__) && !defined(WAIT_POLLS)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#define WAIT_FUTEX 1
#else
#define WAIT_FUTEX 0
#define POLL_FIRST UINT64_C(20000)  /* nanoseconds between the first two looks */
#define POLL_LAST UINT64_C(2000000) /* and at most between any two */
#endif

#define SECOND UINT64_C(1000000000)

uint32_t wait_announce(struct layout_cap *cap)
{
    /* acquire pairs with the release in wait_wake: a waker that has moved turn stored its 0 before our 1 */
    uint32_t seen = atomic_load_explicit(&cap->turn, memory_order_acquire);
    /* relaxed: released by the addition below */
    atomic_store_explicit(&cap->waiters, 1, memory_order_relaxed);
    /* Pairs with every swap of state: one of the two comes first and is seen by the other. */
    atomic_fetch_add_explicit(&cap->state, 0, memory_order_acq_rel);
    return seen;
}

void wait_notify_change(struct layout_cap *cap)
{
    /* Pairs with the addition in wait_announce, as a swap of state does. */
    atomic_fetch_add_explicit(&cap->state, 0, memory_order_acq_rel);
    wait_notify(cap);
}

void wait_wake(struct layout_cap *cap)
{
    /* relaxed: ordered before turn by its release */
    atomic_store_explicit(&cap->waiters, 0, memory_order_relaxed);
    /* release pairs with the acquire in wait_announce */
    atomic_fetch_add_explicit(&cap->turn, 1, memory_order_release);
#if WAIT_FUTEX
    /* Not FUTEX_PRIVATE: sleepers have other mappings of the word. Cannot fail in a way that could be mended. */
    int error = errno;
    syscall(SYS_futex, &cap->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = error;
#endif
}

/* Tell the processor that this is a spin. */
static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* "yield" does nothing on most of them */
#endif
}

/* Relaxed: only a reason to look again. */
static inline bool has_moved(const struct layout_cap *cap, uint32_t seen)
{
    return atomic_load_explicit(&cap->turn, memory_order_relaxed) != seen;
}

static inline uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

bool wait_spin(const struct layout_cap *cap, uint32_t seen, uint64_t nanoseconds)
{
    for (uint64_t begin = now(); !has_moved(cap, seen); relax())
        if (now() - begin >= nanoseconds)
            return false;
    return true;
}

static inline struct timespec timespec_of(uint64_t nanoseconds)
{
    return (struct timespec){.tv_sec = (time_t)(nanoseconds / SECOND), .tv_nsec = (long)(nanoseconds % SECOND)};
}

enum wait_result wait_sleep(const struct layout_cap *cap, uint32_t seen, uint64_t nanoseconds)
{
#if WAIT_FUTEX
    struct timespec length = timespec_of(nanoseconds);
    if (syscall(SYS_futex, &cap->turn, FUTEX_WAIT, seen, &length, NULL, 0) == 0 || errno == EAGAIN)
        return WAIT_MOVED;
    return errno == EINTR ? WAIT_INTERRUPTED : WAIT_TIME_UP;
#else
    uint64_t pause = POLL_FIRST;
    for (;;) {
        if (has_moved(cap, seen))
            return WAIT_MOVED;
        if (nanoseconds == 0)
            return WAIT_TIME_UP;
        struct timespec length = timespec_of(pause < nanoseconds ? pause : nanoseconds);
        if (nanosleep(&length, NULL) != 0)
            return WAIT_INTERRUPTED;
        nanoseconds -= pause < nanoseconds ? pause : nanoseconds;
        pause = pause * 2 < POLL_LAST ? pause * 2 : POLL_LAST;
    }
#endif
}
