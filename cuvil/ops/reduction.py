"""Reductions, softmax and the normalizations: sums over rows and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, broadcast_load
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value, depends_on_data, elements, identity, static
from cuvil.ops.registry import Context, lowering
from cuvil.ops.runtime import along, kept_sizes, named, split_axes
from cuvil.ops.windows import Window, pad, window


def _axes(c: Context) -> list[int]:
    given = c.static_ints(1, "axes")
    if not given:
        return [] if c.attr("noop_with_empty_axes", 0) else list(range(c.x.rank))
    return sorted(c.normal(a, c.x.rank) for a in given)


def count(x: Value, axes: Sequence[int], dtype: str) -> Expr:
    """The number of elements that a reduction over `axes` runs over, as `dtype`."""
    return E.cast(elements(x.shape[a] for a in axes), dtype)


def mean(b: Builder, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
    """The mean over `axes`."""
    wide = widened(b, x)
    total = b.reduce_axes("sum", wide, axes, keepdims)
    n = count(x, axes, wide.dtype)

    def divide(s: Expr) -> Expr:
        return E.cast(s * (1 / n) if n.is_const and E.is_float(wide.dtype) else s / n, x.dtype)

    return b.elementwise(divide, total)


@lowering(
    "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
def reduce(c: Context) -> Value:
    """A reduction over the axes of input 1 (all of them where it is omitted)."""
    kind, x = c.node.op.removeprefix("Reduce"), c.x
    keep = bool(c.attr("keepdims", 1))
    given = c.entries(1, "axes") or []
    if not depends_on_data(*given):
        return _reduce(c.b, kind, x, _axes(c), keep)
    flags = named(c.b, given, x.rank)
    view = split_axes(c.b, x, flags)
    result = _reduce(c.b, kind, view, list(range(x.rank, 2 * x.rank)), False)
    return result if keep else c.b.reshape(result, kept_sizes(c.b, x.shape, flags, x.rank - len(given)))


def _reduce(b: Builder, kind: str, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """One of the reductions over `axes`."""
    if kind in ("Max", "Min"):
        names = {"Max": "any", "Min": "all"} if x.dtype == "bool" else {"Max": "max", "Min": "min"}
        return b.reduce_axes(names[kind], x, axes, keep)
    return b.cast(_sum_like(b, kind, widened(b, x), axes, keep), x.dtype)


def _sum_like(b: Builder, kind: str, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The reductions that add or multiply."""
    if kind in ("Prod", "Sum"):
        return b.reduce_axes(kind.lower(), x, axes, keep)
    if kind == "Mean":
        return mean(b, x, axes, keep)
    if kind == "LogSumExp":
        largest = b.reduce_axes("max", x, axes, True)
        safe = b.elementwise(lambda m: E.select(E.unary("isinf", m), E.const(0, x.dtype), m), largest)
        shifted = b.elementwise(lambda v, m: E.unary("exp", v - m), x, safe)
        total = b.reduce_axes("sum", shifted, axes, True)
        result = b.elementwise(lambda s, m: E.unary("log", s) + m, total, safe)
        kept = [s for i, s in enumerate(x.shape) if i not in axes]
        return result if keep else b.reshape(result, kept)
    f = {"L1": lambda e: E.unary("abs", e), "LogSum": lambda e: e}.get(kind, lambda e: e * e)
    total = b.reduce_axes("sum", x, axes, keep, f)
    if kind == "L2":
        return b.elementwise(lambda e: E.unary("sqrt", e), total)
    return b.elementwise(lambda e: E.unary("log", e), total) if kind == "LogSum" else total


@lowering("ArgMax", "ArgMin")
def arg_reduce(c: Context) -> Value:
    """The index of the largest or smallest element along an axis, the first or last of equals."""
    x = c.x
    axis, keep, last = c.axis(x.rank), bool(c.attr("keepdims", 1)), bool(c.attr("select_last_index", 0))
    result = first_best(c.b, x, axis, "max" if c.node.op == "ArgMax" else "min", last)
    return result if keep else c.b.reshape(result, [s for i, s in enumerate(x.shape) if i != axis])


def first_best(b: Builder, x: Value, axis: int, op: str, last: bool = False) -> Value:
    """The index of the first (or last) largest or smallest element along an axis, which stays as 1."""
    best = b.reduce_axes(op, x, [axis], True)
    out = [E.const(1) if i == axis else s for i, s in enumerate(x.shape)]

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        at = tuple(r[0] if k == axis else v for k, v in enumerate(i))
        other = E.const(-1) if last else x.shape[axis]
        return E.select(E.eq(x[at], best[i]), r[0] + 0, other)

    return b.reduce("max" if last else "min", out, [x.shape[axis]], body)


def widened(b: Builder, x: Value) -> Value:
    """`x`, or its float32 form where sums in its own type would be too coarse."""
    return b.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


@lowering("Softmax", "LogSoftmax", "Hardmax")
def softmax(c: Context) -> Value:
    """exp(x - max) / sum along an axis, or its logarithm, or 1 at the first largest element."""
    x, axis = c.x, c.axis(c.x.rank, -1)
    if c.node.op == "Hardmax":
        return hardmax(c.b, x, axis)
    return log_softmax(c.b, x, axis) if c.node.op == "LogSoftmax" else softmax_value(c.b, x, axis)


def softmax_value(b: Builder, x: Value, axis: int) -> Value:
    """exp(x - max) / sum along an axis."""
    wide = widened(b, x)
    largest = b.reduce_axes("max", wide, [axis])
    powers = b.elementwise(lambda v, m: E.unary("exp", v - m), wide, largest)
    inverse = b.elementwise(lambda t: 1 / t, b.reduce_axes("sum", powers, [axis]))
    return b.elementwise(lambda v, t: E.cast(v * t, x.dtype), powers, inverse)


def log_softmax(b: Builder, x: Value, axis: int) -> Value:
    """x - max - log(sum(exp(x - max))) along an axis."""
    wide = widened(b, x)
    largest = b.reduce_axes("max", wide, [axis])
    shifted = b.elementwise(lambda v, m: v - m, wide, largest)
    total = b.reduce_axes("sum", shifted, [axis], True, lambda e: E.unary("exp", e))
    log = b.elementwise(lambda t: E.unary("log", t), total)
    return b.elementwise(lambda v, t: E.cast(v - t, x.dtype), shifted, log)


def hardmax(b: Builder, x: Value, axis: int) -> Value:
    """1 at the first largest element along an axis, 0 elsewhere."""
    first = first_best(b, x, axis, "max")

    def body(*i: Expr) -> Expr:
        at = tuple(E.const(0) if k == axis else v for k, v in enumerate(i))
        return E.cast(E.eq(first[at], i[axis]), x.dtype)

    return b.map(x.shape, body)


def normalized(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """((x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon)) over `axes`."""
    average = mean(b, x, axes)
    centred = b.elementwise(lambda v, m: v - m, x, average)
    variance = b.reduce_axes("sum", centred, axes, True, lambda e: e * e)
    n = count(x, axes, x.dtype)
    inverse = b.elementwise(lambda v: 1 / E.unary("sqrt", v / n + epsilon), variance)
    return b.elementwise(lambda v, s: v * s, centred, inverse), average, inverse


@lowering("LayerNormalization")
def layer_normalization(c: Context) -> list[Value]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the axes from `axis` on."""
    return layer_norm(c, c.x, c[1], c.optional(2), c.axis(c.x.rank, -1))


def layer_norm(c: Context, x: Value, scale: Value, bias: Value | None, first: int) -> list[Value]:
    """Layer normalization over the axes from `first` on, with the mean and the inverse deviation."""
    b = c.b
    axes = list(range(first, x.rank))
    normal, average, inverse = normalized(b, widened(b, x), axes, c.attr("epsilon", 1e-5))

    def f(*i: Expr) -> Expr:
        y = E.cast(normal[i], x.dtype) * broadcast_load(scale, i)
        return y if bias is None else y + broadcast_load(bias, i)

    return [b.map(x.shape, f), average, inverse]


@lowering("RMSNormalization")
def rms_normalization(c: Context) -> Value:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on."""
    return rms_norm(c, c.x, c[1], c.axis(c.x.rank, -1))[0]


def rms_norm(c: Context, x: Value, scale: Value, first: int) -> list[Value]:
    """RMS normalization over the axes from `first` on, with the inverse root of the mean square."""
    b, wide = c.b, widened(c.b, x)
    axes = list(range(first, x.rank))
    epsilon, n = c.attr("epsilon", 1e-5), count(x, axes, wide.dtype)
    squares = b.reduce_axes("sum", wide, axes, True, lambda e: e * e)
    inverse = b.elementwise(lambda s: 1 / E.unary("sqrt", s / n + epsilon), squares)

    def f(*i: Expr) -> Expr:
        normal = E.cast(wide[i] * broadcast_load(inverse, i), x.dtype)
        return normal * E.cast(broadcast_load(scale, i), x.dtype)

    return [b.map(x.shape, f), inverse]


@lowering("MeanVarianceNormalization")
def mean_variance_normalization(c: Context) -> Value:
    """(x - mean) / (sqrt(mean of squares - squared mean) + 1e-9) over `axes`."""
    b, x = c.b, c.x
    axes = [c.normal(a, x.rank) for a in c.attr("axes") or [0, 2, 3]]
    average = mean(b, x, axes)
    centred = b.elementwise(lambda v, m: v - m, x, average)
    squares = b.reduce_axes("sum", centred, axes, True, lambda e: e * e)
    n = count(x, axes, x.dtype)
    deviation = b.elementwise(lambda s: E.unary("sqrt", s / n) + 1e-9, squares)
    return b.elementwise(lambda v, d: v / d, centred, deviation)


@lowering("InstanceNormalization", "GroupNormalization")
def group_normalization(c: Context) -> Value:
    """Normalization of each group of channels (each channel for the instance form) over its
    spatial positions, then scale and bias per channel."""
    b, x, scale, bias = c.b, c.x, c[1], c[2]
    channels = x.shape[1]
    b.require_equal(channels, scale.shape[0])
    groups: Expr = channels if c.node.op == "InstanceNormalization" else E.const(c.attr("num_groups"))
    size = E.floordiv(channels, groups)
    split = b.reshape(widened(b, x), [x.shape[0], groups, size, *x.shape[2:]])
    normal, _, _ = normalized(b, split, list(range(2, split.rank)), c.attr("epsilon", 1e-5))
    back = b.reshape(normal, x.shape)
    return b.map(x.shape, lambda *i: E.cast(back[i], x.dtype) * scale[i[1]] + bias[i[1]])


@lowering("LpNormalization")
def lp_normalization(c: Context) -> Value:
    """x divided by its norm of order p along an axis."""
    b, x = c.b, c.x
    axis, p = c.axis(x.rank, -1), c.attr("p", 2)
    power: Callable[[Expr], Expr] = (lambda e: e * e) if p == 2 else (lambda e: E.unary("abs", e))
    total = b.reduce_axes("sum", x, [axis], True, power)
    norm = b.elementwise(lambda s: E.unary("sqrt", s), total) if p == 2 else total
    return b.elementwise(lambda v, n: E.select(E.eq(n, 0), n, v / n), x, norm)


@lowering("LRN")
def lrn(c: Context) -> Value:
    """Local response normalization across `size` channels."""
    b, x, size = c.b, c.x, c.attr("size")
    alpha, beta, bias = c.attr("alpha", 1e-4), c.attr("beta", 0.75), c.attr("bias", 1.0)
    before = (size - 1) // 2
    zeros = [0] * (x.rank - 2)
    padded = pad(b, x, [0, before, *zeros], [0, size - 1 - before, *zeros], E.const(0, x.dtype))

    def square(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        v = padded[(i[0], i[1] + r[0], *i[2:])]
        return v * v

    total = b.reduce("sum", x.shape, [size], square)
    return b.elementwise(
        lambda v, s: v / E.binary("pow", s * (alpha / size) + bias, E.const(beta, x.dtype)), x, total
    )


@lowering("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Context) -> Value:
    """The mean or maximum over all spatial positions."""
    axes = list(range(2, c.x.rank))
    return mean(c.b, c.x, axes) if c.node.op == "GlobalAveragePool" else c.b.reduce_axes("max", c.x, axes)


@lowering("MaxPool")
def max_pool(c: Context) -> list[Value]:
    """The maximum in each window, and on demand where it lies (flat index of the input)."""
    b, x = c.b, c.x
    kernel = c.attr("kernel_shape")
    win = window(c, x.shape[2:], kernel, bool(c.attr("ceil_mode", 0)))
    lowest = identity("max", x.dtype)
    padded = _pad_for(c, x, win, lowest)
    shape = [*x.shape[:2], *win.out]
    y = b.reduce("max", shape, kernel, lambda i, r: padded[(*i[:2], *win.at(i[2:], r))])
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return [y]

    def where(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        at = win.at(i[2:], r)
        flat = i[0] * x.shape[1] + i[1]
        source = [p - low for p, low in zip(at, win.begin)]
        spatial = range(len(source)) if not c.attr("storage_order", 0) else range(len(source) - 1, -1, -1)
        for axis in spatial:
            flat = flat * x.shape[2 + axis] + source[axis]
        return E.select(E.eq(padded[(*i[:2], *at)], y[i]), flat, E.const(1 << 62))

    return [y, b.reduce("min", shape, kernel, where)]


def _pad_for(c: Context, x: Value, win: Window, fill: Expr) -> Value:
    """`x` padded so that every tap of every window lies inside, also those that ceil mode lets hang
    over the end."""
    ends = []
    for axis, size in enumerate(x.shape[2:]):
        reach = (win.out[axis] - 1) * win.strides[axis] + ((win.kernel[axis] - 1) * win.dilations[axis] + 1)
        ends.append(E.maximum(win.end[axis], reach - size - win.begin[axis]))
    return pad(c.b, x, [0, 0, *win.begin], [0, 0, *ends], fill)


@lowering("AveragePool")
def average_pool(c: Context) -> Value:
    """The mean of each window; padding counts only if asked."""
    return average_value(c, c.x)


def average_value(c: Context, x: Value) -> Value:
    """The mean of each window of `x` that the node's attributes describe."""
    b = c.b
    kernel = c.attr("kernel_shape")
    win = window(c, x.shape[2:], kernel, bool(c.attr("ceil_mode", 0)))
    padded = _pad_for(c, x, win, E.const(0, x.dtype))
    shape = [*x.shape[:2], *win.out]
    total = b.reduce("sum", shape, kernel, lambda i, r: padded[(*i[:2], *win.at(i[2:], r))])
    include = bool(c.attr("count_include_pad", 0))

    def divide(*i: Expr) -> Expr:
        n: Expr = E.const(1)
        for axis, position in enumerate(i[2:]):
            n = n * _taps_inside(win, axis, position, x.shape[2 + axis], include)
        if n.is_const and E.is_float(x.dtype):
            taps: int = n.value
            return total[i] * (1.0 / taps)
        return total[i] / E.cast(n, x.dtype)

    return b.map(shape, divide)


def _taps_inside(win: Window, axis: int, position: Expr, size: Expr, include_pad: bool) -> Expr:
    """How many taps of the window at `position` lie in the input (or in its stated padding)."""
    kernel, stride, dilation = win.kernel[axis], win.strides[axis], win.dilations[axis]
    start = position * stride
    low = E.const(0) if include_pad else win.begin[axis]
    high = size + win.begin[axis] + (win.end[axis] if include_pad else 0)
    if E.upper_bound(low - start) <= 0 and E.upper_bound(start + (kernel - 1) * dilation + 1 - high) <= 0:
        return E.const(kernel)
    first = E.floordiv(E.maximum(low - start, 0) + (dilation - 1), dilation)
    last = E.minimum(E.floordiv(high - 1 - start, dilation), kernel - 1)
    return E.maximum(last - first + 1, 1)


@lowering("LpPool", "GlobalLpPool")
def lp_pool(c: Context) -> Value:
    """The norm of order p of each window, or of all spatial positions."""
    b, x, p = c.b, c.x, c.attr("p", 2)
    power = E.const(p, x.dtype)

    def term(e: Expr) -> Expr:
        return e * e if p == 2 else E.binary("pow", E.unary("abs", e), power)

    if c.node.op == "GlobalLpPool":
        total = b.reduce_axes("sum", x, list(range(2, x.rank)), True, term)
    else:
        kernel = c.attr("kernel_shape")
        win = window(c, x.shape[2:], kernel, bool(c.attr("ceil_mode", 0)))
        padded = _pad_for(c, x, win, E.const(0, x.dtype))
        shape = [*x.shape[:2], *win.out]
        total = b.reduce("sum", shape, kernel, lambda i, r: term(padded[(*i[:2], *win.at(i[2:], r))]))
    if p == 2:
        return b.elementwise(lambda s: E.unary("sqrt", s), total)
    return b.elementwise(lambda s: E.binary("pow", s, E.const(1 / p, x.dtype)), total)


@lowering("CumSum", "CumProd")
def cumulative(c: Context) -> Value:
    """Running sums or products along an axis, lowered as a recurrence over it."""
    b, x = c.b, c.x
    (given,) = c.ints(1, "axis", -x.rank, x.rank - 1) or [E.const(0)]
    if depends_on_data(given):
        line = along(b, x, E.select(E.lt(given, 0), given + x.rank, given))
        return b.reshape(_cumulative(c, line, 1), x.shape)
    return _cumulative(c, x, c.normal(static(given) or 0, x.rank))


def _cumulative(c: Context, x: Value, axis: int) -> Value:
    """Running sums or products of `x` along `axis`."""
    b = c.b
    step = E.add if c.node.op == "CumSum" else E.mul
    neutral = identity("sum" if c.node.op == "CumSum" else "prod", x.dtype)
    exclusive, reverse = c.attr("exclusive", 0), c.attr("reverse", 0)
    length = x.shape[axis]
    scan = b.scan(length)
    totals = b.member(scan, x.dtype, [s for i, s in enumerate(x.shape) if i != axis])

    def source(t: Expr, rest: tuple[Expr, ...]) -> Expr:
        at = list(rest)
        at.insert(axis, length - 1 - t if reverse else t)
        return E.load(x, at)

    def body(t: Expr, *rest: Expr) -> Expr:
        before = E.load(totals, (t - 1, *rest))
        if exclusive:
            return E.select(E.eq(t, 0), neutral, step(before, source(t - 1, rest)))
        return step(E.select(E.eq(t, 0), neutral, before), source(t, rest))

    b.define(totals, body)

    def back(*i: Expr) -> Expr:
        t = length - 1 - i[axis] if reverse else i[axis]
        return E.load(totals, (t, *(v for k, v in enumerate(i) if k != axis)))

    totals.capacity = x.capacity
    result = b.map(x.shape, back)
    result.capacity = x.capacity
    return result
