"""Contractions: matrix products and convolutions, all of them sums of products over index maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from cuvil.errors import ModelError
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, broadcast_load
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.primitives import Value, depends_on_data, elements, static
from cuvil.ops.registry import Context, lowering
from cuvil.ops.windows import pad, window

Factors = Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, Expr]]
"""The two factors of a term at an index of the result and of the sum."""


def summed(
    b: Builder, shape: Sequence[Operand], over: Sequence[Operand], factors: Factors, to: str = ""
) -> Value:
    """A sum of products, in type `to` (the factors' own by default); 16-bit floats are summed in
    float32."""
    kind = ""

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        nonlocal kind
        x, y = factors(i, r)
        kind = to or x.dtype
        wide = "float32" if kind in ("float16", "bfloat16") else kind
        return E.cast(x, wide) * E.cast(y, wide)

    return b.cast(b.reduce("sum", shape, over, body), kind)


def matmul_value(b: Builder, x: Value, y: Value, accumulator: str = "") -> Value:
    """numpy's matmul of two values of rank at least 1, summed in type `accumulator`."""
    left = x if x.rank > 1 else b.reshape(x, [1, x.shape[0]])
    right = y if y.rank > 1 else b.reshape(y, [y.shape[0], 1])
    batch = b.broadcast(left.shape[:-2], right.shape[:-2])
    b.require_equal(left.shape[-1], right.shape[-2])
    shape = [*batch, left.shape[-2], right.shape[-1]]
    if static(left.shape[-1]) != static(right.shape[-2]):
        sizes = (static(left.shape[-1]), static(right.shape[-2]))
        if None not in sizes:
            raise ModelError(f"inner sizes {sizes[0]} and {sizes[1]} of a matrix product differ")

    def factors(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        (k,) = r
        return _batched(left, i[:-2], i[-2], k), _batched(right, i[:-2], k, i[-1])

    inner = left.shape[-1] if static(left.shape[-1]) is not None else right.shape[-2]
    product = summed(b, shape, [inner], factors, accumulator)
    kept = list(shape)
    if x.rank == 1:
        del kept[-2]
    if y.rank == 1:
        del kept[-1]
    return product if len(kept) == len(shape) else b.reshape(product, kept)


def _batched(v: Value, batch: Sequence[Expr], row: Expr, column: Expr) -> Expr:
    return broadcast_load(v, (*batch, row, column))


@lowering("MatMul")
def matmul(c: Context) -> Value:
    """numpy's matmul."""
    return matmul_value(c.b, c[0], c[1])


@lowering("MatMulInteger")
def matmul_integer(c: Context) -> Value:
    """Integer product of (a - a_zero_point) and (b - b_zero_point), in int32."""
    return integer_product(c.b, c[0], c.optional(2), c[1], c.optional(3))


def integer_product(b: Builder, x: Value, x_zero: Value | None, y: Value, y_zero: Value | None) -> Value:
    """numpy's matmul of (x - x_zero) and (y - y_zero), in int32; zero points are scalars, or one per row
    of x and per column of y."""
    zero_y = y_zero is None or (y_zero.is_constant and not y_zero.array.any())
    matrices = min(x.rank, y.rank) > 1 and (x_zero is None or static(elements(x_zero.shape)) == 1)
    known = y.is_constant and y_zero is not None and y_zero.is_constant and y_zero.rank < 2
    if matrices and known and not zero_y and y_zero is not None:
        return _off_centre(b, x, x_zero, y.array, y_zero.array)
    if x_zero is None or not zero_y or static(elements(x_zero.shape)) != 1 or y.rank < 2:
        return matmul_value(b, _centred(b, x, x_zero, -2), _centred(b, y, y_zero, -1), "int32")
    # sum (x - z) y == sum x y - z sum y, so that the sum itself runs on the bytes
    product = matmul_value(b, x, y, "int32")
    sums = b.reduce_axes("sum", y, [y.rank - 2], False, lambda e: E.cast(e, "int32"))
    zero = x_zero[(E.const(0),) * x_zero.rank]
    return b.map(product.shape, lambda *i: product[i] - E.cast(zero, "int32") * _column(sums, i, x.rank))


def _off_centre(b: Builder, x: Value, x_zero: Value | None, weights: np.ndarray, zero: np.ndarray) -> Value:
    """The product of bytes with constant ones, as int8: less their zero points where these bytes fit, else
    less 128, and what is missing is taken off behind the sum, in integers that wrap as the sum does:
    ``sum (x - z) (w - v) == sum x w - v sum x - z sum (w - v)``."""
    centred = weights.astype(np.int32) - zero
    fits = centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127
    middle = 128 if weights.dtype == np.uint8 else 0
    near = centred if fits else weights.astype(np.int32) - middle
    rest = b.constant(np.zeros(1, np.int32) if fits else np.atleast_1d(zero).astype(np.int32) - middle)
    product = matmul_value(b, x, b.constant(near.astype(np.int8)), "int32")
    columns = b.constant(centred.sum(axis=-2, dtype=np.int32))
    rows = b.reduce_axes("sum", x, [x.rank - 1], False, lambda e: E.cast(e, "int32"))
    z = E.const(0, "int32") if x_zero is None else E.cast(x_zero[(E.const(0),) * x_zero.rank], "int32")

    def body(*i: Expr) -> Expr:
        total = product[i] - z * broadcast_load(columns, (*i[:-2], i[-1]))
        return total if fits else total - broadcast_load(rest, i) * broadcast_load(rows, i[:-1])

    return b.map(product.shape, body)


def _column(sums: Value, i: tuple[Expr, ...], rank: int) -> Expr:
    """The entry of the columns' sums that belongs to position `i` of a product."""
    return broadcast_load(sums, (*i[:-2], i[-1]) if rank > 1 else i)


def _centred(b: Builder, x: Value, zero: Value | None, axis: int) -> Value:
    """`x` minus its zero point (a scalar or one per entry of `axis`), in int32; `x` where that is 0."""
    if zero is None or (zero.is_constant and not zero.array.any()):
        return x

    def f(*i: Expr) -> Expr:
        at: tuple[Expr, ...] = ()
        if zero.rank == 1:
            at = (E.const(0) if static(zero.shape[0]) == 1 else i[axis],)
        elif zero.rank > 1:
            whole = (*i[:-1], E.const(0)) if axis == -2 else (*i[:-2], E.const(0), i[-1])
            at = whole[len(whole) - zero.rank :]
        return E.cast(x[i], "int32") - E.cast(zero[at], "int32")

    return b.map(x.shape, f)


@lowering("Gemm")
def gemm(c: Context) -> Value:
    """alpha * A' * B' + beta * C, where ' transposes if asked."""
    a, b = c[0], c[1]
    if c.attr("transA", 0):
        a = c.b.transpose(a, [1, 0])
    if c.attr("transB", 0):
        b = c.b.transpose(b, [1, 0])
    product = matmul_value(c.b, a, b)
    alpha, beta, bias = c.attr("alpha", 1.0), c.attr("beta", 1.0), c.optional(2)
    if alpha == 1 and bias is None:
        return product
    if bias is None:
        return c.b.elementwise(lambda x: x * alpha, product)
    return c.b.map(product.shape, lambda *i: product[i] * alpha + broadcast_load(bias, i) * beta)


def convolution(c: Context, x: Value, w: Value, fill: Expr, accumulator: str) -> Value:
    """Cross-correlation [N, C, spatial...] with [O, C / group, kernel...], without a bias."""
    group = c.attr("group", 1)
    if x.rank < 3 or w.rank != x.rank:
        raise c.error(f"input of rank {x.rank} and weights of rank {w.rank} do not form a convolution")
    kernel = [static(n) for n in w.shape[2:]]
    if any(k is None for k in kernel):
        raise c.unsupported("the kernel's size must be known at compile time")
    c.b.require_equal(x.shape[1], w.shape[1] * group)
    win = window(c, x.shape[2:], [k for k in kernel if k is not None])
    zeros = [0, 0]
    padded = pad(c.b, x, [*zeros, *win.begin], [*zeros, *win.end], fill)
    channels, outputs = w.shape[1], static(w.shape[0])
    if outputs is None or outputs % group:
        raise c.error(f"{outputs} output channels are not divisible into {group} groups")
    per_group = outputs // group

    def factors(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        n, o, *position = i
        k, *tap = r
        source = E.floordiv(o, per_group) * channels + k if group > 1 else k
        return padded[(n, source, *win.at(position, tap))], w[(o, k, *tap)]

    shape = [x.shape[0], w.shape[0], *win.out]
    return summed(c.b, shape, [channels, *win.kernel], factors, accumulator)


@lowering("Conv")
def conv(c: Context) -> Value:
    """Convolution of any rank, grouped and dilated."""
    y = convolution(c, c[0], c[1], E.const(0, c.x.dtype), c.x.dtype)
    bias = c.optional(2)
    return y if bias is None else _with_bias(c.b, y, bias)


@lowering("ConvInteger")
def conv_integer(c: Context) -> Value:
    """Integer convolution of (x - x_zero_point) with (w - w_zero_point), in int32."""
    return integer_convolution(c, c[0], c.optional(2), c[1], c.optional(3))


def integer_convolution(c: Context, x: Value, x_zero: Value | None, w: Value, w_zero: Value | None) -> Value:
    """Convolution of (x - x_zero) with (w - w_zero), in int32; x_zero is a scalar, w_zero a scalar or one
    per output channel.

    The zero point of `x` leaves the sum: ``sum (x - z) w == sum x w - z sum w``, with the border
    padded by z, so that the sum itself runs on the bytes.
    """
    w = _centred_filter(c, w, w_zero)
    fill = E.const(0, x.dtype) if x_zero is None else x_zero[(0,) * x_zero.rank]
    y = convolution(c, x, w, fill, "int32")
    if fill.is_const and fill.attr == 0:
        return y
    axes = list(range(1, w.rank))
    sums = c.b.reduce_axes("sum", w, axes, keepdims=False, f=lambda e: E.cast(e, "int32"))
    return c.b.map(y.shape, lambda *i: y[i] - E.cast(fill, "int32") * sums[i[1]])


def _centred_filter(c: Context, w: Value, zero: Value | None) -> Value:
    if zero is None or (zero.is_constant and not zero.array.any()):
        return w

    def f(*i: Expr) -> Expr:
        at = (i[0] if static(zero.shape[0]) != 1 else E.const(0),) if zero.rank else ()
        return E.cast(w[i], "int32") - E.cast(zero[at], "int32")

    return c.b.map(w.shape, f)


@lowering("ConvTranspose")
def conv_transpose(c: Context) -> Value:
    """The transpose of a convolution: [N, C, ...] with [C, O / group, kernel...].

    With ``q = p + begin``, output position p sums the taps t with ``t * dilation = q (mod stride)``
    over input position ``(q - t * dilation) / stride``.  Where dilation is 1, the positions of each
    residue of q are a plain convolution with the taps of that residue, and the output interleaves
    them.
    """
    x, w, bias = c[0], c[1], c.optional(2)
    group, rank = c.attr("group", 1), x.rank - 2
    kernel = [k for k in map(static, w.shape[2:]) if k is not None]
    strides = c.attr("strides") or [1] * rank
    dilations = c.attr("dilations") or [1] * rank
    begin, out = _transpose_geometry(c, x, kernel, strides, dilations)
    channels = static(w.shape[0] if depends_on_data(x.shape[1]) else x.shape[1])
    c.b.require_equal(x.shape[1], w.shape[0])
    if channels is None or channels % group:
        raise c.error(f"{channels} input channels are not divisible into {group} groups")
    pads = [static(n) for n in begin]
    if all(d == 1 for d in dilations) and None not in pads and all(k >= s for k, s in zip(kernel, strides)):
        known = [n for n in pads if n is not None]
        return _interleaved(c, x, w, bias, kernel, strides, known, out, channels // group)
    y = _gathered(c, x, w, kernel, strides, dilations, begin, out, channels // group)
    return y if bias is None else _with_bias(c.b, y, bias)


def _with_bias(b: Builder, y: Value, bias: Value) -> Value:
    return b.map(y.shape, lambda *i: y[i] + bias[i[1]])


def _transpose_geometry(
    c: Context, x: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[Expr], list[Expr]]:
    """(what is cut before, output size) of each spatial axis of a transposed convolution."""
    rank = len(kernel)
    extra = c.attr("output_padding") or [0] * rank
    pads, asked = c.attr("pads") or [0] * (2 * rank), c.attr("output_shape")
    auto = c.attr("auto_pad", "NOTSET")
    begin: list[Expr] = []
    out: list[Expr] = []
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        full = (x.shape[2 + axis] - 1) * strides[axis] + (extra[axis] + extent)
        if asked or auto in ("SAME_UPPER", "SAME_LOWER"):
            size = E.const(asked[-rank:][axis]) if asked else x.shape[2 + axis] * strides[axis]
            total = full - size
            half = E.floordiv(total, 2)
            begin.append(total - half if auto == "SAME_LOWER" or (asked and auto != "SAME_UPPER") else half)
            out.append(size)
        else:
            begin.append(E.const(pads[axis]))
            out.append(full - pads[axis] - pads[axis + rank])
    return begin, out


def _interleaved(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    kernel: Sequence[int],
    strides: Sequence[int],
    begin: Sequence[int],
    out: Sequence[Expr],
    inner: int,
) -> Value:
    """A transposed convolution as one convolution per residue of the output position."""
    b, per_group, rank = c.b, w.shape[1], len(kernel)
    outputs = per_group * E.floordiv(x.shape[1], inner)
    phases: dict[tuple[int, ...], Value] = {}
    for phase in itertools.product(*(range(s) for s in strides)):
        taps, first, before, after, counts = [], [], [], [], []
        for axis, (p, s, k) in enumerate(zip(phase, strides, kernel)):
            first.append((p + begin[axis]) % s)
            taps.append(-(-(k - first[-1]) // s))
            start = (p + begin[axis]) // s  # input position of tap `first` for the first output
            count = E.floordiv(out[axis] - p + (s - 1), s)
            counts.append(count)
            before.append(E.const(max(0, taps[-1] - 1 - start)))
            after.append(E.maximum(count + start - x.shape[2 + axis], 0))
        padded = pad(b, x, [0, 0, *before], [0, 0, *after], E.const(0, x.dtype))
        starts = [E.const((p + g) // s) + n for p, g, s, n in zip(phase, begin, strides, before)]

        def body(
            i: tuple[Expr, ...],
            r: tuple[Expr, ...],
            padded: Value = padded,
            starts: list[Expr] = starts,
            first: list[int] = first,
        ) -> Expr:
            n, o, *position = i
            k, *tap = r
            at = [q + start - t for q, start, t in zip(position, starts, tap)]
            at_tap = [t * s + f for t, s, f in zip(tap, strides, first)]
            if inner == static(x.shape[1]):
                return padded[(n, k, *at)] * w[(k, o, *at_tap)]
            channel = E.floordiv(o, per_group) * inner + k
            return padded[(n, channel, *at)] * w[(channel, E.mod(o, per_group), *at_tap)]

        y = b.reduce("sum", [x.shape[0], outputs, *counts], [inner, *taps], body)
        phases[phase] = y if bias is None else _with_bias(b, y, bias)
    if len(phases) == 1:
        return phases[(0,) * rank]

    def pick(*i: Expr) -> Expr:
        position = i[2:]
        source = tuple(E.floordiv(p, s) for p, s in zip(position, strides))
        residue = [E.mod(p, s) for p, s in zip(position, strides)]
        result: Expr | None = None
        for phase, value in phases.items():
            here = E.load(value, (*i[:2], *source))
            same: Expr = E.const(True, "bool")
            for r, p in zip(residue, phase):
                same = E.logical("and", same, E.eq(r, p))
            result = here if result is None else E.select(same, here, result)
        assert result is not None
        return result

    return b.map([x.shape[0], outputs, *out], pick)


def _gathered(
    c: Context,
    x: Value,
    w: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begin: Sequence[Expr],
    out: Sequence[Expr],
    inner: int,
) -> Value:
    """A transposed convolution that looks up, for every tap, the input position it meets."""
    per_group = w.shape[1]
    outputs = per_group * E.floordiv(x.shape[1], inner)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        n, o, *position = i
        k, *tap = r
        which = E.floordiv(o, per_group)
        inside: Expr = E.const(True, "bool")
        at = []
        for axis, (p, t) in enumerate(zip(position, tap)):
            numerator = p + begin[axis] - t * dilations[axis]
            source = E.floordiv(numerator, strides[axis])
            inside &= E.le(0, numerator) & E.lt(source, x.shape[2 + axis])
            inside &= E.eq(E.mod(numerator, strides[axis]), 0)
            at.append(source)
        channel = which * inner + k
        term = E.load(x, (n, channel, *at)) * w[(channel, E.mod(o, per_group), *tap)]
        return E.select(inside, term, E.const(0, x.dtype))

    return c.b.reduce("sum", [x.shape[0], outputs, *out], [inner, *kernel], body)
