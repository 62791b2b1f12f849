"""Tuned contractions: convolutions and matrix products on packed weights.

A contraction ``y[m..., n] = sum over k of a[m, k] * w[k, n]`` is recognised by which variables
its two loads use, whatever operator it came from.  The operand that carries `n` is packed into
panels (at compile time where it is constant), the other one is read as it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvil.codegen.tuned.isa import Tiles
from cuvil.codegen.tuned.micro import KNest, Tile
from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Declare, For, If, Kernel, Micro, Stmt, Store
from cuvil.ir.primitives import Constant, Map, Program, Reduce, Value, static
from cuvil.schedule.group import Group
from cuvil.schedule.nest import Nest, finish, stray_is_safe
from cuvil.schedule.storage import Layout, Storage

MAX_DYNAMIC_PANEL = 1 << 16
"""Columns beyond which an operand computed at run time is not packed."""

FEW_ROWS = 2
"""Rows of a run-time count up to which a tile of many rows is not worth its idle ones."""

MIN_PREFETCH = 150_000
"""Elements of weights from which the next panel is prefetched."""


@dataclass(eq=False)
class Contraction:
    """A recognised contraction.

    Attributes:
        value: the Reduce.
        a, w: the loads; `w` reads the packed panel ``[batch..., k..., n]``.
        panel: the packed value.
        batch: output axes in both operands; `rows`: in `a` only; `column`: in `w` only.
        k: reduced variables, outermost first.
        vectors: vectors in a panel's row.
        spatial: the rows are a convolution's positions (tiles of pixels).
        dot: bytes in groups of four.
    """

    value: Value
    a: Expr
    w: Expr
    panel: Value
    batch: list[Expr]
    rows: list[Expr]
    column: Expr
    k: list[Expr]
    vectors: int
    spatial: bool
    dot: bool


def recognise(value: Value) -> tuple[Expr, Expr, list[Expr], list[Expr], Expr, list[Expr]] | None:
    """(a, w, batch, rows, column, k) of a contraction that a tile can compute, or None."""
    d = value.definition
    if not isinstance(d, Reduce) or d.op != "sum" or d.body.op != "mul":
        return None
    factors = [_load(f) for f in d.body.args]
    if factors[0] is None or factors[1] is None:
        return None
    axes = [a for a, s in zip(d.axes, value.shape) if static(s) != 1 and a is not _step_axis(value)]
    reduced = [r for r in d.reduced if static(r.args[0]) != 1]
    if not reduced:
        return None
    for a, w in ((factors[0], factors[1]), (factors[1], factors[0])):
        in_a, in_w = E.variables(*a.args), E.variables(*w.args)
        columns = [x for x in axes if x in in_w and x not in in_a]
        rows = [x for x in axes if x in in_a and x not in in_w]
        batch = [x for x in axes if x in in_a and x in in_w]
        k = [r for r in reduced if r in in_a and r in in_w]
        if len(columns) != 1 or len(k) != len(reduced):
            continue
        if any(x.op in ("load", "select", "floordiv", "mod") for i in (*a.args, *w.args) for x in E.walk(i)):
            continue
        return a, w, batch, rows, columns[0], k
    return None


def _step_axis(value: Value) -> Expr | None:
    """The axis of the steps of a recurrence, which a tile does not run over."""
    d = value.definition
    return d.axes[0] if value.scan is not None and isinstance(d, Reduce) else None


def _load(e: Expr) -> Expr | None:
    while e.op == "cast":
        e = e.args[0]
    return e if e.op == "load" else None


def step(storage: Storage, load: Expr, variable: Expr) -> Expr | None:
    """How far the address of a load moves per step of a variable: an expression without it."""
    _, offset = storage.address(load.attr, load.args)
    moved = E.substitute(offset, {variable: variable + 1}) - offset
    return None if E.variables(moved) else moved


def pack(program: Program, storage: Storage, value: Value, tiles: Tiles) -> Contraction | None:
    """Recognise a contraction and give its second operand the layout a tile reads; changes the
    program: the panel is a value of its own before `value`."""
    found = recognise(value)
    if found is None:
        return None
    a, w, batch, rows, column, k = found
    types = (a.dtype, w.dtype, value.definition.body.dtype)  # type: ignore[union-attr]
    if types not in (("float32", "float32", "float32"), ("uint8", "int8", "int32"), ("int8", "int8", "int32")):
        return None
    spatial = storage.layout(storage.root(value)).block > 1 or _is_window(a, rows, k)
    constant = isinstance(w.attr.definition, Constant)
    columns = static(column.args[0])
    if columns is None and not constant and spatial:
        return None
    work = [static(r.args[0]) for r in k]
    if columns is not None and columns < (2 if constant else 4):
        return None
    order = _k_order(storage, a, k)
    block = _block_of(storage, a, order[-1])
    steps = {r: step(storage, a, r) for r in (*rows, *k) if not (block and r is order[-1])}
    if any(s is None for s in steps.values()):
        return None
    count = 1
    for n in work:
        count *= n or 256
    if not constant and (value.scan is not None or (not batch and (_product(rows) or 64) < 4)):
        return None
    inner = static(order[-1].args[0])
    together = bool(block) or static(steps[order[-1]] or 0) == 1
    dot = tiles.dot and types[:2] == ("uint8", "int8") and together
    if dot and (inner is None or (inner % 4 and not block)):
        dot = False
    vectors = tiles.vectors(columns, spatial, _product(rows))
    panel = _panel(program, storage, value, w, batch, order, column, vectors * tiles.width, dot, block)
    new_w = E.load(panel, [*batch, *order, column])
    d = value.definition
    assert isinstance(d, Reduce)
    to = d.body.dtype
    value.definition = Reduce(d.axes, d.reduced, d.op, E.cast(a, to) * E.cast(new_w, to))
    return Contraction(value, a, new_w, panel, batch, rows, column, order, vectors, spatial, dot)


def _product(variables: Sequence[Expr]) -> int | None:
    total = 1
    for v in variables:
        n = static(v.args[0])
        if n is None:
            return None
        total *= n
    return total


def _is_window(a: Expr, rows: Sequence[Expr], k: Sequence[Expr]) -> bool:
    """Some index of `a` adds a position and a tap: a convolution."""
    for i in a.args:
        used = E.variables(i)
        if any(r in used for r in rows) and any(r in used for r in k):
            return True
    return False


def _block_of(storage: Storage, a: Expr, variable: Expr) -> int:
    """The block size where `variable` runs along the blocked axis of `a`'s memory, else 0."""
    root, at = storage.resolve(a.attr, a.args)
    layout = storage.layout(root)
    axis = layout.blocked_axis
    return layout.block if axis >= 0 and at[axis] is variable else 0


def _k_order(storage: Storage, a: Expr, k: Sequence[Expr]) -> list[Expr]:
    """The reduced variables from the largest stride to the smallest; a blocked one last."""
    blocked = [r for r in k if _block_of(storage, a, r)]

    def size(r: Expr) -> float:
        s = step(storage, a, r)
        known = static(s) if s is not None else None
        return float("inf") if known is None else abs(known)

    rest = sorted((r for r in k if r not in blocked), key=lambda r: -size(r))
    return [*rest, *blocked]


def _panel(
    program: Program,
    storage: Storage,
    value: Value,
    w: Expr,
    batch: Sequence[Expr],
    k: Sequence[Expr],
    column: Expr,
    lanes: int,
    dot: bool,
    block: int,
) -> Value:
    """The packed operand ``[batch..., k..., n]`` with its layout: panels of `lanes` columns."""
    order = [*batch, *k, column]
    fresh = [E.var(v.args[0]) for v in order]
    body = E.substitute(w, dict(zip(order, fresh)))
    shape = tuple(v.args[0] for v in order)
    panel = Value(f"{value.name}.panel", w.dtype, shape, Map(tuple(fresh), body), origin=value.origin)
    if isinstance(w.attr.definition, Constant) and all(static(s) is not None for s in shape):
        panel.definition = Constant(np.asarray(evaluate.value(panel, lambda v: v.array)))
    n = len(order) - 1
    dims: list[tuple[int, int, int]] = [(i, 1, 0) for i in range(len(batch))]
    dims.append((n, lanes, 0))
    inner = n - 1
    if block:
        dims.append((inner, block, 0))
        dims += [(i, 1, 0) for i in range(len(batch), inner)]
        tail = [(inner, 4, block // 4), (n, 1, lanes), (inner, 1, 4)] if dot else [(inner, 1, block), (n, 1, lanes)]
    else:
        dims += [(i, 1, 0) for i in range(len(batch), inner)]
        tail = [(inner, 4, 0), (n, 1, lanes), (inner, 1, 4)] if dot else [(inner, 1, 0), (n, 1, lanes)]
    storage.layouts[panel] = Layout((*dims, *tail))
    program.values.insert(program.values.index(value), panel)
    return panel


# --- the kernel ---------------------------------------------------------------------------------------


def build(c: Contraction, group: Group, storage: Storage, internal: set[Value], name: str, tiles: Tiles) -> Kernel | None:
    """The kernel of a group whose contraction is `c`: tiles, then the rest of the group on each."""
    anchor = group.anchor
    if anchor.shape != c.value.shape or group.members[0] is not c.value:
        return None
    d = c.value.definition
    assert isinstance(d, Reduce)
    nest = Nest(storage, internal, {})
    lanes = c.vectors * tiles.width
    builder = _Builder(c, group, nest, lanes, tiles)
    built = builder.run()
    if built is None:
        return None
    parallel, body = built
    writes = tuple(v for v in group.members if v not in internal)
    return finish(name, parallel, tuple(body), group, writes, "conv" if c.spatial else "gemm")


def member(c: Contraction, time: Expr, nest: Nest, tiles: Tiles) -> list[Stmt] | None:
    """The statements of a contraction within a recurrence, at step `time`."""
    d = c.value.definition
    assert isinstance(d, Reduce)
    group = Group([c.value], c.value.rank)
    built = _Builder(c, group, nest, c.vectors * tiles.width, tiles, {d.axes[0]: time}).run()
    if built is None:
        return None
    variables, body = built
    for v in reversed(variables):
        body = [For(v, v.args[0], tuple(body))]
    return body


class _Builder:
    def __init__(
        self,
        c: Contraction,
        group: Group,
        nest: Nest,
        lanes: int,
        tiles: Tiles,
        fixed: dict[Expr, Expr] | None = None,
    ) -> None:
        self.c, self.group, self.nest, self.lanes, self.tiles = c, group, nest, lanes, tiles
        self.fixed = fixed or {}
        self.storage = nest.storage
        d = c.value.definition
        assert isinstance(d, Reduce)
        self.d = d
        self.acc_type = d.body.dtype

    def run(self) -> tuple[tuple[Expr, ...], list[Stmt]] | None:
        c = self.c
        panels = E.var(E.floordiv(c.column.args[0] + (self.lanes - 1), self.lanes), "n")
        if static(panels.args[0]) == 1:
            panels = E.const(0)
        nests = self._nests()
        if nests is None:
            return None
        parallel = [b for b in c.batch]
        rows = self._joined(list(c.rows))
        if not rows:
            return self._finish(parallel, panels, [], [(E.const(0), {}, (0,), None, None)], nests)
        tile = self.tiles.rows(c.vectors)
        last = rows[-1][0]
        size = static(last.args[0])
        step_ = self._step(rows, -1)
        outer = rows[:-1]
        if size is None or static(step_) is None:
            return self._run_time_rows(parallel, panels, rows, nests, tile)
        choices: list[tuple[Expr, dict[Expr, Expr], tuple[int, ...], Expr | None, Expr | None]] = []
        second = outer[-1][0] if outer else None
        second_size = static(second.args[0]) if second is not None else None
        if second is not None and size <= tile // 2 and second_size is not None and second_size > 1:
            across = static(self._step(rows, -2))
            along = static(step_)
            if across is not None and along is not None:
                height = min(second_size, max(tile // size, 1))
                for start, count, h in balanced(second_size, height):
                    t = E.const(0) if count == 1 else E.var(count, "y")
                    offsets = tuple(y * across + x * along for y in range(h) for x in range(size))
                    grid = (h, size)
                    choices.append((t, {second: t * h + start, last: E.const(0)}, offsets, *_grid(grid, second, last)))
                return self._finish([*parallel, *(r for r, _ in outer[:-1])], panels, rows, choices, nests)
        along = static(step_)
        assert along is not None
        for start, count, w in balanced(size, tile):
            t = E.const(0) if count == 1 else E.var(count, "x")
            offsets = tuple(x * along for x in range(w))
            choices.append((t, {last: t * w + start}, offsets, *_grid((1, w), None, last)))
        return self._finish([*parallel, *(r for r, _ in outer)], panels, rows, choices, nests)

    # --- rows ---

    def _joined(self, rows: list[Expr]) -> list[tuple[Expr, dict[Expr, Expr]]]:
        """Row variables with what they stand for; neighbours become one where every address allows it."""
        live = [(r, {}) for r in rows]
        result: list[tuple[Expr, dict[Expr, Expr]]] = []
        current = [r for r, _ in live]
        mapping: dict[Expr, Expr] = {}
        while len(current) >= 2:
            outer, inner = current[-2], current[-1]
            both = E.var(outer.args[0] * inner.args[0], "f")
            join = {outer: E.floordiv(both, inner.args[0]), inner: E.mod(both, inner.args[0])}
            trial = {**{v: E.substitute(e, join) for v, e in mapping.items()}, **join}
            if self._divides(trial):
                break
            mapping = trial
            current = [*current[:-2], both]
        for r in current:
            result.append((r, mapping))
        self.mapping = mapping
        return result

    def _divides(self, mapping: dict[Expr, Expr]) -> bool:
        """Some address would need a division under the mapping."""
        indices = [E.substitute(a, mapping) for a in self.d.axes]
        addresses = [self.storage.address(self.c.a.attr, [E.substitute(i, mapping) for i in self.c.a.args])[1]]
        for v in self.group.members:
            if v not in self.nest.internal:
                addresses.append(self.storage.address(v, indices)[1])
            if v is self.c.value:
                continue
            dv = v.definition
            if not isinstance(dv, Map):
                return True
            body = E.substitute(dv.body, dict(zip(dv.axes, indices)))
            for e in E.loads(body):
                if e.attr not in self.group.members:
                    addresses.append(self.storage.address(e.attr, e.args)[1])
            for e in E.walk(body):
                if e.op in ("lt", "eq", "cast") and any(a.dtype == E.INDEX for a in e.args):
                    return True
        return any(n.op in ("floordiv", "mod") and _row_dependent(n, mapping) for a in addresses for n in E.walk(a))

    def _step(self, rows: Sequence[tuple[Expr, dict[Expr, Expr]]], which: int) -> Expr:
        variable = rows[which][0]
        args = [E.substitute(i, self.mapping) for i in self.c.a.args]
        found = step(self.storage, E.load(self.c.a.attr, args), variable)
        assert found is not None
        return found

    def _run_time_rows(
        self,
        parallel: list[Expr],
        panels: Expr,
        rows: list[tuple[Expr, dict[Expr, Expr]]],
        nests: list[tuple[KNest, list[Expr]]],
        tile: int,
    ) -> tuple[tuple[Expr, ...], list[Stmt]]:
        last = rows[-1][0]
        t = E.var(E.floordiv(last.args[0] + (tile - 1), tile), "m")
        count = E.minimum(last.args[0] - t * tile, tile)
        choice = (t, {last: t * tile}, tuple([0] * tile), None, last)
        outer = [r for r, _ in rows[:-1]]
        return self._finish([*parallel, *outer], panels, rows, [choice], nests, count)

    # --- k ---

    def _nests(self) -> list[tuple[KNest, list[Expr]]] | None:
        """The loops over k with their run-time arguments."""
        c, lanes = self.c, self.lanes
        inner = c.k[-1]
        block = _block_of(self.storage, c.a, inner)
        steps = {r: step(self.storage, c.a, r) for r in c.k if not (block and r is inner)}
        if not block:
            loops, run_time = [], []
            for r in c.k:
                extent, stride = static(r.args[0]), static(steps[r]) if steps[r] is not None else None
                loops.append((extent, stride))
                run_time += [r.args[0]] if extent is None else []
                run_time += [steps[r]] if stride is None else []  # type: ignore[list-item]
            if c.dot and (loops[-1][0] is None or loops[-1][1] != 1):
                return None
            return [(KNest(tuple(loops)), run_time)]
        size = static(inner.args[0])
        if size is None:
            return None
        whole, rest = divmod(size, block)
        offset = self._block_stride(inner, block)
        middle = [(static(r.args[0]), static(steps[r]) if steps[r] is not None else None) for r in c.k[:-1]]
        if offset is None or any(e is None or s is None for e, s in middle):
            return None
        result = []
        if whole:
            result.append((KNest(((whole, offset), *middle, (block, 1))), []))
        if rest:
            used = -(-rest // 4) * 4 if c.dot else rest
            skip = (block - used) * lanes
            result.append((KNest((*middle, (used, 1)), whole * offset, skip), []))
        return result

    def _block_stride(self, inner: Expr, block: int) -> int | None:
        """Elements from one block of channels to the next in `a`."""
        at = dict.fromkeys(E.variables(*self.c.a.args), E.const(0))
        here = [E.substitute(i, at) for i in self.c.a.args]
        there = [E.substitute(i, {**at, inner: E.const(block)}) for i in self.c.a.args]
        first = self.storage.address(self.c.a.attr, here)[1]
        second = self.storage.address(self.c.a.attr, there)[1]
        return static(second - first)

    # --- the statements ---

    def _finish(
        self,
        parallel: list[Expr],
        panels: Expr,
        rows: list[tuple[Expr, dict[Expr, Expr]]],
        choices: Sequence[tuple[Expr, dict[Expr, Expr], tuple[int, ...], object, object]],
        nests: list[tuple[KNest, list[Expr]]],
        count: Expr | None = None,
    ) -> tuple[tuple[Expr, ...], list[Stmt]]:
        outer = [v for v in (*parallel, panels) if v.op == "var"]
        if not rows:
            self.mapping = {}
        only = len(choices) == 1
        body: list[Stmt] = []
        for t, at, offsets, height, last in choices:
            inner = self._tile(panels, at, offsets, nests, height, last, count)
            if count is not None:
                assert isinstance(last, Expr)
                row = E.var(count, "p")
                single = self._tile(panels, {**at, last: at[last] + row}, (0,), nests, None, None, None)
                inner = [If(E.lt(FEW_ROWS, count), tuple(inner), (For(row, count, tuple(single)),))]
            if t.op == "var" and not only:
                inner = [For(t, t.args[0], tuple(inner))]
            body += inner
        if only and choices[0][0].op == "var":
            outer.append(choices[0][0])
        return tuple(outer), body

    def _tile(
        self,
        panels: Expr,
        at: dict[Expr, Expr],
        offsets: tuple[int, ...],
        nests: list[tuple[KNest, list[Expr]]],
        height: object,
        last: object,
        count: Expr | None,
    ) -> list[Stmt]:
        c, lanes = self.c, self.lanes
        unit = (v for v in self.d.axes if static(v.args[0]) == 1)
        origin = {**dict.fromkeys((*unit, *self.d.reduced), E.const(0)), **self.fixed, **at}

        def logical(e: Expr, extra: dict[Expr, Expr]) -> Expr:
            return E.substitute(E.substitute(e, self.mapping), {**origin, **extra})

        a_at = tuple(logical(i, {}) for i in c.a.args)
        w_at = tuple(logical(i, {c.column: panels * lanes}) for i in c.w.args)
        kernel = Tile(
            offsets, count is not None, tuple(n for n, _ in nests), c.vectors, self.tiles.width,
            c.a.dtype, c.w.dtype, self.acc_type, c.dot, self._ahead(),
        )  # fmt: skip
        arguments: list[Expr] = []
        if count is not None:
            assert isinstance(last, Expr)
            args = [E.substitute(i, self.mapping) for i in c.a.args]
            stride = step(self.storage, E.load(c.a.attr, args), last)
            assert stride is not None
            arguments += [stride, count]
        for _, run_time in nests:
            arguments += run_time
        acc = Value("acc", self.acc_type, (E.const(len(offsets)), E.const(lanes)))
        flops = E.const(2 * len(offsets) * lanes) * E.product(r.args[0] for r in c.k)
        body: list[Stmt] = [
            Declare(acc),
            Micro(kernel, ((c.a.attr, a_at), (c.panel, w_at)), (acc, (E.const(0), E.const(0))), tuple(arguments), flops),
        ]
        return body + self._epilogue(acc, panels, logical, len(offsets), height, last, at, count)

    def _ahead(self) -> int:
        """Elements from one panel of constant weights to the next, where they are too many to stay
        in the cache from one inference to the next."""
        c = self.c
        if not c.panel.is_constant or c.panel.array.size < MIN_PREFETCH:
            return 0
        panels = -(-c.panel.array.shape[-1] // self.lanes)
        return static(self.storage.elements(c.panel) or 0) // panels  # type: ignore[operator]

    def _epilogue(
        self,
        acc: Value,
        panels: Expr,
        logical: object,
        rows: int,
        height: object,
        last: object,
        at: dict[Expr, Expr],
        count: Expr | None,
    ) -> list[Stmt]:
        c, lanes = self.c, self.lanes
        columns = c.column.args[0]
        row = E.const(0) if rows == 1 else E.var(count if count is not None else rows, "p")
        extra: dict[Expr, Expr] = {}
        if isinstance(last, Expr):
            if isinstance(height, tuple):
                second, width = height
                extra[second] = at[second] + E.floordiv(row, width)
                extra[last] = at[last] + E.mod(row, width)
            else:
                extra[last] = at[last] + row
        layout = self.storage.layout(self.storage.root(self.group.anchor))
        block = layout.block if layout.block > 1 else 0
        total = static(columns)
        if block and lanes % block == 0:
            strip = block
        else:
            strip = lanes
        pieces = lanes // strip
        piece = E.const(0) if pieces == 1 else E.var(pieces, "q")
        lane_base = piece * strip
        whole = total is not None and total % lanes == 0
        start = panels * lanes + lane_base
        stop: Expr = E.const(strip)
        guard: Expr = E.const(True, "bool")
        if not whole:
            if strip == block and stray_is_safe(self.storage, self.group.members, self.group.anchor):
                guard = E.lt(start, columns)
            else:
                stop = E.minimum(E.maximum(columns - start, 0), strip)
        lane = E.var(stop, "l")
        assert callable(logical)
        indices = [logical(a, {**extra, c.column: start + lane}) for a in self.d.axes]
        stores = self._members(acc, row, lane_base + lane, indices)
        body: Stmt = For(lane, stop, tuple(stores), "simd")
        if not guard.is_const:
            body = If(guard, (body,))
        if piece.op == "var":
            body = For(piece, piece.args[0], (body,))
        if row.op == "var":
            body = For(row, row.args[0], (body,))
        return [body]

    def _members(self, acc: Value, row: Expr, lane: Expr, indices: Sequence[Expr]) -> list[Stmt]:
        """The rest of the group at one element of the tile."""
        here = E.load(acc, (row, lane))
        body: list[Stmt] = []
        scalars: dict[Value, Expr] = {self.c.value: here}

        def local(node: Expr) -> Expr | None:
            return scalars.get(node.attr) if node.op == "load" else None

        if self.c.value not in self.nest.internal:
            body.append(Store(self.c.value, tuple(indices), here))
        for v in self.group.members[1:]:
            dv = v.definition
            assert isinstance(dv, Map)
            value = E.transform(E.substitute(dv.body, dict(zip(dv.axes, indices))), local)
            if v in self.nest.internal:
                scalars[v] = value
            else:
                body.append(Store(v, tuple(indices), value))
        return body


def _row_dependent(node: Expr, mapping: dict[Expr, Expr]) -> bool:
    joined = {v for e in mapping.values() for v in E.variables(e)}
    return bool(joined & E.variables(node))


def _grid(shape: tuple[int, int], second: Expr | None, last: Expr) -> tuple[object, Expr]:
    """How a tile's row number splits into positions: (second variable, width), or None for one axis."""
    return ((second, shape[1]) if second is not None else None), last


def balanced(size: int, tile: int) -> list[tuple[int, int, int]]:
    """(start, count, width) of tiles of nearly equal width that cover `size`, at most `tile` wide."""
    count = -(-size // tile)
    base, wider = divmod(size, count)
    result = []
    if wider:
        result.append((0, wider, base + 1))
    if count - wider:
        result.append((wider * (base + 1), count - wider, base))
    return result

