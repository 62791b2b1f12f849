"""Operators that read an image at positions that the data give: GridSample, RoiAlign, MaxUnpool."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Builder, Value, elements, unflatten
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
    sizes = c.known_ints(1, "size") or []
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
        return E.minimum(E.maximum(E.const(-FAR, kind), p), FAR)

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
        where, weight, inside = [], E.const(1, kind), E.const(True, "bool")
        for axis, offset in enumerate(offsets):
            p = positions[axis][(n, *place)]
            index, found = source(first(p) + offset, spatial[axis])
            where.append(index)
            inside &= found
            weight = weight * _weight(p, offset, taps)
        value = E.select(inside, E.load(x, (n, channel, *where)), E.const(0, x.dtype))
        return value if taps == 1 else E.cast(value, kind) * weight

    return b.cast(_weighted_sum(b, [x.shape[0], x.shape[1], *places], [taps] * rank, term), x.dtype)


def _weight(p: Expr, offset: Expr, taps: int) -> Expr:
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


@lowering("RoiAlign")
def roi_align(c: Context) -> Value:
    """The mean or maximum of bilinear samples in each cell of each region."""
    b, x, rois, batch = c.b, c[0], c[1], c[2]
    ratio: int = c.attr("sampling_ratio", 0)
    kind = x.dtype
    if ratio <= 0:
        raise c.unsupported("sampling_ratio 0 takes a number of samples that depends on the data")
    cells: list[int] = [c.attr("output_height", 1), c.attr("output_width", 1)]
    half = c.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale: float = c.attr("spatial_scale", 1.0)
    size = x.shape[2:]

    def corner(r: Expr, column: int) -> Expr:
        return rois[(r, E.const(column))] * scale - (0.5 if half else 0.0)

    def sample(r: Expr, axis: int, cell: Expr, s: Expr) -> Expr:
        """The position of a sample on axis 0 (height) or 1 (width)."""
        start, end = corner(r, 1 - axis), corner(r, 3 - axis)
        extent = end - start if half else E.maximum(end - start, 1)
        width = extent / cells[axis]
        return start + E.cast(cell, kind) * width + (E.cast(s, kind) + 0.5) * width / ratio

    op = "max" if c.attr("mode", "avg") == "max" else "sum"
    count = rois.shape[0]
    positions = [
        b.map([count, cells[a], ratio], lambda r, cell, s, a=a: sample(r, a, cell, s)) for a in range(2)
    ]

    def value(i: tuple[Expr, ...], s: tuple[Expr, ...]) -> Expr:
        r, channel, *cell = i
        inside, corners = E.const(True, "bool"), []
        for axis in range(2):
            p = positions[axis][(r, cell[axis], s[axis])]
            inside &= E.le(-1.0, p) & E.le(p, E.cast(size[axis], kind))
            top = E.cast(size[axis] - 1, kind)
            p = E.minimum(E.maximum(E.const(0, kind), p), top)
            low = E.cast(p, E.INDEX)
            part = p - E.cast(low, kind)
            corners.append([(low, 1 - part), (E.minimum(low + 1, size[axis] - 1), part)])
        image = E.minimum(E.maximum(E.cast(batch[r], E.INDEX), 0), x.shape[0] - 1)
        pairs = itertools.product(*corners)
        terms = [E.load(x, (image, channel, y, z)) * (wy * wz) for (y, wy), (z, wz) in pairs]
        total = functools.reduce(E.maximum if op == "max" else E.add, terms)
        return E.select(inside, total, E.const(0, kind))

    y = b.reduce(op, [count, x.shape[1], *cells], [ratio, ratio], value)
    return y if op == "max" else b.elementwise(lambda v: v * (1.0 / (ratio * ratio)), y)


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
    shape = c.known_ints(2, "output_shape") or inner
    total = elements(inner)

    def at(*i: Expr) -> tuple[Sequence[Expr], Expr]:
        flat = E.minimum(E.maximum(E.cast(places[i], E.INDEX), 0), total - 1)
        return unflatten(flat, inner), x[i]

    if any(E.upper_bound(a - s) > 0 for a, s in zip(inner, shape)):
        raise c.unsupported("output_shape must be known not to be smaller than strides and kernel say")
    return c.b.scatter(c.b.map(shape, lambda *i: E.const(0, x.dtype)), x.shape, at)
