"""Groups that share rows, over channels in blocks: a block of rows at a time, its lanes innermost.

A plain nest takes one row after the other (`nest`); where the rows are channels of a blocked value, that
would touch one element of each block.  Here every member runs over the lanes of a block at once, and a
sum over a row keeps one accumulator per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Stmt, Store
from cuvil.ir.primitives import Map, Reduce, Value, definition_loads, elements, static
from cuvil.schedule.group import Group
from cuvil.schedule.reduction import reduce_loops
from cuvil.schedule.storage import Storage


def block_rows(storage: Storage, internal: set[Value], group: Group) -> tuple[list[Expr], list[Stmt]] | None:
    """(outer loops, statements) of a group whose last shared axis is stored in blocks, else None;
    removes from `internal` the members that are too large for the stack."""
    axis = group.shared - 1
    block = _block(storage, internal, group, axis)
    channels = static(group.anchor.shape[axis])
    if block <= 1 or channels is None:
        return None
    budget = limits.MAX_STACK_SCRATCH_BYTES
    for v in group.members:
        size = (static(elements(v.shape[group.shared :])) or budget) * block * E.numpy_dtype(v.dtype).itemsize
        if v in internal:
            internal.difference_update([v] if size > budget else [])
            budget -= size if v in internal else 0
    outer = [E.const(0) if static(s) == 1 else E.var(s) for s in group.anchor.shape[:axis]]
    number: Expr = E.const(0) if channels <= block else E.var(-(-channels // block), "n")
    body: list[Stmt] = []
    full, last = divmod(channels, block)
    if full:
        body = _Rows(storage, internal, group, outer, number * block, block).statements()
    if last:
        partial = _Rows(storage, internal, group, outer, number * block, last).statements()
        body = [If(E.lt(number, full), tuple(body), tuple(partial))] if full else partial
    return [v for v in (*outer, number) if v.op == "var"], body


def _block(storage: Storage, internal: set[Value], group: Group, axis: int) -> int:
    """The block of the rows' axis in what the group reads or writes in memory row by row."""
    for v in group.members:
        d = v.definition
        if not isinstance(d, (Map, Reduce)):
            return 0
        touched = [(e.attr, e.args) for e in definition_loads(v)]
        if v not in internal:
            touched.append((v, d.axes))
        for value, at in touched:
            root, there = storage.resolve(value, at)
            layout = storage.layout(root)
            if layout.block > 1 and layout.blocked_axis == axis and there[axis] is d.axes[axis]:
                return layout.block
    return 0


class _Rows:
    """The members over `lanes` rows from `start` on."""

    def __init__(
        self, storage: Storage, internal: set[Value], group: Group, outer: list[Expr], start: Expr, lanes: int
    ) -> None:
        self.storage, self.internal, self.group = storage, internal, group
        self.outer, self.start, self.lanes = outer, start, lanes
        self.locals: dict[Value, Value] = {}

    def statements(self) -> list[Stmt]:
        return [s for v in self.group.members for s in self._member(v)]

    def _member(self, v: Value) -> list[Stmt]:
        d = v.definition
        assert isinstance(d, (Map, Reduce))
        inner = [E.const(0) if static(s) == 1 else E.var(s) for s in v.shape[self.group.shared :]]
        local = None
        body: list[Stmt] = []
        if v in self.internal:
            kept = [s for s in v.shape[self.group.shared :] if static(s) != 1]
            local = Value(v.name, v.dtype, (*kept, E.const(self.lanes)))

        def put(lane: Expr, value: Expr) -> Stmt:
            if local is not None:
                return Store(local, (*(i for i in inner if i.op == "var"), lane), value)
            return Store(v, self._at(inner, lane), value)

        if isinstance(d, Map):
            body = [self._loop(lambda lane: put(lane, self._value(d, inner, lane)))]
        else:
            row = Value(v.name, d.body.dtype, (E.const(self.lanes),))
            step = self._loop(lambda lane: Accumulate(row, (lane,), d.op, self._value(d, inner, lane)))
            body = [
                Declare(row),
                self._loop(lambda lane: Store(row, (lane,), d.identity)),
                reduce_loops(d, step, d.identity),
                self._loop(lambda lane: put(lane, E.cast(E.load(row, (lane,)), v.dtype))),
            ]
        for i in reversed([i for i in inner if i.op == "var"]):
            body = [For(i, i.args[0], tuple(body))]
        if local is None:
            return body
        self.locals[v] = local
        return [Declare(local), *body]

    def _loop(self, statement: Callable[[Expr], Stmt]) -> For:
        lane = E.var(self.lanes, "l")
        return For(lane, lane.args[0], (statement(lane),), "simd")

    def _at(self, inner: Sequence[Expr], lane: Expr) -> tuple[Expr, ...]:
        return (*self.outer, self.start + lane, *inner)

    def _value(self, d: Map | Reduce, inner: Sequence[Expr], lane: Expr) -> Expr:
        """A member's expression at a point, reading locals for members."""
        shared = self.group.shared

        def local(node: Expr) -> Expr | None:
            target = self.locals.get(node.attr) if node.op == "load" else None
            if target is None:
                return None
            sizes = node.attr.shape[shared:]
            kept = [i for i, s in zip(node.args[shared:], sizes) if static(s) != 1]
            return E.load(target, (*kept, lane))

        return E.transform(E.substitute(d.body, dict(zip(d.axes, self._at(inner, lane)))), local)
