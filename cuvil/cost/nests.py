"""Loop nests in numbers: how often each statement of a kernel runs, once symbolic sizes are bound.

A size that a binding does not name is taken to be `DEFAULT_SIZE`, 1: a batch, a sequence of one.  A
bound that depends on the data counts with its largest value where the types give one, else as 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Kernel, Micro, Stmt, Store, While
from cuvil.ir.primitives import Value

DEFAULT_SIZE = 1
"""What an unbound symbolic size counts as."""

_MAX_POINTS = 1024
"""Points at which a trip count that depends on outer variables is averaged."""


@dataclass(frozen=True, eq=False)
class Level:
    """One loop around a statement: its variable (None for a loop without one), how often it runs
    each time it is reached (on average), and its kind."""

    var: Expr | None
    trips: float
    kind: str


@dataclass(frozen=True, eq=False)
class Site:
    """A Store, an Accumulate or a Micro with the loops around it, outermost first."""

    statement: Store | Accumulate | Micro
    levels: tuple[Level, ...]

    @property
    def runs(self) -> float:
        """How often the statement runs."""
        return math.prod(level.trips for level in self.levels)

    def depth(self, variables: Iterable[Expr]) -> int:
        """Number of levels from the outermost to the innermost one whose variable is among these."""
        found = set(variables)
        return max((k + 1 for k, level in enumerate(self.levels) if level.var in found), default=0)


@dataclass(frozen=True, eq=False)
class Nest:
    """A kernel's sites, and for each of its locals how many levels lie around the declaration."""

    sites: tuple[Site, ...]
    locals: dict[Value, int]


class Sizes:
    """Evaluates index expressions under bindings of the symbolic sizes."""

    def __init__(self, bindings: Mapping[str, int] | None = None) -> None:
        self.bindings = dict(bindings or {})
        self._known: dict[Expr, float] = {}

    def __call__(self, e: Expr, at: Mapping[Expr, float] | None = None) -> float:
        """The value of `e`, with loop variables as `at` says (0 where it does not)."""
        if not at:
            found = self._known.get(e)
            if found is None:
                found = self._known[e] = self._value(e, {})
            return found
        return self._value(e, at)

    def elements(self, shape: Sequence[Expr]) -> float:
        """Number of elements of a shape."""
        return math.prod(self(n) for n in shape)

    def _value(self, e: Expr, at: Mapping[Expr, float]) -> float:
        memo: dict[Expr, float] = {}
        for node in E.walk(e):
            memo[node] = self._node(node, memo, at)
        return memo[e]

    def _node(self, e: Expr, memo: Mapping[Expr, float], at: Mapping[Expr, float]) -> float:
        op = e.op
        if op == "const":
            return float(e.attr)
        if op == "sym" and e.args and math.isfinite(e.hi):
            return max(e.hi / 2, 1.0)  # what the data decide, halfway to its bound
        if op == "sym":
            return float(self.bindings.get(e.attr, DEFAULT_SIZE))
        if op == "var":
            return float(at.get(e, 0.0))
        a = [memo[x] for x in e.args]
        if op == "affine":
            return float(e.attr[0] + sum(c * x for c, x in zip(e.attr[1], a)))
        if op == "mul":
            return math.prod(a)
        if op == "add":
            return a[0] + a[1]
        if op == "sub":
            return a[0] - a[1]
        if op in ("floordiv", "div"):
            return float(a[0] // a[1]) if a[1] else 0.0
        if op == "mod":
            return a[0] % a[1] if a[1] else 0.0
        if op in ("min", "max"):
            return min(a) if op == "min" else max(a)
        if op in ("lt", "le", "eq"):
            return float({"lt": a[0] < a[1], "le": a[0] <= a[1], "eq": a[0] == a[1]}[op])
        if op in ("and", "or", "not"):
            return float(not a[0]) if op == "not" else float(all(a) if op == "and" else any(a))
        if op == "select":
            return a[1] if a[0] else a[2]
        if op == "cast":
            return a[0]
        return float(e.hi) if e.hi < math.inf else float(DEFAULT_SIZE)


def nest(kernel: Kernel, sizes: Sizes) -> Nest:
    """The sites of a kernel in order.  A guard counts as taken; where there are two sides, the one
    that the sizes choose, or both, each for its part of a loop.  A While counts once."""
    sites: list[Site] = []
    found: dict[Value, int] = {}
    loops: dict[Expr, tuple[Expr, Expr]] = {}
    outer: list[Level] = []
    for v in kernel.parallel:
        loops[v] = (E.const(0), v.args[0])
        outer.append(Level(v, _trips(v, loops, sizes), "parallel"))

    def visit(body: Sequence[Stmt], levels: tuple[Level, ...]) -> None:
        for s in body:
            if isinstance(s, (Store, Accumulate, Micro)):
                sites.append(Site(s, levels))
            elif isinstance(s, Declare):
                found[s.target] = len(levels)
            elif isinstance(s, For):
                loops[s.var] = (s.start, s.stop)
                visit(s.body, (*levels, Level(s.var, _trips(s.var, loops, sizes), s.kind)))
            elif isinstance(s, If):
                split = _split(s, levels, loops, sizes) if s.otherwise else None
                if split is None:
                    visit(s.otherwise if s.otherwise and not taken(s, sizes) else s.then, levels)
                    continue
                for body, there in zip((s.then, s.otherwise), split):
                    visit(body, there)
            elif isinstance(s, While):
                visit(s.body, levels)

    visit(kernel.body, tuple(outer))
    return Nest(tuple(sites), found)


def taken(s: If, sizes: Sizes) -> bool:
    """The condition of an If at the start of all loops; data-dependent ones count as true."""
    return bool(E.loads(s.condition)) or bool(sizes(s.condition))


def _split(
    s: If, levels: tuple[Level, ...], loops: Mapping[Expr, tuple[Expr, Expr]], sizes: Sizes
) -> tuple[tuple[Level, ...], tuple[Level, ...]] | None:
    """The loops around either side of an If that depends on one of them, each with its part of the trips."""
    variables = E.variables(s.condition)
    found = [(n, v) for n, v in enumerate(level.var for level in levels) if v is not None and v in variables]
    if len(found) != 1 or E.loads(s.condition):
        return None
    ((number, variable),) = found
    level = levels[number]
    low, high = (sizes(e) for e in loops[variable])
    points = np.linspace(low, max(high - 1, low), max(min(int(high - low), _MAX_POINTS), 1)).round()
    holds = float(np.mean([sizes(s.condition, {variable: float(p)}) for p in points]))
    yes, no = (
        (*levels[:number], replace(level, trips=level.trips * part), *levels[number + 1 :])
        for part in (holds, 1 - holds)
    )
    return yes, no


def _trips(var: Expr, loops: Mapping[Expr, tuple[Expr, Expr]], sizes: Sizes) -> float:
    """Mean trip count of a loop over the values of the outer variables that its bounds depend on."""
    start, stop = loops[var]
    free = [v for v in E.variables(start, stop) if v in loops and v is not var]
    if not free:
        return max(sizes(stop) - sizes(start), 0.0)
    each = max(int(_MAX_POINTS ** (1 / len(free))), 2)
    axes = []
    for v in sorted(free, key=lambda v: v.serial):
        low, high = (sizes(e) for e in loops[v])
        count = max(int(high - low), 1)
        step = max(count / each, 1.0)
        axes.append([low + int(k * step) for k in range(min(count, each))])
    names = sorted(free, key=lambda v: v.serial)
    total = points = 0.0
    for point in itertools.product(*axes):
        at = dict(zip(names, point))
        total += max(sizes(stop, at) - sizes(start, at), 0.0)
        points += 1
    return total / points
