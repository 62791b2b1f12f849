"""Products with one-hot rows: ``sum over k of (x == k) * w[k, ...]`` is ``w[x, ...]``, or 0 where no k is x.

Exported networks embed bytes and tokens like that.  The sum has one term that is not 0 at most, so picking it
gives the same number where all weights are finite, and takes none of the multiplications.
"""

from __future__ import annotations

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Constant, Map, Program, Reduce, Value, static

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
"""Types of picks whose values all are values of an index."""


def pick(program: Program) -> bool:
    """Replace the sums of the fused program, in place, that a pick computes; True where there were any."""
    found = False
    for value in program.values:
        body = _picked(value)
        if body is not None and isinstance(value.definition, Reduce):
            value.definition = Map(value.definition.axes, body)
            found = True
    return found


def _picked(value: Value) -> Expr | None:
    """What a sum over one-hot rows is at each of its elements; None where it is no such sum."""
    d = value.definition
    if not isinstance(d, Reduce) or d.op != "sum" or d.body.op != "mul" or value.scan is not None:
        return None
    reduced = [r for r in d.reduced if static(r.args[0]) != 1]
    length = static(reduced[0].args[0]) if len(reduced) == 1 else None
    if length is None or any(f.op != "load" for f in d.body.args):
        return None
    (k,) = reduced
    for rows, w in (d.body.args, d.body.args[::-1]):
        known = w.attr.is_constant and E.is_float(w.dtype) and not E.loads(*w.args)
        place = _place(rows, k) if known else None
        if place is None or not np.isfinite(w.attr.array).all():
            continue
        zero = dict.fromkeys(set(d.reduced) - {k}, E.const(0))
        inside = E.le(0, place) & E.lt(place, length)
        at = {**zero, k: E.minimum(E.maximum(place, 0), length - 1)}
        term = E.load(w.attr, [E.substitute(i, at) for i in w.args])
        return E.cast(E.substitute(E.select(inside, term, E.const(0.0, w.dtype)), zero), value.dtype)
    return None


def _place(rows: Expr, k: Expr) -> Expr | None:
    """Where along `k` the 1 of a one-hot row is, an index that may lie outside; None where the load is not
    of such rows."""
    d = rows.attr.definition
    if not isinstance(d, Map) or rows.attr.scan is not None:
        return None
    body = E.substitute(d.body, dict(zip(d.axes, rows.args)))
    if body.op == "cast":
        (test,) = body.args
    elif body.op == "select" and [a.attr if a.is_const else None for a in body.args[1:]] == [1, 0]:
        test = body.args[0]
    else:
        return None
    if test.op != "eq" or any(a.dtype not in _INTEGERS for a in test.args):
        return None
    for x, counted in (test.args, test.args[::-1]):
        first = _first(counted, k)
        if first is not None and k not in E.variables(x):
            return E.cast(x, E.INDEX) - first
    return None


def _first(counted: Expr, k: Expr) -> int | None:
    """The n of an integer expression that is n + k for all k."""
    types = [counted.dtype]
    while counted.op == "cast":
        (counted,) = counted.args
        types.append(counted.dtype)
    if any(kind not in _INTEGERS for kind in types):
        return None
    length = static(k.args[0]) or 0
    if counted.op == "load":
        axes = [i for i in counted.args if not i.is_const]
        if not isinstance(counted.attr.definition, Constant) or axes != [k]:
            return None
        values = counted.attr.array.astype(np.int64).reshape(-1)
        first = int(values[0]) if values.size == length and (np.diff(values) == 1).all() else None
    else:
        n, terms = E.linear(counted) if counted.dtype == E.INDEX else (0, {})
        first = n if terms == {k: 1} else None
    limits = [E.integer_range(kind) for kind in types]
    if first is None or any(first < low or first + length - 1 > high for low, high in limits):
        return None
    return first
