"""Operators of onnxruntime's own domain: fused forms of the standard ones, and 8-bit forms.

Where such an operator is a standard one under another domain, the same lowering is registered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, broadcast_load, broadcast_shapes
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value, static
from cuvil.ops.attention import rotate
from cuvil.ops.contraction import conv, gemm, integer_product, matmul_value
from cuvil.ops.elementwise import clipped, gelu_exact, gelu_tanh
from cuvil.ops.movement import concat
from cuvil.ops.quantization import (
    dequantize_linear,
    dynamically_quantized,
    quantize_linear,
    real,
    saturate,
    scalar,
)  # fmt: skip
from cuvil.ops.reduction import average_value, layer_norm, mean, rms_norm, softmax_value
from cuvil.ops.registry import Context, lowering

DOMAIN = "com.microsoft"

lowering("QuantizeLinear", domain=DOMAIN)(quantize_linear)
lowering("DequantizeLinear", domain=DOMAIN)(dequantize_linear)


# --- activations ----------------------------------------------------------------------------------


@lowering("Gelu", "BiasGelu", domain=DOMAIN)
def gelu(c: Context) -> Value:
    """0.5 x (1 + erf(x / sqrt 2)), of a sum with a bias where there is one."""
    return _biased(c, gelu_exact)


@lowering("FastGelu", domain=DOMAIN)
def fast_gelu(c: Context) -> Value:
    """The tanh form of Gelu, of a sum with a bias where there is one."""
    return _biased(c, gelu_tanh)


def _biased(c: Context, f: Callable[[Expr], Expr]) -> Value:
    bias = c.optional(1)
    return c.b.elementwise(f, c.x) if bias is None else c.b.elementwise(lambda x, b: f(x + b), c.x, bias)


@lowering("QuickGelu", domain=DOMAIN)
def quick_gelu(c: Context) -> Value:
    """x * sigmoid(alpha * x)."""
    alpha = c.attr("alpha", 1.702)
    return c.b.elementwise(lambda x: x * E.unary("sigmoid", x * alpha), c.x)


_ACTIVATIONS: dict[str, Callable[[Expr, Sequence[float]], Expr]] = {
    "Relu": lambda x, p: E.maximum(x, 0),
    "LeakyRelu": lambda x, p: E.select(x < 0, x * (p[0] if p else 0.01), x),
    "Sigmoid": lambda x, p: E.unary("sigmoid", x),
    "Tanh": lambda x, p: E.unary("tanh", x),
    "Clip": lambda x, p: clipped(x, p[0], p[1]),
    "HardSigmoid": lambda x, p: clipped(x * (p[0] if p else 0.2) + (p[1] if p else 0.5), 0, 1),
}


def _activated(c: Context, x: Value, parameters: Sequence[float]) -> Value:
    name = c.attr("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise c.unsupported(f"activation '{name}'; {', '.join(_ACTIVATIONS)} are supported")
    return c.b.elementwise(lambda v: _ACTIVATIONS[name](v, parameters), x)


# --- contractions ---------------------------------------------------------------------------------


@lowering("FusedConv", domain=DOMAIN)
def fused_conv(c: Context) -> Value:
    """A convolution plus a tensor, then an activation."""
    y, added = conv(c), c.optional(3)
    if added is not None:
        y = c.b.elementwise(E.add, y, added)
    return _activated(c, y, c.attr("activation_params") or [])


@lowering("FusedGemm", domain=DOMAIN)
def fused_gemm(c: Context) -> Value:
    """Gemm, then an activation."""
    names = [f"activation_{n}" for n in ("alpha", "beta", "gamma")]
    return _activated(c, gemm(c), [c.attr(n) for n in names if c.attr(n) is not None])


@lowering("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(c: Context) -> Value:
    """alpha * A' B', where ' transposes the last two axes, or moves the rows' axis to the front."""

    def turned(v: Value, side: str) -> Value:
        order = list(range(v.rank))
        if c.attr(f"transBatch{side}", 0):
            order = [*order[1:-1], 0, order[-1]]
        if c.attr(f"trans{side}", 0) and v.rank > 1:
            order[-2:] = order[-1], order[-2]
        return v if order == list(range(v.rank)) else c.b.transpose(v, order)

    product = matmul_value(c.b, turned(c[0], "A"), turned(c[1], "B"))
    alpha = c.attr("alpha", 1.0)
    return product if alpha == 1 else c.b.elementwise(lambda e: e * alpha, product)


@lowering("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(c: Context) -> Value:
    """A product of 8-bit matrices, scaled to floats, plus a bias."""
    total = integer_product(c.b, c[0], c.optional(4), c[1], c.optional(5))
    return _scaled(c.b, total, c[2], c[3], c.optional(6))


@lowering("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(c: Context) -> Value:
    """A float matrix, quantized by its own range, times an 8-bit one, scaled to floats, plus a bias."""
    x, scale, zero = dynamically_quantized(c.b, c[0])
    total = integer_product(c.b, x, zero, c[1], c.optional(3))
    return _scaled(c.b, total, scale, c[2], c.optional(4))


def _scaled(b: Builder, total: Value, left: Value, right: Value, bias: Value | None) -> Value:
    """Integer sums times the scales of both sides, the right one per column if it is a vector."""

    def body(*i: Expr) -> Expr:
        one = static(right.shape[-1]) == 1 if right.rank else True
        factor = scalar(left) * (scalar(right) if one else broadcast_load(right, i))
        y = E.cast(total[i], left.dtype) * factor
        return y if bias is None else y + broadcast_load(bias, i)

    return b.map(total.shape, body)


@lowering("QGemm", domain=DOMAIN)
def qgemm(c: Context) -> Value:
    """alpha * A' B' + C of 8-bit matrices, in 8 bits where an output scale is given, else in floats."""
    b, a_scale, b_scale, bias, y_scale, y_zero = c.b, c[1], c[4], c.optional(6), c.optional(7), c.optional(8)
    left = b.transpose(c[0], [1, 0]) if c.attr("transA", 0) else c[0]
    right = b.transpose(c[3], [1, 0]) if c.attr("transB", 0) else c[3]
    total = integer_product(b, left, c[2], right, c[5])
    alpha: float = c.attr("alpha", 1.0)

    def body(*i: Expr) -> Expr:
        t = total[i] if bias is None else total[i] + broadcast_load(bias, i)
        y = E.cast(t, "float32") * (scalar(a_scale) * broadcast_load(b_scale, i) * alpha)
        if y_scale is None:
            return y
        zero = None if y_zero is None else scalar(y_zero)
        return saturate(y / scalar(y_scale), zero, left.dtype if y_zero is None else y_zero.dtype)

    return b.map(total.shape, body)


# --- normalization --------------------------------------------------------------------------------


@lowering("SimplifiedLayerNormalization", domain=DOMAIN)
def simplified_layer_normalization(c: Context) -> list[Value]:
    """x / sqrt(mean(x * x) + epsilon) * scale."""
    return rms_norm(c, c.x, c[1], c.axis(c.x.rank, -1))


@lowering("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(c: Context) -> list[Value | None]:
    """Layer normalization over the last axis of input + skip + bias; also that sum."""
    total = _skip(c, c.optional(4))
    y, average, inverse = layer_norm(c, total, c[2], c.optional(3), total.rank - 1)
    return [y, average, inverse, total]


@lowering("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(c: Context) -> list[Value | None]:
    """RMS normalization over the last axis of input + skip + bias; also that sum."""
    total = _skip(c, c.optional(3))
    y, inverse = rms_norm(c, total, c[2], total.rank - 1)
    return [y, None, inverse, total]


def _skip(c: Context, bias: Value | None) -> Value:
    total = c.b.elementwise(E.add, c[0], c[1])
    return total if bias is None else c.b.elementwise(E.add, total, bias)


@lowering("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(c: Context) -> Value:
    """The standard's RotaryEmbedding, with the positions as second input."""
    return rotate(c, c[0], c[2], c[3], c[1])


# --- 8-bit tensors --------------------------------------------------------------------------------


def _quantized(
    b: Builder, f: Callable[..., Expr], values: Sequence[tuple[Value, Value, Value | None]],
    scale: Value, zero: Value | None,
) -> Value:  # fmt: skip
    """`f` of the numbers that quantized, broadcast `values` stand for, quantized."""
    dtype = values[0][0].dtype if zero is None else zero.dtype

    def body(*i: Expr) -> Expr:
        reals = [
            real(broadcast_load(v, i), scalar(s), None if z is None else scalar(z)) for v, s, z in values
        ]
        return saturate(f(*reals) / scalar(scale), None if zero is None else scalar(zero), dtype)

    return b.map(broadcast_shapes(*(v.shape for v, _, _ in values)), body)


def _by_table(c: Context, f: Callable[[Expr], Expr]) -> Value:
    """An element-wise function of inputs (x, scale, zero, output scale, output zero), as a table of 256."""
    x, b = c.x, c.b
    lowest = -128 if x.dtype == "int8" else 0
    every = b.map([256], lambda i: E.cast(i + lowest, x.dtype))
    table = _quantized(b, f, [(every, c[1], c.optional(2))], c[3], c.optional(4))
    return b.map(x.shape, lambda *i: E.load(table, (E.cast(x[i], E.INDEX) - lowest,)))


@lowering("QLinearAdd", "QLinearMul", domain=DOMAIN)
def qlinear_binary(c: Context) -> Value:
    """Sum or product of quantized tensors."""
    f = E.add if c.node.op == "QLinearAdd" else E.mul
    return _quantized(c.b, f, [(c[0], c[1], c.optional(2)), (c[3], c[4], c.optional(5))], c[6], c.optional(7))


@lowering("QLinearSigmoid", domain=DOMAIN)
def qlinear_sigmoid(c: Context) -> Value:
    """Sigmoid of a quantized tensor."""
    return _by_table(c, lambda x: E.unary("sigmoid", x))


@lowering("QLinearLeakyRelu", domain=DOMAIN)
def qlinear_leaky_relu(c: Context) -> Value:
    """LeakyRelu of a quantized tensor."""
    alpha = c.attr("alpha", 0.01)
    return _by_table(c, lambda x: E.select(x < 0, x * alpha, x))


@lowering("QLinearConcat", domain=DOMAIN)
def qlinear_concat(c: Context) -> Value:
    """Quantized tensors one after the other, each brought to the output's scale."""
    scale, zero = c[0], c[1]
    parts = []
    for k in range(2, len(c.inputs), 3):
        v, s, z = c[k], c[k + 1], c[k + 2]
        same = _same(s, scale) and _same(z, zero)
        parts.append(v if same else _quantized(c.b, _as_is, [(v, s, z)], scale, zero))
    return concat(c.b, parts, c.axis(parts[0].rank))


def _as_is(x: Expr) -> Expr:
    return x


def _same(a: Value, b: Value) -> bool:
    """Two scales or zero points are known to be equal."""
    return a is b or (scalar(a).is_const and scalar(a) is scalar(b))


@lowering("QLinearSoftmax", domain=DOMAIN)
def qlinear_softmax(c: Context) -> Value:
    """Softmax of a quantized tensor; before opset 13 over all axes from `axis` on."""
    b, x, reals = c.b, c.x, _reals(c)
    axis = c.axis(x.rank, -1)
    if c.attr("opset", 13) < 13:
        flat = b.reshape(reals, [E.product(x.shape[:axis]), E.product(x.shape[axis:])])
        y = b.reshape(softmax_value(b, flat, 1), x.shape)
    else:
        y = softmax_value(b, reals, axis)
    return _requantized(c, y)


def _reals(c: Context) -> Value:
    """The numbers that input 0, with scale and zero point after it, stands for."""
    x, zero = c.x, c.optional(2)
    return c.b.map(x.shape, lambda *i: real(x[i], scalar(c[1]), None if zero is None else scalar(zero)))


def _requantized(c: Context, y: Value) -> Value:
    """Floats quantized to the node's output scale and zero point, inputs 3 and 4."""
    scale, zero = c[3], c.optional(4)
    dtype = c.x.dtype if zero is None else zero.dtype
    return c.b.map(
        y.shape, lambda *i: saturate(y[i] / scalar(scale), None if zero is None else scalar(zero), dtype)
    )


@lowering("QLinearGlobalAveragePool", "QLinearAveragePool", domain=DOMAIN)
def qlinear_pool(c: Context) -> Value:
    """The mean of windows, or of all positions, of a quantized tensor."""
    b, x, reals = c.b, c.x, _reals(c)
    last = bool(c.attr("channels_last", 0))
    if last:
        reals = b.transpose(reals, [0, x.rank - 1, *range(1, x.rank - 1)])
    whole = c.node.op == "QLinearGlobalAveragePool"
    y = mean(b, reals, list(range(2, x.rank))) if whole else average_value(c, reals)
    return _requantized(c, b.transpose(y, [0, *range(2, x.rank), 1]) if last else y)


@lowering("QLinearReduceMean", domain=DOMAIN)
def qlinear_reduce_mean(c: Context) -> Value:
    """The mean over axes of a quantized tensor."""
    b, x, reals = c.b, c.x, _reals(c)
    axes = sorted(c.normal(a, x.rank) for a in c.attr("axes") or range(x.rank))
    return _requantized(c, mean(b, reals, axes, bool(c.attr("keepdims", 1))))
