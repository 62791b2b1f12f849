"""A device's code for several instruction sets, and the C file that chooses between them at run time.

Every level has a C file of its own, to be compiled for its instruction set; all share one array of
constants.  The chooser has the segments' functions under their usual names and forwards each call to
the best level that the CPU and its operating system can run, found by ``cpuid`` and ``xgetbv`` at the
first call; neither needs a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuvil import __version__
from cuvil.codegen.c import PRELUDE
from cuvil.codegen.names import level_stem
from cuvil.codegen.program import DeviceCode, Part, parameters, prototype, render
from cuvil.codegen.weights import Weights
from cuvil.ir.loops import Micro, walk
from cuvil.schedule.plan import Schedule
from cuvil.target.isa import ISAS, features

_BITS = {
    (1, 0, "ecx"): "pni:0 ssse3:9 fma:12 cx16:13 sse4_1:19 sse4_2:20 movbe:22 popcnt:23 xsave:26 avx:28 "
    "f16c:29",
    (7, 0, "ebx"): "bmi1:3 avx2:5 bmi2:8 avx512f:16 avx512dq:17 avx512cd:28 avx512bw:30 avx512vl:31",
    (7, 0, "ecx"): "avx512_vnni:11",
    (7, 1, "eax"): "avx_vnni:4",
    (0x80000001, 0, "ecx"): "lahf_lm:0 abm:5",
}
"""cpuid's leaf, subleaf and register -> the bits of features in Linux' words.  Source: Intel SDM volume 2,
CPUID; AMD64 APM volume 3, appendix E."""

_AVX, _AVX512 = 0x06, 0xE6
"""Bits of the register XCR0 for what an operating system must save: XMM and YMM; masks and ZMM too."""

_CPU = """#define CV_PUBLIC __attribute__((visibility("default")))
#include <cpuid.h>

static unsigned cv_cpuid(unsigned leaf, unsigned subleaf, int number) {
    unsigned r[4] = {0, 0, 0, 0};
    return __get_cpuid_count(leaf, subleaf, &r[0], &r[1], &r[2], &r[3]) ? r[number] : 0;
}
static unsigned cv_saved(void) { /* XCR0: the registers that the operating system saves */
    unsigned low = 0, high = 0;
    if ((cv_cpuid(1, 0, 2) >> 27 & 1) == 0) return 0;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0)); /* xgetbv */
    (void)high;
    return low;
}
"""

_CHOICE = """
static int cv_chosen; /* the level, plus one; 0 before the first call, of which all find the same */

static inline int cv_level(void) {
#ifdef CUVIL_ISA_LEVEL /* fixed when compiling this file */
    return CUVIL_ISA_LEVEL;
#else
    int chosen = __atomic_load_n(&cv_chosen, __ATOMIC_RELAXED);
    if (chosen == 0) {
        const int best = cv_best() + 1;
        if (__atomic_compare_exchange_n(&cv_chosen, &chosen, best, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            chosen = best;
    }
    return chosen - 1;
#endif
}

CV_PUBLIC int %(name)s(int level);
CV_PUBLIC int %(name)s(int level) {
    const int wanted = level < 0 ? cv_best() : level;
    if (wanted < %(count)d && cv_runs(wanted)) __atomic_store_n(&cv_chosen, wanted + 1, __ATOMIC_RELAXED);
    return cv_level();
}
"""


def function(stem: str) -> str:
    """The name of the function that tells and chooses a device's level."""
    return f"{stem}_isa_level"


def twin(level: str, made: Mapping[str, Sequence[Schedule]]) -> str:
    """The better level among `made` whose schedules serve `level` as they are, "" where there is none: it
    differs in nothing but dot products of bytes, and has no use for them."""
    own = ISAS[level]
    for name, schedules in made.items():
        other = ISAS[name]
        alike = replace(other, dot_i8=False, name=own.name, zig_cpu=own.zig_cpu, gcc=own.gcc) == own
        if other.dot_i8 and alike and not any(_has_dot_products(s) for s in schedules):
            return name
    return ""


def _has_dot_products(schedule: Schedule) -> bool:
    tiles = (s.kernel for kernel in schedule.kernels for s in walk(kernel.body) if isinstance(s, Micro))
    return any(getattr(tile, "dot", False) for tile in tiles)


def combine(
    levels: Mapping[str, Sequence[Schedule]], numbers: Sequence[int], stem: str, threads: int = 1
) -> DeviceCode:
    """The code of a device for several instruction sets.

    Args:
        levels: instruction set, from the least to the best -> the segments' schedules for it; two with one
            list between them have the code of the lesser.
        numbers: the segments' numbers in the whole program.
        stem: prefix of the symbols that the rest of the library calls.
        threads: as in `program.render`.
    """
    weights = Weights(f"{stem}_weights")
    runs = {name: next(n for n in levels if levels[n] is levels[name]) for name in levels}
    parts = {
        name: [Part(s, f"{level_stem(stem, name)}_s{k}") for k, s in zip(numbers, levels[name])]
        for name in dict.fromkeys(runs.values())
    }
    made: dict[str, DeviceCode] = {}
    for name in reversed(parts):  # the best has its constants in its own order
        made[name] = render(parts[name], level_stem(stem, name), threads, weights)
    best = [*parts][-1]
    symbols = [f"{stem}_s{k}" for k in numbers]
    plans = {name: made[name].plan["segments"] for name in parts}
    plan = {
        **made[best].plan,
        "segments": [
            _segment([plans[name][i] for name in parts], symbol, prototype(part.schedule, symbol))
            for i, (symbol, part) in enumerate(zip(symbols, parts[best]))
        ],
        "levels": [{"isa": name, "runs": runs[name], "segments": plans.get(name, [])} for name in levels],
        "libm": any(code.plan["libm"] for code in made.values()),
    }
    data = weights.data
    plan["weights_bytes"] = len(data)
    sources = {n: made[n].source if n in made else _note(stem, n, runs[n]) for n in levels}
    chooser = _chooser([parts[runs[name]] for name in levels], [*levels], stem, symbols)
    return DeviceCode(chooser, data, weights.symbol if data else "", plan, sources)


def _note(stem: str, level: str, runs: str) -> str:
    return f'const char {level_stem(stem, level)}_note[] = "{level} runs the code for {runs}";\n'


def _segment(levels: Sequence[Mapping[str, Any]], symbol: str, declared: str) -> dict[str, Any]:
    """A segment as the rest of the build sees it: the best level's, with the needs of all."""
    *others, best = levels
    need = best["workspace"]
    for other in (s["workspace"] for s in others):
        if isinstance(need, int) and isinstance(other, int):
            need = max(need, other)
        elif other != need:
            need = f"cv_max_idx({need}, {other})"
    limit = min(s["symbol_limit"] for s in levels)
    return {**best, "symbol": symbol, "prototype": declared, "workspace": need, "symbol_limit": limit}


def _chooser(
    levels: Sequence[Sequence[Part]], names: Sequence[str], stem: str, symbols: Sequence[str]
) -> str:
    listed = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    lines = [f"/* Generated by Cuvil {__version__}; do not edit. */\n", PRELUDE, _CPU]
    lines.append(f"/* Whether this machine runs level {listed}. */")
    lines += ["static int cv_runs(int level) {", "    switch (level) {"]
    lines += [f"    case {i}: return {_condition(name)};" for i, name in enumerate(names) if i]
    lines += ["    default: return 1;", "    }", "}"]
    lines += ["static int cv_best(void) {", f"    int level = {len(names) - 1};"]
    lines += ["    while (level > 0 && !cv_runs(level)) level--;", "    return level;", "}"]
    lines.append(_CHOICE % {"name": function(stem), "count": len(names)})
    for i, symbol in enumerate(symbols):
        parts = [level[i] for level in levels]
        lines += dict.fromkeys(f"{prototype(p.schedule, p.symbol)};" for p in parts)
        head = prototype(parts[-1].schedule, symbol)
        passed = ", ".join(name for _, name in parameters(parts[-1].schedule))
        lines += [f"{head};", f"{head} {{", "    switch (cv_level()) {"]
        lines += [f"    case {n}: return {p.symbol}({passed});" for n, p in enumerate(parts) if n]
        lines += [f"    default: return {parts[0].symbol}({passed});", "    }", "}"]
    return "\n".join(lines) + "\n"


def _condition(level: str) -> str:
    """Whether the CPU has all features of a level, as C."""
    wanted = {*features(level)}
    tests = []
    for (leaf, subleaf, register), listed in _BITS.items():
        bits = {name: int(bit) for name, _, bit in (word.partition(":") for word in listed.split())}
        mask = sum(1 << bits[name] for name in wanted & bits.keys())
        wanted -= bits.keys()
        if mask:
            number = ("eax", "ebx", "ecx", "edx").index(register)
            tests.append(f"(cv_cpuid({leaf:#x}, {subleaf}, {number}) & {mask:#x}u) == {mask:#x}u")
    assert not wanted, f"{level}: no cpuid bit for {wanted}"
    saved = _AVX512 if "avx512f" in features(level) else _AVX if "avx" in features(level) else 0
    if saved:
        tests.append(f"(cv_saved() & {saved:#x}u) == {saved:#x}u")
    return " && ".join(tests)
