"""Generated code in a program of its own: many cases in one executable, each run in its own process.

Every buffer has exactly the size that the interface promises, so with gcc's address sanitizer a read
or write one element beyond it ends the program; the undefined-behaviour sanitizer watches the arithmetic.
The workspace and the outputs start as NaN patterns, so nothing can come right by chance.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from cuvil.codegen.program import Part, is_sized_by_data, render, weights_assembly
from cuvil.codegen.tuned import claims
from cuvil.errors import ToolchainError
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.ir import expr as E
from cuvil.ir.graph import Graph
from cuvil.ir.primitives import Value
from cuvil.rewrite import integer, simplify
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import Schedule, schedule, workspace_bytes
from cuvil.target.schema import load
from cuvil.toolchain.compilers import Compiler, Options, find
from cuvil.toolchain.machine import Machine

Array = npt.NDArray[Any]

FAILED = 100
"""Exit code of a program whose function returns an error code, without that code."""

ADDRESS = ("address", "undefined")
THREAD = ("thread",)


@dataclass(frozen=True)
class Isa:
    """What code is generated and compiled for: `options` as in the ``codegen`` slice (None: no tuned
    kernels), and the CPU's name and features as the toolchain spells them.  Constants are packed as for
    `packing`, such options too, unless that is None."""

    options: Mapping[str, Any] | None
    cpu: str = "native"
    features: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    packing: Mapping[str, Any] | None = None


def _x86(bits: int, registers: int, dot: bool = False, amx: bool = False) -> dict[str, Any]:
    facts = {"arch": "x86_64", "vector_bits": bits, "vector_registers": registers, "dot_i8": dot}
    return {**facts, "amx": amx}


ISAS = {
    "plain": Isa(None),
    "x86-64": Isa(_x86(128, 16), "x86_64"),
    "x86-64-v3": Isa(_x86(256, 16), "x86_64_v3", needs=("avx2", "fma")),
    "x86-64 in a library for several": Isa(_x86(128, 16), "x86_64", packing=_x86(512, 32)),
    "x86-64-v3 in a library for several": Isa(
        _x86(256, 16), "x86_64_v3", needs=("avx2", "fma"), packing=_x86(512, 32, True)
    ),
    "x86-64-v4": Isa(_x86(512, 32), "x86_64_v4", needs=("avx512vl", "avx512dq", "avx512bw")),
    "x86-64-v4-vnni": Isa(_x86(512, 32, True), "x86_64_v4", ("avx512vnni",), ("avx512_vnni", "avx512vl")),
    "x86-64-v4-amx": Isa(
        _x86(512, 32, True, True),
        "x86_64_v4",
        ("avx512vnni", "amx_tile", "amx_bf16"),
        ("avx512_vnni", "avx512vl", "amx_tile", "amx_bf16"),
    ),
}
"""Instruction sets by name; ``host`` is the probed one of this machine."""


@functools.cache
def isa(name: str) -> Isa:
    """The instruction set `name`; skips the test where this machine cannot run it."""
    if name == "host":
        target = load("host")
        device = next(d for d in target.devices if d.kind == "cpu")
        return Isa(target.slice("codegen")["devices"][device.name])
    found = ISAS[name]
    if name.startswith("x86") and Machine().arch != "x86_64":
        pytest.skip("needs an x86-64 machine")
    if found.needs:
        flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
        for feature in found.needs:
            if feature not in flags:
                pytest.skip(f"this CPU has no {feature}")
    return found


def compiler(chosen: Isa, sanitize: Sequence[str] = ()) -> Compiler:
    """A compiler for `chosen`; skips where sanitizers are asked for and there is no gcc."""
    machine = Machine("native", chosen.cpu, chosen.features)
    try:
        return find("gcc" if sanitize else "auto", machine)
    except ToolchainError as error:
        pytest.skip(f"sanitizers need gcc: {error}")


def graph_of(model: onnx.ModelProto) -> Graph:
    """A model as the import stage leaves it, in memory."""
    graph = graph_from_proto(model)
    canonicalize(graph)
    simplify.simplify(graph)
    return graph


def schedule_of(model: onnx.ModelProto, chosen: Isa) -> Schedule:
    """A model lowered and scheduled for an instruction set."""
    graph = graph_of(model)
    integer.rewrite(graph)
    tuned = None if chosen.options is None else claims.for_device(chosen.options, chosen.packing)
    return schedule(lower(graph), tuned)


@dataclass
class Case:
    """A schedule and what to feed it."""

    name: str
    schedule: Schedule
    feeds: Mapping[str, Array]

    @property
    def sizes(self) -> dict[str, int]:
        """The symbolic sizes that the feeds imply."""
        found: dict[str, int] = {}
        for v in self.schedule.program.inputs:
            for size, actual in zip(v.shape, self.feeds[v.name].shape):
                if size.op == "sym":
                    assert found.setdefault(size.attr, actual) == actual
        return found

    def shape(self, value: Value) -> tuple[int, ...]:
        """The largest that the shape of `value` can be."""
        return tuple(E.evaluate(E.capacity(n), self.sizes) for n in value.shape)

    @property
    def actual(self) -> int:
        """How many actual sizes of the outputs a call gives."""
        values = self.schedule.program.outputs
        return sum(v.rank for v in values) if is_sized_by_data(self.schedule) else 0

    def bytes(self, value: Value) -> int:
        return math.prod(self.shape(value)) * E.numpy_dtype(value.dtype).itemsize


_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *input(size_t n) {
    void *p = malloc(n);
    if (n != 0 && fread(p, 1, n, stdin) != n) abort();
    return p;
}
static void *output(size_t n) { void *p = malloc(n); memset(p, 0xff, n); return p; }
static void *workspace(size_t n) {
    void *p = NULL;
    if (posix_memalign(&p, 64, n) != 0) abort();
    memset(p, 0xff, n);
    return p;
}
int main(int count, char **arguments) {
    if (count != 2) return 2;
    switch (atoi(arguments[1])) {
"""


class Program:
    """The executable of several cases.

    Args:
        cases: what it holds.
        folder: where it is built.
        chosen: the instruction set that the cases were scheduled for.
        sanitize: `ADDRESS`, `THREAD` or nothing.
        threads: of the kernels.
        options: of the compiler.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        folder: Path,
        chosen: Isa,
        sanitize: tuple[str, ...] = ADDRESS,
        threads: int = 1,
        options: Options | None = None,
    ) -> None:
        self.cases = list(cases)
        folder.mkdir(parents=True, exist_ok=True)
        schedules = {id(case.schedule): case.schedule for case in self.cases}
        self.functions = {key: f"function{i}" for i, key in enumerate(schedules)}
        parts = [Part(s, self.functions[key]) for key, s in schedules.items()]
        code = render(parts, "cases", threads)
        self.source = code.source
        (folder / "cases.c").write_text(code.source + self._main(), encoding="utf-8")
        tools = compiler(chosen, sanitize)
        options = options or Options(opt_level="1", sanitize=sanitize)
        objects = [folder / "cases.o"]
        tools.compile(folder / "cases.c", objects[0], options)
        if code.weights:
            (folder / "weights.bin").write_bytes(code.weights)
            (folder / "weights.S").write_text(weights_assembly(code.weights_symbol, "weights.bin"))
            objects.append(folder / "weights.o")
            tools.compile(folder / "weights.S", objects[1], options)
        self.executable = folder / "cases"
        tools.link_executable(objects, self.executable, libs=("m", "pthread"), options=options)

    def _main(self) -> str:
        lines = [_MAIN]
        for i, case in enumerate(self.cases):
            s, sizes = case.schedule, case.sizes
            lines.append(f"    case {i}: {{\n        void *w = workspace({workspace_bytes(s, sizes)});")
            for j, v in enumerate(s.program.inputs):
                lines.append(f"        void *i{j} = input({case.bytes(v)});")
            for j, v in enumerate(s.program.outputs):
                lines.append(f"        void *o{j} = output({case.bytes(v)});")
            ins, outs = range(len(s.program.inputs)), range(len(s.program.outputs))
            arguments = ["w", *(str(sizes[n]) for n in s.program.symbols), *(f"i{j}" for j in ins)]
            arguments += [f"o{j}" for j in outs]
            if case.actual:
                lines.append(f"        void *a = output({8 * case.actual});")
                arguments.append("a")
            lines.append(f"        const int code = {self.functions[id(s)]}({', '.join(arguments)});")
            lines.append(f"        if (code != 0) return {FAILED} + code;")
            for j, v in enumerate(s.program.outputs):
                lines.append(f"        fwrite(o{j}, 1, {case.bytes(v)}, stdout);")
            if case.actual:
                lines.append(f"        fwrite(a, 8, {case.actual}, stdout);")
            frees = [*(["a"] if case.actual else []), "w", *(f"i{j}" for j in ins), *(f"o{j}" for j in outs)]
            lines.append("        " + " ".join(f"free({p});" for p in frees) + "\n        break;\n    }")
        return "\n".join([*lines, "    }\n    return 0;\n}\n"])

    def run(self, number: int) -> list[Array]:
        """The outputs of a case; fails with the sanitizer's report where the program ends badly."""
        case, done = self.cases[number], self._done(number, 0)
        data, values = done.stdout, case.schedule.program.outputs
        start = len(data) - 8 * case.actual
        numbers = iter(np.frombuffer(data[start:], np.int64).tolist())
        results, at = [], 0
        for v in values:
            held = np.frombuffer(data[at : at + case.bytes(v)], E.numpy_dtype(v.dtype))
            shape = tuple(next(numbers) for _ in v.shape) if case.actual else case.shape(v)
            results.append(held[: math.prod(shape)].reshape(shape))
            at += case.bytes(v)
        assert at == start
        return results

    def ends_with(self, number: int, code: int) -> None:
        """Fails where a case does not end with the error `code`, or badly."""
        self._done(number, FAILED + code)

    def _done(self, number: int, wanted: int) -> subprocess.CompletedProcess[bytes]:
        """The process of a case, which must end with the exit code `wanted` and without a report."""
        case = self.cases[number]
        values = case.schedule.program
        fed = b"".join(np.ascontiguousarray(case.feeds[v.name]).tobytes() for v in values.inputs)
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        done = subprocess.run(
            [self.executable, str(number)], input=fed, capture_output=True, timeout=120, env=environment
        )
        report = done.stderr.decode(errors="replace")
        assert done.returncode == wanted and "ERROR" not in report, (
            f"{case.name}: {done.returncode}\n{report[:3000]}"
        )
        return done


_CALL = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *fed, *results[CALLERS];
static void *caller(void *number) {
    void *workspace = NULL;
    if (posix_memalign(&workspace, 64, WORKSPACE) != 0) abort();
    memset(workspace, 0xff, WORKSPACE);
    void *const result = results[(intptr_t)number], *const again = malloc(RESULT);
    for (int i = 0; i < RUNS; i++) {
        memset(again, 0xff, RESULT);
        if (function0(workspace, fed, again) != 0) abort();
        if (i == 0) memcpy(result, again, RESULT);
        if (memcmp(result, again, RESULT) != 0) abort();
    }
    free(again);
    free(workspace);
    return NULL;
}
int main(void) {
    pthread_t threads[CALLERS];
    fed = malloc(FED);
    if (fread(fed, 1, FED, stdin) != FED) return 2;
    for (intptr_t i = 0; i < CALLERS; i++) {
        results[i] = malloc(RESULT);
        pthread_create(&threads[i], NULL, caller, (void *)i);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    for (int i = 1; i < CALLERS; i++)
        if (memcmp(results[0], results[i], RESULT) != 0) return 3;
    fwrite(results[0], 1, RESULT, stdout);
    return 0;
}
"""


class Callers(Program):
    """A program in which `CALLERS` threads run its one case at once, `RUNS` times each."""

    CALLERS, RUNS = 4, 75

    def _main(self) -> str:
        (case,) = self.cases
        (x,), (y,) = case.schedule.program.inputs, case.schedule.program.outputs
        defined = {
            "CALLERS": self.CALLERS, "RUNS": self.RUNS, "FED": case.bytes(x), "RESULT": case.bytes(y),
            "WORKSPACE": workspace_bytes(case.schedule, {}),
        }  # fmt: skip
        return "".join(f"#define {name} {value}\n" for name, value in defined.items()) + _CALL


def relative_error(got: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest finite absolute value wanted; infinite where one
    is finite and the other is not."""
    assert got.shape == wanted.shape
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(got), finite):
        return math.inf
    difference = np.abs(got[finite].astype(np.float64) - wanted[finite]).max(initial=0)
    return float(difference / max(np.abs(wanted[finite].astype(np.float64)).max(initial=0), 1e-30))
