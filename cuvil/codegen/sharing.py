"""Which kernels of a program threads share, and along which of their points.

Sharing costs: some microseconds to wake a thread that sleeps and 40-50 until it runs, 1 to have one that
spins begin and end, and what one core wrote comes to another at 10-15 GB/s, a tenth of what its own cache
delivers.  So kernels of a few microseconds stay in the calling thread, and so do all of a program that has
little else.  Kernels on images share rows where the weights are no larger than what is read and written: all
cut an image at the same rows, and a core finds what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuvil.codegen.functions import Function
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Kernel, Micro, walk
from cuvil.ir.primitives import Reduce, Value, elements, operands, static
from cuvil.schedule.plan import Schedule
from cuvil.schedule.strips import ROW, Span, Strips, by_rows

MIN_KERNEL, MIN_PROGRAM = 10.0, 60.0
"""Microseconds that a kernel takes in one thread, and all such of a program, from which they are shared."""

MAPS, SUMS, TUNED = 4e3, 40e3, 6e3
"""Elements of maps, and products of reductions, that a core does in a microsecond; products per element of
the vectors of a tuned kernel.  Measured on a Xeon of 2023 (AVX-512); slower ones share kernels that take
somewhat longer than `MIN_KERNEL`."""

MIN_ROWS = 7
"""Rows per thread from which rows are shared: with fewer, threads differ too much in what they get."""


@dataclass(frozen=True)
class Cut:
    """The points of a kernel as `outer` times `rows` times `row`; threads share the rows."""

    outer: int
    rows: Expr
    row: int


def cuts(programs: Sequence[tuple[Schedule, Sequence[Function]]], threads: int) -> dict[str, Cut]:
    """The kernels of a device's schedules that `threads` threads share, by name of their functions."""
    found: dict[str, Cut] = {}
    total = 0.0
    for schedule, functions in programs:
        if any(is_shared(chain, threads) for chain in schedule.strips):
            total += MIN_PROGRAM
        for step, f in enumerate(functions):
            alone = schedule.together(step) == (step, step)
            if not alone or not _can_share(f, threads):
                continue
            needed = _microseconds(f.kernel)
            if needed >= MIN_KERNEL:
                found[f.name] = _cut(f, threads)
                total += needed
    return found if total >= MIN_PROGRAM else {}


def is_shared(chain: Strips, threads: int) -> bool:
    """Whether threads share the pieces of a chain of kernels; it has windows for so many."""
    return 1 < threads <= chain.threads and chain.pieces > 1


def _can_share(f: Function, threads: int) -> bool:
    """A kernel has points to share, and scratch memory for all threads."""
    kernel = f.kernel
    if threads < 2 or not kernel.parallel or static(f.points) == 1:
        return False
    return kernel.slot is None or (static(kernel.slot.args[0]) or 0) >= threads


def _microseconds(kernel: Kernel) -> float:
    """About how long a kernel takes in one thread; infinite where sizes are known at run time only."""
    tiles = [s.kernel for s in walk(kernel.body) if isinstance(s, Micro)]
    lanes = max((getattr(t, "width", 16) * (4 if getattr(t, "dot", False) else 1) for t in tiles), default=0)
    time = 0.0
    for v in kernel.values:
        d = v.definition
        reduced = d.reduced if isinstance(d, Reduce) else ()
        size = static(elements(v.shape) * E.product(r.args[0] for r in reduced))
        if size is None:
            return float("inf")
        if isinstance(d, Reduce):
            time += size / (TUNED * lanes if lanes else SUMS)
        elif not lanes:
            time += size / MAPS
    return time


def _cut(f: Function, threads: int) -> Cut:
    """By rows where that keeps them in their cores, else between any points."""
    points, target = static(f.points), f.kernel.writes[0]
    whole = Cut(1, f.points, 1)
    rows = static(target.shape[ROW]) if target.rank == 4 else None
    if points is None or rows is None or rows < MIN_ROWS * threads:
        return whole
    stage = by_rows(f.kernel, Span(), rows)
    read = {v for m in f.kernel.values for v in operands(m) if v not in f.kernel.values}
    weights = sum(v.array.nbytes for v in read if v.is_constant)
    if stage is None or weights > sum(map(_bytes, [target, *(v for v in read if not v.is_constant)])):
        return whole
    outer = points // (rows * stage.points)
    return whole if outer == 1 else Cut(outer, E.const(rows), stage.points)


def _bytes(v: Value) -> int:
    return (static(elements(v.shape)) or 0) * E.numpy_dtype(v.dtype).itemsize
