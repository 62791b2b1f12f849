"""The loops of a reduction around a statement.

Guards become bounds of the loops where they can: a window that hangs over the border of a padded
value runs over fewer taps, without a test for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, For, If, Stmt, expressions, walk
from cuvil.ir.primitives import Reduce, static
from cuvil.schedule.storage import coefficient

MAX_TAPS = 50
"""Steps of a reduction that are written out."""


def reduce_loops(d: Reduce, innermost: Stmt, neutral: Expr) -> Stmt:
    """The loops of a reduction around a statement; a guard that does not depend on what is inside
    becomes bounds of the loops where it can be, else goes around the statement."""
    body = innermost
    if isinstance(body, For) and len(body.body) == 1 and isinstance(body.body[0], Accumulate):
        step = body.body[0]
        if step.value.op == "select" and step.value.args[2] is neutral:
            condition = step.value.args[0]
            if body.var not in E.variables(condition) and not E.loads(condition):
                inner = Accumulate(step.target, step.indices, step.op, step.value.args[1])
                plain = For(body.var, body.stop, (inner,), body.kind)
                bounds = _bounds(condition, d.reduced)
                guarded = _clipped(d, plain, bounds) if bounds else _around(d, If(condition, (plain,)))
                everywhere = _always(condition, d.reduced)
                return guarded if everywhere is None else If(everywhere, (_around(d, plain),), (guarded,))
    return _around(d, body)


def _around(d: Reduce, body: Stmt) -> Stmt:
    """The loops of a reduction around a statement; a few steps of one row of accumulators are
    written out within the row's loop, which keeps each accumulator in a register."""
    extents = [static(r.args[0]) or MAX_TAPS + 1 for r in d.reduced]
    if isinstance(body, For) and body.kind == "simd" and math.prod(extents) <= MAX_TAPS:
        steps: list[Stmt] = []
        for point in itertools.product(*(range(n) for n in extents)):
            at = {r: E.const(i) for r, i in zip(d.reduced, point)}
            for s in body.body:
                if not isinstance(s, Accumulate):
                    break
                steps.append(Accumulate(s.target, s.indices, s.op, E.substitute(s.value, at)))
        if len(steps) == math.prod(extents) * len(body.body):
            return For(body.var, body.stop, tuple(steps), "simd")
    for r in reversed(d.reduced):
        if static(r.args[0]) != 1 or r in _used(body):
            body = For(r, r.args[0], (body,))
    return body


def _clipped(d: Reduce, body: Stmt, bounds: Mapping[Expr, tuple[Expr, Expr]]) -> Stmt:
    """The loops of a reduction, each from its bound to its bound, around a statement."""
    for r in reversed(d.reduced):
        start, stop = bounds[r]
        body = For(r, stop, (body,), start=start)
    return body


def _bounds(condition: Expr, reduced: Sequence[Expr]) -> dict[Expr, tuple[Expr, Expr]] | None:
    """The (start, stop) of each loop of the reduction between which a condition holds, or None where
    it is not a conjunction of comparisons that each bound one loop."""
    bounds = {r: (E.const(0), r.args[0]) for r in reduced}
    terms = [condition]
    while terms:
        term = terms.pop()
        if term.op == "and":
            terms += term.args
            continue
        used = [r for r in reduced if r in E.variables(term)]
        if term.op != "lt" or len(used) != 1 or term.args[0].dtype != E.INDEX:
            return None
        (r,) = used
        start, stop = bounds[r]
        slack = term.args[1] - term.args[0]
        factor = coefficient(slack, r)
        if factor == 1:
            bounds[r] = (E.maximum(start, r - slack + 1), stop)
        elif factor == -1:
            bounds[r] = (start, E.minimum(stop, slack + r))
        else:
            return None
    return bounds


def _always(condition: Expr, reduced: Sequence[Expr]) -> Expr | None:
    """The condition that `condition` (comparisons of affine indices) holds at every point of the
    reduction, or None where it is of another form: a comparison holds everywhere if it does at both
    ends of each loop."""
    if condition.op == "and":
        parts = [_always(a, reduced) for a in condition.args]
        return None if parts[0] is None or parts[1] is None else E.logical("and", parts[0], parts[1])
    used = [r for r in reduced if r in E.variables(condition)]
    if condition.op != "lt" or len(used) > 1:
        return None
    if any(coefficient(a, r) is None for a in condition.args for r in used):
        return None
    result: Expr = E.const(True, "bool")
    for r in used:
        ends = (E.const(0), r.args[0] - 1)
        for end in ends:
            result = E.logical("and", result, E.substitute(condition, {r: end}))
    return result if used else condition


def _used(statement: Stmt) -> set[Expr]:

    return {v for s in walk((statement,)) for v in E.variables(*expressions(s))}
