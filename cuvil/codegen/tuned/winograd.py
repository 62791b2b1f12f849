"""Winograd convolutions: fewer multiplications for 3x3 convolutions of stride 1.

A kernel works on blocks of tiles, each small enough for its transformed data to stay in the cache: it
transforms the inputs of the block, multiplies them with the transformed weights (one matrix product for each
of the (m + 2)^2 positions), and transforms the sums tile by tile, with the rest of the group on each.  The
transformed data lie in the workspace, apart for each thread.

Sums over many channels are cut into pieces of `PIECE`: the rounding errors of a long sum in one accumulator
grow with the square root of its length, and the output transform magnifies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuvil.codegen.tuned import transforms
from cuvil.codegen.tuned.contract import MIN_PREFETCH, balanced, results
from cuvil.codegen.tuned.isa import BLOCK, Tiles
from cuvil.codegen.tuned.micro import KNest, Tile
from cuvil.codegen.tuned.pack import block_of, recognise, step
from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Declare, For, If, Kernel, Micro, Stmt
from cuvil.ir.primitives import Constant, Map, Prepared, Program, Reduce, Value, static
from cuvil.schedule.group import Group
from cuvil.schedule.nest import finish
from cuvil.schedule.storage import Layout, Storage
from cuvil.schedule.stray import stray_is_safe

Dims = tuple[tuple[int, int, int], ...]
"""Dimensions of a `Layout`."""

PIECE = 64
"""Channels that one accumulator sums up."""

TRANSFORM = 23
"""Operations of a matrix product that take as long as transforming one element, of the inputs or the sums."""

CORE_BANDWIDTH = 17e9
"""Bytes a second of weights that one core reads from memory, at most."""

CACHED = 0.1
"""Part of that time that reading a byte takes where all weights of a program stay in the cache."""

MIN_GAIN = 1.1
"""Times faster than the direct convolution that is worth larger weights."""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on.

    Attributes:
        threads: that share a kernel.
        cache: bytes of a core's second cache.
        balance: floating-point operations in the time of reading a byte of weights.
        prepares: the library holds the weights as they are and transforms them at the start of its first run.
    """

    threads: int = 1
    cache: int = 1 << 20
    balance: float = 12.0
    prepares: bool = False


def machine(options: Mapping[str, Any]) -> Machine | None:
    """The machine of a device's part of the ``codegen`` slice; None where accuracy is to be strict, memory is
    small, or there are no vectors: such a device lacks the memory, too."""
    if options.get("accuracy") == "strict" or options.get("footprint") == "small":
        return None
    if int(options.get("vector_bits", 128)) < 128:
        return None
    peak, bandwidth = float(options.get("peak_f32", 0.0)), float(options.get("bandwidth", 0.0))
    cache = int(options.get("caches", {}).get("l2", 0)) or Machine.cache
    balance = peak / min(bandwidth, CORE_BANDWIDTH) if peak and bandwidth else Machine.balance
    return Machine(int(options.get("threads", 1)), cache, balance, options.get("footprint") == "file")


def weight_cost(program: Program, on: Machine) -> float:
    """Floating-point operations in the time of reading a byte of the program's weights, which may stay in the
    cache from one run to the next."""
    total = sum(v.array.nbytes for v in program.values if isinstance(v.definition, Constant))
    return on.balance * (CACHED if total <= on.cache // 2 else 1.0)


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution that is to be computed by F(m x m, 3 x 3).

    Attributes:
        value: the Reduce.
        source: the load of the inputs, [batch, channel, row, column].
        m: rows and columns of outputs of a tile.
        inputs, outputs: channels.
        height, width: of the outputs.
        line: elements of memory from one row of the inputs to the next.
        panel: the transformed weights [position, input, output], in panels of `pitch` outputs.
        vectors: in a tile's row of the matrix product.
    """

    value: Value
    source: Expr
    m: int
    inputs: int
    outputs: int
    height: int
    width: int
    line: int
    panel: Value
    pitch: int
    vectors: int


def pack(
    program: Program, storage: Storage, value: Value, tiles: Tiles, byte: float, prepares: bool
) -> Convolution | None:
    """The convolution `value` where it fits and pays (`choose`), its weights transformed in a value of their
    own: here, or with `prepares` by the library."""
    found, d = recognise(value), value.definition
    if found is None or not isinstance(d, Reduce) or value.rank != 4 or found.groups or found.batch:
        return None
    a, w = found.a, found.w
    if (a.dtype, w.dtype, d.body.dtype) != ("float32",) * 3 or not isinstance(w.attr.definition, Constant):
        return None
    taps = [_tap(a.args[i], d.axes[i], found.k) for i in (2, 3)] if a.attr.rank == 4 else [None]
    channel = next((r for r in found.k if r not in taps), None)
    if None in taps or channel is None or len(found.k) != 3 or found.column is not d.axes[1]:
        return None
    sizes = [static(n) for n in value.shape[1:]]
    line, side = (static(step(storage, a, d.axes[i]) or 0) for i in (2, 3))
    if None in sizes or not line or side != BLOCK or block_of(storage, a, channel) != BLOCK:
        return None
    outputs, height, width = (n or 0 for n in sizes)
    inputs = static(channel.args[0]) or 0
    m = choose(inputs, outputs, height, width, byte)
    if not m:
        return None
    packing = tiles.packing or tiles
    lanes = packing.vectors(outputs, True, height * width) * packing.width
    vectors = tiles.within(lanes, tiles.vectors(outputs, True, height * width))
    order = [E.var(n) for n in (outputs, inputs, 3, 3)]
    body = E.substitute(w, dict(zip((found.column, channel, *(t for t in taps if t)), order)))
    kernel = Value("taps", w.dtype, tuple(v.args[0] for v in order), Map(tuple(order), body))
    data = np.asarray(evaluate.value(kernel, lambda v: v.array))
    pitch = lanes if packing is tiles else BLOCK

    def add(name: str, made: Constant, axis: int, before: Dims, after: Dims) -> Value:
        """A constant in panels of `pitch` outputs, which are its `axis`."""
        v = Value(f"{value.name}.{name}", w.dtype, tuple(map(E.const, made.array.shape)), made,
                  origin=value.origin)  # fmt: skip
        panels = ((axis, lanes, 0), (axis, pitch, lanes // pitch)) if pitch < lanes else ((axis, pitch, 0),)
        storage.layouts[v] = Layout((*before, *panels, *after, (axis, 1, pitch)))
        program.values.insert(program.values.index(value), v)
        return v

    made = Constant(transforms.weights(m, data))
    if prepares:
        held = add("taps", Constant(data.reshape(outputs, inputs, 9)), 0, (), ((1, 1, 0), (2, 1, 0)))
        rows = -(-outputs // lanes) * (lanes // pitch) * inputs
        made = Prepared(made.array, held, transforms.WeightTransform(m, pitch), rows)
    panel = add("winograd", made, 2, ((0, 1, 0),), ((1, 1, 0),))
    return Convolution(value, a, m, inputs, outputs, height, width, line, panel, pitch, vectors)


def _tap(index: Expr, position: Expr, k: list[Expr]) -> Expr | None:
    """The variable of three taps where `index` is a position plus a tap."""
    _, terms = E.linear(index)
    taps = [r for r in k if terms.get(r) == 1]
    fits = len(terms) == 2 and terms.get(position) == 1 and len(taps) == 1
    return taps[0] if fits and static(taps[0].args[0]) == 3 else None


def choose(inputs: int, outputs: int, height: int, width: int, byte: float) -> int:
    """The m of the fastest F(m x m, 3 x 3) for a layer, 0 where the direct convolution is about as fast.

    Each takes its operations and the time of reading its weights, here in operations: `byte` for each byte.
    Outputs, and what is transformed, count as whole blocks of channels; transforming an element of the inputs
    or the sums counts as `TRANSFORM` operations.  With 210 GF and 12 operations a byte that is within 15 % of
    what was measured with 16 to 512 channels and maps of 7 to 96 (AVX-512).
    """
    k, n = (-(-c // BLOCK) * BLOCK for c in (inputs, outputs))
    products = float(inputs * n)
    best, least = 0, (18.0 * height * width + 36.0 * byte) * products / MIN_GAIN
    for m in (4, 2):
        positions, tiles = (m + 2) ** 2, -(-height // m) * -(-width // m)
        time = positions * (tiles * (2.0 * products + TRANSFORM * (k + n)) + 4.0 * products * byte)
        if time < least:
            best, least = m, time
    return best


def build(
    c: Convolution, group: Group, storage: Storage, internal: set[Value], name: str, tiles: Tiles, on: Machine
) -> Kernel | None:
    """The kernel of a group whose convolution is `c`."""
    if any(v.shape != c.value.shape or not isinstance(v.definition, (Map, Reduce)) for v in group.members):
        return None
    return _Builder(c, group, storage, internal, tiles, on).run(name)


class _Builder:
    """Builds the loops of one kernel.

    A block has `rows` x `columns` tiles, `tiles` in all; an item of columns of the matrix product has `lanes`
    outputs, `items` in all, `share` of them in a part that runs on its own.
    """

    def __init__(
        self, c: Convolution, group: Group, storage: Storage, internal: set[Value], shapes: Tiles, on: Machine
    ) -> None:
        self.c, self.group, self.storage, self.internal, self.shapes = c, group, storage, internal, shapes
        self.positions = (c.m + 2) ** 2
        self.down, self.across = -(-c.height // c.m), -(-c.width // c.m)
        self.rows, self.columns = block(c, on.cache)
        self.tiles = self.rows * self.columns
        self.lanes = c.vectors * shapes.width
        self.items = -(-c.outputs // self.lanes)
        blocks = -(-self.down // self.rows) * -(-self.across // self.columns)
        self.share = -(-self.items // parts(c, blocks, self.items, on.threads))
        slots = E.const(on.threads)
        self.slot = E.var(slots, "slot")
        self.lines = [-(-c.inputs // BLOCK) * self.tiles, self.share * self.tiles * self.lanes // BLOCK]
        self.lines = [n | 1 for n in self.lines]  # positions must not all fall on the same lines of a cache
        self.scratch = [
            Value(f"{c.value.name}.{what}", "float32", (slots, E.const(self.positions * n), E.const(BLOCK)))
            for what, n in zip(("tiles", "sums"), self.lines)
        ]

    def run(self, name: str) -> Kernel:
        """The kernel."""
        c = self.c
        self.image = _variable(c.value.shape[0], "n")
        self.part = _variable(-(-self.items // self.share), "c")
        self.block_row, self.block_column = (
            _variable(-(-total // size), what)
            for total, size, what in ((self.down, self.rows, "y"), (self.across, self.columns, "x"))
        )
        self.row_count = _left(self.down, self.rows, self.block_row)
        self.column_count = _left(self.across, self.columns, self.block_column)
        self.item_count = _left(self.items, self.share, self.part)
        body = (self._inputs(), self._products(), self._outputs())
        parallel = [v for v in (self.image, self.part, self.block_row, self.block_column) if v.op == "var"]
        writes = (*(v for v in self.group.members if v not in self.internal), *self.scratch)
        kernel = finish(name, parallel, body, self.group, writes, self.storage, "conv")
        return replace(kernel, reads=(*kernel.reads, c.panel), slot=self.slot)

    def _inputs(self) -> Stmt:
        """The inputs of the block, transformed; zeros for tiles that it lacks: they are multiplied with
        the others, and what happens to lie there may be slow to compute with."""
        c, m = self.c, self.c.m
        block, row = E.var(-(-c.inputs // BLOCK), "k"), E.var(self.rows, "r")
        number, x = self.block_row * self.rows + row, self.block_column * (self.columns * m)
        below, y = number * m, E.minimum(number, self.down - 1) * m
        axes = c.value.definition.axes if isinstance(c.value.definition, Reduce) else ()
        at = dict(zip(axes, (self.image, E.const(0), y, x)))
        start = [E.substitute(i, at) for i in c.source.args]
        zero = dict.fromkeys(set(E.variables(*start)) - set(E.variables(y, x, self.image)), E.const(0))
        start = [E.substitute(i, zero) for i in start]
        start[1] = start[1] + block * BLOCK
        kernel = transforms.InputTransform(m, self.shapes.width, c.line, self.lines[0] * BLOCK)
        to = (self.slot, block * self.tiles + row * self.columns, E.const(0))
        read, written = (self.columns * n * BLOCK for n in ((m + 2) * m, self.positions))
        micro = Micro(
            kernel,
            ((c.source.attr, tuple(start)),),
            (self.scratch[0], to),
            (E.const(self.columns), c.height + 2 - below, c.width + 2 - x),
            E.const(8 * written),
            (read, written),
        )
        return _loop(block, _loop(row, micro))

    def _products(self) -> Stmt:
        """The sums of the block: a matrix product for each position."""
        c = self.c
        position, item = E.var(self.positions, "p"), E.var(self.item_count, "q")
        column = (self.part * self.share + item) * self.lanes
        body: list[Stmt] = []
        zero = E.const(0)
        apart = c.inputs * c.pitch
        ahead = c.inputs * max(self.lanes, c.pitch) if c.panel.array.size >= MIN_PREFETCH else 0
        for first in range(0, c.inputs, PIECE):
            count = min(PIECE, c.inputs - first)
            whole, rest = divmod(count, BLOCK)
            nests = [KNest(((whole, self.tiles * BLOCK), (BLOCK, 1)))] if whole else []
            nests += [KNest(((rest, 1),), whole * self.tiles * BLOCK)] if rest else []
            for start, times, height in balanced(self.tiles, self.shapes.rows(c.vectors)):
                number = _variable(times, "t")
                tile = number * height + start
                kernel = Tile(
                    rows=tuple(BLOCK * i for i in range(height)), stride=False, nests=tuple(nests),
                    vectors=c.vectors, width=self.shapes.width, ahead=ahead, pitch=c.pitch, apart=apart,
                    adds=first > 0,
                )  # fmt: skip
                source = position * self.lines[0] + first // BLOCK * self.tiles + tile
                target = position * self.lines[1] + (item * self.tiles + tile) * (self.lanes // BLOCK)
                read, written = (self.slot, source, zero), (self.slot, target, zero)
                micro: Stmt = Micro(
                    kernel,
                    ((self.scratch[0], read), (c.panel, (position, E.const(first), column))),
                    (self.scratch[1], written),
                    flops=E.const(2 * height * self.lanes * count),
                    touches=(height * count, self.lanes * count, height * self.lanes),
                )
                if self.down % self.rows:
                    micro = If(E.lt(tile, self.row_count * self.columns), (micro,))
                body.append(_loop(number, micro))
        return _loop(position, _loop(item, *body))

    def _outputs(self) -> Stmt:
        """The sums transformed tile by tile, and the rest of the group on each tile."""
        c, m = self.c, self.c.m
        item, strip = E.var(self.item_count, "q"), _variable(self.lanes // BLOCK, "s")
        row, column = E.var(self.row_count, "r"), E.var(self.column_count, "t")
        y = (self.block_row * self.rows + row) * m
        x = (self.block_column * self.columns + column) * m
        acc = Value("acc", "float32", (E.const(m * m), E.const(BLOCK)))
        kernel = transforms.OutputTransform(m, self.shapes.width, self.lines[1] * BLOCK)
        tile = item * self.tiles + row * self.columns + column
        source = (self.slot, tile * (self.lanes // BLOCK) + strip, E.const(0))
        micro = Micro(
            kernel,
            ((self.scratch[1], source),),
            (acc, (E.const(0), E.const(0))),
            flops=E.const(8 * self.positions * BLOCK),
            touches=(self.positions * BLOCK, m * m * BLOCK),
        )
        first = (self.part * self.share + item) * self.lanes + strip * BLOCK
        down = E.var(E.minimum(c.height - y, m) if c.height % m else m, "i")
        along = E.var(E.minimum(c.width - x, m) if c.width % m else m, "j")
        lane = E.var(BLOCK, "l")
        indices = (self.image, first + lane, y + down, x + along)
        stores = tuple(
            results(self.group, self.internal, c.value, E.load(acc, (down * m + along, lane)), indices)
        )
        if c.outputs % BLOCK and not self._stray():
            stores = (If(E.lt(first + lane, c.outputs), stores),)
        body = _loop(
            row,
            _loop(
                column,
                Declare(acc),
                micro,
                _loop(down, _loop(along, For(lane, lane.args[0], stores, "simd"))),
            ),
        )
        if self.items * self.lanes - c.outputs >= BLOCK:
            body = If(E.lt(first, c.outputs), (body,))
        return _loop(item, _loop(strip, body))

    def _stray(self) -> bool:
        members = self.group.members
        return stray_is_safe(self.storage, members, self.internal, members[-1], self.c.value)


def block(c: Convolution, cache: int) -> tuple[int, int]:
    """Rows and columns of tiles of a block: where the weights stay in the cache, so few that the transformed
    data stay there as well; else enough to be worth reading the weights again."""
    down, across = -(-c.height // c.m), -(-c.width // c.m)
    one = 4 * (c.m + 2) ** 2 * (c.inputs + c.outputs)
    most = max(cache // 8 // one, 14) if 2 * c.panel.array.nbytes <= cache else max(cache // one, 48)
    columns = -(-across // -(-across // most))
    rows = max(min(most // columns, down), 1)
    return -(-down // -(-down // rows)), columns


def parts(c: Convolution, blocks: int, items: int, threads: int) -> int:
    """Parts of the outputs that are computed on their own, each from inputs that it transforms itself, so
    that the last of the threads is done soonest."""

    def time(n: int) -> float:
        each = TRANSFORM * c.inputs + (2.0 * c.inputs + TRANSFORM) * c.outputs / n
        return -(-blocks * n // threads) * each

    return min(range(1, min(items, threads) + 1), key=time)


def _variable(extent: Expr | int, name: str) -> Expr:
    """A loop variable, or 0 where it has one value only."""
    return E.const(0) if static(extent) == 1 else E.var(extent, name)


def _left(total: int, size: int, number: Expr) -> Expr:
    """How much of `total` is in piece `number` of `size`."""
    return E.const(size) if total % size == 0 else E.minimum(total - number * size, size)


def _loop(variable: Expr, *body: Stmt) -> Stmt:
    """A loop, or the one statement inside where its variable is a constant."""
    if variable.op != "var":
        (statement,) = body
        return statement
    return For(variable, variable.args[0], body)
