"""Operations of a kernel, counted from its statements and trip counts.

Nothing is written by hand per operator.  What the counts come to: convolution
``2 * oc * oh * ow * ic * kh * kw`` and matrix product ``2 * m * n * k`` (a multiply-add is two
operations), layer normalization 5 an element, and 2 more for its scale and bias.  An expression that
does not depend on a loop's variable counts once for that loop, for the C compiler moves it out.
Integer arithmetic on ``int64`` is that of indices and free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cuvil.cost.nests import Nest, Site, Sizes, nest
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Kernel, Micro, Store
from cuvil.ir.primitives import Reduce, Value
from cuvil.schedule.fuse import MATH_COST, is_contraction
from cuvil.schedule.storage import Storage

_CHEAP = frozenset(("abs", "ceil", "floor", "isinf", "isnan", "round", "trunc"))
_FREE = frozenset(("affine", "bitcast", "const", "load", "select", "sym", "var"))


@dataclass(frozen=True)
class Work:
    """What a kernel computes.

    Attributes:
        flops: floating-point operations; those of the contraction alone where there is one, as the
            usual formulas count them.
        epilogue_flops: the others of a kernel with a contraction (bias, activation, ...).
        int_ops: integer operations, a multiply-add of int8 counting two; without an epilogue's.
        slots: operations of vectorised loops as the device feels them: elementary functions, divisions,
            loads and stores by weight, partly filled vectors as full ones.
        scalar_slots: the same outside vectorised loops.
        dot_slots: those of the slots that are int8 dot products of a tuned kernel.
        entries: how often an innermost loop is entered.
        cycles: processor cycles of the micro-kernels that say theirs, which are in no slots.
        tiles: how often a tuned micro-kernel is called.
        scattered: elements that vectorised loops load or store one by one, not being neighbours.
    """

    flops: float = 0.0
    epilogue_flops: float = 0.0
    int_ops: float = 0.0
    slots: float = 0.0
    scalar_slots: float = 0.0
    dot_slots: float = 0.0
    cycles: float = 0.0
    entries: float = 0.0
    tiles: float = 0.0
    scattered: float = 0.0


def count(kernel: Kernel, storage: Storage, sizes: Sizes, lanes: int = 1, loops: Nest | None = None) -> Work:
    """The work of a kernel.

    Args:
        storage: layouts, which tell loads in a row from gathers.
        sizes: values of the symbolic sizes.
        lanes: f32 lanes of a vector; only `slots` depends on it.
        loops: the kernel's nest; made here where None.
    """
    return _Counter(kernel, loops or nest(kernel, sizes), storage, sizes, lanes).run()


@dataclass
class _Tally:
    """Operations of some expressions, each times how often it is evaluated."""

    floats: float = 0.0
    ints: float = 0.0
    slots: float = 0.0
    scalar: float = 0.0
    dots: float = 0.0
    cycles: float = 0.0
    tiles: float = 0.0
    scattered: float = 0.0

    def add(self, other: _Tally) -> None:
        self.floats += other.floats
        self.ints += other.ints
        self.slots += other.slots
        self.scalar += other.scalar
        self.scattered += other.scattered


class _Counter:
    def __init__(self, kernel: Kernel, loops: Nest, storage: Storage, sizes: Sizes, lanes: int) -> None:
        self.kernel, self.loops, self.storage = kernel, loops, storage
        self.sizes, self.lanes = sizes, lanes

    def run(self) -> Work:
        main, rest = _Tally(), _Tally()
        has_contraction = has_micro = False
        entries: dict[object, float] = {}
        for site in self.loops.sites:
            if site.levels and not isinstance(site.statement, Micro):
                inner = site.levels[-1]
                entries[inner.var] = site.runs / max(inner.trips, 1.0)
            s = site.statement
            if isinstance(s, Micro):
                has_contraction = has_micro = True
                self._micro(site, s, main)
                continue
            tally = self._expressions(site, s)
            if isinstance(s, Accumulate):
                step = _Tally()
                self._put(step, site, len(site.levels), s.value.dtype, s.op not in ("any", "all"), 1.0)
                product = _product(s)
                if product is not None:
                    has_contraction = True
                    self._put(step, site, len(site.levels), product.dtype, True, 1.0)
                    main.add(step)
                    self._put(tally, site, len(site.levels), product.dtype, True, 1.0, -1.0)
                else:
                    rest.add(step)
            rest.add(tally)
        if has_micro:
            main.floats, main.ints = self._contractions()
        both = _Tally()
        both.add(main)
        both.add(rest)
        return Work(
            flops=main.floats if has_contraction else rest.floats,
            epilogue_flops=rest.floats if has_contraction else 0.0,
            int_ops=main.ints if has_contraction else rest.ints,
            slots=both.slots,
            scalar_slots=both.scalar,
            dot_slots=main.dots,
            cycles=main.cycles,
            entries=sum(entries.values()),
            tiles=main.tiles,
            scattered=both.scattered,
        )

    def _micro(self, site: Site, s: Micro, main: _Tally) -> None:
        """A call of a tuned kernel: its cycles, or its tile's operations, idle lanes and rows included."""
        if s.cycles is not None:
            main.cycles += self.sizes(s.cycles) * site.runs
            return
        amount = self.sizes(s.flops) * site.runs
        main.slots += amount
        main.tiles += site.runs
        if getattr(s.kernel, "dot", False):
            main.dots += amount

    def _contractions(self) -> tuple[float, float]:
        """Floating-point and integer operations of the kernel's contractions by their definition."""
        found = {True: 0.0, False: 0.0}
        for v in self.kernel.values:
            d = v.definition
            if isinstance(d, Reduce) and d.op == "sum" and is_contraction(v):
                steps = math.prod(self.sizes(r.args[0]) for r in d.reduced)
                found[E.is_float(d.body.dtype)] += 2 * self.sizes.elements(v.shape) * steps
        return found[True], found[False]

    def _put(
        self,
        tally: _Tally,
        site: Site,
        depth: int,
        dtype: str,
        counts: bool,
        weight: float,
        sign: float = 1.0,
    ) -> None:
        """Add one operation that is evaluated at `depth` levels of the site."""
        runs = sign * math.prod(level.trips for level in site.levels[:depth])
        if counts and E.is_float(dtype):
            tally.floats += runs
        elif counts and dtype != "bool":
            tally.ints += runs
        inner = site.levels[depth - 1] if depth else None
        if inner is not None and inner.kind == "simd" and inner.trips >= 1:
            lanes = max(self.lanes * 4 // max(E.numpy_dtype(dtype).itemsize, 1), 1)
            fill = inner.trips / (math.ceil(inner.trips / lanes) * lanes)
            tally.slots += runs * weight / fill
        else:
            tally.scalar += runs * weight

    def _expressions(self, site: Site, s: Store | Accumulate) -> _Tally:
        """The operations of a statement's value, and its load and store slots."""
        depths: dict[Expr, int] = {}
        tally = self._visit(site, s.value, set(), depths)
        at = self._depth_of(site, s.indices, depths)
        if s.target not in self.loops.locals:
            depth = max(at, 1 if site.levels else 0) if isinstance(s, Accumulate) else len(site.levels)
            self._memory(tally, site, depth, s.target, s.indices)
        return tally

    def _visit(self, site: Site, root: Expr, seen: set[Expr], depths: dict[Expr, int]) -> _Tally:
        """Distinct operations below `root` that are not yet in `seen`."""
        tally = _Tally()
        if root in seen:
            return tally
        if root.op == "select":
            condition, yes, no = root.args
            tally.add(self._visit(site, condition, seen, depths))
            sides = []
            for side in (yes, no):
                visited = set(seen)
                sides.append((self._visit(site, side, visited, depths), visited))
            taken = max(sides, key=lambda item: item[0].slots + item[0].scalar)
            tally.add(taken[0])
            seen |= sides[0][1] | sides[1][1]
        elif root.op not in E.LEAVES:
            for a in root.args:
                tally.add(self._visit(site, a, seen, depths))
        seen.add(root)
        self._operation(tally, site, root, self._depth(site, root, depths))
        return tally

    def _operation(self, tally: _Tally, site: Site, e: Expr, depth: int) -> None:
        if e.op == "load":
            if e.attr not in self.loops.locals:
                self._memory(tally, site, depth, e.attr, e.args)
            return
        if e.op in _FREE or e.dtype == E.INDEX:
            return
        weight, counts = 1.0, True
        operand = e.args[0].dtype if e.args else e.dtype
        if e.op in ("lt", "le", "eq", "not", "and", "or", "cast") or e.dtype == "bool":
            if operand == E.INDEX or (e.dtype == "bool" and operand == "bool"):
                return
            counts = False
        elif e.op == "pow":
            weight = 2.0 * MATH_COST
        elif e.op in E.UNARY_MATH and e.op not in _CHEAP:
            weight = float(MATH_COST)
        elif e.op in ("div", "fmod", "floordiv", "mod"):
            weight = 4.0
        self._put(tally, site, depth, operand if e.dtype == "bool" else e.dtype, counts, weight)

    def _memory(self, tally: _Tally, site: Site, depth: int, value: Value, indices: Sequence[Expr]) -> None:
        """Add a load or store: a slot, or single elements where its lanes are not neighbours."""
        inner = site.levels[depth - 1] if depth else None
        lane = inner.var if inner is not None and inner.kind == "simd" else None
        if lane is not None and self.storage.stride(value, indices, lane) not in (0, 1):
            tally.scattered += math.prod(level.trips for level in site.levels[:depth])
            return
        self._put(tally, site, depth, value.dtype, False, 1.0)

    def _depth(self, site: Site, e: Expr, depths: dict[Expr, int]) -> int:
        """How many levels must have been entered before `e` can be evaluated."""
        found = depths.get(e)
        if found is None:
            if e.op == "var":
                found = site.depth((e,))
            else:
                found = self._depth_of(site, e.args, depths)
                if e.op == "load" and e.attr in self.loops.locals:
                    found = max(found, min(self.loops.locals[e.attr], len(site.levels)))
            depths[e] = found
        return found

    def _depth_of(self, site: Site, several: Iterable[Expr], depths: dict[Expr, int]) -> int:
        return max((self._depth(site, e, depths) for e in several), default=0)


def _product(s: Accumulate) -> Expr | None:
    """The product that a contraction sums: of two values read, not of one with itself; also through
    casts and guards."""
    value = s.value
    if s.op != "sum":
        return None
    while value.op in ("select", "cast"):
        value = value.args[1] if value.op == "select" else value.args[0]
    if value.op != "mul" or value.dtype == E.INDEX:
        return None
    a, b = value.args
    return value if a is not b and E.loads(a) and E.loads(b) else None
