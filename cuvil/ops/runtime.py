"""Axes that are known only at run time: which they are becomes arithmetic on sizes.

A reduction over such axes runs over a view with twice the rank, where each axis of the input appears once
kept and once reduced, and one of the two has size 1; what works along one axis sees [before, along, behind].
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.primitives import Value, elements


def named(b: Builder, axes: Sequence[Expr], rank: int) -> list[Expr]:
    """Per axis of a tensor of `rank`, whether it is among `axes` (negative ones count from the end), which
    must all be different axes of it."""
    axes = [b.derived(a, rank - 1, -rank) for a in axes]
    for n, a in enumerate(axes):
        for other in axes[:n]:
            same = E.eq(a, other) | E.eq(a, other + rank) | E.eq(a + rank, other)
            b.require(E.unary("not", same))
    flags = []
    for k in range(rank):
        flag: Expr = E.const(False, "bool")
        for a in axes:
            flag = flag | E.eq(a, k) | E.eq(a, k - rank)
        flags.append(flag)
    return flags


def entry_of(axes: Sequence[Expr], rank: int, axis: int, values: Sequence[Expr], default: Operand) -> Expr:
    """The entry of `values` that belongs to `axis`, `default` where it is not among `axes`."""
    result = E.wrap(default, E.INDEX)
    for a, value in zip(axes, values):
        result = E.select(E.eq(a, axis) | E.eq(a, axis - rank), value, result)
    return result


def kept_sizes(b: Builder, shape: Sequence[Expr], dropped: Sequence[Expr], rank: int) -> list[Expr]:
    """The `rank` sizes of `shape` whose axis is not dropped, in order."""
    found = []
    for position in range(rank):
        size: Expr = E.const(1)
        before: Expr = E.const(0)
        for n, drop in zip(shape, dropped):
            size = E.select(E.eq(before, position) & E.unary("not", drop), n, size)
            before = before + E.select(drop, 0, E.const(1))
        most: Expr = E.const(1)
        for n in shape:
            most = E.maximum(most, n)
        found.append(b.derived(size, most))
    return found


def with_ones(b: Builder, shape: Sequence[Expr], new: Sequence[Expr]) -> list[Expr]:
    """The sizes of `shape` in order, and 1 where the flag in `new` says so."""
    sizes = []
    taken: Expr = E.const(0)
    for flag in new:
        size = E.const(1)
        for axis, n in enumerate(shape):
            size = E.select(E.eq(taken, axis) & E.unary("not", flag), n, size)
        sizes.append(size)
        taken = taken + E.select(flag, 0, E.const(1))
    return [b.derived(size, elements(E.maximum(n, 1) for n in shape)) for size in sizes]


def split_axes(b: Builder, x: Value, reduced: Sequence[Expr]) -> Value:
    """`x` as [*kept, *reduced]: of the two axes made of each one of `x`, the flag in `reduced` says which
    has its size; the other has size 1."""
    kept = [b.derived(E.select(r, 1, n), E.maximum(n, 1)) for r, n in zip(reduced, x.shape)]
    inner = [b.derived(E.select(r, n, E.const(1)), E.maximum(n, 1)) for r, n in zip(reduced, x.shape)]
    view = b.map([*kept, *inner], lambda *i: x[tuple(p + q for p, q in zip(i[: x.rank], i[x.rank :]))])
    view.capacity = elements(x.shape)
    return view


def along(b: Builder, x: Value, axis: Expr) -> Value:
    """`x` as [before, along, behind] a run-time `axis` in [0, rank)."""
    most = E.product(E.maximum(n, 1) for n in x.shape)
    before, length, behind = E.const(1), E.const(1), E.const(1)
    for k, n in enumerate(x.shape):
        before = before * E.select(E.lt(k, axis), n, E.const(1))
        length = length * E.select(E.eq(axis, k), n, E.const(1))
        behind = behind * E.select(E.lt(axis, k), n, E.const(1))
    view = b.reshape(x, [b.derived(n, most) for n in (before, length, behind)])
    view.capacity = elements(x.shape)
    return view
