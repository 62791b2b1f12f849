"""Vector loops over channels in blocks, where a block of one value lies across two of another.

Parts of a concatenation, and slices, may start in the middle of a block.  The loop over the lanes of a
block is cut where an address steps into the next block, and a last block that is not full gets a loop
of its own, so that every loop runs along memory without a test per lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Stmt, Store, While, expressions, walk
from cuvil.ir.primitives import Value, static
from cuvil.schedule.storage import Storage

MAX_LANES = 128
"""Lanes of a loop that is looked at."""

MAX_PIECES = 8
"""Pieces that a loop is cut into."""


def cut(body: Sequence[Stmt], storage: Storage) -> tuple[Stmt, ...]:
    """The statements with their vector loops cut at the ends of blocks."""
    return _Cutter(storage, {s.target for s in walk(tuple(body)) if isinstance(s, Declare)}).all(body)


class _Cutter:
    """Cuts loops; `local` are the values that do not live in memory."""

    def __init__(self, storage: Storage, local: set[Value]) -> None:
        self.storage, self.local = storage, local

    def all(self, body: Iterable[Stmt]) -> tuple[Stmt, ...]:
        return tuple(t for s in body for t in self._statement(s))

    def _statement(self, s: Stmt) -> Sequence[Stmt]:
        if isinstance(s, If):
            return [If(s.condition, self.all(s.then), self.all(s.otherwise))]
        if isinstance(s, While):
            return [While(s.condition, self.all(s.body))]
        if not isinstance(s, For):
            return [s]
        size = static(s.stop) or 0
        inner: Sequence[Stmt] = s.body
        rest = None
        if len(inner) == 1 and isinstance(inner[0], If) and not inner[0].otherwise:
            rest = lanes_inside(inner[0].condition, s.var)
            inner = inner[0].then if rest is not None else inner
        plain = all(isinstance(b, (Store, Accumulate, Declare)) for b in inner)
        if s.kind != "simd" or s.reduction or not plain or not 1 < size <= MAX_LANES or s.start.attr != 0:
            return [For(s.var, s.stop, self.all(s.body), s.kind, s.start, s.reduction)]
        whole = self._pieces(s.var, size, inner)
        if rest is None:
            return whole
        last = partial_block(rest, size)
        if not last:
            return [s]
        return [If(E.lt(size - 1, rest), tuple(whole), tuple(self._pieces(s.var, last, inner)))]

    def _pieces(self, lane: Expr, size: int, body: Sequence[Stmt]) -> list[Stmt]:
        """Loops over the lanes [0, size), each within one block of everything it touches."""
        starts = {0}
        for s in body:
            if isinstance(s, (Store, Accumulate)):
                loads = [n for e in expressions(s) for n in E.loads(e)]
                for value, at in ((s.target, s.indices), *((n.attr, n.args) for n in loads)):
                    if value not in self.local:
                        starts |= _boundaries(self.storage.address(value, at)[1], lane, size)
        ends = [*sorted(b for b in starts if 0 < b < size), size]
        if len(ends) > MAX_PIECES:
            ends = [size]
        return [_loop(lane, start, end, body) for start, end in zip([0, *ends], ends)]


def lanes_inside(condition: Expr, lane: Expr) -> Expr | None:
    """The number where the condition is that the lane is below it."""
    if condition.op != "lt" or condition.args[0].dtype != E.INDEX:
        return None
    rest = condition.args[1] - condition.args[0] + lane
    return None if lane in E.variables(rest) else rest


def partial_block(rest: Expr, size: int) -> int:
    """Lanes of a block that is not full, where `rest` elements are left at its start and all blocks
    before it are full; 0 where that number is not known, or there may be no elements left."""
    constant, terms = E.linear(rest)
    return 0 if rest.lo <= 0 or any(c % size for c in terms.values()) else constant % size


def _loop(lane: Expr, start: int, end: int, body: Sequence[Stmt]) -> For:
    """The loop over the lanes [start, end), with variables and locals of its own."""
    fresh = E.var(end - start, lane.attr)
    copies = {
        s.target: Value(s.target.name, s.target.dtype, s.target.shape) for s in body if isinstance(s, Declare)
    }

    def local(node: Expr) -> Expr | None:
        return E.load(copies[node.attr], node.args) if node.op == "load" and node.attr in copies else None

    def moved(e: Expr) -> Expr:
        return E.transform(E.substitute(e, {lane: fresh + start}), local)

    statements: list[Stmt] = []
    for s in body:
        if isinstance(s, Declare):
            statements.append(Declare(copies[s.target]))
        elif isinstance(s, Store):
            target = copies.get(s.target, s.target)
            statements.append(Store(target, tuple(map(moved, s.indices)), moved(s.value)))
        elif isinstance(s, Accumulate):
            target = copies.get(s.target, s.target)
            statements.append(Accumulate(target, tuple(map(moved, s.indices)), s.op, moved(s.value)))
    return For(fresh, fresh.args[0], tuple(statements), "simd")


def _boundaries(offset: Expr, lane: Expr, size: int) -> set[int]:
    """The lanes at which a quotient or a remainder in an address starts anew."""
    found: set[int] = set()
    for node in E.walk(offset):
        if node.op not in ("floordiv", "mod") or lane not in E.variables(node.args[0]):
            continue
        divisor = static(node.args[1])
        constant, terms = E.linear(node.args[0])
        if divisor and terms.pop(lane, 0) == 1 and not any(c % divisor for c in terms.values()):
            found.update(range(-constant % divisor, size, divisor))
    return found
