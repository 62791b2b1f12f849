"""A fork-join pool in C: threads that share the points of one kernel at a time.

Created on the first call that needs it, one per device library.  A kernel's points are cut into units,
of which each thread owns a range: the same part of every kernel, so that what it wrote is in the cache of
its core when the next kernel reads it.  It takes half of what is left from the front; a thread without
units takes a quarter of another's from the back, so that one which is late, or never starts, costs nothing.
A range is one word, changed by compare-and-swap alone.

Idle threads spin for `SPIN` and then sleep; `cv_wake`, at the beginning of a run, has them ready for its
first kernel.  Where the pool is taken by another caller, the points run in the calling thread: `run`
stays re-entrant.  A thread's number tells a kernel which part of its scratch memory to work in; the
caller's is 0, for its workspace is its own.  Every point is computed by the same code whoever takes it, so
results do not depend on the number of threads.

A worker takes no signals of the process, whose handlers belong to threads of the application; those of its
own faults it does.  Where one cannot be created, there are only those before it.

On Linux workers stay away from the processor on which the caller runs: a thread that wakes is otherwise
often put on its waker's, and waits there.  A caller that waited in vain for threads which had no processor
works alone for a while.
"""

from __future__ import annotations

UNITS_PER_THREAD = 16
"""Units that a kernel's points are cut into, per thread: enough to even out, few enough to take."""

MAX_UNITS = 0xFFFF
"""What half of a range's word holds."""

SPIN, TAIL = 100, 30
"""Microseconds that a worker spins before it sleeps (waking it takes 40-50), and that a caller spins before
it lends its processor."""

LOST, REST = 500, (10_000, 320_000)
"""Microseconds of waiting, longer than its own work, after which a caller works alone; how long, the first
time and at most."""

_POOL = """
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#define CV_THREADS %(threads)d
#define CV_UNITS %(units)d
#define CV_LINE __attribute__((aligned(128))) /* what one thread writes disturbs no other */

typedef void (*cv_task)(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi);

static struct {
    unsigned range CV_LINE; /* units [range >> 16, range & 0xffff) that nobody took yet */
} cv_share[CV_THREADS];

static struct {
    cv_task task CV_LINE; /* changes only while no unit is left */
    const void *arguments;
    cv_idx outer, rows, row; /* points are outer x rows x row; rows are shared */
    cv_idx units, each, rest; /* each unit has so many rows, the first `rest` one more */
    int64_t alone, period; /* the caller works alone until then, for so long */
    int started, workers, process; /* the one that has the workers: a forked one has none */
    int taken CV_LINE; /* by a caller */
    unsigned done CV_LINE; /* units */
    unsigned epoch CV_LINE; /* changes when there is work */
    int asleep; /* a worker may be */
} cv_pool;

static inline void cv_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

static int64_t cv_now(void) { /* microseconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

#ifdef __linux__ /* names of our own: what headers declare depends on macros that come too late here */
#include <sys/syscall.h>
extern long cv_system(long, ...) __asm__("syscall");
extern int cv_getcpu(void) __asm__("sched_getcpu");
extern int cv_getaffinity(int, size_t, unsigned long *) __asm__("sched_getaffinity");
extern int cv_setaffinity(int, size_t, const unsigned long *) __asm__("sched_setaffinity");
#define CV_WORD (8 * sizeof(unsigned long))
static int cv_apart = -1, cv_thread[CV_THREADS]; /* apart: the processor that workers avoid */

static void cv_begin(cv_idx slot) {
    __atomic_store_n(&cv_thread[slot], (int)cv_system(SYS_gettid), __ATOMIC_RELEASE);
}
static void cv_part(void) { /* the owner: keep the workers off this processor, where they have others */
    unsigned long others[1024 / CV_WORD] = {0}, any = 0;
    const int cpu = cv_getcpu();
    if (cpu == cv_apart || cpu < 0 || cpu >= 1024) return;
    if (cv_getaffinity(0, sizeof others, others) < 0) return;
    others[(size_t)cpu / CV_WORD] &= ~(1ul << (size_t)cpu %% CV_WORD);
    for (size_t i = 0; i < 1024 / CV_WORD; i++) any |= others[i];
    if (any == 0 || cv_pool.process != (int)getpid()) return;
    int moved = 1;
    for (int i = 1; i <= cv_pool.workers; i++) {
        const int thread = __atomic_load_n(&cv_thread[i], __ATOMIC_ACQUIRE);
        moved &= thread != 0 && cv_setaffinity(thread, sizeof others, others) == 0;
    }
    if (moved) cv_apart = cpu;
}
#else
static void cv_begin(cv_idx slot) { (void)slot; }
static void cv_part(void) {}
#endif

#ifdef SYS_futex
static void cv_sleep(unsigned epoch) {
    __atomic_store_n(&cv_pool.asleep, 1, __ATOMIC_SEQ_CST);
    cv_system(SYS_futex, &cv_pool.epoch, 128, epoch, NULL); /* wait while it is that, within the process */
}
static void cv_rouse(void) { cv_system(SYS_futex, &cv_pool.epoch, 129, CV_THREADS); } /* wake */
#else
static pthread_mutex_t cv_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv_change = PTHREAD_COND_INITIALIZER;
static void cv_sleep(unsigned epoch) {
    pthread_mutex_lock(&cv_lock);
    __atomic_store_n(&cv_pool.asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&cv_pool.epoch, __ATOMIC_SEQ_CST) == epoch)
        pthread_cond_wait(&cv_change, &cv_lock);
    pthread_mutex_unlock(&cv_lock);
}
static void cv_rouse(void) {
    if (cv_pool.process != (int)getpid()) return; /* a worker may have held the lock at the fork */
    pthread_mutex_lock(&cv_lock);
    pthread_cond_broadcast(&cv_change);
    pthread_mutex_unlock(&cv_lock);
}
#endif

static inline void cv_call(void) { /* the owner: all workers look for work */
    __atomic_fetch_add(&cv_pool.epoch, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&cv_pool.asleep, __ATOMIC_SEQ_CST) == 0) return;
    if (__atomic_exchange_n(&cv_pool.asleep, 0, __ATOMIC_SEQ_CST)) cv_rouse();
}

static inline cv_idx cv_row(cv_idx unit) {
    return unit * cv_pool.each + (unit < cv_pool.rest ? unit : cv_pool.rest);
}

static void cv_work(cv_idx slot) {
    for (cv_idx i = 0; i < CV_THREADS; i++) {
        unsigned *const range = &cv_share[(slot + i) %% CV_THREADS].range;
        unsigned seen = __atomic_load_n(range, __ATOMIC_RELAXED);
        for (;;) {
            const unsigned lo = seen >> 16, hi = seen & 0xffff, left = hi - lo;
            if (left == 0) break;
            const unsigned take = i > 0 ? (left + 3) / 4 : (left + 1) / 2;
            const unsigned rest = i > 0 ? seen - take : seen + (take << 16);
            if (!__atomic_compare_exchange_n(range, &seen, rest, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
                continue;
            const cv_idx first = i > 0 ? hi - take : lo; /* of this kernel: it cannot end without them */
            const cv_idx from = cv_row(first), to = cv_row(first + take);
            for (cv_idx at = 0; at < cv_pool.outer * cv_pool.rows; at += cv_pool.rows)
                cv_pool.task(cv_pool.arguments, slot, (at + from) * cv_pool.row, (at + to) * cv_pool.row);
            __atomic_fetch_add(&cv_pool.done, take, __ATOMIC_RELEASE);
            seen = __atomic_load_n(range, __ATOMIC_RELAXED);
        }
    }
}

static void *cv_worker(void *slot) {
    cv_begin((cv_idx)(intptr_t)slot);
    for (;;) {
        const unsigned epoch = __atomic_load_n(&cv_pool.epoch, __ATOMIC_ACQUIRE);
        cv_work((cv_idx)(intptr_t)slot);
        int64_t since = 0;
        for (unsigned spins = 1; __atomic_load_n(&cv_pool.epoch, __ATOMIC_ACQUIRE) == epoch; spins++) {
            cv_pause();
            if (spins %% 32 != 0) continue;
            if (since == 0) since = cv_now();
            else if (cv_now() - since > %(spin)d) cv_sleep(epoch);
        }
    }
    return NULL;
}

static void cv_start(void) {
    cv_pool.started = 1;
    cv_pool.process = (int)getpid();
    sigset_t callers, blocked; /* a worker begins with the signals blocked that are now */
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGFPE);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &blocked, &callers);
    for (int i = 1; i < CV_THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, cv_worker, (void *)(intptr_t)i) != 0) break;
        cv_pool.workers = i;
    }
    pthread_sigmask(SIG_SETMASK, &callers, NULL);
    pthread_attr_destroy(&attributes);
}

static int cv_take(void) { /* 1: the pool is the caller's, and its threads are worth asking */
    if (__atomic_exchange_n(&cv_pool.taken, 1, __ATOMIC_ACQUIRE)) return 0;
    if (cv_pool.alone == 0 || cv_now() >= cv_pool.alone) return 1;
    __atomic_store_n(&cv_pool.taken, 0, __ATOMIC_RELEASE);
    return 0;
}

static void cv_wake(void) {
    if (!cv_take()) return;
    if (!cv_pool.started) cv_start();
    cv_part();
    cv_call();
    __atomic_store_n(&cv_pool.taken, 0, __ATOMIC_RELEASE);
}

static void cv_join(int64_t begun) { /* wait for the units that workers took */
    int64_t since = 0, now = 0;
    const unsigned units = (unsigned)cv_pool.units;
    for (unsigned spins = 1; __atomic_load_n(&cv_pool.done, __ATOMIC_ACQUIRE) != units; spins++) {
        cv_pause();
        if (spins %% 32 != 0) continue;
        now = cv_now();
        if (since == 0) since = now;
        else if (now - since > %(tail)d) {
            cv_part();
            sched_yield();
        }
    }
    if (now - since < %(lost)d || now - since < since - begun) return;
    const int again = now < cv_pool.alone + 4 * cv_pool.period;
    cv_pool.period = again ? (cv_pool.period < %(most)d ? 2 * cv_pool.period : cv_pool.period) : %(least)d;
    cv_pool.alone = now + cv_pool.period;
}

static void cv_parallel(cv_task task, const void *arguments, cv_idx outer, cv_idx rows, cv_idx row) {
    if (rows < 2 || !cv_take()) {
        task(arguments, 0, 0, outer * rows * row);
        return;
    }
    const int64_t begun = cv_now();
    const cv_idx units = rows < CV_UNITS ? rows : CV_UNITS;
    cv_pool.task = task;
    cv_pool.arguments = arguments;
    cv_pool.outer = outer;
    cv_pool.rows = rows;
    cv_pool.row = row;
    cv_pool.units = units;
    cv_pool.each = rows / units;
    cv_pool.rest = rows %% units;
    __atomic_store_n(&cv_pool.done, 0, __ATOMIC_RELAXED);
    for (cv_idx i = CV_THREADS; i-- > 0;) {
        const unsigned lo = (unsigned)(units * i / CV_THREADS), hi = (unsigned)(units * (i + 1) / CV_THREADS);
        __atomic_store_n(&cv_share[i].range, lo << 16 | hi, __ATOMIC_RELEASE);
    }
    cv_call();
    cv_work(0);
    cv_join(begun);
    __atomic_store_n(&cv_pool.taken, 0, __ATOMIC_RELEASE);
}
"""


def text(threads: int) -> str:
    """The pool of a device that runs `threads` threads (at least 2), the caller among them."""
    return _POOL % {
        "threads": threads,
        "units": min(UNITS_PER_THREAD * threads, MAX_UNITS),
        "spin": SPIN,
        "tail": TAIL,
        "lost": LOST,
        "least": REST[0],
        "most": REST[1],
    }
