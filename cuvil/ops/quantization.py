"""Quantization: linear scales and zero points to and from 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value, static
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


def saturate(x: Expr, dtype: str) -> Expr:
    """A float rounded half to even and saturated to an integer type."""
    info = E.ml_dtypes.iinfo(E.numpy_dtype(dtype))
    rounded = E.unary("round", x)
    return E.cast(E.minimum(E.maximum(rounded, int(info.min)), int(info.max)), dtype)


@lowering("QuantizeLinear")
def quantize_linear(c: Context) -> Value:
    """saturate(round(x / scale) + zero_point)."""
    x, scale, zero = c[0], _parameter(c, c[0], c[1]), c.optional(2)
    named = c.attr("output_dtype", 0)
    dtype = zero.dtype if zero is not None else (ONNX_TYPES[named] if named else "uint8")
    info = E.ml_dtypes.iinfo(E.numpy_dtype(dtype))
    offset = _parameter(c, x, zero) if zero is not None else None

    def body(*i: Expr) -> Expr:
        s = scale(i)
        v = E.cast(x[i], "float32")
        scaled = E.unary("round", v / E.cast(s, "float32"))
        if offset is not None:
            z = offset(i)
            if not (z.is_const and z.attr == 0):
                scaled = scaled + E.cast(E.cast(z, "int32"), "float32")
        return E.cast(E.minimum(E.maximum(scaled, int(info.min)), int(info.max)), dtype)

    return c.b.map(x.shape, body)


@lowering("DequantizeLinear")
def dequantize_linear(c: Context) -> Value:
    """(x - zero_point) * scale."""
    x, scale, zero = c[0], _parameter(c, c[0], c[1]), c.optional(2)
    offset = _parameter(c, x, zero) if zero is not None else None

    def body(*i: Expr) -> Expr:
        v = E.cast(x[i], "int32")
        if offset is not None:
            z = offset(i)
            if not (z.is_const and z.attr == 0):
                v = v - E.cast(z, "int32")
        s = scale(i)
        return E.cast(v, s.dtype) * s

    return c.b.map(x.shape, body)


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(c: Context) -> list[Value]:
    """uint8 with scale and zero point from the tensor's own range, widened to hold 0."""
    b, x = c.b, c.x
    axes = list(range(x.rank))
    low = b.elementwise(lambda v: E.minimum(v, 0), b.reduce_axes("min", x, axes, False))
    high = b.elementwise(lambda v: E.maximum(v, 0), b.reduce_axes("max", x, axes, False))
    scale = b.elementwise(lambda lo, hi: E.select(E.eq(hi - lo, 0), E.const(1, "float32"), (hi - lo) / 255), low, high)
    zero = b.elementwise(lambda lo, s: saturate(-lo / s, "uint8"), low, scale)
    y = b.map(
        x.shape,
        lambda *i: E.cast(
            E.minimum(E.maximum(E.unary("round", x[i] / scale[()]) + E.cast(zero[()], "float32"), 0), 255), "uint8"
        ),
    )
    return [y, scale, zero]
