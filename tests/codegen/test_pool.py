"""The thread pool: every point runs once, whoever calls, whether or not workers come, and results are those
of one thread."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import ADDRESS, THREAD, Array, Callers, Case, Isa, Program, compiler, isa, schedule_of
from zoo import sequence
from zoo.net import Net

from cuvil.codegen import pool
from cuvil.codegen.c import PRELUDE
from cuvil.toolchain.compilers import Options

ASKS = (f"if (now - since < {pool.LOST} ||", "if (1 ||")
FUTEX = ("#ifdef SYS_futex\n", "#if 0\n")
NO_WORKER = ("pthread_create(&thread", "1 || pthread_create(&thread")
NOT_LINUX = ("#ifdef __linux__", "#if 0")
SLOW_LOCK = (
    "    while (__atomic_load_n(&cv_pool.epoch, __ATOMIC_SEQ_CST) == epoch)\n",
    "    usleep(50000);\n    while (__atomic_load_n(&cv_pool.epoch, __ATOMIC_SEQ_CST) == epoch)\n",
)
"""What is changed in the pool's text: a caller never works alone for a while, no futex, no worker starts, a
system that is not Linux, and workers that hold the mutex for long when they go to sleep."""


def built(
    folder: Path, threads: int, program: str, sanitize: tuple[str, ...] = (), *changes: tuple[str, str]
) -> Path:
    """The executable of a C program that follows the pool's text, in which `changes` are made."""
    text = pool.text(threads)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "pool.c").write_text(PRELUDE + text + program, encoding="utf-8")
    tools, options = compiler(isa("plain"), sanitize), Options(opt_level="2", sanitize=sanitize)
    tools.compile(folder / "pool.c", folder / "pool.o", options)
    tools.link_executable([folder / "pool.o"], folder / "pool", libs=("pthread",), options=options)
    return folder / "pool"


def run(executable: Path) -> list[str]:
    """The words that a program prints; it must end well and without a sanitizer's report."""
    done = subprocess.run([executable], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, f"{done.returncode}\n{done.stderr[:3000]}"
    return done.stdout.split()


# --- the points ---------------------------------------------------------------------------------------


_CALLERS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define CALLERS 3
#define LARGEST 4096

typedef struct { unsigned char *times; int *busy; long work; } job;
static int helped;

static void task(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {
    const job *const a = arguments;
    if (slot < 0 || slot >= CV_THREADS || a->busy[slot]++) abort(); /* a thread runs one thing at a time */
    for (cv_idx i = lo; i < hi; i++) a->times[i]++;
    for (volatile long k = 0; k < a->work; k++) {}
    a->busy[slot]--;
    if (slot > 0) __atomic_store_n(&helped, 1, __ATOMIC_RELAXED);
}

static int runs(unsigned seed, int count) { /* how many went wrong */
    unsigned char *const times = malloc(LARGEST);
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        int busy[CV_THREADS] = {0};
        seed = seed * 1103515245u + 12345u;
        const cv_idx outer = 1 + seed / 65536 % 4, row = 1 + seed / 262144 % 3;
        const cv_idx rows = seed >> 28 ? 1 + seed / 1048576 % 97 : seed / 1048576 % 3;
        const job a = {times, busy, seed >> 27 == 7 ? 20000 : seed >> 24};
        const cv_idx points = outer * rows * row;
        memset(times, 0, (size_t)points);
        if (i % 4 == 0) cv_wake();
        if (i % 512 == 0) usleep(1000); /* workers fall asleep */
        cv_parallel(task, &a, outer, rows, row);
        for (cv_idx p = 0; p < points; p++) wrong += times[p] != 1;
    }
    free(times);
    return wrong;
}

static void *caller(void *seed) { return (void *)(intptr_t)runs((unsigned)(intptr_t)seed, COUNT); }

int main(void) {
    pthread_t threads[CALLERS];
    intptr_t wrong = runs(1, COUNT);
    for (intptr_t i = 0; i < CALLERS; i++) pthread_create(&threads[i], NULL, caller, (void *)(i + 2));
    for (int i = 0; i < CALLERS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (intptr_t)result;
    }
#ifdef FORK
    const pid_t child = fork(); /* a process without the workers */
    int status = 0;
    if (child == 0) _exit(runs(9, COUNT) != 0);
    waitpid(child, &status, 0);
    wrong += status != 0;
#endif
    puts(helped ? "helped" : "alone");
    return wrong != 0;
}
"""


@pytest.mark.parametrize(
    ("threads", "sanitize", "count", "changes"),
    [
        (2, (), 20000, []),
        (5, ADDRESS, 4000, []),
        (3, THREAD, 1500, []),
        (3, THREAD, 1500, [FUTEX]),
        (3, (), 4000, [NO_WORKER]),
        (2, (), 4000, [NOT_LINUX]),
    ],
    ids=["two", "five", "races", "races without futex", "no worker starts", "not Linux"],
)
def test_every_point_runs_once(
    threads: int, sanitize: tuple[str, ...], count: int, changes: list[tuple[str, str]], tmp_path: Path
) -> None:
    defined = f"#define COUNT {count}\n" + ("#define FORK\n" if not sanitize else "")
    words = run(built(tmp_path, threads, defined + _CALLERS, sanitize, *changes))
    assert words == ["alone" if NO_WORKER in changes else "helped"]


_SWEEP = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned char *times; cv_idx rows, row; int *calls; } job;

static void task(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {
    const job *const a = arguments;
    const cv_idx image = a->rows * a->row;
    (void)slot;
    if (lo >= hi || lo % a->row || hi % a->row) abort(); /* whole rows ... */
    if (a->rows > 1 && lo / image != (hi - 1) / image) abort(); /* ... of one image */
    for (cv_idx i = lo; i < hi; i++) a->times[i]++;
    __atomic_fetch_add(a->calls, 1, __ATOMIC_RELAXED);
}

static int calls_of(cv_idx outer, cv_idx rows, cv_idx row) { /* how often the task was called */
    const cv_idx points = outer * rows * row;
    unsigned char *const times = calloc((size_t)points, 1);
    int calls = 0;
    const job a = {times, rows, row, &calls};
    cv_parallel(task, &a, outer, rows, row);
    for (cv_idx i = 0; i < points; i++)
        if (times[i] != 1) exit(1);
    free(times);
    return calls;
}

int main(void) {
    static const cv_idx others[][2] = {{1, 1}, {3, 1}, {1, 5}, {2, 3}};
    cv_wake();
    for (cv_idx rows = 1; rows <= LIMIT; rows++)
        for (int i = 0; i < 4; i++) calls_of(others[i][0], rows, others[i][1]);
    static const cv_idx large[] = {65534, 65535, 65536, 131071};
    for (int i = 0; i < 4; i++) calls_of(1, large[i], 1);
    printf("%d %d %d\\n", CV_UNITS, calls_of(7, 1, 3), calls_of(7, 2, 3));
    return 0;
}
"""


@pytest.mark.parametrize(
    ("threads", "changes", "units"),
    [(2, [], 32), (3, [], 48), (5, [FUTEX], 80), (5000, [NO_WORKER], pool.MAX_UNITS)],
)
def test_any_number_of_rows(threads: int, changes: list[tuple[str, str]], units: int, tmp_path: Path) -> None:
    """Fewer rows than threads or units, as many, and more; one row is not shared, two are two units."""
    limit = 3 * units + 2 if units < 100 else 3
    words = run(built(tmp_path, threads, f"#define LIMIT {limit}\n{_SWEEP}", (), ASKS, *changes))
    assert words == [str(units), "1", "14"]


# --- sleep, and processes that fork -------------------------------------------------------------------

_SLEEP = """
#include <stdio.h>
#include <stdlib.h>
static int helped;

static void task(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {
    int *const results = *(int *const *)arguments;
    for (cv_idx i = lo; i < hi; i++) results[i]++; /* an ordinary write, for the sanitizer to watch */
    for (volatile int k = 0; k < 20000; k++) {}
    if (slot > 0) __atomic_store_n(&helped, 1, __ATOMIC_RELAXED);
}

int main(void) {
    int numbers[64] = {0}, *const results = numbers;
    cv_wake();
    for (int i = 0; i < 25; i++) {
        const int64_t begun = cv_now();
        while (!__atomic_load_n(&cv_pool.asleep, __ATOMIC_SEQ_CST)) {
            sched_yield();
            if (cv_now() - begun > 20000000) return 1; /* never sleeps */
        }
        int runs = 0;
        for (helped = 0; !__atomic_load_n(&helped, __ATOMIC_RELAXED); runs++) {
            cv_parallel(task, &results, 1, 64, 1);
            if (cv_now() - begun > 40000000) return 2; /* never wakes */
        }
        for (int k = 0; k < 64; k++) {
            if (results[k] != runs) return 3;
            results[k] = 0;
        }
    }
    puts("slept");
    return 0;
}
"""


@pytest.mark.parametrize("changes", [[], [FUTEX], [NOT_LINUX]], ids=["futex", "mutex", "not Linux"])
def test_workers_sleep_and_wake(changes: list[tuple[str, str]], tmp_path: Path) -> None:
    assert run(built(tmp_path, 3, _SLEEP, THREAD, *changes)) == ["slept"]


_FORKS = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int held, go;

static void count(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {
    int *const *const times = arguments;
    if (slot > 0 && *times[0] < 0) abort(); /* a child has no workers */
    for (cv_idx i = lo; i < hi; i++) times[1][i]++;
}
static void hold(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {
    (void)arguments, (void)slot, (void)lo, (void)hi;
    __atomic_store_n(&held, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&go, __ATOMIC_SEQ_CST)) sched_yield();
}
static int right(int child) {
    int mark = child ? -1 : 0, times[99] = {0};
    int *const arguments[2] = {&mark, times};
    for (int k = 1; k <= 50; k++) {
        cv_wake();
        cv_parallel(count, arguments, 1, 99, 1);
        for (int i = 0; i < 99; i++)
            if (times[i] != k) return 0;
    }
    return 1;
}
static int child_is_right(void) {
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        alarm(10); /* ends a child that hangs */
        _exit(!right(1));
    }
    waitpid(child, &status, 0);
    return status == 0;
}
static void *holder(void *none) {
    cv_parallel(hold, NULL, 1, 99, 1);
    return none;
}

int main(void) {
    pthread_t other;
    if (!right(0)) return 1;
    while (!__atomic_load_n(&cv_pool.asleep, __ATOMIC_SEQ_CST)) sched_yield();
    if (!child_is_right()) return 2; /* while workers go to sleep */
    usleep(200000);
    if (!child_is_right()) return 3; /* while they sleep */
    if (!right(0)) return 4;
    pthread_create(&other, NULL, holder, NULL);
    while (!__atomic_load_n(&held, __ATOMIC_SEQ_CST)) sched_yield();
    if (!child_is_right()) return 5; /* while another thread has the pool */
    __atomic_store_n(&go, 1, __ATOMIC_SEQ_CST);
    pthread_join(other, NULL);
    if (!right(0)) return 6;
    puts("forked");
    return 0;
}
"""


@pytest.mark.parametrize("changes", [[], [FUTEX, SLOW_LOCK]], ids=["futex", "mutex"])
def test_a_forked_process_computes_alone(changes: list[tuple[str, str]], tmp_path: Path) -> None:
    assert run(built(tmp_path, 3, _FORKS, (), *changes)) == ["forked"]


# --- workers --------------------------------------------------------------------------------------------

_COUNTED = [
    ("static int cv_apart", "static int tries, cv_apart"),
    ("        moved &=", "        tries++;\n        moved &="),
]
_SOME_WORKERS = """
#include <stdio.h>
int main(void) {
    cv_wake();
    for (int i = 1; i <= WORKERS; i++)
        while (!__atomic_load_n(&cv_thread[i], __ATOMIC_ACQUIRE)) sched_yield();
    tries = 0;
    for (int i = 0; i < 100; i++) cv_wake();
    for (int i = WORKERS + 1; i < CV_THREADS; i++)
        if (cv_thread[i] != 0) return 1;
    printf("%d\\n", tries);
    return 0;
}
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="workers keep off a processor on Linux")
@pytest.mark.parametrize("workers", [3, 2, 0])
def test_workers_are_moved_once_whether_or_not_all_started(workers: int, tmp_path: Path) -> None:
    """While the caller stays on its processor, here one of ours; of the threads after one that cannot be
    created there is none."""
    cpu = min(os.sched_getaffinity(0))
    stays = ("const int cpu = cv_getcpu();", f"const int cpu = {cpu};")
    fails = ("pthread_create(&thread", f"i > {workers} || pthread_create(&thread")
    program = f"#define WORKERS {workers}\n{_SOME_WORKERS}"
    [tries] = run(built(tmp_path, 4, program, (), stays, fails, *_COUNTED))
    assert int(tries) <= workers


_SIGNALS = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static pthread_t of_main;
static int in_main, elsewhere, helped;
static void handler(int number) {
    (void)number;
    __atomic_fetch_add(pthread_equal(pthread_self(), of_main) ? &in_main : &elsewhere, 1, __ATOMIC_SEQ_CST);
}
static void task(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {
    (void)arguments, (void)lo, (void)hi;
    for (volatile int k = 0; k < 20000; k++) {}
    if (slot == 0) return;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (!sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGPROF) || sigismember(&mask, SIGSEGV)) abort();
    __atomic_store_n(&helped, 1, __ATOMIC_RELAXED);
}
int main(void) {
    sigset_t mask, after;
    of_main = pthread_self();
    signal(SIGUSR1, handler);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    while (!__atomic_load_n(&helped, __ATOMIC_RELAXED)) cv_parallel(task, NULL, 1, 64, 1), cv_wake();
    for (int i = 0; i < 20; i++) {
        kill(getpid(), SIGUSR1); /* to any thread that takes it */
        cv_parallel(task, NULL, 1, 64, 1);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < 32; i++)
        if (sigismember(&after, i) != sigismember(&mask, i)) return 1;
    printf("%d %d ", in_main, elsewhere);
    sigemptyset(&mask);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    printf("%d %d\\n", in_main, elsewhere);
    return 0;
}
"""


def test_signals_are_left_to_the_application(tmp_path: Path) -> None:
    """A signal that the caller blocks stays pending, and the caller's mask is what it was."""
    assert run(built(tmp_path, 3, _SIGNALS)) == ["0", "0", "1", "0"]


# --- libraries ----------------------------------------------------------------------------------------

KIB = 1024


def images() -> onnx.ModelProto:
    """Odd sizes and a batch, dense and grouped convolutions, pooling: rows that do not divide evenly."""
    net = Net("images", 3)
    x = net.input("x", [2, 5, 47, 31])
    x = net.op("Relu", net.conv(x, 5, 48, 3))
    x = net.op("Relu", net.conv(net.conv(x, 48, 48, 3, groups=48), 48, 33, 1))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
    net.output(net.op("Softmax", net.conv(x, 33, 32, 3), axis=1), "y", [2, 32, 23, 15])
    return net.model()


def chain() -> onnx.ModelProto:
    """Convolutions on an image that is larger than a cache of 64 KiB."""
    net = Net("chain", 5)
    x = net.input("x", [2, 3, 67, 45])
    x = net.op("Relu", net.conv(x, 3, 16, 3))
    for _ in range(2):
        x = net.op("Relu", net.conv(net.conv(x, 16, 16, 3, groups=16), 16, 16, 1))
    net.output(x, "y", [2, 16, 67, 45])
    return net.model()


def cases_for(threads: int) -> tuple[list[Case], Isa]:
    """A network on images, a transformer layer and a chain in strips, for so many threads."""
    host = isa("host")
    options = {**(host.options or {}), "threads": threads}
    in_strips = Isa({**options, "caches": {"l2": 64 * KIB}})
    layer = sequence.bert_encoder_layer(1, 53, hidden=192, heads=3, ffn=320)
    cases = []
    for name, model, chosen in (
        ("images", images(), Isa(options)), ("layer", layer, Isa(options)), ("chain", chain(), in_strips),
    ):  # fmt: skip
        s = schedule_of(model, chosen)
        rng = np.random.default_rng(7)
        shapes = {v.name: [int(n.attr) for n in v.shape] for v in s.program.inputs}
        feeds: dict[str, Array] = {v: rng.standard_normal(n).astype(np.float32) for v, n in shapes.items()}
        if "attention_mask" in feeds:
            feeds["attention_mask"] = (np.arange(53)[None] < 41).astype(np.int64)
        cases.append(Case(name, s, feeds))
    assert cases[-1].schedule.strips
    return cases, Isa(options)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What one thread computes."""
    cases, chosen = cases_for(1)
    program = Program(cases, tmp_path_factory.mktemp("one"), chosen, ())
    assert "cv_parallel" not in program.source
    results = [program.run(i)[0] for i in range(len(cases))]
    assert all(np.isfinite(r).all() and np.ptp(r) > 0.01 for r in results)
    return [r.tobytes() for r in results]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_results_do_not_depend_on_threads(threads: int, wanted: list[bytes], tmp_path: Path) -> None:
    cases, chosen = cases_for(threads)
    program = Program(cases, tmp_path, chosen, (), threads)
    assert all(f"cv_parallel({kind}" in program.source for kind in ("function2_strips", "s0_", "s1_"))
    assert [program.run(i)[0].tobytes() for i in range(len(cases))] == wanted


@pytest.mark.parametrize("sanitize", [(), THREAD], ids=["plain", "races"])
@pytest.mark.parametrize("number", [0, 2], ids=["images", "chain"])
def test_several_callers_at_once(
    number: int, sanitize: tuple[str, ...], wanted: list[bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One has the threads' help, the others compute alone, and all find the same."""
    if sanitize:
        monkeypatch.setattr(Callers, "RUNS", 5)
    cases, chosen = cases_for(3)
    program = Callers([cases[number]], tmp_path, chosen, sanitize, 3)
    assert program.run(0)[0].tobytes() == wanted[number]
