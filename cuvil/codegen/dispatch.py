"""A device's code for several instruction sets, and the C file that chooses between them at run time.

Every level has a C file of its own, to be compiled for its instruction set; all share one array of
constants and, of those that are made at run time, one array that the chooser's file fills.  The chooser has
the segments' functions under their usual names and forwards each call to the best level that the CPU and its
operating system can run, found by ``cpuid`` and ``xgetbv`` at the first call; neither needs a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuvil import __version__
from cuvil.codegen.c import PRELUDE
from cuvil.codegen.names import level_stem
from cuvil.codegen.program import DeviceCode, Part, declaration, parameters, render
from cuvil.codegen.tuned.amxtile import ALLOWED
from cuvil.codegen.weights import Weights
from cuvil.ir.expr import aside
from cuvil.ir.loops import Micro, walk
from cuvil.schedule.plan import Schedule
from cuvil.target.isa import ISAS, features

_BITS = {
    (1, 0, "ecx"): "pni:0 ssse3:9 fma:12 cx16:13 sse4_1:19 sse4_2:20 movbe:22 popcnt:23 xsave:26 avx:28 "
    "f16c:29",
    (7, 0, "ebx"): "bmi1:3 avx2:5 bmi2:8 avx512f:16 avx512dq:17 avx512cd:28 avx512bw:30 avx512vl:31",
    (7, 0, "ecx"): "avx512_vnni:11",
    (7, 0, "edx"): "amx_bf16:22 amx_tile:24",
    (7, 1, "eax"): "avx_vnni:4",
    (0x80000001, 0, "ecx"): "lahf_lm:0 abm:5",
}
"""cpuid's leaf, subleaf and register -> the bits of features in Linux' words.  Source: Intel SDM volume 2,
CPUID; AMD64 APM volume 3, appendix E."""

_AVX, _AVX512, _AMX = 0x06, 0xE6, 0x600E6
"""Bits of the register XCR0 for what an operating system must save: XMM and YMM; masks and ZMM too; tiles
too."""

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


def combine(
    levels: Sequence[str],
    make: Callable[[str], Sequence[Schedule]],
    numbers: Sequence[int],
    stem: str,
    threads: int = 1,
) -> DeviceCode:
    """The code of a device for several instruction sets.

    A level that differs from lesser ones in dot products of bytes or in tiles alone, and has no use for them,
    runs the least such one's code.

    Args:
        levels: the instruction sets, from the least to the best.
        make: makes the segments' schedules for one of them.  They are rendered before the next are made: each
            set holds all weights.
        numbers: the segments' numbers in the whole program.
        stem: prefix of the symbols that the rest of the library calls.
        threads: as in `program.render`.
    """
    weights = Weights(stem)
    made: dict[str, _Level] = {}
    runs: dict[str, str] = {}
    for position in reversed(range(len(levels))):  # the best has its constants in its own order
        if levels[position] not in runs:
            level = _level(levels, position, make, numbers, stem, threads, weights)
            made[level.name] = level
            runs[levels[position]] = runs[level.name] = level.name
    best = made[runs[levels[-1]]]
    used = [made[name] for name in levels if name in made]
    symbols = [f"{stem}_s{k}" for k in numbers]
    declared = [declaration(symbol, signature) for symbol, signature in zip(symbols, best.signatures)]
    data = weights.data
    plan = {
        **best.code.plan,
        "segments": [
            _segment([x.code.plan["segments"][i] for x in used], symbols[i], declared[i])
            for i in range(len(symbols))
        ],
        "levels": [
            {
                "isa": name,
                "runs": runs[name],
                "segments": made[name].code.plan["segments"] if name in made else [],
            }
            for name in levels
        ],
        "weights_bytes": len(data),
        "prepared_bytes": weights.prepared.bytes,
        "libm": any(x.code.plan["libm"] for x in used),
    }
    sources = {n: made[n].code.source if n in made else _note(stem, n, runs[n]) for n in levels}
    chooser = _chooser([(name, made[runs[name]]) for name in levels], stem, symbols)
    if weights.definition:
        chooser += f"\n{weights.declaration}\n{weights.definition}"
    return DeviceCode(chooser, data, weights.symbol if data else "", plan, sources)


@dataclass(frozen=True)
class _Level:
    """The code for an instruction set.

    Attributes:
        symbols, signatures: of the segments' functions (`program.parameters`).
    """

    name: str
    code: DeviceCode
    symbols: Sequence[str]
    signatures: Sequence[Sequence[tuple[str, str]]]


def _level(
    levels: Sequence[str],
    position: int,
    make: Callable[[str], Sequence[Schedule]],
    numbers: Sequence[int],
    stem: str,
    threads: int,
    weights: Weights,
) -> _Level:
    """The code for ``levels[position]``, under the name of the least one that can run it."""
    with aside():
        schedules = make(levels[position])
        while position:
            added = _added(levels[position - 1], levels[position])
            if "" in added or any(_has(schedule, what) for what in added for schedule in schedules):
                break
            position -= 1
        name = levels[position]
        parts = [Part(s, f"{level_stem(stem, name)}_s{k}") for k, s in zip(numbers, schedules)]
        code = render(parts, level_stem(stem, name), threads, weights)
        return _Level(name, code, [p.symbol for p in parts], [parameters(s) for s in schedules])


_MICRO_KERNELS = {"dot_i8": "vnni", "amx": "allowed"}
"""What an instruction set has -> the attribute of micro-kernels that use it."""


def _added(level: str, better: str) -> set[str]:
    """What a level has beyond the next lesser one: of `_MICRO_KERNELS`, or "" where that is not all."""
    own, other = ISAS[level], ISAS[better]
    added = {what for what in _MICRO_KERNELS if getattr(other, what) and not getattr(own, what)}
    alike = replace(other, dot_i8=own.dot_i8, name=own.name, zig_cpu=own.zig_cpu, gcc=own.gcc)
    return added if added and alike == own else {""}


def _has(schedule: Schedule, what: str) -> bool:
    """Whether micro-kernels use something of `_MICRO_KERNELS`."""
    tiles = (s.kernel for kernel in schedule.kernels for s in walk(kernel.body) if isinstance(s, Micro))
    return any(getattr(tile, _MICRO_KERNELS[what], False) for tile in tiles)


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


def _chooser(levels: Sequence[tuple[str, _Level]], stem: str, symbols: Sequence[str]) -> str:
    """The C file that chooses between `levels`: each by its name, with the code that it runs."""
    names = [name for name, _ in levels]
    listed = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    lines = [f"/* Generated by Cuvil {__version__}; do not edit. */\n", PRELUDE, _CPU]
    lines += [ALLOWED] if any(ISAS[name].amx for name in names) else []
    lines.append(f"/* Whether this machine runs level {listed}. */")
    lines += ["static int cv_runs(int level) {", "    switch (level) {"]
    lines += [f"    case {i}: return {_condition(name)};" for i, name in enumerate(names) if i]
    lines += ["    default: return 1;", "    }", "}"]
    lines += ["static int cv_best(void) {", f"    int level = {len(names) - 1};"]
    lines += ["    while (level > 0 && !cv_runs(level)) level--;", "    return level;", "}"]
    lines.append(_CHOICE % {"name": function(stem), "count": len(names)})
    for i, symbol in enumerate(symbols):
        functions = [level.symbols[i] for _, level in levels]
        signature = levels[-1][1].signatures[i]
        lines += [f"{declaration(f, signature)};" for f in dict.fromkeys(functions)]
        head, passed = declaration(symbol, signature), ", ".join(name for _, name in signature)
        lines += [f"{head};", f"{head} {{", "    switch (cv_level()) {"]
        lines += [f"    case {n}: return {f}({passed});" for n, f in enumerate(functions) if n]
        lines += [f"    default: return {functions[0]}({passed});", "    }", "}"]
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
    needs = {"amx_tile": _AMX, "avx512f": _AVX512, "avx": _AVX}
    saved = next((mask for feature, mask in needs.items() if feature in features(level)), 0)
    if saved:
        tests.append(f"(cv_saved() & {saved:#x}u) == {saved:#x}u")
    if ISAS[level].amx:
        tests.append("cv_amx_allowed()")
    return " && ".join(tests)
