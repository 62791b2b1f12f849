"""Attention in blocks of queries: scores, softmax and weighted values of a few rows at a time.

A contraction, a group that works on the rows of its result, and a contraction that reads these rows as its
first operand become one kernel: what is between them is never in memory as a whole, but a block of rows of
it in scratch memory of the thread, which both contractions' tiles share.  So memory grows with the length of
a sequence, not with its square.  It is found by what values read, whatever operators they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cuvil import limits
from cuvil.codegen.tuned.contract import FEW_ROWS, Builder, Rows
from cuvil.codegen.tuned.isa import BLOCK, Tiles
from cuvil.codegen.tuned.pack import Contraction
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Kernel, Stmt, Store
from cuvil.ir.primitives import Map, Reduce, Value, static
from cuvil.schedule.group import Group
from cuvil.schedule.nest import Nest, finish
from cuvil.schedule.storage import Storage


@dataclass(frozen=True, eq=False)
class Attention:
    """The groups of an attention, and the contractions of the first and the last."""

    scores: Group
    rows: Group
    values: Group
    first: Contraction
    last: Contraction


def find(
    groups: Sequence[Group],
    readers: Mapping[Value, list[Value]],
    kept: set[Value],
    contractions: Mapping[Value, Contraction],
    storage: Storage,
) -> list[Attention]:
    """The attentions among groups, whose values in `kept` must be in memory."""
    made = {v: g for g in groups for v in g.members}
    result: list[Attention] = []
    for group in groups:
        last = contractions.get(group.members[0])
        rows = made.get(last.a.attr) if last is not None else None
        if last is None or rows is None or rows is group:
            continue
        sources = {e.attr for v in rows.members for e in _loads(v)} - {*rows.members}
        whole = [v for v in sources if v in made and v.shape == rows.anchor.shape]
        scores = [made[v] for v in whole if v is made[v].anchor]
        first = contractions.get(scores[0].members[0]) if len(scores) == 1 else None
        if first is None:
            continue
        found = Attention(scores[0], rows, group, first, last)
        if _is_local(found, readers, kept, storage) and _fits(found):
            result.append(found)
    return result


def _is_local(a: Attention, readers: Mapping[Value, list[Value]], kept: set[Value], storage: Storage) -> bool:
    """Nothing else reads what is between the contractions, or the memory that it would have."""
    allowed = {v: {*group.members} for group in (a.scores, a.rows) for v in group.members}
    allowed[a.scores.anchor] |= {*a.rows.members}
    allowed[a.rows.anchor] |= {a.last.value}
    return all(
        {*readers[v]} <= others and v not in kept and storage.root(v) is v and v not in storage.layouts
        for v, others in allowed.items()
    )


def _loads(v: Value) -> list[Expr]:
    d = v.definition
    return E.loads(d.body) if isinstance(d, (Map, Reduce)) else []


def _fits(a: Attention) -> bool:
    """The contractions are over rows, and the group between them works on each row from left to right."""
    for c, group in ((a.first, a.scores), (a.last, a.values)):
        d = c.value.definition
        assert isinstance(d, Reduce)
        live = [x for x, n in zip(d.axes, c.value.shape) if static(n) != 1]
        plain = (c.a.dtype, c.w.dtype, d.body.dtype) == ("float32",) * 3 and not c.dot and not c.spatial
        if not plain or live != [*c.batch, *c.rows, c.column] or [*d.axes[-2:]] != [*c.rows, c.column]:
            return False
        if any(v.shape != c.value.shape or v.dtype != "float32" for v in group.members):
            return False
        if any(not isinstance(v.definition, Map) for v in group.members[1:]):
            return False
    d = a.last.value.definition
    assert isinstance(d, Reduce)
    expected = (*d.axes[:-1], a.last.k[-1])
    same = all(i is e or (i.is_const and static(e.args[0]) == 1) for i, e in zip(a.last.a.args, expected))
    return same and len(a.last.k) == 1 and a.last.a.attr is a.rows.anchor and _in_order(a)


def _in_order(a: Attention) -> bool:
    """Each member of the rows' group reads the row that the member before it made, at the place that it
    writes, or numbers of the row: so they can share memory."""
    shape = a.rows.anchor.shape
    current, numbers = a.scores.anchor, set[Value]()
    for v in a.rows.members:
        d = v.definition
        if not isinstance(d, (Map, Reduce)) or v.dtype != "float32":
            return False
        whole = v.shape == shape
        reduced = [r for r in d.reduced if static(r.args[0]) != 1] if isinstance(d, Reduce) else []
        if (whole and reduced) or (not whole and not _is_number(v, shape)):
            return False
        along = d.axes[-1] if whole else reduced[0] if len(reduced) == 1 else None
        if reduced and (along is None or along.args[0] is not shape[-1]):
            return False
        for e in _loads(v):
            if e.attr in numbers or (e.attr not in (*a.rows.members, a.scores.anchor)):
                continue
            leading = zip(e.args[:-1], d.axes, shape[:-1])
            at_point = all(i is x or (i.is_const and static(n) == 1) for i, x, n in leading)
            if e.attr is not current or e.args[-1] is not along or not at_point:
                return False
        if whole:
            current = v
        else:
            numbers.add(v)
    return current is a.rows.anchor


def _is_number(v: Value, shape: Sequence[Expr]) -> bool:
    """One number for each row."""
    lead = len(shape) - 1
    return v.shape[:lead] == tuple(shape[:lead]) and all(static(n) == 1 for n in v.shape[lead:])


def build(
    a: Attention, group: Group, storage: Storage, internal: set[Value], name: str, tiles: Tiles, threads: int
) -> Kernel | None:
    """The kernel of `group`, which has the members of the three groups."""
    return _Attention(a, group, storage, internal, tiles, threads).run(name)


class _Attention:
    """Builds the loops of one kernel."""

    def __init__(
        self, a: Attention, group: Group, storage: Storage, internal: set[Value], tiles: Tiles, threads: int
    ) -> None:
        self.a, self.group, self.storage, self.internal, self.tiles = a, group, storage, internal, tiles
        d = a.last.value.definition
        assert isinstance(d, Reduce)
        self.batch = [E.const(0) if static(x.args[0]) == 1 else x for x in d.axes[:-2]]
        self.query = d.axes[-2]
        queries, keys = self.query.args[0], a.rows.anchor.shape[-1]
        height = min(tiles.rows(c.vectors) for c in (a.first, a.last))
        size = static(queries)
        if size is not None:
            height = -(-size // -(-size // height))
        self.height = height
        blocks = E.floordiv(queries + (height - 1), height)
        self.block = E.const(0) if static(blocks) == 1 else E.var(blocks, "m")
        self.partial = size is None or size % height > 0
        self.left = E.minimum(queries - self.block * height, height)
        pitch = E.floordiv(keys + (2 * BLOCK - 1), 2 * BLOCK) * (2 * BLOCK) + BLOCK  # lines: an odd number
        room = static(pitch)
        small = room is not None and 4 * height * room <= limits.MAX_STACK_SCRATCH_BYTES
        self.slot = None if small else E.var(threads, "slot")
        shape = (E.const(1 if small else threads), E.const(height), pitch)
        self.scratch = Value(f"{a.rows.anchor.name}.rows", "float32", shape)

    def run(self, name: str) -> Kernel:
        """The kernel."""
        start = self.block * self.height
        body = self._rows(start, self.height, self.left if self.partial else None)
        if static(self.query.args[0]) is None:
            row = E.var(self.left, "p")
            single = For(row, self.left, tuple(self._rows(start + row, 1, None)))
            body = [If(E.lt(FEW_ROWS, self.left), tuple(body), (single,))]
        parallel = [v for v in (*self.batch, self.block) if v.op == "var"]
        writes = [v for v in self.group.members if v not in self.internal]
        if self.slot is None:
            body.insert(0, Declare(self.scratch))
        else:
            writes.append(self.scratch)
        kernel = finish(name, parallel, tuple(body), self.group, tuple(writes), self.storage, "gemm")
        return replace(kernel, slot=self.slot)

    def _at(self, row: Expr, key: Expr) -> tuple[Expr, ...]:
        """The place of a row of the block in the scratch memory."""
        return (E.const(0) if self.slot is None else self.slot, row, key)

    def _rows(self, start: Expr, height: int, count: Expr | None) -> list[Stmt]:
        """All of the work on `height` rows from `start` on, of which `count` are there."""
        a = self.a
        scores = self._scores(start, height, count)
        row = E.const(0) if height == 1 else E.var(height if count is None else count, "p")
        between = self._between(start, row)
        if row.op == "var":
            between = [For(row, row.args[0], tuple(between))]
        read = E.load(self.scratch, self._at(self.query - start, a.last.k[-1]))
        weighted = replace(a.last, a=read)
        values = self._product(weighted, a.values, self.internal, self.query, {}, start, height, count)
        return [*scores, *between, *values]

    def _scores(self, start: Expr, height: int, count: Expr | None) -> list[Stmt]:
        """The scores of the rows, in the scratch memory."""
        a = self.a
        d, anchor = a.first.value.definition, a.scores.anchor
        assert isinstance(d, Reduce)
        fixed = dict(zip(d.axes, self.batch))
        inside = {*a.scores.members} - {anchor}
        body = self._product(a.first, a.scores, inside, a.first.rows[0], fixed, start, height, count)

        def place(s: Store) -> Store:
            *_, query, key = s.indices
            return Store(self.scratch, self._at(query - start, key), s.value)

        return [_moved(s, anchor, place) for s in body]

    def _product(
        self,
        c: Contraction,
        group: Group,
        inside: set[Value],
        query: Expr,
        fixed: dict[Expr, Expr],
        start: Expr,
        height: int,
        count: Expr | None,
    ) -> list[Stmt]:
        """The tiles of a contraction on the rows, panel by panel."""
        builder = Builder(c, group, Nest(self.storage, inside, {}), self.tiles, fixed)
        loops = builder.k_loops()
        assert loops is not None
        columns = E.floordiv(c.column.args[0] + (builder.lanes - 1), builder.lanes)
        panel = E.const(0) if static(columns) == 1 else E.var(columns, "n")
        along = static(builder.row_step(query))
        if height > 1 and along is None and count is None:
            count = E.const(height)
        offsets = (0,) * height if count is not None else tuple((along or 0) * p for p in range(height))
        rows = Rows(E.const(0), {query: start}, offsets, query, count=count)
        body = builder.row_tile(panel, rows, loops)
        return [For(panel, columns, tuple(body))] if panel.op == "var" else body

    def _between(self, start: Expr, row: Expr) -> list[Stmt]:
        """The members of the group between the contractions on one row of the scratch memory."""
        a = self.a
        shape = a.rows.anchor.shape
        body: list[Stmt] = []
        numbers: dict[Value, Value] = {}
        lead = (*self.batch, start + row)

        def local(e: Expr) -> Expr | None:
            if e.op != "load":
                return None
            if e.attr in numbers:
                return E.load(numbers[e.attr], ())
            inside = e.attr is a.scores.anchor or e.attr in a.rows.members
            return E.load(self.scratch, self._at(row, e.args[-1])) if inside else None

        for v in a.rows.members:
            d = v.definition
            assert isinstance(d, (Map, Reduce))
            key = E.var(shape[-1], "t")
            whole = v.shape == shape
            indices = [*lead, *(key if whole else E.const(0) for _ in v.shape[len(lead) :])]
            at = dict(zip(d.axes, indices))
            if isinstance(d, Reduce):
                at |= {r: E.const(0) if static(r.args[0]) == 1 else key for r in d.reduced}
            value = E.transform(E.substitute(d.body, at), local)
            if whole:
                store = Store(self.scratch, self._at(row, key), value)
                body.append(For(key, key.args[0], (store,), "simd"))
                continue
            number = numbers[v] = Value(v.name, value.dtype, ())
            body.append(Declare(number))
            if isinstance(d, Reduce):
                body.append(Store(number, (), d.identity))
                add = Accumulate(number, (), d.op, value)
                body.append(For(key, key.args[0], (add,), "simd", reduction=((d.op, number),)))
            else:
                body.append(Store(number, (), value))
        return body


def _moved(s: Stmt, target: Value, place: Callable[[Store], Store]) -> Stmt:
    """A statement with the stores to `target` replaced."""
    if isinstance(s, Store):
        return place(s) if s.target is target else s
    if isinstance(s, For):
        return replace(s, body=tuple(_moved(x, target, place) for x in s.body))
    if isinstance(s, If):
        then, otherwise = (tuple(_moved(x, target, place) for x in part) for part in (s.then, s.otherwise))
        return If(s.condition, then, otherwise)
    return s
