"""Operators that read an image at positions that the data give: GridSample, RoiAlign, MaxUnpool."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, unflatten
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Stmt, Store
from cuvil.ir.primitives import Value, depends_on_data, elements, identity
from cuvil.ops.reduction import widened
from cuvil.ops.registry import Context, lowering
from cuvil.ops.resize import cubic

FAR = 1 << 30
"""Positions beyond this are as far outside as any."""

UNROLLED = 8
"""Taps up to which a weighted sum is written out."""


Term = Callable[[Sequence[Expr], Sequence[Expr]], Expr]
"""What one tap adds, of (index of the result, offsets of the tap)."""


@lowering("AffineGrid")
def affine_grid(c: Context) -> Value:
    """Positions of an even grid over [-1, 1], mapped by each batch entry's affine matrix."""
    theta = c.x
    sizes = c.ints(1, "size", 0) or []
    spatial = sizes[2:]
    rank = len(spatial)

    def coordinate(i: Expr, size: Expr) -> Expr:
        place, count = E.cast(i, theta.dtype), E.cast(size, theta.dtype)
        if c.attr("align_corners", 0):
            return place * 2 / E.maximum(count - 1, 1) - 1
        return (place * 2 + 1) / count - 1

    def body(n: Expr, *rest: Expr) -> Expr:
        position, k = rest[:-1], rest[-1]
        total = theta[(n, k, E.const(rank))]
        for j in range(rank):
            axis = rank - 1 - j
            total = total + theta[(n, k, E.const(j))] * coordinate(position[axis], spatial[axis])
        return total

    return c.b.map([theta.shape[0], *spatial, rank], body)


@lowering("GridSample")
def grid_sample(c: Context) -> Value:
    """X interpolated at the positions of a grid, -1 to 1 on each axis, the last axis first."""
    b, x, grid = c.b, c[0], c[1]
    mode, padding = c.attr("mode", "linear"), c.attr("padding_mode", "zeros")
    taps = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}.get(mode)
    if taps is None or padding not in ("zeros", "border", "reflection"):
        raise c.error(f"mode '{mode}' with padding '{padding}' is none of ONNX's")
    spatial = x.shape[2:]
    rank = len(spatial)
    aligned = bool(c.attr("align_corners", 0))
    places = grid.shape[1:-1]
    kind = grid.dtype

    def position(at: tuple[Expr, ...], axis: int) -> Expr:
        """Where a point of the grid lies on an axis of X, in elements."""
        g, size = grid[(*at, E.const(rank - 1 - axis))], E.cast(spatial[axis], kind)
        p = (g + 1) * 0.5 * (size - 1) if aligned else ((g + 1) * size - 1) * 0.5
        return bounded(p)

    positions = [b.map([grid.shape[0], *places], lambda *at, a=a: position(at, a)) for a in range(rank)]

    def first(p: Expr) -> Expr:
        whole = E.unary("round" if taps == 1 else "floor", p)
        return E.cast(whole, E.INDEX) - (1 if taps == 4 else 0)

    def source(i: Expr, size: Expr) -> tuple[Expr, Expr]:
        """The element that tap `i` reads, and whether it is inside."""
        clamped = E.minimum(E.maximum(i, 0), size - 1)
        if padding == "zeros":
            return clamped, E.le(0, i) & E.lt(i, size)
        if padding == "reflection":
            period = E.maximum((size - 1) * 2, 1) if aligned else size * 2
            m = E.mod(i, period)
            clamped = E.select(E.lt(m, size), m, period - (0 if aligned else 1) - m)
        return clamped, E.const(True, "bool")

    def term(at: Sequence[Expr], offsets: Sequence[Expr]) -> Expr:
        n, channel, *place = at
        where, share, inside = [], E.const(1, kind), E.const(True, "bool")
        for axis, offset in enumerate(offsets):
            p = positions[axis][(n, *place)]
            index, found = source(first(p) + offset, spatial[axis])
            where.append(index)
            inside &= found
            share = share * weight(p, offset, taps)
        value = E.select(inside, E.load(x, (n, channel, *where)), E.const(0, x.dtype))
        return value if taps == 1 else E.cast(value, kind) * share

    return b.cast(_weighted_sum(b, [x.shape[0], x.shape[1], *places], [taps] * rank, term), x.dtype)


def bounded(p: Expr) -> Expr:
    """A position that fits an index: what lies beyond `FAR`, and a NaN, becomes that far."""
    return E.minimum(E.maximum(E.const(-FAR, p.dtype), p), FAR)


def weight(p: Expr, offset: Expr, taps: int) -> Expr:
    """The weight of a tap at position `p`: linear, or Keys' cubic convolution with a = -0.75."""
    if taps == 1:
        return E.const(1, p.dtype)
    distance = E.unary("abs", E.cast(offset - (taps // 2 - 1), p.dtype) - (p - E.unary("floor", p)))
    return E.maximum(1 - distance, 0) if taps == 2 else cubic(distance, -0.75)


def _weighted_sum(b: Builder, shape: Sequence[Expr], taps: Sequence[int], term: Term) -> Value:
    """The sum of the terms of all combinations of taps."""
    if math.prod(taps) > UNROLLED:
        return b.reduce("sum", shape, taps, term)

    def body(*at: Expr) -> Expr:
        terms = [term(at, [E.const(o) for o in each]) for each in itertools.product(*map(range, taps))]
        return functools.reduce(E.add, terms)

    return b.map(shape, body)


@dataclass(frozen=True)
class Regions:
    """Regions of images, each cut into cells.

    Attributes:
        start: [regions, 2], where each begins on axis 0 (height) and 1 (width), in elements.
        width: [regions, 2], the extent of a cell.
        samples: [regions, 2], how many samples a cell has along each axis; None for `ratio`.
    """

    start: Value
    width: Value
    ratio: int
    samples: Value | None

    def count(self, r: Expr, axis: int) -> Expr:
        return E.const(self.ratio) if self.samples is None else self.samples[(r, E.const(axis))]

    def position(self, r: Expr, axis: int, cell: Expr, s: Expr) -> Expr:
        """Where sample `s` of a cell lies."""
        at, kind = (r, E.const(axis)), self.width.dtype
        width = self.width[at]
        step = (E.cast(s, kind) + 0.5) * width / E.cast(self.count(r, axis), kind)
        return self.start[at] + E.cast(cell, kind) * width + step


@lowering("RoiAlign")
def roi_align(c: Context) -> Value:
    """The mean or maximum of bilinear samples in each cell of each region."""
    b, x, rois = c.b, c[0], widened(c.b, c[1])
    ratio, cells = c.attr("sampling_ratio", 0), [c.attr("output_height", 1), c.attr("output_width", 1)]
    half = c.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale: float = c.attr("spatial_scale", 1.0)
    kind = rois.dtype

    def corner(r: Expr, column: Expr) -> Expr:
        return rois[(r, column)] * scale - (0.5 if half else 0.0)

    def width(r: Expr, axis: Expr) -> Expr:
        extent = corner(r, 3 - axis) - corner(r, 1 - axis)
        if not half:
            extent = E.maximum(extent, 1)
        return extent / E.select(E.eq(axis, 0), E.const(cells[0], kind), E.const(cells[1], kind))

    shape = [rois.shape[0], E.const(2)]
    starts, widths = b.map(shape, lambda r, axis: corner(r, 1 - axis)), b.map(shape, width)
    samples = None
    if ratio <= 0:
        samples = b.elementwise(lambda w: E.cast(bounded(E.unary("ceil", w)), E.INDEX), widths)
    regions = Regions(starts, widths, ratio, samples)
    op = "max" if c.attr("mode", "avg") == "max" else "sum"
    pool = _pooled if ratio > 0 else _pooled_adaptively
    return b.cast(pool(b, widened(b, x), c[2], regions, cells, op), x.dtype)


def _corners(p: Expr, size: Expr) -> tuple[Expr, list[tuple[Expr, Expr]]]:
    """Whether a position counts as inside of an axis, and the two elements around it with their weights."""
    inside = E.le(-1.0, p) & E.le(p, E.cast(size, p.dtype))
    p = E.minimum(E.maximum(E.const(0, p.dtype), p), E.cast(size - 1, p.dtype))
    low = E.cast(p, E.INDEX)
    part = p - E.cast(low, p.dtype)
    return inside, [(low, 1 - part), (E.minimum(low + 1, size - 1), part)]


def _sample(
    x: Value, image: Expr, channel: Expr, corners: Sequence[Sequence[tuple[Expr, Expr]]], op: str
) -> Expr:
    """The sum, or the largest, of the four weighted elements around a position."""
    pairs = itertools.product(*corners)
    terms = [E.load(x, (image, channel, y, z)) * E.cast(wy * wz, x.dtype) for (y, wy), (z, wz) in pairs]
    return functools.reduce(E.maximum if op == "max" else E.add, terms)


def _image(batch: Value, r: Expr, count: Expr) -> Expr:
    """The image that region `r` lies in."""
    return E.minimum(E.maximum(E.cast(batch[r], E.INDEX), 0), count - 1)


def _pooled(b: Builder, x: Value, batch: Value, regions: Regions, cells: Sequence[int], op: str) -> Value:
    """The same number of samples in every cell."""
    count, ratio = regions.start.shape[0], regions.ratio
    positions = [
        b.map([count, cells[a], ratio], lambda r, cell, s, a=a: regions.position(r, a, cell, s))
        for a in (0, 1)
    ]

    def value(i: tuple[Expr, ...], s: tuple[Expr, ...]) -> Expr:
        r, channel, *cell = i
        found = [_corners(positions[a][(r, cell[a], s[a])], x.shape[2 + a]) for a in (0, 1)]
        total = _sample(x, _image(batch, r, x.shape[0]), channel, [f[1] for f in found], op)
        return E.select(found[0][0] & found[1][0], total, E.const(0, x.dtype))

    y = b.reduce(op, [count, x.shape[1], *cells], [ratio, ratio], value)
    return y if op == "max" else b.elementwise(lambda v: v * (1.0 / (ratio * ratio)), y)


def _pooled_adaptively(
    b: Builder, x: Value, batch: Value, regions: Regions, cells: Sequence[int], op: str
) -> Value:
    """About one sample for each element that a cell covers; those outside of the image, which are 0, are
    counted but not visited.  Samples of a cell are between half an element and one element apart."""
    count, kind = regions.start.shape[0], regions.width.dtype
    most = [size * 2 + 8 for size in x.shape[2:]]

    def first(r: Expr, axis: int, cell: Expr) -> Expr:
        """The first sample that may be inside, or one before it."""
        at = (r, E.const(axis))
        width, samples = regions.width[at], regions.count(r, axis)
        ahead = -1.0 - (regions.start[at] + E.cast(cell, kind) * width)
        skipped = bounded(E.unary("floor", ahead * (E.cast(samples, kind) / width) - 1.5))
        return E.maximum(E.cast(skipped, E.INDEX), 0)

    def visited(r: Expr, axis: int, cell: Expr) -> Expr:
        return E.maximum(regions.count(r, axis) - firsts[axis][(r, cell)], 0)

    firsts = [b.map([count, cells[a]], lambda r, cell, a=a: first(r, a, cell)) for a in (0, 1)]
    numbers = [b.map([count, cells[a]], lambda r, cell, a=a: visited(r, a, cell)) for a in (0, 1)]
    assert regions.samples is not None
    read = [x, batch, regions.start, regions.width, regions.samples, *firsts, *numbers]

    def body(y: Value) -> Sequence[Stmt]:
        r, channel = E.var(count), E.var(x.shape[1])
        cell, steps = [E.var(n) for n in cells], [E.var(n, "s") for n in most]
        at = (r, channel, *cell)
        places = [Value("place", kind, ()) for _ in cells]
        found = [_corners(E.load(p, ()), size) for p, size in zip(places, x.shape[2:])]
        total = _sample(x, _image(batch, r, x.shape[0]), channel, [f[1] for f in found], op)
        visits = [E.minimum(numbers[a][(r, cell[a])], most[a]) for a in (0, 1)]
        zero = E.const(0, x.dtype)

        def each(*statements: Stmt) -> Stmt:
            return For(channel, x.shape[1], statements)

        outside = (each(Accumulate(y, at, op, zero)),) if op == "max" else ()
        loop: Stmt = If(found[0][0] & found[1][0], (each(Accumulate(y, at, op, total)),), outside)
        for a in (1, 0):
            where = regions.position(r, a, cell[a], firsts[a][(r, cell[a])] + steps[a])
            loop = For(steps[a], visits[a], (Store(places[a], (), where), loop))
        among = E.product(E.maximum(regions.count(r, a), 0) for a in (0, 1))
        if op == "max":
            all_inside = E.eq(E.product(visits), among) & E.lt(0, among)
            before = each(Store(y, at, E.select(all_inside, identity("max", x.dtype), zero)))
            loops: tuple[Stmt, ...] = (before, loop)
        else:
            mean = E.load(y, at) / E.cast(E.maximum(among, 1), x.dtype)
            loops = (each(Store(y, at, zero)), loop, each(Store(y, at, mean)))
        for v in (cell[1], cell[0], r):
            loops = (For(v, v.args[0], loops),)
        return [*map(Declare, places), *loops]

    return b.opaque(read, [(x.dtype, [count, x.shape[1], *map(E.const, cells)])], body)[0]


@lowering("MaxUnpool")
def max_unpool(c: Context) -> Value:
    """Zeros, with each value of X at its flat index of a MaxPool's input."""
    x, places = c[0], c[1]
    kernel = c.attr("kernel_shape")
    rank = len(kernel)
    strides, pads = c.attr("strides") or [1] * rank, c.attr("pads") or [0] * (2 * rank)
    natural = [
        (x.shape[2 + a] - 1) * strides[a] + (kernel[a] - pads[a] - pads[a + rank]) for a in range(rank)
    ]
    inner = [*x.shape[:2], *natural]
    shape = c.ints(2, "output_shape") or inner
    total = elements(inner)

    def at(*i: Expr) -> tuple[Sequence[Expr], Expr]:
        flat = E.minimum(E.maximum(E.cast(places[i], E.INDEX), 0), total - 1)
        return unflatten(flat, inner), x[i]

    if depends_on_data(*shape):
        for s, a in zip(shape, inner):
            c.b.derived(s - a, limits.MAX_SYMBOL)
        shape = [c.declared(k, s) for k, s in enumerate(shape)]
    elif any(E.upper_bound(a - s) > 0 for a, s in zip(inner, shape)):
        raise c.unsupported("output_shape must be known not to be smaller than strides and kernel say")
    return c.b.scatter(c.b.map(shape, lambda *i: E.const(0, x.dtype)), x.shape, at)


@lowering("MaxRoiPool")
def max_roi_pool(c: Context) -> Value:
    """The largest element in each cell of each region, whose corners are rounded to elements; 0 for a cell
    without any.  A row of the regions is (image, x1, y1, x2, y2)."""
    b, x, rois = c.b, c[0], widened(c.b, c[1])
    cells: list[int] = c.attr("pooled_shape")
    scale: float = c.attr("spatial_scale", 1.0)
    if x.rank != 4 or len(cells) != 2:
        raise c.error("the input must have two spatial axes, pooled_shape two entries")
    count, kind = rois.shape[0], rois.dtype
    size = x.shape[2:]

    def corner(r: Expr, column: int) -> Expr:
        """A corner, halves rounded away from 0."""
        place = bounded(rois[(r, E.const(column))] * scale)
        return E.select(E.lt(place, 0), E.unary("ceil", place - 0.5), E.unary("floor", place + 0.5))

    def edge(r: Expr, axis: int, cell: Expr, end: int) -> Expr:
        """The first element of a cell, or with `end` 1 the one after the last."""
        start, last = corner(r, 2 - axis), corner(r, 4 - axis)
        width = E.maximum(last - start + 1, 1) / cells[axis]
        place = E.unary("ceil" if end else "floor", E.cast(cell + end, kind) * width) + start
        return E.minimum(E.maximum(E.cast(place, E.INDEX), 0), size[axis])

    def extent(r: Expr, axis: int, cell: Expr) -> Expr:
        return edge(r, axis, cell, 1) - edge(r, axis, cell, 0)

    starts = [b.map([count, cells[a]], lambda r, cell, a=a: edge(r, a, cell, 0)) for a in (0, 1)]
    extents = [b.map([count, cells[a]], lambda r, cell, a=a: extent(r, a, cell)) for a in (0, 1)]
    images = b.map([count], lambda r: E.cast(bounded(rois[(r, E.const(0))]), E.INDEX))

    def body(y: Value) -> Sequence[Stmt]:
        r, channel, *inner = (E.var(n) for n in (count, x.shape[1], *size))
        cell = [E.var(n) for n in cells]
        at = (r, channel, *cell)
        spans = [E.minimum(v[(r, k)], n) for v, k, n in zip(extents, cell, size)]
        some = E.lt(0, spans[0]) & E.lt(0, spans[1])
        place = [first[(r, k)] + v for first, k, v in zip(starts, cell, inner)]
        take: Stmt = Accumulate(y, at, "max", E.load(x, (_image(images, r, x.shape[0]), channel, *place)))
        for v, n in zip(reversed(inner), reversed(spans)):
            take = For(v, n, (take,))
        before = Store(y, at, E.select(some, identity("max", x.dtype), E.const(0, x.dtype)))
        loops: tuple[Stmt, ...] = (before, take)
        for v in (cell[1], cell[0], channel, r):
            loops = (For(v, v.args[0], loops),)
        return loops

    inputs = [x, images, *starts, *extents]
    return b.opaque(inputs, [(x.dtype, [count, x.shape[1], *map(E.const, cells)])], body)[0]
