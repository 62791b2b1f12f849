"""Vector loops cut where a condition on their variable changes, such as at the edges of a padded row.

In each piece the condition is known, and what was a choice between a load and a constant for every element
becomes a copy and a fill.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import For, If, Kernel, Stmt, Store, While
from cuvil.ir.primitives import static

MAX_PIECES = 4
"""Pieces of a loop beyond which choosing for each element is better."""


def cut(kernel: Kernel) -> Kernel:
    """The kernel with its vector loops in pieces."""
    return replace(kernel, body=tuple(_all(kernel.body)))


def _all(body: Iterable[Stmt]) -> Iterator[Stmt]:
    for s in body:
        if isinstance(s, If):
            yield If(s.condition, tuple(_all(s.then)), tuple(_all(s.otherwise)))
        elif isinstance(s, While):
            yield While(s.condition, tuple(_all(s.body)))
        elif isinstance(s, For):
            yield from _pieces(s)
        else:
            yield s


def _pieces(loop: For) -> list[Stmt]:
    start, stop = static(loop.start), static(loop.stop)
    stores = [s for s in loop.body if isinstance(s, Store)]
    if loop.kind != "simd" or loop.reduction or len(stores) < len(loop.body) or start is None or stop is None:
        return [replace(loop, body=tuple(_all(loop.body)))]
    edges = {n for s in stores for n in _edges(s.value, loop.var) if start < n < stop}
    if not edges or len(edges) >= MAX_PIECES:
        return [loop]
    result: list[Stmt] = []
    bounds = [start, *sorted(edges), stop]
    for low, high in itertools.pairwise(bounds):
        lane = E.const(0) if high - low == 1 else E.var(high - low, "l")
        at = {loop.var: lane + low}
        body = tuple(
            Store(s.target, tuple(E.substitute(i, at) for i in s.indices), E.substitute(s.value, at))
            for s in stores
        )
        result += body if lane.is_const else [For(lane, lane.args[0], body, "simd")]
    return result


def _edges(value: Expr, variable: Expr) -> Iterator[int]:
    """The values of a variable from which on comparisons of it with constants have another result."""
    for e in E.walk(value):
        if e.op != "lt" or e.args[0].dtype != E.INDEX:
            continue
        constant, terms = E.linear(e.args[1] - e.args[0])
        if set(terms) == {variable}:
            step = terms[variable]  # holds where constant + step * variable > 0
            yield -constant // step + 1 if step > 0 else -(constant // step)
