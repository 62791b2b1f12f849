"""The static memory plan: where each intermediate tensor lies in the workspace.

Tensors of known size are packed by lifetime (`cuvil.schedule.packing`).  Tensors of symbolic size
follow in slots that tensors with disjoint lives share.
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
    total: Expr = E.const(top)
    slots: list[tuple[list[Request], Expr]] = []
    members: dict[int, int] = {}
    for i, r in enumerate(requests):
        if i in offsets:
            continue
        for s, (tenants, widest) in enumerate(slots):
            if all(t.last < r.first or t.first > r.last for t in tenants):
                tenants.append(r)
                slots[s] = (tenants, E.maximum(widest, r.size))
                members[i] = s
                break
        else:
            slots.append(([r], r.size))
            members[i] = len(slots) - 1
    starts = []
    unit = limits.WORKSPACE_ALIGNMENT
    for _, extent in slots:
        starts.append(total)
        total = total + E.floordiv(extent + (unit - 1), unit) * unit
    for i, s in members.items():
        offsets[i] = starts[s]
    return Arena(tuple(offsets[i] for i in range(len(requests))), total, packing.load)
