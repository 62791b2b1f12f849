"""A fork-join pool in C: threads that share the points of one kernel at a time.

Created on the first call that needs it, one per device library.  Chunks of points are claimed from
an atomic counter, so a thread that is late costs nothing; idle threads spin shortly, then sleep.
Where the pool is taken by another caller, the points run in the calling thread: `run` stays
re-entrant.  A thread's number tells a kernel which part of its scratch memory to work in; the caller's
is 0, for its workspace is its own.  Every point is computed by the same code whoever claims it, so
results do not depend on the number of threads.  On Linux workers stay away from the processor on which
the first call ran: a thread that wakes is otherwise often put on its waker's, and waits there.
"""

from __future__ import annotations

CHUNKS_PER_THREAD = 4
"""Chunks that a kernel's points are cut into, per thread: enough to even out, few enough to claim."""

MIN_WORK = 1 << 15
"""Multiply-adds (or elements) below which a kernel stays in the calling thread."""

_POOL = """
#include <pthread.h>
#define CV_THREADS %(threads)d

typedef void (*cv_task)(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi);

static struct {
    pthread_mutex_t owner, lock;
    pthread_cond_t wake;
    cv_task task;
    const void *arguments;
    cv_idx points, chunk, next;
    unsigned epoch; /* counts kernels */
    int open, active, started; /* open: workers may join the kernel */
} cv_pool = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0, 0, 0, 0, 0
};

static inline void cv_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

static void cv_claim(cv_idx slot) {
    for (;;) {
        const cv_idx lo = __atomic_fetch_add(&cv_pool.next, cv_pool.chunk, __ATOMIC_RELAXED);
        if (lo >= cv_pool.points) return;
        const cv_idx hi = lo + cv_pool.chunk < cv_pool.points ? lo + cv_pool.chunk : cv_pool.points;
        cv_pool.task(cv_pool.arguments, slot, lo, hi);
    }
}

#ifdef __linux__ /* names of our own: what headers declare depends on macros that come too late here */
extern int cv_getcpu(void) __asm__("sched_getcpu");
extern int cv_getaffinity(int, size_t, unsigned long *) __asm__("sched_getaffinity");
extern int cv_setaffinity(int, size_t, const unsigned long *) __asm__("sched_setaffinity");
#define CV_WORD (8 * sizeof(unsigned long))
static unsigned long cv_others[1024 / CV_WORD]; /* processors for workers; all zero: any */
static void cv_leave_callers(void) {
    const int cpu = cv_getcpu();
    if (cpu < 0 || (size_t)cpu >= 1024 || cv_getaffinity(0, sizeof cv_others, cv_others) < 0) return;
    cv_others[(size_t)cpu / CV_WORD] &= ~(1ul << (size_t)cpu %% CV_WORD);
}
static void cv_settle(void) {
    for (size_t i = 0; i < 1024 / CV_WORD; i++)
        if (cv_others[i] != 0) {
            (void)cv_setaffinity(0, sizeof cv_others, cv_others);
            return;
        }
}
#else
static void cv_leave_callers(void) {}
static void cv_settle(void) {}
#endif

static void *cv_worker(void *slot) {
    unsigned seen = 0;
    cv_settle();
    for (;;) {
        int spins = 0;
        while (__atomic_load_n(&cv_pool.epoch, __ATOMIC_ACQUIRE) == seen && spins++ < 4000) cv_pause();
        pthread_mutex_lock(&cv_pool.lock);
        while (cv_pool.epoch == seen) pthread_cond_wait(&cv_pool.wake, &cv_pool.lock);
        seen = cv_pool.epoch;
        const int join = cv_pool.open;
        if (join) __atomic_fetch_add(&cv_pool.active, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&cv_pool.lock);
        if (join) {
            cv_claim((cv_idx)(intptr_t)slot);
            __atomic_fetch_sub(&cv_pool.active, 1, __ATOMIC_RELEASE);
        }
    }
    return 0;
}

static void cv_start(void) { /* the owner holds cv_pool.owner */
    cv_pool.started = 1;
    cv_leave_callers();
    for (int i = 1; i < CV_THREADS; i++) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_create(&thread, &attributes, cv_worker, (void *)(intptr_t)i);
        pthread_attr_destroy(&attributes);
    }
}

static void cv_parallel(cv_task task, const void *arguments, cv_idx points) {
    if (points < 2 || pthread_mutex_trylock(&cv_pool.owner) != 0) {
        task(arguments, 0, 0, points);
        return;
    }
    if (!cv_pool.started) cv_start();
    pthread_mutex_lock(&cv_pool.lock);
    cv_pool.open = 1;
    cv_pool.task = task;
    cv_pool.arguments = arguments;
    cv_pool.points = points;
    cv_pool.chunk = (points + CV_THREADS * %(chunks)d - 1) / (CV_THREADS * %(chunks)d);
    __atomic_store_n(&cv_pool.next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cv_pool.epoch, cv_pool.epoch + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&cv_pool.wake);
    pthread_mutex_unlock(&cv_pool.lock);
    cv_claim(0);
    pthread_mutex_lock(&cv_pool.lock);
    cv_pool.open = 0; /* late workers do not join; those that did still read the task */
    pthread_mutex_unlock(&cv_pool.lock);
    while (__atomic_load_n(&cv_pool.active, __ATOMIC_ACQUIRE) != 0) cv_pause();
    pthread_mutex_unlock(&cv_pool.owner);
}
"""


def text(threads: int) -> str:
    """The pool of a device that runs `threads` threads (at least 2), the caller among them."""
    return _POOL % {"threads": threads, "chunks": CHUNKS_PER_THREAD}
