"""Vector loops made fit for a compiler: neighbours merged, conditions moved out.

``for l: y[l] = c ? f(l) : g(l)`` becomes ``if c: for l: ... else: for l: ...``, since a compiler can
vectorise each of the two loops but seldom the one with the choice in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Stmt, Store

MAX_DEPTH = 3
"""Conditions moved out of one loop: the loop is copied for each outcome."""


def unswitch(body: tuple[Stmt, ...], depth: int = MAX_DEPTH) -> tuple[Stmt, ...]:
    """The statements with invariant choices outside their innermost vector loops."""
    return tuple(_statement(s, depth) for s in body)


def _statement(s: Stmt, depth: int) -> Stmt:
    if isinstance(s, If):
        return If(s.condition, unswitch(s.then, depth), unswitch(s.otherwise, depth))
    if not isinstance(s, For):
        return s
    if s.kind != "simd" or any(not isinstance(b, (Store, Accumulate)) for b in s.body):
        return For(s.var, s.stop, unswitch(s.body, depth), s.kind, s.start, s.reduction)
    condition = next((c for b in s.body if (c := _invariant(b, s.var)) is not None), None)
    if condition is None or depth == 0:
        return s
    copies = []
    for outcome in (True, False):
        inner = tuple(_choose(b, condition, outcome) for b in s.body)
        copies.append(_statement(For(s.var, s.stop, inner, s.kind, s.start, s.reduction), depth - 1))
    return If(condition, (copies[0],), (copies[1],))


def _invariant(s: Stmt, var: Expr) -> Expr | None:
    """The first condition of a choice in a store that does not depend on the loop and is evaluated
    whatever other choices say."""
    assert isinstance(s, (Store, Accumulate))
    stack = [s.value]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop(0)
        if e in seen:
            continue
        seen.add(e)
        if e.op == "select":
            if var not in E.variables(e.args[0]):
                return e.args[0]
            stack.append(e.args[0])
        elif e.op in ("and", "or"):
            stack.append(e.args[0])
        elif e.op not in ("var", "load"):
            stack.extend(e.args)
    return None


def _choose(s: Stmt, condition: Expr, outcome: bool) -> Stmt:
    assert isinstance(s, (Store, Accumulate))
    truth = E.const(outcome, "bool")
    value = E.transform(s.value, lambda e: truth if e is condition else None)
    if isinstance(s, Store):
        return Store(s.target, s.indices, value)
    return Accumulate(s.target, s.indices, s.op, value)


def merge_lanes(body: Sequence[Stmt]) -> list[Stmt]:
    """Neighbouring vector loops over the same lanes as one loop, declarations before it.

    Only for statements in which a lane uses what that lane alone computed; a row of accumulators
    then never leaves the registers.
    """
    result: list[Stmt] = []
    for s in body:
        last = next((k for k in range(len(result) - 1, -1, -1) if not isinstance(result[k], Declare)), None)
        before = result[last] if last is not None else None
        if (
            isinstance(s, For)
            and isinstance(before, For)
            and _is_row(s)
            and _is_row(before)
            and s.stop is before.stop
        ):
            moved = tuple(_renamed(b, s.var, before.var) for b in s.body)
            assert last is not None
            del result[last]
            result.append(For(before.var, before.stop, before.body + moved, "simd"))
        else:
            result.append(s)
    return result


def _is_row(s: For) -> bool:
    plain = all(isinstance(b, (Store, Accumulate)) for b in s.body)
    return s.kind == "simd" and plain and not s.reduction


def _renamed(s: Stmt, old: Expr, new: Expr) -> Stmt:
    assert isinstance(s, (Store, Accumulate))
    indices = tuple(E.substitute(i, {old: new}) for i in s.indices)
    value = E.substitute(s.value, {old: new})
    if isinstance(s, Store):
        return Store(s.target, indices, value)
    return Accumulate(s.target, indices, s.op, value)
