"""Which values exist in memory, and which disappear into what reads them.

Works on a `Program` in place.  Three steps: what is known is folded to constants, views and
single-use element-wise work are inlined into their readers, and nothing unreachable is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cuvil import limits
from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Constant, Map, Program, Reduce, Scatter, Value, elements, operands, static
from cuvil.schedule.place import as_join, as_pad

MATH_COST = 12
"""Weight of an elementary function against one addition, for the decision to compute twice."""


MAX_NESTING = 100
"""Levels of a fused expression; C compilers promise no more than 256 nested brackets."""


def reachable(program: Program) -> list[Value]:
    """The values that outputs depend on, in the program's order."""
    needed: set[Value] = set(program.inputs)
    stack = list(program.pinned)
    while stack:
        value = stack.pop()
        if value not in needed or value in program.inputs:
            needed.add(value)
            members = value.scan.members if value.scan else []
            stack.extend(v for v in (*operands(value), *members) if v not in needed)
    return [v for v in program.values if v in needed]


def fold(program: Program) -> None:
    """Evaluate what depends on constants alone, where the result is not much larger than they are."""
    arrays: dict[Value, bool] = {}
    pinned = program.pinned
    for value in program.values:
        d = value.definition
        if isinstance(d, Constant):
            arrays[value] = True
            continue
        if not isinstance(d, (Map, Reduce, Scatter)) or value.scan is not None:
            continue
        sources = operands(value)
        if not all(s.is_constant for s in sources):
            continue
        roots = [d.body] if not isinstance(d, Scatter) else [*d.indices, d.update]
        if any(e.op == "sym" for e in E.walk(*roots)):
            continue
        size = static(elements(value.shape))
        work = size or 0
        if isinstance(d, Reduce):
            work *= math.prod(static(r.args[0]) or limits.MAX_FOLD_BYTES for r in d.reduced)
        allowed = max(4096, 4 * sum(s.array.size for s in sources))
        if size is None or size > allowed or work > limits.MAX_FOLD_BYTES // 4 or value in pinned:
            continue
        value.definition = Constant(evaluate.value(value, lambda v: v.array))


def cost(body: Expr) -> int:
    """Operations of one element, elementary functions weighted; index arithmetic and loads are free."""
    total = 0
    for e in E.walk(body):
        if e.op in E.UNARY_MATH and e.op not in ("abs", "floor", "ceil", "round", "trunc", "isnan", "isinf"):
            total += MATH_COST
        elif e.op == "pow":
            total += 2 * MATH_COST
        elif e.op not in ("const", "var", "sym", "affine", "load", "cast", "select", "bitcast") and (
            e.dtype not in (E.INDEX, "bool")
        ):
            total += 4 if e.op == "div" else 1
    return total


def nesting(value: Value) -> int:
    """Levels of the expression of a value's elements."""
    d = value.definition
    level: dict[Expr, int] = {}
    for e in E.walk(d.body) if isinstance(d, (Map, Reduce)) else ():
        level[e] = 1 + max((level[a] for a in e.args if e.op not in E.LEAVES), default=0)
    return max(level.values(), default=0)


def is_contraction(value: Value) -> bool:
    """A sum of products of two different loads: a matrix product or a convolution."""
    d = value.definition
    if not isinstance(d, Reduce) or d.op != "sum" or d.body.op != "mul" or not d.reduced:
        return False
    return d.body.args[0] is not d.body.args[1] and all(_plain_load(f) is not None for f in d.body.args)


def _hosts(value: Value) -> bool:
    """The value can hold what it is made of in its own memory."""
    return as_pad(value) is not None or as_join(value) is not None


def _plain_load(e: Expr) -> Expr | None:
    while e.op == "cast":
        e = e.args[0]
    return e if e.op == "load" else None


def _affine(indices: Iterable[Expr]) -> bool:
    """No index needs a division, a comparison or data."""
    return all(e.op in ("const", "var", "sym", "affine", "mul") for i in indices for e in E.walk(i))


class Inliner:
    """Decides from the last value to the first, then rewrites from the first to the last."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.outputs = program.pinned
        self.readers: dict[Value, list[Value]] = {v: [] for v in program.values}
        for value in program.values:
            for source in operands(value):
                self.readers[source].append(value)
        self.roots: dict[Value, set[Value]] = {}
        self.inlined: set[Value] = set()
        self.levels: dict[Value, int] = {}

    def run(self) -> None:
        for value in reversed(self.program.values):
            above = max((self.levels.get(r, 0) for r in self.readers[value]), default=0)
            self.levels[value] = nesting(value)
            if above + self.levels[value] <= MAX_NESTING and self._vanishes(value):
                self.inlined.add(value)
                self.levels[value] += above
        rewritten: dict[Value, Expr] = {}
        for value in self.program.values:
            self._rewrite(value, rewritten)
        self.program.values = [v for v in self.program.values if v not in self.inlined]

    def _roots(self, value: Value) -> set[Value]:
        found = self.roots.get(value)
        if found is None:
            found = set()
            for reader in self.readers[value]:
                found |= self._roots(reader) if reader in self.inlined else {reader}
            self.roots[value] = found
        return found

    def _vanishes(self, value: Value) -> bool:
        d = value.definition
        if not isinstance(d, Map) or value in self.outputs or value.scan is not None:
            return False
        roots = self._roots(value)
        if not roots:
            return False
        if any(not isinstance(r.definition, (Map, Reduce, Scatter)) for r in roots):
            return False
        if any(isinstance(r.definition, Scatter) and r.definition.base is value for r in self.readers[value]):
            return False
        if any(r.scan is not None and not r.scan.extent.is_const for r in roots) and cost(d.body) > 2:
            return False
        loads = E.loads(d.body)
        sources = {e.attr for e in loads}
        work = cost(d.body)
        if not loads:
            return work <= 2 or len(roots) == 1
        contractions = [r for r in roots if is_contraction(r)]
        if work == 0:
            if contractions and not (d.body.op == "load" and self._stays_affine(value, d)):
                return False
            joins = len(loads) > 1 and any(e.op == "select" for e in E.walk(d.body))
            small = len(roots) == 1 and not contractions and len(loads) <= 2 and self._is_once(value)
            made_here = any(is_contraction(s) or self._completes_contraction(s) for s in sources)
            return not joins or (small and not made_here and not any(map(_hosts, roots)))
        if contractions or any(r not in self.inlined and _hosts(r) for r in self.readers[value]):
            return False
        reduced = any(isinstance(r.definition, Reduce) for r in self.readers[value])
        if reduced and self._completes_contraction(value):
            return False
        if len(roots) == 1:
            return self._is_once(value)
        epilogue = any(isinstance(s.definition, Reduce) and s.shape == value.shape for s in sources)
        varying = [e for e in loads if not e.attr.is_constant]
        return work <= 2 and len(varying) <= 1 and len(loads) <= 2 and not epilogue

    def _completes_contraction(self, value: Value) -> bool:
        """Element-wise work on the sums of one contraction: its epilogue, better done once there."""
        for source in operands(value):
            if source.shape == value.shape and source not in self.outputs:
                if is_contraction(source):
                    return True
                alone = isinstance(source.definition, Map) and len(self.readers[source]) == 1
                if alone and self._completes_contraction(source):
                    return True
        return False

    def _stays_affine(self, value: Value, d: Map) -> bool:
        """The view keeps plain strides also as its readers use it."""
        if not _affine(d.body.args):
            return False
        for reader in self.readers[value]:
            rd = reader.definition
            if isinstance(rd, (Map, Reduce)):
                for e in E.loads(rd.body):
                    if e.attr is value:
                        moved = E.substitute(d.body, dict(zip(d.axes, e.args)))
                        if not _affine(moved.args):
                            return False
        return True

    def _is_once(self, value: Value) -> bool:
        """Its readers use each element about once."""
        size = elements(value.shape)
        for reader in self.readers[value]:
            d = reader.definition
            if isinstance(d, Map):
                uses = elements(reader.shape)
            elif isinstance(d, Reduce):
                uses = elements(reader.shape) * E.product(r.args[0] for r in d.reduced)
            else:
                return False
            if E.upper_bound(uses - size) > 0:
                return False
        return True

    def _rewrite(self, value: Value, rewritten: dict[Value, Expr]) -> None:
        def inline(e: Expr) -> Expr | None:
            if e.op != "load" or e.attr not in rewritten:
                return None
            source = e.attr.definition
            return E.substitute(rewritten[e.attr], dict(zip(source.axes, e.args)))

        memo: dict[Expr, Expr] = {}
        d = value.definition
        if isinstance(d, Map):
            body = E.transform(d.body, inline, memo)
            if value in self.inlined:
                rewritten[value] = body
            value.definition = Map(d.axes, body)
        elif isinstance(d, Reduce):
            value.definition = Reduce(d.axes, d.reduced, d.op, E.transform(d.body, inline, memo))
        elif isinstance(d, Scatter):
            indices = tuple(E.transform(i, inline, memo) for i in d.indices)
            value.definition = Scatter(
                d.base, d.domain, indices, E.transform(d.update, inline, memo), d.combine
            )


def fuse(program: Program) -> None:
    """Fold, inline and prune."""
    program.values = reachable(program)
    fold(program)
    program.values = reachable(program)
    Inliner(program).run()
    program.values = reachable(program)
