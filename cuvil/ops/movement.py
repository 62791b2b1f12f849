"""Operators that move elements: views, gathers, joins.  As index maps they cost nothing where they
fold into what reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, broadcast_load
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value, depends_on_data, elements, static
from cuvil.ops.registry import Context, lowering
from cuvil.ops.runtime import entry_of, kept_sizes, named, with_ones
from cuvil.ops.windows import pad, padded_size


@lowering("Shape")
def shape(c: Context) -> Value:
    """The input's shape, or a slice of it."""
    rank = c.x.rank
    start, end = c.attr("start", 0), c.attr("end", rank)
    start, end = (max(0, min(rank, v + rank if v < 0 else v)) for v in (start, end))
    return c.b.vector(c.x.shape[start:end])


@lowering("Size")
def size(c: Context) -> Value:
    """The number of elements."""
    total = elements(c.x.shape)
    return c.b.map([], lambda: total)


@lowering("Reshape")
def reshape(c: Context) -> Value:
    """The same elements under another shape; 0 copies a size, -1 is worked out."""
    given = c.ints(1, "shape", -1) or []
    if depends_on_data(*given):
        return c.b.reshape(c.x, _sizes_from_data(c, given))
    sizes: list[Expr] = []
    unknown = None
    for axis, s in enumerate(given):
        if static(s) == 0 and not c.attr("allowzero", 0):
            sizes.append(c.x.shape[axis])
        elif static(s) == -1:
            if unknown is not None:
                raise c.error("more than one size of the new shape is -1")
            unknown = axis
            sizes.append(E.const(1))
        else:
            sizes.append(s)
    if unknown is not None:
        sizes[unknown] = _quotient(c.x.shape, sizes)
    known = static(elements(c.x.shape)), static(elements(sizes))
    if None not in known and known[0] != known[1]:
        raise c.error(f"{known[0]} elements cannot be reshaped to {known[1]}")
    return c.b.reshape(c.x, sizes)


def _sizes_from_data(c: Context, given: Sequence[Expr]) -> list[Expr]:
    """The sizes that a shape from the data gives; the run ends with an error code where they hold another
    number of elements."""
    total = elements(c.x.shape)
    sizes = list(given)
    for axis, s in enumerate(given):
        if not c.attr("allowzero", 0):
            copied: Operand = c.x.shape[axis] if axis < c.x.rank else 0
            sizes[axis] = E.select(E.eq(s, 0), copied, s)
    free = [E.eq(s, -1) for s in sizes]
    c.b.require(E.lt(sum((E.select(f, 1, E.const(0)) for f in free), E.const(0)), 2))
    others = _limited_product([E.select(f, 1, s) for f, s in zip(free, sizes)], total)
    rest = E.floordiv(total, E.maximum(others, 1))
    most = limits.MAX_SYMBOL if c.attr("allowzero", 0) else total  # beside a 0 there may be anything
    sizes = [c.b.derived(E.select(f, rest, s), most) for f, s in zip(free, sizes)]
    sizes = [c.declared(k, s) for k, s in enumerate(sizes)]
    c.b.require(E.eq(_limited_product(sizes, total), total))
    return sizes


def _limited_product(sizes: Sequence[Expr], limit: Expr) -> Expr:
    """The product of sizes, or any number above `limit` where it is above that: it never overflows."""
    result: Expr = E.const(1)
    for s in sizes:
        result = E.minimum(result * s, limit + 1)
    return result


def _quotient(shape: Sequence[Expr], others: Sequence[Expr]) -> Expr:
    """The size that makes `others` hold as many elements as `shape`."""
    left, right = list(shape), []
    for s in others:
        if s in left and static(s) is None:
            left.remove(s)
        else:
            right.append(s)
    divisor = E.product(right)
    return E.const(0) if static(divisor) == 0 else E.floordiv(E.product(left), divisor)


@lowering("Flatten")
def flatten(c: Context) -> Value:
    """Two axes: those before `axis` and those from it on."""
    axis = c.attr("axis", 1)
    axis = axis + c.x.rank if axis < 0 else axis
    return c.b.reshape(c.x, [elements(c.x.shape[:axis]), elements(c.x.shape[axis:])])


@lowering("Squeeze")
def squeeze(c: Context) -> Value:
    """Without the given axes of size 1 (all of them where none is given)."""
    given = c.entries(1, "axes")
    if given and depends_on_data(*given):
        dropped = named(c.b, given, c.x.rank)
        sizes = kept_sizes(c.b, c.x.shape, dropped, c.x.rank - len(given))
        for flag, n in zip(dropped, c.x.shape):
            c.b.derived(E.select(flag, n, E.const(1)), 1, 1)
        return c.b.reshape(c.x, sizes)
    axes = c.static_ints(1, "axes")
    drop = (
        {c.normal(a, c.x.rank) for a in axes}
        if axes is not None
        else {i for i, s in enumerate(c.x.shape) if static(s) == 1}
    )
    kept = [i for i in range(c.x.rank) if i not in drop]

    def body(*i: Expr) -> Expr:
        at: list[Expr] = [E.const(0)] * c.x.rank
        for position, axis in zip(i, kept):
            at[axis] = position
        return c.x[tuple(at)]

    return c.b.map([c.x.shape[i] for i in kept], body)


@lowering("Unsqueeze")
def unsqueeze(c: Context) -> Value:
    """With axes of size 1 inserted."""
    given = c.entries(1, "axes") or []
    rank = c.x.rank + len(given)
    if depends_on_data(*given):
        return c.b.reshape(c.x, with_ones(c.b, c.x.shape, named(c.b, given, rank)))
    axes = c.static_ints(1, "axes") or []
    new = {c.normal(a, rank) for a in axes}
    if len(new) != len(axes):
        raise c.error(f"axes {axes} name one axis twice")
    source = iter(c.x.shape)
    sizes = [E.const(1) if i in new else next(source) for i in range(rank)]
    return c.b.map(sizes, lambda *i: c.x[tuple(v for k, v in enumerate(i) if k not in new)])


@lowering("Transpose")
def transpose(c: Context) -> Value:
    """Axes permuted; reversed where no permutation is given."""
    perm = c.attr("perm") or list(range(c.x.rank))[::-1]
    if sorted(perm) != list(range(c.x.rank)):
        raise c.error(f"perm {perm} is not a permutation of {c.x.rank} axes")
    return c.b.transpose(c.x, perm)


@lowering("Expand")
def expand(c: Context) -> Value:
    """Broadcast to a shape."""
    wanted = c.ints(1, "shape", 0) or []
    result = c.b.broadcast(c.x.shape, wanted)
    return c.b.map(result, lambda *i: broadcast_load(c.x, i))


@lowering("Tile")
def tile(c: Context) -> Value:
    """Repeated along each axis."""
    repeats = c.ints(1, "repeats", 0) or []
    sizes = [s * r for s, r in zip(c.x.shape, repeats)]
    return c.b.map(sizes, lambda *i: c.x[tuple(E.mod(p, s) for p, s in zip(i, c.x.shape))])


MAX_PARTS = 64
"""Parts of one expression; more are joined in several steps."""


def concat(b: Builder, parts: Sequence[Value], axis: int) -> Value:
    """The parts one after the other along `axis`."""
    if len(parts) > MAX_PARTS:
        runs = [parts[n : n + MAX_PARTS] for n in range(0, len(parts), MAX_PARTS)]
        return concat(b, [concat(b, run, axis) if len(run) > 1 else run[0] for run in runs], axis)
    starts: list[Expr] = [E.const(0)]
    for part in parts:
        starts.append(starts[-1] + part.shape[axis])
        for k in range(part.rank):
            if k != axis:
                b.require_equal(part.shape[k], parts[0].shape[k])
    sizes = list(parts[0].shape)
    sizes[axis] = starts[-1]

    def body(*i: Expr) -> Expr:
        result: Expr | None = None
        for part, start in reversed(list(zip(parts, starts))):
            at = tuple(v - start if k == axis else v for k, v in enumerate(i))
            inside = E.lt(i[axis], start + part.shape[axis])
            result = part[at] if result is None else E.select(inside, part[at], result)
        assert result is not None
        return result

    return b.map(sizes, body)


@lowering("Concat")
def concat_node(c: Context) -> Value:
    """The inputs one after the other along an axis."""
    parts = [c[i] for i in range(len(c.inputs))]
    axis = c.axis(parts[0].rank)
    live = [p for p in parts if static(p.shape[axis]) != 0] or parts[:1]
    return live[0] if len(live) == 1 else concat(c.b, live, axis)


@lowering("Split")
def split(c: Context) -> list[Value]:
    """Pieces along an axis: of the given sizes, or equal but for a smaller last one."""
    axis = c.axis(c.x.rank)
    sizes = c.ints(1, "split", 0, c.x.shape[axis])
    if sizes is not None and depends_on_data(*sizes):
        c.b.derived(sum(sizes, E.const(0)) - c.x.shape[axis], 0)
    if sizes is None:
        pieces = c.attr("num_outputs") or len(c.node.outputs)
        chunk = E.floordiv(c.x.shape[axis] + (pieces - 1), pieces)
        sizes = [chunk] * (pieces - 1) + [c.x.shape[axis] - chunk * (pieces - 1)]
    results, start = [], E.const(0)
    for s in sizes:
        results.append(narrow(c.b, c.x, axis, start, s))
        start = start + s
    return results


def narrow(b: Builder, x: Value, axis: int, start: Operand, size: Operand) -> Value:
    """`size` entries of `axis` from `start` on."""
    sizes = [E.wrap(size, E.INDEX) if i == axis else s for i, s in enumerate(x.shape)]
    return b.map(sizes, lambda *i: x[tuple(v + start if k == axis else v for k, v in enumerate(i))])


@lowering("Slice")
def slice_node(c: Context) -> Value:
    """numpy's slices along the given axes, negative steps included."""
    x = c.x
    starts, ends = c.entries(1, "starts") or [], c.entries(2, "ends") or []
    moving = [c.entries(3, "axes") or [], c.entries(4, "steps") or []]
    if depends_on_data(*starts, *ends, *moving[0], *moving[1]):
        return _slice_by_data(c, starts, ends, *moving)
    axes = c.static_ints(3, "axes") or list(range(len(starts)))
    steps = c.static_ints(4, "steps") or [1] * len(starts)
    sizes = list(x.shape)
    begin: list[Expr] = [E.const(0)] * x.rank
    stride = [1] * x.rank
    for axis, start, end, step in zip((c.normal(a, x.rank) for a in axes), starts, ends, steps):
        length = x.shape[axis]
        if step == 0:
            raise c.error("a step of 0 does not slice")
        low, high = (0, length) if step > 0 else (-1, length - 1)
        first = E.minimum(_clamp(_from_end(start, length), 0, high), high)
        last = _clamp(_from_end(end, length), low, length if step > 0 else length - 1)
        if step < 0 and end.is_const and end.attr < 0 and static(length) is None and end.attr <= -(1 << 31):
            last = E.const(-1)
        span = last - first if step > 0 else first - last
        sizes[axis] = E.maximum(E.floordiv(span + (abs(step) - 1), abs(step)), 0)
        begin[axis], stride[axis] = first, step
    return c.b.map(sizes, lambda *i: x[tuple(b + p * s for b, p, s in zip(begin, i, stride))])


def _slice_by_data(
    c: Context, starts: Sequence[Expr], ends: Sequence[Expr], axes: Sequence[Expr], steps: Sequence[Expr]
) -> Value:
    """A slice whose positions, axes or steps depend on the data."""
    b, x = c.b, c.x
    axes = [b.derived(a, x.rank - 1, -x.rank) for a in axes] or [E.const(k) for k in range(len(starts))]
    for step in steps:
        b.require(E.ne(step, 0))
    sizes, begin, stride = [], [], []
    for axis, n in enumerate(x.shape):

        def entry(values: Sequence[Expr], default: int, axis: int = axis) -> Expr:
            return entry_of(axes, x.rank, axis, values, default)

        start, end = entry(starts, 0), entry(ends, limits.MAX_SYMBOL)
        step = b.derived(_clamp(entry(steps, 1), -limits.MAX_SYMBOL, limits.MAX_SYMBOL),
                         limits.MAX_SYMBOL, -limits.MAX_SYMBOL)  # fmt: skip
        forward = E.lt(0, step)
        first = E.minimum(E.maximum(_from_end(start, n), 0), E.select(forward, n, n - 1))
        first = b.derived(first, n, -1)
        last = _clamp(_from_end(end, n), E.select(forward, 0, E.const(-1)), E.select(forward, n, n - 1))
        span = E.select(forward, last - first, first - last)
        pace = E.maximum(E.select(forward, step, -step), 1)
        sizes.append(b.derived(E.maximum(E.floordiv(span + pace - 1, pace), 0), n))
        begin.append(first)
        stride.append(step)
    return b.map(sizes, lambda *i: x[tuple(f + p * s for f, p, s in zip(begin, i, stride))])


_FAR = 1 << 61
"""Integers of this size are too large to count with."""

_TO_THE_END = (1 << 31) - 1
"""A position that exporters write for the end of an axis, or a larger one."""


def _from_end(position: Expr, length: Expr) -> Expr:
    if position.is_const and position.attr >= _TO_THE_END:
        return length
    if position.is_const:
        return position if position.attr >= 0 else length + position.attr
    return position if position.lo >= 0 else E.select(E.lt(position, 0), position + length, position)


def _clamp(position: Expr, low: Operand, high: Operand) -> Expr:
    return E.maximum(E.minimum(position, high), low)


@lowering("Gather")
def gather(c: Context) -> Value:
    """Entries of an axis picked by an index tensor; negative indices count from the end."""
    x, picks = c[0], c[1]
    axis = c.axis(x.rank)
    if depends_on_data(x.shape[axis]):
        c.b.require(E.lt(0, x.shape[axis]) | E.eq(elements(picks.shape), 0))
    sizes = [*x.shape[:axis], *picks.shape, *x.shape[axis + 1 :]]

    def body(*i: Expr) -> Expr:
        pick = picks[i[axis : axis + picks.rank]]
        return x[(*i[:axis], wrap_index(pick, x.shape[axis]), *i[axis + picks.rank :])]

    return c.b.map(sizes, body)


def wrap_index(pick: Expr, length: Expr) -> Expr:
    """An index from data made safe: negative ones count from the end, and what lies outside is
    clamped so that no load leaves its tensor."""
    position = E.cast(pick, E.INDEX)
    if position.is_const:
        return position if position.attr >= 0 else length + position.attr
    if E.loads(position):
        position = E.select(E.lt(position, 0), position + length, position)
        return E.minimum(E.maximum(position, 0), length - 1)
    return position


@lowering("GatherElements")
def gather_elements(c: Context) -> Value:
    """Elements picked along an axis by an index tensor of the output's shape."""
    x, picks = c[0], c[1]
    axis = c.axis(x.rank)
    return c.b.map(
        picks.shape,
        lambda *i: x[tuple(wrap_index(picks[i], x.shape[axis]) if k == axis else v for k, v in enumerate(i))],
    )


@lowering("GatherND")
def gather_nd(c: Context) -> Value:
    """Slices picked by index tuples in the last axis of the indices."""
    x, picks, batch = c[0], c[1], c.attr("batch_dims", 0)
    depth = static(picks.shape[-1])
    if depth is None:
        raise c.unsupported("the length of the index tuples must be known at compile time")
    outer = picks.shape[:-1]
    sizes = [*outer, *x.shape[batch + depth :]]

    def body(*i: Expr) -> Expr:
        head = i[: len(outer)]
        at = [wrap_index(picks[(*head, E.const(d))], x.shape[batch + d]) for d in range(depth)]
        return x[(*i[:batch], *at, *i[len(outer) :])]

    return c.b.map(sizes, body)


@lowering("ScatterND")
def scatter_nd(c: Context) -> Value:
    """A copy of the data with slices replaced, added to, multiplied, or maxed with updates."""
    x, picks, updates = c[0], c[1], c[2]
    depth = static(picks.shape[-1])
    if depth is None:
        raise c.unsupported("the length of the index tuples must be known at compile time")
    outer = picks.rank - 1

    def at(*i: Expr) -> tuple[list[Operand], Expr]:
        head = i[:outer]
        where = [wrap_index(picks[(*head, E.const(d))], x.shape[d]) for d in range(depth)]
        return [*where, *i[outer:]], updates[i]

    return c.b.scatter(x, updates.shape, at, _combine(c))


@lowering("ScatterElements")
def scatter_elements(c: Context) -> Value:
    """A copy of the data with single elements along an axis replaced or combined with updates."""
    x, picks, updates = c[0], c[1], c[2]
    axis = c.axis(x.rank)

    def at(*i: Expr) -> tuple[list[Operand], Expr]:
        where: list[Operand] = list(i)
        where[axis] = wrap_index(picks[i], x.shape[axis])
        return where, updates[i]

    return c.b.scatter(x, updates.shape, at, _combine(c))


def _combine(c: Context) -> str:
    reduction: str = c.attr("reduction", "none")
    return {"none": "set", "add": "sum", "mul": "prod"}.get(reduction, reduction)


@lowering("Pad")
def pad_node(c: Context) -> Value:
    """Padding with a constant, the edge, a reflection or by wrapping; negative amounts cut."""
    x, mode = c.x, c.attr("mode", "constant")
    amounts = c.ints(1, "pads") or []
    given = c.ints(3, "axes", -x.rank, x.rank - 1)
    axes = [E.const(a) for a in range(x.rank)] if given is None else given
    half = len(axes)
    begin = [entry_of(axes, x.rank, k, amounts[:half], 0) for k in range(x.rank)]
    end = [entry_of(axes, x.rank, k, amounts[half:], 0) for k in range(x.rank)]
    if mode == "constant":
        value = c.optional(2)
        fill = E.const(0, x.dtype) if value is None else value[(0,) * value.rank]
        return pad(c.b, x, begin, end, fill)
    sizes = [padded_size(c.b, *item) for item in zip(x.shape, begin, end)]
    for size, n in zip(sizes, x.shape):
        if depends_on_data(size):
            c.b.require(E.lt(0, n) | E.eq(size, 0))

    def source(position: Expr, low: Expr, length: Expr) -> Expr:
        p = position - low
        if mode == "edge":
            return E.minimum(E.maximum(p, 0), length - 1)
        if mode == "wrap":
            return E.mod(p + length * 8, length)
        if depends_on_data(low):
            p = E.mod(p, E.maximum((length - 1) * 2, 1))
        p = E.select(E.lt(p, 0), -p, p)
        return E.select(E.lt(length - 1, p), (length - 1) * 2 - p, p)

    return c.b.map(sizes, lambda *i: x[tuple(source(p, low, s) for p, low, s in zip(i, begin, x.shape))])


@lowering("CenterCropPad")
def center_crop_pad(c: Context) -> Value:
    """Cut or padded with zeros to a shape, evenly on both sides."""
    x, wanted = c.x, c.ints(1, "shape", 0) or []
    given = c.attr("axes")
    axes = list(range(x.rank)) if given is None else [c.normal(a, x.rank) for a in given]
    begin: list[Expr] = [E.const(0)] * x.rank
    end: list[Expr] = [E.const(0)] * x.rank
    for axis, size in zip(axes, wanted):
        more = size - x.shape[axis]
        begin[axis] = E.select(E.lt(more, 0), -E.floordiv(-more, 2), E.floordiv(more, 2))
        end[axis] = more - begin[axis]
    return pad(c.b, x, begin, end, E.const(0, x.dtype))


@lowering("ReverseSequence")
def reverse_sequence(c: Context) -> Value:
    """The first entries of each sequence in reverse, as many as its length says."""
    x, lengths = c[0], c[1]
    batch, time = c.attr("batch_axis", 1), c.attr("time_axis", 0)

    def body(*i: Expr) -> Expr:
        length = E.minimum(E.cast(lengths[i[batch]], E.INDEX), x.shape[time])
        t = E.select(E.lt(i[time], length), length - 1 - i[time], i[time])
        return x[tuple(t if k == time else v for k, v in enumerate(i))]

    return c.b.map(x.shape, body)


@lowering("ConstantOfShape")
def constant_of_shape(c: Context) -> Value:
    """A tensor filled with one value."""
    sizes = c.ints(0, "shape", 0) or []
    value = c.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    fill = E.const(array[0].item(), str(array.dtype))
    return c.b.map(sizes, lambda *i: fill)


@lowering("Range")
def range_node(c: Context) -> Value:
    """start, start + delta, ... below limit."""
    start, limit, delta = (v[(0,) * v.rank] for v in (c[0], c[1], c[2]))
    if start.dtype != E.INDEX and start.is_const and limit.is_const and delta.is_const:
        array = np.arange(start.attr, limit.attr, delta.attr).astype(c.x.dtype)
        return c.b.constant(array)
    if depends_on_data(start, limit, delta) or not delta.is_const:
        return _range_of_data(c, start, limit, delta)
    first, last = E.cast(start, E.INDEX), E.cast(limit, E.INDEX)
    step = int(delta.attr)
    span = last - first if step > 0 else first - last
    length = E.maximum(E.floordiv(span + (abs(step) - 1), abs(step)), 0)
    return c.b.map([length], lambda i: E.cast(first + i * step, c.x.dtype))


def _range_of_data(c: Context, start: Expr, limit: Expr, delta: Expr) -> Value:
    """A range whose ends or step depend on the data: max(ceil((limit - start) / delta), 0) numbers."""
    if E.is_float(start.dtype):
        first, last, step = (E.cast(e, "float64") for e in (start, limit, delta))
        real_count = E.unary("ceil", (last - first) / step)
        known = E.le(real_count, limits.MAX_SYMBOL) & E.ne(step, 0)
        count = E.select(E.lt(0, real_count), E.cast(real_count, E.INDEX), 0)
    else:
        first, last, step = (E.cast(e, E.INDEX) for e in (start, limit, delta))
        known = E.ne(step, 0)
        for e in (first, last, step):  # so that no difference overflows
            known = known & E.lt(-_FAR, e) & E.lt(e, _FAR)
        pace = E.select(E.lt(0, step), step, -step)
        span = E.select(E.lt(0, step), last - first, first - last)
        count = E.maximum(E.floordiv(span + pace - 1, pace), 0)
    length = c.b.derived(E.select(known, count, -1), limits.MAX_SYMBOL)
    real = "float32" if start.dtype in ("float16", "bfloat16") else start.dtype

    def entry(i: Expr) -> Expr:
        return E.cast(E.cast(start, real) + E.cast(i, real) * E.cast(delta, real), start.dtype)

    return c.b.map([length], entry)


@lowering("EyeLike")
def eye_like(c: Context) -> Value:
    """Ones on diagonal k, zeros elsewhere."""
    dtype, k = ONNX_TYPES[c.attr("dtype")] if c.attr("dtype") else c.x.dtype, c.attr("k", 0)
    return c.b.map(c.x.shape, lambda i, j: E.cast(E.eq(j - i, k), dtype))


@lowering("Trilu")
def trilu(c: Context) -> Value:
    """The upper or lower triangle, zeros elsewhere."""
    (k,) = c.entries(1, "k") or [E.const(0)]
    upper = c.attr("upper", 1)

    def body(*i: Expr) -> Expr:
        keep = E.le(i[-2] + k, i[-1]) if upper else E.le(i[-1], i[-2] + k)
        return E.select(keep, c.x[i], E.const(0, c.x.dtype))

    return c.b.map(c.x.shape, body)


@lowering("DepthToSpace")
def depth_to_space(c: Context) -> Value:
    """Blocks of channels moved to spatial positions."""
    n, channels, h, w = c.x.shape
    s = c.attr("blocksize")
    depth = E.floordiv(channels, s * s)

    def body(b: Expr, d: Expr, y: Expr, x: Expr) -> Expr:
        dy, dx = E.mod(y, s), E.mod(x, s)
        block = dy * s + dx
        channel = d * (s * s) + block if c.attr("mode", "DCR") == "CRD" else block * depth + d
        return c.x[(b, channel, E.floordiv(y, s), E.floordiv(x, s))]

    return c.b.map([n, depth, h * s, w * s], body)


@lowering("SpaceToDepth")
def space_to_depth(c: Context) -> Value:
    """Spatial blocks moved to channels."""
    n, channels, h, w = c.x.shape
    s = c.attr("blocksize")

    def body(b: Expr, d: Expr, y: Expr, x: Expr) -> Expr:
        if c.attr("mode", "DCR") == "CRD":
            source, block = E.floordiv(d, s * s), E.mod(d, s * s)
        else:
            source, block = E.mod(d, channels), E.floordiv(d, channels)
        return c.x[(b, source, y * s + E.floordiv(block, s), x * s + E.mod(block, s))]

    return c.b.map([n, channels * (s * s), E.floordiv(h, s), E.floordiv(w, s)], body)


@lowering("OneHot")
def one_hot(c: Context) -> Value:
    """On and off values by index along a new axis."""
    picks, values = c[0], c[2]
    (depth,) = c.ints(1, "depth", 0) or [E.const(0)]
    axis = c.normal(c.attr("axis", -1), picks.rank + 1)
    sizes = list(picks.shape)
    sizes.insert(axis, depth)

    def body(*i: Expr) -> Expr:
        pick = E.cast(picks[tuple(v for k, v in enumerate(i) if k != axis)], E.INDEX)
        pick = E.select(E.lt(pick, 0), pick + depth, pick)
        return E.select(E.eq(pick, i[axis]), values[1], values[0])

    return c.b.map(sizes, body)
