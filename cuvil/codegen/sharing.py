"""Which kernels of a program threads share, and along which of their points.

Sharing costs: some microseconds to wake a thread that sleeps and 40-50 until it runs, 1-2 to have one that
spins begin and end, and what one core wrote comes to another at 10-15 GB/s, a tenth of what its own cache
delivers.  So it matters who wrote what: kernels are taken in the order in which they run, and each is
computed in the way that takes the least time with what has to come from the other cores: by the calling
thread alone, by all threads that each take a run of its points (of blocked channels, where those come
first), or by all threads that each take a run of rows of all channels.  A program that would save little is
left to one thread altogether.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cuvil.codegen.functions import Function
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Kernel, Micro, Store, walk
from cuvil.ir.primitives import Program, Reduce, Value, elements, operands, static
from cuvil.schedule.plan import Schedule
from cuvil.schedule.strips import ROW, Strips

MIN_SAVED = 20.0
"""Microseconds that threads save in a program, from which it is worth to wake them."""

FORK = 2.0
"""Microseconds to begin and end a kernel that threads share."""

MAPS, SUMS, TUNED, FILLS = 4e3, 80e3, 6e3, 32e3
"""Elements of maps, and products of reductions, that a core does in a microsecond; products per element of
the vectors of a tuned kernel; elements of a tensor whose border is filled.  Measured on a Xeon of 2023
(AVX-512)."""

STAGED = 0.75
"""Time of products whose operands are staged in scratch memory first, Winograd's or those of AMX tiles, of
that of vectors."""

REMOTE, MEMORY = 13e3, 28e3
"""Bytes in a microsecond of what another core wrote, and of constants from beyond the second cache."""

CACHED = 1 << 18
"""Bytes of constants that stay in each core's cache."""

ONE, POINTS, ROWS = "one", "points", "rows"
"""Who computes a kernel and has what it wrote: the calling thread; each thread a part of the points; each
thread a part of the rows."""


@dataclass(frozen=True)
class Cut:
    """The points of a kernel as `outer` times `rows` times `row`; threads share the rows."""

    outer: Expr
    rows: Expr
    row: Expr


def cuts(programs: Sequence[tuple[Schedule, Sequence[Function]]], threads: int) -> dict[str, Cut]:
    """The kernels of a device's schedules that `threads` threads share, by name of their functions."""
    if threads < 2:
        return {}
    found: dict[str, Cut] = {}
    saved = 0.0
    for schedule, functions in programs:
        plan = _Plan(schedule, threads)
        for step, f in enumerate(functions):
            chain = next((c for c in schedule.strips if c.first <= step <= c.last), None)
            if chain is not None:
                shared = is_shared(chain, threads)
                saved += MIN_SAVED if shared else 0.0
                plan.wrote(f.kernel, ROWS if shared else ONE)
                continue
            cut, less = plan.choose(f)
            if cut is not None:
                found[f.name] = cut
                saved += less
    return found if saved >= MIN_SAVED else {}


def is_shared(chain: Strips, threads: int) -> bool:
    """Whether threads share the pieces of a chain of kernels; it has windows for so many."""
    return 1 < threads <= chain.threads and chain.pieces > 1


class _Plan:
    """Chooses for one kernel after the other; knows which threads have what was written."""

    def __init__(self, schedule: Schedule, threads: int) -> None:
        self.storage, self.threads = schedule.storage, threads
        self.others = 1 - 1 / threads
        self.one = {n: E.const(1) for n in _batch(schedule.program)}
        self.owner: dict[Value, str] = {}
        self.readers: dict[Value, list[Kernel]] = {}
        for kernel in schedule.kernels:
            for v in _read(kernel):
                self.readers.setdefault(self.storage.root(v), []).append(kernel)

    def wrote(self, kernel: Kernel, how: str) -> None:
        """Kernel's results are now where threads computed them."""
        if kernel.tag != "border":  # the inside of its tensor is written by another
            for v in kernel.writes:
                self.owner[self.storage.root(v)] = how

    def choose(self, f: Function) -> tuple[Cut | None, float]:
        """How a kernel is shared, None for not at all, and the microseconds that this saves."""
        work, stream = self._work(f.kernel)
        alone = max(work, stream) + self._moved(f.kernel, ONE) + self._given(f.kernel)
        best, how, chosen = alone, ONE, None
        for option, cut in self._cuts(f):
            count = static(E.substitute(cut.rows, self.one))
            part = 1 / self.threads if count is None else -(-count // self.threads) / count
            time = max(work * part, stream * (1.0 if option == ROWS else part))
            time += self._moved(f.kernel, option) + FORK
            if time < best or work == float("inf"):
                best, how, chosen = time, option, cut
        self.wrote(f.kernel, how)
        return chosen, MIN_SAVED if work == float("inf") else alone - best

    def _given(self, kernel: Kernel) -> float:
        """Microseconds in which the other threads will get what the calling one has written for a kernel that
        is worth sharing."""
        written = {self.storage.root(v) for v in kernel.writes if v.definition is not None}
        readers = (k for v in written for k in self.readers.get(v, ()) if k is not kernel)
        if not any(max(self._work(k)) * self.others > 2 * FORK for k in readers):
            return 0.0
        return sum(self._bytes(v) for v in written) / self.threads / REMOTE

    def _cuts(self, f: Function) -> Iterator[tuple[str, Cut]]:
        """The ways in which threads can share a kernel."""
        kernel = f.kernel
        if not kernel.parallel or static(E.substitute(f.points, self.one)) == 1:
            return
        if kernel.slot is not None and (static(kernel.slot.args[0]) or 0) < self.threads:
            return  # no scratch memory for all
        row = _row(kernel)
        number = kernel.parallel.index(row) if row is not None else 0
        outer, inner = (
            E.product(v.args[0] for v in part)
            for part in (kernel.parallel[:number], kernel.parallel[number + 1 :])
        )
        if row is not None:
            yield ROWS, Cut(outer, row.args[0], inner)
        if row is None or static(E.substitute(outer, self.one)) != 1:
            yield POINTS, Cut(E.const(1), f.points, E.const(1))

    def _work(self, kernel: Kernel) -> tuple[float, float]:
        """About how many microseconds a kernel's operations take in one thread, and those in which its
        constants come from memory; infinite where sizes are known at run time only."""
        tiles = [s.kernel for s in walk(kernel.body) if isinstance(s, Micro)]
        lanes = max((_lanes(t) for t in tiles), default=0)
        time = 0.0
        for v in kernel.values:
            d = v.definition
            reduced = d.reduced if isinstance(d, Reduce) else ()
            size = static(E.substitute(elements(v.shape) * E.product(r.args[0] for r in reduced), self.one))
            if size is None:
                return float("inf"), 0.0
            if kernel.tag == "border":
                time += size / FILLS
            elif isinstance(d, Reduce):
                staged = STAGED if kernel.slot is not None else 1.0
                time += staged * size / (TUNED * lanes) if lanes else size / SUMS
            elif not lanes:
                time += size / MAPS
        constants = sum(v.array.nbytes for v in _read(kernel) if v.is_constant)
        return time, constants / MEMORY if constants > CACHED else 0.0

    def _moved(self, kernel: Kernel, how: str) -> float:
        """Microseconds in which a thread gets what others wrote."""
        tiles = [s.kernel for s in walk(kernel.body) if isinstance(s, Micro)]
        whole = how == POINTS and any(not getattr(t, "lanewise", False) for t in tiles)
        total = 0.0
        for v in _read(kernel):
            owner = self.owner.get(self.storage.root(v), ONE)
            if v.is_constant or (owner == how and not whole):
                continue
            if owner == ONE:
                part = 1.0 if whole else 1 / self.threads
            else:
                part = self.others if whole or how == ONE else self.others / self.threads
            total += part * self._bytes(v)
        return total / REMOTE

    def _bytes(self, v: Value) -> int:
        size = static(E.substitute(elements(v.shape), self.one)) or 0
        return size * E.numpy_dtype(v.dtype).itemsize


def _batch(program: Program) -> set[Expr]:
    """The symbols that count samples: the first axis of every input and output that has sizes known at run
    time, and no other axis.  An embedded program mostly runs on one."""
    tensors = [*program.inputs, *program.outputs]
    firsts = {v.shape[0] for v in tensors if v.rank and any(static(n) is None for n in v.shape)}
    others = {s for v in tensors for n in v.shape[1:] for s in E.walk(n)}
    return {n for n in firsts if n.op == "sym" and n not in others} if len(firsts) == 1 else set()


def _lanes(tile: object) -> int:
    """Products of a vector of a tuned kernel."""
    return int(getattr(tile, "width", 16)) * (4 if getattr(tile, "dot", False) else 1)


def _read(kernel: Kernel) -> set[Value]:
    return {v for m in kernel.values for v in operands(m) if v not in kernel.values}


def _row(kernel: Kernel) -> Expr | None:
    """The parallel variable of all that the rows of what a kernel on images writes depend on."""
    targets = [v for v in kernel.writes if v.definition is not None]
    stores = [s for s in walk(kernel.body) if isinstance(s, Store) and s.target in targets]
    if any(v.rank != 4 for v in targets) or not stores:
        return None
    found = {v for s in stores for v in E.variables(s.indices[ROW]) if v in kernel.parallel}
    (row,) = found if len(found) == 1 else (None,)
    return row if row is not None and static(row.args[0]) is not None else None
