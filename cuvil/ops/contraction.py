"""Contractions: matrix products and convolutions, all of them sums of products over index maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuvil.errors import ModelError
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.primitives import Builder, Value, broadcast_load, broadcast_shapes, static
from cuvil.ops.registry import Context, lowering
from cuvil.ops.windows import pad, window


Factors = Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, Expr]]
"""The two factors of a term at an index of the result and of the sum."""


def summed(b: Builder, shape: Sequence[Operand], over: Sequence[Operand], factors: Factors, to: str = "") -> Value:
    """A sum of products, in type `to` (the factors' own by default); float16 is summed in float32."""
    kind = ""

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        nonlocal kind
        x, y = factors(i, r)
        kind = to or x.dtype
        wide = "float32" if kind == "float16" else kind
        return E.cast(x, wide) * E.cast(y, wide)

    return b.cast(b.reduce("sum", shape, over, body), kind)


def matmul_value(b: Builder, x: Value, y: Value, accumulator: str = "") -> Value:
    """numpy's matmul of two values of rank at least 1, summed in type `accumulator`."""
    left = x if x.rank > 1 else b.reshape(x, [1, x.shape[0]])
    right = y if y.rank > 1 else b.reshape(y, [y.shape[0], 1])
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
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
    a, b = _centred(c, c[0], c.optional(2), -2), _centred(c, c[1], c.optional(3), -1)
    return matmul_value(c.b, a, b, "int32")


def _centred(c: Context, x: Value, zero: Value | None, axis: int) -> Value:
    """`x` minus its zero point (a scalar or one per entry of `axis`), in int32."""
    if zero is None or (zero.is_constant and not zero.array.any()):
        return x

    def f(*i: Expr) -> Expr:
        at: tuple[Expr, ...] = ()
        if zero.rank:
            at = (i[axis] if static(zero.shape[-1]) != 1 else E.const(0),)
            if zero.rank > 1:
                at = (*i[: zero.rank - 1], at[0]) if axis == -1 else (*i[: zero.rank - 2], i[-2], E.const(0))
        return E.cast(x[i], "int32") - E.cast(zero[at], "int32")

    return c.b.map(x.shape, f)


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
    return y if bias is None else c.b.map(y.shape, lambda *i: y[i] + bias[i[1]])


@lowering("ConvInteger")
def conv_integer(c: Context) -> Value:
    """Integer convolution of (x - x_zero_point) with (w - w_zero_point), in int32.

    The zero point of `x` leaves the sum: ``sum (x - z) w == sum x w - z sum w``, with the border
    padded by z, so that the sum itself runs on the bytes.
    """
    x, w = c[0], _centred_filter(c)
    zero = c.optional(2)
    fill = E.const(0, x.dtype) if zero is None else zero[(0,) * zero.rank]
    y = convolution(c, x, w, fill, "int32")
    if zero is None or (fill.is_const and fill.attr == 0):
        return y
    axes = list(range(1, w.rank))
    sums = c.b.reduce_axes("sum", w, axes, keepdims=False, f=lambda e: E.cast(e, "int32"))
    return c.b.map(y.shape, lambda *i: y[i] - E.cast(zero[(0,) * zero.rank], "int32") * sums[i[1]])


def _centred_filter(c: Context) -> Value:
    w, zero = c[1], c.optional(3)
    if zero is None or (zero.is_constant and not zero.array.any()):
        return w

    def f(*i: Expr) -> Expr:
        at = (i[0] if static(zero.shape[0]) != 1 else E.const(0),) if zero.rank else ()
        return E.cast(w[i], "int32") - E.cast(zero[at], "int32")

    return c.b.map(w.shape, f)


@lowering("ConvTranspose")
def conv_transpose(c: Context) -> Value:
    """The transpose of a convolution: [N, C, ...] with [C, O / group, kernel...].

    Lowered to a gather: output position p reads input (p + begin - tap * dilation) / stride where
    that is whole and inside.
    """
    x, w, bias = c[0], c[1], c.optional(2)
    group, rank = c.attr("group", 1), x.rank - 2
    kernel = [k for k in map(static, w.shape[2:]) if k is not None]
    strides = c.attr("strides") or [1] * rank
    dilations = c.attr("dilations") or [1] * rank
    extra = c.attr("output_padding") or [0] * rank
    pads, asked = c.attr("pads") or [0] * (2 * rank), c.attr("output_shape")
    auto = c.attr("auto_pad", "NOTSET")
    begin: list[Expr] = []
    out: list[Expr] = []
    for axis in range(rank):
        full = (x.shape[2 + axis] - 1) * strides[axis] + extra[axis] + ((kernel[axis] - 1) * dilations[axis] + 1)
        if asked or auto in ("SAME_UPPER", "SAME_LOWER"):
            size = E.const(asked[-rank:][axis]) if asked else x.shape[2 + axis] * strides[axis]
            total = full - size
            half = E.floordiv(total, 2)
            begin.append(total - half if auto == "SAME_LOWER" or (asked and auto != "SAME_UPPER") else half)
            out.append(size)
        else:
            begin.append(E.const(pads[axis]))
            out.append(full - pads[axis] - pads[axis + rank])
    per_group, channels = w.shape[1], static(x.shape[1])
    if channels is None or channels % group:
        raise c.error(f"{channels} input channels are not divisible into {group} groups")
    inner = channels // group

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

    y = c.b.reduce("sum", [x.shape[0], per_group * group, *out], [inner, *kernel], body)
    return y if bias is None else c.b.map(y.shape, lambda *i: y[i] + bias[i[1]])
