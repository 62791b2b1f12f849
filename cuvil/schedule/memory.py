"""The static memory plan: where each intermediate tensor lies in the workspace.

Tensors of known size are packed by lifetime (`cuvil.schedule.packing`).  Tensors of symbolic size
follow: packed in the same way where all sizes are multiples of one expression, else in slots that
tensors with disjoint lives share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuvil import limits
from cuvil.errors import ModelError
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import static
from cuvil.schedule.packing import Interval, pack


@dataclass(frozen=True, eq=False)
class Request:
    """A buffer of `size` bytes that is alive from step `first` to step `last`, both included."""

    name: str
    size: Expr
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """The plan: byte offsets in the order of the requests, the total, and the lower bound that no
    plan can beat (the largest sum of live sizes; known sizes only)."""

    offsets: tuple[Expr, ...]
    size: Expr
    lower_bound: int


def aligned(size: int) -> int:
    """`size` rounded up to the workspace's alignment."""
    unit = limits.WORKSPACE_ALIGNMENT
    return -(-size // unit) * unit


def plan(requests: Sequence[Request]) -> Arena:
    """Assign offsets.

    Raises:
        ModelError: the arena would exceed `limits.MAX_ARENA_BYTES`.
    """
    known = [(i, n) for i, r in enumerate(requests) if (n := static(r.size)) is not None]
    packing = pack([Interval(aligned(n), requests[i].first, requests[i].last) for i, n in known])
    offsets: dict[int, Expr] = {i: E.const(at) for (i, _), at in zip(known, packing.offsets)}
    top = packing.height
    if top > limits.MAX_ARENA_BYTES:
        raise ModelError(f"the activations need {top} bytes, at most {limits.MAX_ARENA_BYTES} are allowed")
    rest = [i for i in range(len(requests)) if i not in offsets]
    places, extent = _symbolic([requests[i] for i in rest])
    for i, place in zip(rest, places):
        offsets[i] = place + top
    return Arena(tuple(offsets[i] for i in range(len(requests))), extent + top, packing.load)


def _slots(requests: Sequence[Request]) -> tuple[list[int], list[Expr]]:
    """The slot of each request and the size of each slot, that of its largest tenant; lives of tenants are
    disjoint."""
    tenants: list[list[Request]] = []
    extents: list[Expr] = []
    members: list[int] = []
    for r in requests:
        for s, others in enumerate(tenants):
            if all(t.last < r.first or t.first > r.last for t in others):
                others.append(r)
                extents[s] = E.maximum(extents[s], r.size)
                members.append(s)
                break
        else:
            tenants.append([r])
            extents.append(r.size)
            members.append(len(extents) - 1)
    return members, extents


def _symbolic(requests: Sequence[Request]) -> tuple[list[Expr], Expr]:
    """Offsets and total extent of requests: where all sizes are multiples of one expression, such as a batch
    size, their factors packed like known sizes, unless slots take less; else slots."""
    members, extents = _slots(requests)
    forms = [E.linear(r.size) for r in requests]
    shared = {term for _, terms in forms for term in terms}
    if len(shared) == 1 and not any(constant for constant, _ in forms):
        (term,) = shared
        factors = [terms[term] for _, terms in forms]
        packing = pack([Interval(aligned(n), r.first, r.last) for n, r in zip(factors, requests)])
        widest = [0] * len(extents)
        for s, n in zip(members, factors):
            widest[s] = max(widest[s], n)
        if packing.height <= sum(widest):
            return [term * at for at in packing.offsets], term * packing.height
    starts: list[Expr] = []
    total: Expr = E.const(0)
    unit = limits.WORKSPACE_ALIGNMENT
    for extent in extents:
        starts.append(total)
        total = total + E.floordiv(extent + (unit - 1), unit) * unit
    return [starts[s] for s in members], total
