"""Quantization: linear scales and zero points to and from small integers and floats."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value, static
from cuvil.ops.contraction import integer_convolution, integer_product
from cuvil.ops.elementwise import saturated
from cuvil.ops.registry import Context, lowering


def _parameter(c: Context, x: Value, p: Value) -> Callable[[tuple[Expr, ...]], Expr]:
    """The element of a scale or zero point `p` that belongs to position i of `x`: per tensor, per
    axis or per block."""
    block = c.attr("block_size", 0)
    if p.rank == 0 or (p.rank == 1 and static(p.shape[0]) == 1):
        return lambda i: p[(E.const(0),) * p.rank]
    axis = c.axis(x.rank, 1)
    if p.rank == 1:
        return lambda i: p[i[axis]]
    size = block or -(-(static(x.shape[axis]) or 0) // (static(p.shape[axis]) or 1))
    return lambda i: p[tuple(E.floordiv(v, size) if k == axis else v for k, v in enumerate(i))]


def saturate(x: Expr, zero: Expr | None, dtype: str) -> Expr:
    """A float rounded half to even, plus a zero point, saturated to an integer type."""
    info = ml_dtypes.iinfo(E.numpy_dtype(dtype))
    rounded = E.unary("round", x)
    if zero is not None and not (zero.is_const and zero.attr == 0):
        rounded = rounded + E.cast(E.cast(zero, "int32"), x.dtype)
    return E.cast(E.minimum(E.maximum(rounded, int(info.min)), int(info.max)), dtype)


def real(x: Expr, scale: Expr, zero: Expr | None, dtype: str = "") -> Expr:
    """(x - zero) * scale, computed in float32, as `dtype` (the scale's by default)."""
    exact = "float32" if E.is_float(x.dtype) else "int32"
    v = E.cast(x, exact)
    if zero is not None and not (zero.is_const and zero.attr == 0):
        v = v - E.cast(zero, exact)
    return E.cast(E.cast(v, "float32") * E.cast(scale, "float32"), dtype or scale.dtype)


@lowering("QuantizeLinear")
def quantize_linear(c: Context) -> Value:
    """saturate(round(x / scale) + zero_point); a float type rounds to its own values and has no zero point
    but 0."""
    x, scale, zero = c[0], _parameter(c, c[0], c[1]), c.optional(2)
    named = c.attr("output_dtype", 0)
    dtype = zero.dtype if zero is not None else (ONNX_TYPES[named] if named else "uint8")
    saturating = bool(c.attr("saturate", 1))
    offset = _parameter(c, x, zero) if zero is not None else None

    def body(*i: Expr) -> Expr:
        ratio = E.cast(x[i], "float32") / E.cast(scale(i), "float32")
        if E.is_float(dtype):
            return saturated(ratio, dtype) if saturating else E.cast(ratio, dtype)
        return saturate(ratio, None if offset is None else offset(i), dtype)

    return c.b.map(x.shape, body)


@lowering("DequantizeLinear")
def dequantize_linear(c: Context) -> Value:
    """(x - zero_point) * scale."""
    x, scale, zero = c[0], _parameter(c, c[0], c[1]), c.optional(2)
    named = c.attr("output_dtype", 0)
    dtype = ONNX_TYPES[named] if named else c[1].dtype
    offset = _parameter(c, x, zero) if zero is not None else None
    return c.b.map(x.shape, lambda *i: real(x[i], scale(i), None if offset is None else offset(i), dtype))


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(c: Context) -> list[Value]:
    """uint8 with scale and zero point from the tensor's own range, widened to hold 0."""
    return list(dynamically_quantized(c.b, c.x))


def dynamically_quantized(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """`x` as uint8, its scale and its zero point, from its range widened to hold 0."""
    axes = list(range(x.rank))
    low = b.elementwise(lambda v: E.minimum(v, 0), b.reduce_axes("min", x, axes, False))
    high = b.elementwise(lambda v: E.maximum(v, 0), b.reduce_axes("max", x, axes, False))

    def step(lo: Expr, hi: Expr) -> Expr:
        return E.select(E.eq(hi - lo, 0), E.const(1, x.dtype), (hi - lo) / 255)

    scale = b.elementwise(step, low, high)
    zero = b.elementwise(lambda lo, s: saturate(-lo / s, None, "uint8"), low, scale)
    y = b.map(x.shape, lambda *i: saturate(x[i] / scale[()], zero[()], "uint8"))
    return y, scale, zero


# --- operators on quantized tensors ---------------------------------------------------------------


def scalar(v: Value) -> Expr:
    """The one element of a scale or zero point per tensor."""
    return v[(0,) * v.rank]


def _along(v: Value, i: Expr) -> Expr:
    """The element of a scale that is one per tensor or one per entry of an axis."""
    return v[(i if static(v.shape[-1]) != 1 else E.const(0),)] if v.rank == 1 else scalar(v)


@lowering("QLinearConv")
def qlinear_conv(c: Context) -> Value:
    """Convolution of 8-bit tensors, summed in int32, scaled back to 8 bits; weights may have a scale per
    output channel."""
    x_scale, w_scale, y_scale, y_zero, bias = c[1], c[4], c[6], c[7], c.optional(8)
    total = integer_convolution(c, c[0], c[2], c[3], c[5])

    def body(*i: Expr) -> Expr:
        t = total[i] if bias is None else total[i] + bias[i[1]]
        factor = scalar(x_scale) * _along(w_scale, i[1]) / scalar(y_scale)
        return saturate(E.cast(t, "float32") * factor, scalar(y_zero), y_zero.dtype)

    return c.b.map(total.shape, body)


@lowering("QLinearMatMul")
def qlinear_matmul(c: Context) -> Value:
    """Product of 8-bit matrices, summed in int32, scaled back to 8 bits; the left one may have a scale
    per row, the right one per column."""
    a_scale, b_scale, y_scale, y_zero = c[1], c[4], c[6], c[7]
    total = integer_product(c.b, c[0], c[2], c[3], c[5])

    def at(v: Value, i: tuple[Expr, ...], axis: int) -> Expr:
        if v.rank < 2:
            return _along(v, i[axis])
        whole = (*i[:-1], E.const(0)) if axis == -2 else (*i[:-2], E.const(0), i[-1])
        return v[whole[len(whole) - v.rank :]]

    def body(*i: Expr) -> Expr:
        factor = E.cast(at(a_scale, i, -2) * at(b_scale, i, -1) / scalar(y_scale), "float32")
        return saturate(E.cast(total[i], "float32") * factor, scalar(y_zero), y_zero.dtype)

    return c.b.map(total.shape, body)
