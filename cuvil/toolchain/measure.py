"""What a core and a memory of this machine really do: small C programs, compiled, loaded and timed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cuvil.target.isa import ISAS
from cuvil.toolchain import compilers
from cuvil.toolchain.machine import Machine

_Result = TypeVar("_Result")

CHAINS = 12
"""Multiply-adds in flight: more than latency times units of the cores there are."""

STEPS = 200_000
PEAK_ROUNDS = 250
"""Rounds of less than a millisecond each, so that some are not interrupted on a busy machine."""

BUFFER_BYTES = 512 << 20
"""Larger than the caches of a share of any usual machine."""

ROUNDS = 5
"""The fastest of so many counts: everything else on the machine only ever slows it down."""

_SOURCE = """
#include <stddef.h>
typedef float v __attribute__((vector_size({bytes})));
__attribute__((visibility("default"))) float peak(long steps, float scale, float shift) {{
    v x, y, a[{chains}];
    for (int i = 0; i < {lanes}; i++) x[i] = scale, y[i] = shift;
    for (int j = 0; j < {chains}; j++) a[j] = y + (float)j;
    for (long n = 0; n < steps; n++) {{
{body}
    }}
    for (int j = 1; j < {chains}; j++) a[0] += a[j];
    return a[0][0];
}}
__attribute__((visibility("default"))) float read_all(const float *data, size_t count) {{
    const v *p = (const v *)data;
    v a = {{0}}, b = a, c = a, d = a;
    for (size_t i = 0; i + 4 <= count / {lanes}; i += 4) {{
        a += p[i], b += p[i + 1], c += p[i + 2], d += p[i + 3];
    }}
    a += b + c + d;
    return a[0];
}}
"""


def measure(what: str, isa: str, cpus: Sequence[int]) -> float:
    """A figure of this machine, for `cuvil.target.probe`.

    Args:
        what: ``peak_f32``, operations a second of the first of `cpus` in dependent multiply-adds on full
            vectors; or ``bandwidth``, bytes a second that all of `cpus` together read.
        isa: the instruction set to compile for.
        cpus: as the operating system numbers them.

    Raises:
        ToolchainError: there is no compiler, or it failed.
    """
    lanes = max(ISAS[isa].vector_bits // 32, 4)
    body = "\n".join(f"        a[{j}] = a[{j}] * x + y;" for j in range(CHAINS))
    source = _SOURCE.format(bytes=4 * lanes, lanes=lanes, chains=CHAINS, body=body)
    with tempfile.TemporaryDirectory(prefix="cuvil-") as folder:
        library = _build(Path(folder), source, isa)
        if what == "peak_f32":
            run = library.peak
            run.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
            seconds = _pinned(cpus[:1], lambda: _fastest(lambda: run(STEPS, 0.5, 1.0), PEAK_ROUNDS))
            return STEPS * CHAINS * lanes * 2 / seconds
        return _bandwidth(library, cpus)


def _bandwidth(library: ctypes.CDLL, cpus: Sequence[int]) -> float:
    share = BUFFER_BYTES // max(len(cpus), 1) // 4096 * 4096
    run = library.read_all
    run.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def prepare(cpu: int) -> ctypes.Array[ctypes.c_char]:
        def touched() -> ctypes.Array[ctypes.c_char]:
            data = ctypes.create_string_buffer(share + 64)
            ctypes.memset(data, 1, share + 64)  # from here, so that the pages lie beside this CPU
            return data

        return _pinned([cpu], touched)

    def read(item: tuple[int, ctypes.Array[ctypes.c_char]]) -> None:
        cpu, data = item
        _pinned([cpu], lambda: run(-(-ctypes.addressof(data) // 64) * 64, share // 4))

    with ThreadPoolExecutor(len(cpus)) as pool:
        buffers = list(zip(cpus, pool.map(prepare, cpus)))
        return share * len(cpus) / _fastest(lambda: list(pool.map(read, buffers)))


def _build(folder: Path, source: str, isa: str) -> ctypes.CDLL:
    cpu, *features = ISAS[isa].zig_cpu.split("+")
    compiler = compilers.find("auto", Machine("native", cpu, tuple(features)))
    file, object, library = (folder / f"measure.{end}" for end in ("c", "o", "so"))
    file.write_text(source, encoding="utf-8")
    compiler.compile(file, object)
    compiler.link_shared([object], library)
    return ctypes.CDLL(str(library))


def _fastest(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _pinned(cpus: Sequence[int], run: Callable[[], _Result]) -> _Result:
    """`run` on `cpus` alone, where the operating system lets us."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return run()
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)
    try:
        return run()
    finally:
        os.sched_setaffinity(0, before)
