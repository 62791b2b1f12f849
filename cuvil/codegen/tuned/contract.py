"""Tuned contractions: convolutions and matrix products on packed weights, tile by tile.

A tile's sums are left in a small local array by a micro-kernel (`micro`), and the rest of the group
runs over that array: the epilogue is the same fused expression that plain loops would compute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cuvil.codegen.tuned.isa import Tiles
from cuvil.codegen.tuned.micro import KNest, Tile
from cuvil.codegen.tuned.pack import Contraction, block_of, step
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.loops import Declare, For, If, Kernel, Let, Micro, Stmt, Store
from cuvil.ir.primitives import Map, Reduce, Value, static
from cuvil.schedule.group import Group
from cuvil.schedule.nest import Nest, finish
from cuvil.schedule.storage import Storage
from cuvil.schedule.stray import stray_is_safe

FEW_ROWS = 2
"""Rows of a run-time count up to which a tile of many rows is not worth its idle ones."""

MIN_PREFETCH = 150_000
"""Elements of weights from which the next panel is prefetched."""

MIN_TURNED = 8192
"""Elements of weights of a recurrence, as many as may stay in the first cache, beyond which every other step
goes through them from the end, and so meets first what the step before it left there."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Tiles of rows that share one micro-kernel.

    Attributes:
        number: the variable that counts the tiles, these and others (a constant where there is one tile).
        until: the number of the first tile after these.
        at: the row variables at a tile's first row.
        offsets: element offset of each row of the tile in `a`.
        last: the innermost row variable, None where the contraction has no rows.
        second: the variable of the tile's lines where it covers several, `width` rows each.
        count: rows that are to be stored, where that is known at run time only.
    """

    number: Expr
    at: dict[Expr, Expr]
    offsets: tuple[int, ...]
    last: Expr | None = None
    second: Expr | None = None
    width: int = 0
    count: Expr | None = None
    until: int = 0

    def indices(self, row: Expr) -> dict[Expr, Expr]:
        """The row variables at row number `row` of the tile."""
        if self.last is None:
            return {}
        if self.second is None:
            return {self.last: self.at[self.last] + row}
        line, place = E.floordiv(row, self.width), E.mod(row, self.width)
        return {self.second: self.at[self.second] + line, self.last: self.at[self.last] + place}

    def inside(self, row: Expr) -> Expr | None:
        """Whether row number `row` is one of the result; None where all are."""
        return None


KLoops = tuple[KNest, list[Expr]]
"""A nest of loops over k and its run-time arguments."""


def build(
    c: Contraction, group: Group, storage: Storage, internal: set[Value], name: str, tiles: Tiles
) -> Kernel | None:
    """The kernel of a group whose contraction is `c`: tiles, then the rest of the group on each."""
    if group.anchor.shape != c.value.shape or group.members[0] is not c.value:
        return None
    built = Builder(c, group, Nest(storage, internal, {}), tiles).run()
    if built is None:
        return None
    parallel, body = built
    writes = tuple(v for v in group.members if v not in internal)
    return finish(name, parallel, tuple(body), group, writes, storage, "conv" if c.spatial else "gemm")


def member(c: Contraction, time: Expr, nest: Nest, tiles: Tiles) -> list[Stmt] | None:
    """The statements of a contraction within a recurrence, at step `time`."""
    d = c.value.definition
    assert isinstance(d, Reduce)
    builder = Builder(c, Group([c.value], c.value.rank), nest, tiles, {d.axes[0]: time})
    if c.panel.is_constant and c.panel.array.size > MIN_TURNED:
        builder.turned = E.mod(time, 2)
    built = builder.run()
    if built is None:
        return None
    variables, body = built
    for v in reversed(variables):
        body = [For(v, v.args[0], tuple(body))]
    return body


class Builder:
    """Builds the loops of one contraction kernel.

    Attributes:
        turned: whether to go through the weights from the end, where that changes from step to step.
    """

    turned: Expr | None = None

    def __init__(
        self, c: Contraction, group: Group, nest: Nest, tiles: Tiles, fixed: dict[Expr, Expr] | None = None
    ) -> None:
        d = c.value.definition
        assert isinstance(d, Reduce)
        self.c, self.d, self.group, self.nest, self.tiles = c, d, group, nest, tiles
        self.storage = nest.storage
        self.fixed = fixed or {}
        self.lanes = c.vectors * tiles.width
        self.acc_type = d.body.dtype
        self.vnni = c.dot and tiles.vnni and (c.a.dtype, c.w.dtype) == ("uint8", "int8")
        self.mapping: dict[Expr, Expr] = {}

    def run(self) -> tuple[tuple[Expr, ...], list[Stmt]] | None:
        """The parallel variables and the statements inside them."""
        loops = self.k_loops()
        if loops is None:
            return None
        panels = E.var(E.floordiv(self.c.column.args[0] + (self.lanes - 1), self.lanes), "n")
        panel: Expr = E.const(0) if static(panels.args[0]) == 1 else panels
        outer, choices = self._row_tiles()
        place = panel
        if self.turned is not None and panel.op == "var":
            place = E.var(panels.args[0], "n")
        numbers = [place] if place.op == "var" else []
        parallel = [*self.c.batch, *(numbers + outer if self._panels_first() else outer + numbers)]
        bodies: list[tuple[int, list[Stmt]]] = []
        for rows in choices:
            inner = self.row_tile(panel, rows, loops)
            if rows.count is not None and rows.last is not None:
                row, wide = E.var(rows.count, "p"), self._wide(panel)
                one = Rows(E.const(0), {**rows.at, rows.last: rows.at[rows.last] + row}, (0,))
                single: Stmt = For(row, rows.count, tuple(self.tile(panel, one, loops, wide)))
                if wide > 1:
                    single = If(E.eq(E.mod(panel, wide), 0), (single,))
                inner = [If(E.lt(FEW_ROWS, rows.count), tuple(inner), (single,))]
            bodies.append((rows.until, inner))
        number = choices[-1].number
        body = bodies[-1][1]
        for until, inner in bodies[-2::-1]:
            body = [If(E.lt(number, until), tuple(inner), tuple(body))]
        if place is not panel and self.turned is not None:
            last = panels.args[0] - 1
            body.insert(0, Let(panel, place + self.turned * (last - place * 2)))
        if number.op == "var":
            parallel.append(number)
        return tuple(parallel), body

    def _wide(self, panel: Expr) -> int:
        """Panels that a tile of one row covers, so that its sums hide the latency of a multiply-add; the
        first one's turn does them all."""
        count = static(panel.args[0]) if panel.op == "var" else None
        if count is None or not self.c.panel.is_constant or self.c.dot:
            return 1
        lanes = {n: n * self.lanes for n in range(1, 10 // self.c.vectors + 1) if count % n == 0}
        choices = [n for n, size in lanes.items() if 0 in (size % self.c.pitch, self.c.pitch % size)]
        return min(choices, key=lambda n: abs(n * self.c.vectors - 8), default=1)

    def _panels_first(self) -> bool:
        """Go through all rows with one panel rather than through all panels with one row: where the
        packed operand is larger than what is read, it is the one to read from memory once."""
        packed = static(self.storage.elements(self.c.panel))
        read = static(E.product(self.c.a.attr.shape))
        return packed is not None and read is not None and packed > read

    # --- rows ---

    def _row_tiles(self) -> tuple[list[Expr], list[Rows]]:
        """The row variables that are looped over outside, and the tiles over the others."""
        rows = self._joined(list(self.c.rows))
        if not rows:
            return [], [Rows(E.const(0), {}, (0,))]
        tile = self.tiles.rows(self.c.vectors, 2 if self.c.dot and not self.vnni else 1)
        last = rows[-1]
        size, along = static(last.args[0]), static(self.row_step(last))
        if size is None or along is None:
            t = E.var(E.floordiv(last.args[0] + (tile - 1), tile), "m")
            count = E.minimum(last.args[0] - t * tile, tile)
            return rows[:-1], [Rows(t, {last: t * tile}, (0,) * tile, last, count=count)]
        lines = static(rows[-2].args[0]) if len(rows) > 1 else None
        across = self._line_step(rows[-2]) if len(rows) > 1 else None
        several = size <= tile // 2 and lines is not None and lines > 1 and across is not None
        cuts = balanced(lines or 0, max(tile // size, 1)) if several else balanced(size, tile)
        total = sum(times for _, times, _ in cuts)
        t = E.const(0) if total == 1 else E.var(total, "y" if several else "x")
        choices, done = [], 0
        for start, times, length in cuts:
            first = (t - done) * length + start
            done += times
            if several:
                offsets = tuple(y * (across or 0) + x * along for y in range(length) for x in range(size))
                at = {rows[-2]: first, last: E.const(0)}
                choices.append(Rows(t, at, offsets, last, rows[-2], size, until=done))
            else:
                offsets = tuple(x * along for x in range(length))
                choices.append(Rows(t, {last: first}, offsets, last, until=done))
        return rows[:-2] if several else rows[:-1], choices

    def _joined(self, rows: list[Expr]) -> list[Expr]:
        """Row variables, neighbours made one where every address allows it; fills `mapping`."""
        while len(rows) >= 2:
            outer, inner = rows[-2], rows[-1]
            both = E.var(outer.args[0] * inner.args[0], "f")
            join = {outer: E.floordiv(both, inner.args[0]), inner: E.mod(both, inner.args[0])}
            trial = {**{v: E.substitute(e, join) for v, e in self.mapping.items()}, **join}
            if self._divides(trial):
                break
            self.mapping = trial
            rows = [*rows[:-2], both]
        return rows

    def _divides(self, mapping: dict[Expr, Expr]) -> bool:
        """Some address would need a division under the mapping."""
        indices = [E.substitute(a, mapping) for a in self.d.axes]
        a_at = [E.substitute(i, mapping) for i in self.c.a.args]
        addresses = [self.storage.address(self.c.a.attr, a_at)[1]]
        for v in self.group.members:
            if v not in self.nest.internal:
                addresses.append(self.storage.address(v, indices)[1])
            d = v.definition
            if v is self.c.value or not isinstance(d, Map):
                continue
            body = E.substitute(d.body, dict(zip(d.axes, indices)))
            for e in E.walk(body):
                if e.op == "load" and e.attr not in self.group.members:
                    addresses.append(self.storage.address(e.attr, e.args)[1])
                elif e.op in ("lt", "eq", "cast") and any(a.dtype == E.INDEX for a in e.args):
                    return True
        joined = {v for e in mapping.values() for v in E.variables(e)}
        divisions = (n for a in addresses for n in E.walk(a) if n.op in ("floordiv", "mod"))
        return any(joined & E.variables(n) for n in divisions)

    def row_step(self, variable: Expr) -> Expr:
        args = [E.substitute(i, self.mapping) for i in self.c.a.args]
        found = step(self.storage, E.load(self.c.a.attr, args), variable)
        assert found is not None
        return found

    def _line_step(self, variable: Expr) -> int | None:
        """The step of a row variable that is not the innermost; None where lines are stored round."""
        args = [E.substitute(i, self.mapping) for i in self.c.a.args]
        found = step(self.storage, E.load(self.c.a.attr, args), variable)
        return None if found is None else static(found)

    # --- k ---

    def k_loops(self) -> list[KLoops] | None:
        """The loops over k: one nest, or over a blocked axis one over whole blocks and one over the
        rest of the last."""
        c = self.c
        inner = c.k[-1]
        block = c.block
        outer = c.k[:-1] if block else c.k
        steps = [step(self.storage, c.a, r) for r in outer]
        loops = [(static(r.args[0]), None if s is None else static(s)) for r, s in zip(outer, steps)]
        if not block:
            run_time: list[Expr] = []
            for r, s, (extent, stride) in zip(outer, steps, loops):
                if s is None:
                    return None
                run_time += [r.args[0]] if extent is None else []
                run_time += [s] if stride is None else []
            if c.dot and (loops[-1][0] is None or loops[-1][1] != 1):
                return None
            return [(KNest(tuple(loops)), run_time)]
        size, stride = static(inner.args[0]), self._block_stride(inner, block)
        if size is None or stride is None or any(None in pair for pair in loops):
            return None
        whole, rest = divmod(size, block)
        result: list[KLoops] = []
        if whole:
            result.append((KNest(((whole, stride), *loops, (block, 1))), []))
        if rest:
            used = -(-rest // 4) * 4 if c.dot else rest
            result.append((KNest((*loops, (used, 1)), whole * stride, (block - used) * c.pitch), []))
        return result

    def _block_stride(self, inner: Expr, block: int) -> int | None:
        """Elements from one block of channels to the next in `a`."""
        at = dict.fromkeys(E.variables(*self.c.a.args), E.const(0))
        here = [E.substitute(i, at) for i in self.c.a.args]
        there = [E.substitute(i, {**at, inner: E.const(block)}) for i in self.c.a.args]
        first = self.storage.address(self.c.a.attr, here)[1]
        second = self.storage.address(self.c.a.attr, there)[1]
        return static(second - first)

    # --- one tile ---

    def _logical(self, e: Expr, at: Mapping[Expr, Expr]) -> Expr:
        """An index of the primitives at a point of the tile loops."""
        unit = (v for v in self.d.axes if static(v.args[0]) == 1)
        zero = dict.fromkeys((*unit, *self.d.reduced), E.const(0))
        return E.substitute(E.substitute(e, self.mapping), {**zero, **self.fixed, **at})

    def row_tile(self, panel: Expr, rows: Rows, loops: list[KLoops]) -> list[Stmt]:
        """`tile`, apart where all rows of a run-time count are there, at offsets that are known."""
        partial = self.tile(panel, rows, loops)
        along = static(self.row_step(rows.last)) if rows.count is not None and rows.last is not None else None
        if along is None or rows.count is None:
            return partial
        height = len(rows.offsets)
        whole = replace(rows, offsets=tuple(p * along for p in range(height)), count=None)
        full = self.tile(panel, whole, loops)
        return [If(E.le(height, rows.count), tuple(full), tuple(partial))]

    def tile(self, panel: Expr, rows: Rows, loops: list[KLoops], wide: int = 1) -> list[Stmt]:
        """The sums of one tile by its micro-kernel, then the rest of the group; of `wide` panels."""
        c, zero, lanes = self.c, E.const(0), self.lanes * wide
        # one row reads straight on, which the machine foresees by itself
        ahead = self._ahead(lanes) if len(rows.offsets) > 1 else 0
        kernel = Tile(
            rows.offsets, rows.count is not None, tuple(n for n, _ in loops), c.vectors * wide,
            self.tiles.width, c.a.dtype, c.w.dtype, self.acc_type, c.dot, ahead, c.pitch,
            self._apart(), vnni=self.vnni, lanewise=c.lanewise,
        )  # fmt: skip
        start = {**rows.at, c.column: panel * self.lanes}
        a_at = tuple(self._logical(i, start) for i in c.a.args)
        w_at = tuple(self._logical(i, start) for i in c.w.args)
        arguments: list[Expr] = []
        if rows.count is not None and rows.last is not None:
            arguments += [self.row_step(rows.last), rows.count]
        for _, run_time in loops:
            arguments += run_time
        acc = Value("acc", self.acc_type, (E.const(len(rows.offsets)), E.const(lanes)))
        flops = E.const(2 * len(rows.offsets) * lanes) * E.product(r.args[0] for r in c.k)
        reads = ((c.a.attr, a_at), (c.panel, w_at))
        micro: Stmt = Micro(kernel, reads, (acc, (zero, zero)), tuple(arguments), flops)
        if self.turned is not None and len(rows.offsets) == 1 and self._has_one_loop(loops):
            back = Micro(replace(kernel, backward=True), reads, (acc, (zero, zero)), (), flops)
            micro = If(E.eq(self.turned, 0), (micro,), (back,))
        return [Declare(acc), micro, *self._epilogue(acc, panel, rows, wide)]

    @staticmethod
    def _has_one_loop(loops: list[KLoops]) -> bool:
        """k is one loop of known length and stride."""
        nests = [nest.loops for nest, _ in loops]
        return len(nests) == 1 and len(nests[0]) == 1 and None not in nests[0][0]

    def _apart(self) -> int:
        """Elements from one panel of constant weights to the next."""
        c = self.c
        total = static(self.storage.elements(c.panel)) if c.panel.is_constant else None
        if total is None or c.lanewise:
            return 0
        *batch, columns = (c.panel.array.shape[i] for i in (*range(len(c.batch)), -1))
        panels = math.prod(batch) * -(-columns // c.lanes) * (c.lanes // c.pitch)
        return total // int(panels)

    def _ahead(self, lanes: int) -> int:
        """Elements from the columns of a tile of `lanes` to those of the next, in constant weights that are
        too many to stay in the cache from one inference to the next."""
        panel = self.c.panel
        if not panel.is_constant or panel.array.size < MIN_PREFETCH:
            return 0
        return self._apart() * max(lanes // self.c.pitch, 1)

    def _epilogue(self, acc: Value, panel: Expr, rows: Rows, wide: int) -> list[Stmt]:
        """The group's other members, and the stores, over a tile of sums: strip by strip of its lanes, the
        strips of the last panel as far as there are columns."""
        members, inner, lanes = self.group.members, self.nest.internal, self.lanes * wide
        count = len(rows.offsets) if rows.count is None else rows.count
        row = E.const(0) if len(rows.offsets) == 1 else E.var(count, "p")
        block = block_of(self.storage, E.load(self.group.anchor, self.d.axes), self.c.column)
        strip = block if block > 1 and lanes % block == 0 else lanes

        def strips(first: Expr, width: Operand) -> list[Stmt]:
            """The strip that starts at lane `first` of each row."""
            lane = E.var(width, "l")
            at = {**rows.at, **rows.indices(row), self.c.column: panel * self.lanes + first + lane}
            indices = [self._logical(a, at) for a in self.d.axes]
            here = E.load(acc, (row, first + lane))
            return [
                For(
                    lane, lane.args[0], tuple(results(self.group, inner, self.c.value, here, indices)), "simd"
                )
            ]

        def whole(number: int) -> list[Stmt]:
            """The first `number` strips of each row."""
            piece = E.const(0) if number == 1 else E.var(number, "q")
            body = strips(piece * strip, strip) if number else []
            return [For(piece, piece.args[0], tuple(body))] if piece.op == "var" else body

        def over_rows(body: list[Stmt]) -> list[Stmt]:
            inside = rows.inside(row)
            body = body if inside is None else [If(inside, tuple(body))]
            return [For(row, row.args[0], tuple(body))] if row.op == "var" else body

        columns = static(self.c.column.args[0])
        if columns is None:
            left = self.c.column.args[0] - panel * self.lanes
            rest = over_rows(strips(E.const(0), E.minimum(E.maximum(left, 0), lanes)))
            return [If(E.le(lanes, left), tuple(over_rows(strips(E.const(0), lanes))), tuple(rest))]
        full, few = divmod(columns % lanes, strip)
        everything = over_rows(whole(lanes // strip))
        if not full and not few:
            return everything
        if few and strip == block and stray_is_safe(self.storage, members, inner, members[-1], self.c.value):
            full, few = full + 1, 0
        last = over_rows(whole(full) + (strips(E.const(full * strip), few) if few else []))
        more = E.lt(panel, columns // lanes * wide)
        return last if more.is_const and not more.attr else [If(more, tuple(everything), tuple(last))]


def results(
    group: Group, inside: set[Value], value: Value, here: Expr, indices: Sequence[Expr]
) -> list[Stmt]:
    """The stores of a group at one element, where `here` is what its contraction `value` sums up to there;
    members in `inside` need no memory."""
    body: list[Stmt] = []
    scalars: dict[Value, Expr] = {value: here}

    def local(node: Expr) -> Expr | None:
        return scalars.get(node.attr) if node.op == "load" else None

    if value not in inside:
        body.append(Store(value, tuple(indices), here))
    for v in group.members:
        d = v.definition
        if v is value:
            continue
        assert isinstance(d, Map)
        result = E.transform(E.substitute(d.body, dict(zip(d.axes, indices))), local)
        if v in inside:
            scalars[v] = result
        else:
            body.append(Store(v, tuple(indices), result))
    return body


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
