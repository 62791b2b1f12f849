"""Element-wise operators: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import ml_dtypes

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value
from cuvil.ops.reduction import mean, widened
from cuvil.ops.registry import Context, lowering


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), without overflow."""
    return E.maximum(x, 0) + E.unary("log", 1 + E.unary("exp", -E.unary("abs", x)))


# --- one argument ---------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "Abs": lambda x: E.unary("abs", x),
    "Acos": lambda x: E.unary("acos", x),
    "Acosh": lambda x: E.unary("acosh", x),
    "Asin": lambda x: E.unary("asin", x),
    "Asinh": lambda x: E.unary("asinh", x),
    "Atan": lambda x: E.unary("atan", x),
    "Atanh": lambda x: E.unary("atanh", x),
    "BitwiseNot": lambda x: E.unary("bnot", x),
    "Ceil": lambda x: E.unary("ceil", x),
    "Cos": lambda x: E.unary("cos", x),
    "Cosh": lambda x: E.unary("cosh", x),
    "Erf": lambda x: E.unary("erf", x),
    "Exp": lambda x: E.unary("exp", x),
    "Floor": lambda x: E.unary("floor", x),
    "IsNaN": lambda x: E.unary("isnan", x),
    "Log": lambda x: E.unary("log", x),
    "Neg": lambda x: -x,
    "Not": lambda x: E.unary("not", x),
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: E.maximum(x, 0),
    "Round": lambda x: E.unary("round", x),
    "Sigmoid": lambda x: E.unary("sigmoid", x),
    "Sign": lambda x: E.select(x > 0, E.const(1, x.dtype), E.select(x < 0, E.const(-1, x.dtype), x * 0)),
    "Sin": lambda x: E.unary("sin", x),
    "Sinh": lambda x: E.unary("sinh", x),
    "Softplus": softplus,
    "Softsign": lambda x: x / (1 + E.unary("abs", x)),
    "Sqrt": lambda x: E.unary("sqrt", x),
    "Tan": lambda x: E.unary("tan", x),
    "Tanh": lambda x: E.unary("tanh", x),
    "HardSwish": lambda x: x * clipped(x * (1 / 6) + 0.5, 0, 1),
    "Mish": lambda x: x * E.unary("tanh", softplus(x)),
}


def clipped(x: Expr, low: float, high: float) -> Expr:
    """`x` limited to [low, high]."""
    return E.minimum(E.maximum(x, low), high)


@lowering(*_UNARY)
def unary(c: Context) -> Value:
    """Operators of one argument, element by element."""
    return c.b.elementwise(_UNARY[c.node.op], c.x)


@lowering("LeakyRelu")
def leaky_relu(c: Context) -> Value:
    """x where x >= 0, alpha * x elsewhere."""
    alpha = c.attr("alpha", 0.01)
    return c.b.elementwise(lambda x: E.select(x < 0, x * alpha, x), c.x)


@lowering("Elu")
def elu(c: Context) -> Value:
    """x where x >= 0, alpha * (exp(x) - 1) elsewhere."""
    alpha = c.attr("alpha", 1.0)
    return c.b.elementwise(lambda x: E.select(x < 0, (E.unary("exp", x) - 1) * alpha, x), c.x)


@lowering("Celu")
def celu(c: Context) -> Value:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    alpha = c.attr("alpha", 1.0)
    return c.b.elementwise(
        lambda x: E.maximum(x, 0) + E.minimum((E.unary("exp", x / alpha) - 1) * alpha, 0), c.x
    )


@lowering("Selu")
def selu(c: Context) -> Value:
    """gamma * (x where x > 0, alpha * (exp(x) - 1) elsewhere)."""
    alpha = c.attr("alpha", 1.67326319217681884765625)
    gamma = c.attr("gamma", 1.05070102214813232421875)
    return c.b.elementwise(lambda x: E.select(x > 0, x, (E.unary("exp", x) - 1) * alpha) * gamma, c.x)


@lowering("ThresholdedRelu")
def thresholded_relu(c: Context) -> Value:
    """x where x > alpha, 0 elsewhere."""
    alpha = c.attr("alpha", 1.0)
    return c.b.elementwise(lambda x: E.select(x > alpha, x, E.const(0, x.dtype)), c.x)


@lowering("HardSigmoid")
def hard_sigmoid(c: Context) -> Value:
    """max(0, min(1, alpha * x + beta))."""
    alpha, beta = c.attr("alpha", 0.2), c.attr("beta", 0.5)
    return c.b.elementwise(lambda x: clipped(x * alpha + beta, 0, 1), c.x)


@lowering("Shrink")
def shrink(c: Context) -> Value:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    bias, lambd = c.attr("bias", 0.0), c.attr("lambd", 0.5)

    def f(x: Expr) -> Expr:
        zero = E.const(0, x.dtype)
        return E.select(x < -lambd, x + bias, E.select(x > lambd, x - bias, zero))

    return c.b.elementwise(f, c.x)


def gelu_exact(x: Expr) -> Expr:
    """0.5 x (1 + erf(x / sqrt 2))."""
    return x * 0.5 * (E.unary("erf", x * math.sqrt(0.5)) + 1)


def gelu_tanh(x: Expr) -> Expr:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))."""
    return x * 0.5 * (E.unary("tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1)


@lowering("Gelu")
def gelu(c: Context) -> Value:
    """0.5 x (1 + erf(x / sqrt 2)), or its tanh approximation."""
    return c.b.elementwise(gelu_tanh if c.attr("approximate") == "tanh" else gelu_exact, c.x)


@lowering("Swish")
def swish(c: Context) -> Value:
    """x * sigmoid(alpha * x)."""
    alpha = c.attr("alpha", 1.0)
    return c.b.elementwise(lambda x: x * E.unary("sigmoid", x * alpha), c.x)


@lowering("SwiGLU")
def swiglu(c: Context) -> Value:
    """a * sigmoid(alpha * a) * b."""
    alpha = c.attr("alpha", 1.0)
    return c.b.elementwise(lambda a, b: a * E.unary("sigmoid", a * alpha) * b, c[0], c[1])


@lowering("IsInf")
def isinf(c: Context) -> Value:
    """Infinite, of the signs asked for."""
    positive, negative = c.attr("detect_positive", 1), c.attr("detect_negative", 1)

    def f(x: Expr) -> Expr:
        found = E.unary("isinf", x)
        if not positive:
            found = E.logical("and", found, x < 0)
        return found if negative else E.logical("and", found, x > 0)

    return c.b.elementwise(f, c.x)


# --- two arguments --------------------------------------------------------------------------------


_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": lambda a, b: a + b,
    "And": lambda a, b: E.logical("and", a, b),
    "BitwiseAnd": lambda a, b: E.binary("band", a, b),
    "BitwiseOr": lambda a, b: E.binary("bor", a, b),
    "BitwiseXor": lambda a, b: E.binary("bxor", a, b),
    "Div": lambda a, b: E.binary("div", a, b),
    "Equal": E.eq,
    "Greater": lambda a, b: E.lt(b, a),
    "GreaterOrEqual": lambda a, b: E.le(b, a),
    "Less": E.lt,
    "LessOrEqual": E.le,
    "Mul": lambda a, b: a * b,
    "Or": lambda a, b: E.logical("or", a, b),
    "Sub": lambda a, b: a - b,
    "Xor": lambda a, b: E.ne(a, b),
    "PRelu": lambda x, slope: E.select(x < 0, x * slope, x),
}


@lowering(*_BINARY)
def binary(c: Context) -> Value:
    """Operators of two arguments, broadcast against each other."""
    return c.b.elementwise(_BINARY[c.node.op], c[0], c[1])


@lowering("Mod")
def modulo(c: Context) -> Value:
    """Remainder with the divisor's sign, or with fmod=1 C's remainder."""
    return c.b.elementwise(_remainder if c.attr("fmod", 0) else _modulo, c[0], c[1])


def _remainder(a: Expr, b: Expr) -> Expr:
    return E.binary("fmod", a, b)


def _modulo(a: Expr, b: Expr) -> Expr:
    if not E.is_float(a.dtype):
        return E.mod(a, b)
    r, zero = _remainder(a, b), E.const(0, a.dtype)
    moved = E.select(E.ne(r < 0, b < 0), r + b, r)
    return E.select(E.eq(r, 0), E.select(b < 0, -zero, zero), moved)


@lowering("BitShift")
def bit_shift(c: Context) -> Value:
    """Shifts, to the right with the sign; by less than 0 or by the width or more all bits go."""
    left = c.attr("direction") == "LEFT"

    def f(a: Expr, b: Expr) -> Expr:
        width = E.numpy_dtype(a.dtype).itemsize * 8
        gone = E.const(0, a.dtype)
        if not left and not a.dtype.startswith("u"):
            gone = E.select(a < 0, E.const(-1, a.dtype), gone)
        fits = b < width if b.dtype.startswith("u") else E.le(0, b) & (b < width)
        return E.select(fits, E.binary("shl" if left else "shr", a, b), gone)

    return c.b.elementwise(f, c[0], c[1])


@lowering("Pow")
def power(c: Context) -> Value:
    """base ** exponent in the base's type; small constant exponents become products."""
    base, exponent = c[0], c[1]

    def f(x: Expr, p: Expr) -> Expr:
        if p.is_const and E.is_float(x.dtype):
            if p.attr == 2:
                return x * x
            if p.attr == 3:
                return x * x * x
            if p.attr == 0.5:
                return E.unary("sqrt", x)
            if p.attr == 1:
                return x
        if E.is_float(x.dtype) or not E.is_float(p.dtype):
            return E.binary("pow", x, E.cast(p, x.dtype))
        return E.cast(E.binary("pow", E.cast(x, p.dtype), p), x.dtype)

    return c.b.elementwise(f, base, exponent)


# --- several arguments ----------------------------------------------------------------------------


def _propagating(step: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    """`step`, which keeps a NaN on its left, made to keep one on its right too."""

    def f(a: Expr, b: Expr) -> Expr:
        return E.select(E.unary("isnan", b), b, step(a, b)) if E.is_float(b.dtype) else step(a, b)

    return f


_VARIADIC: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Sum": E.add, "Mean": E.add, "Max": _propagating(E.maximum), "Min": _propagating(E.minimum),
}  # fmt: skip


_MAX_OPERANDS = 32
"""Operands of one expression; the result of so many is the first operand of the next."""


@lowering(*_VARIADIC)
def variadic(c: Context) -> Value:
    """Sum, mean, largest or smallest of any number of broadcast inputs."""

    def combined(*xs: Expr) -> Expr:
        return functools.reduce(_VARIADIC[c.node.op], xs)

    def last(*xs: Expr) -> Expr:
        return combined(*xs) / len(c.inputs) if c.node.op == "Mean" else combined(*xs)

    values = [c[i] for i in range(len(c.inputs))]
    while len(values) > _MAX_OPERANDS:
        values = [c.b.elementwise(combined, *values[:_MAX_OPERANDS]), *values[_MAX_OPERANDS:]]
    return c.b.elementwise(last, *values)


@lowering("Clip")
def clip(c: Context) -> Value:
    """Limited to [min, max], either of which may be omitted."""
    low, high = c.optional(1), c.optional(2)

    def f(*i: Expr) -> Expr:
        x = c.x[i]
        if low is not None:
            x = E.maximum(x, low[()] if low.rank == 0 else low[(0,) * low.rank])
        if high is not None:
            x = E.minimum(x, high[()] if high.rank == 0 else high[(0,) * high.rank])
        return x

    return c.b.map(c.x.shape, f)


@lowering("Where")
def where(c: Context) -> Value:
    """X where the condition holds, Y elsewhere, all three broadcast."""
    return c.b.elementwise(E.select, c[0], c[1], c[2])


@lowering("Cast", "CastLike")
def cast(c: Context) -> Value:
    """Conversion to another element type; to 8-bit floats with saturation unless saturate=0."""
    target = ONNX_TYPES[c.attr("to")] if c.node.op == "Cast" else c[1].dtype
    saturating, rounding = bool(c.attr("saturate", 1)), c.attr("round_mode", "up")
    if target == c.x.dtype:
        return c.x
    if rounding not in ("up", "down", "nearest"):
        raise c.error(f"round_mode is '{rounding}'; up, down and nearest are allowed")
    if target == "float8_e8m0fnu":
        return c.b.elementwise(lambda x: power_of_two(x, saturating, rounding), c.x)
    return c.b.elementwise(lambda x: (saturated if saturating else E.cast)(x, target), c.x)


def saturated(x: Expr, dtype: str) -> Expr:
    """`x` as another type, limited to its range where that is an 8-bit float; a NaN stays."""
    if dtype.startswith("float8"):
        largest = float(ml_dtypes.finfo(E.numpy_dtype(dtype)).max)
        x = clipped(x if x.dtype == "float64" else E.cast(x, "float32"), -largest, largest)
    return E.cast(x, dtype)


def power_of_two(x: Expr, saturating: bool, rounding: str) -> Expr:
    """The magnitude of `x` as float8_e8m0fnu, the exponent of a float32: rounded up, down or to the nearest
    (halves up); infinities and NaNs are NaN, as is with `saturating` off what is rounded above 2**127."""
    bits = E.bitcast(E.cast(x, "float32"), "int32")
    exponent = E.binary("band", E.binary("shr", bits, 23), 255)
    fraction = E.binary("band", bits, 0x7FFFFF)
    half = E.select(exponent > 0, E.const(0x400000, "int32"), E.const(0x400001, "int32"))
    least = {"up": E.const(1, "int32"), "nearest": half, "down": E.const(1 << 23, "int32")}[rounding]
    carries = E.le(least, fraction) & (exponent < (254 if saturating else 255))
    code = exponent + E.cast(carries, "int32")
    return E.bitcast(E.cast(code, "uint8"), "float8_e8m0fnu")


@lowering("BitCast")
def bitcast(c: Context) -> Value:
    """The same bits as another element type of the same width."""
    target = ONNX_TYPES[c.attr("to")]
    if E.numpy_dtype(target).itemsize != E.numpy_dtype(c.x.dtype).itemsize:
        raise c.error(f"{c.x.dtype} and {target} differ in width")
    return c.b.elementwise(lambda x: E.bitcast(x, target), c.x)


@lowering("BatchNormalization")
def batch_normalization(c: Context) -> list[Value]:
    """scale * (x - mean) / sqrt(var + epsilon) + bias, per channel (axis 1).  While training the mean and the
    variance are those of the input, and the running ones move towards them."""
    b, epsilon, kind = c.b, c.attr("epsilon", 1e-5), widened(c.b, c.x).dtype
    x, scale, bias, average, variance = (c[i] for i in range(5))
    if x.rank > 1:
        b.require_equal(x.shape[1], scale.shape[0])
    running: list[Value] = []
    if c.attr("training_mode", 0):
        momentum: float = c.attr("momentum", 0.9)
        now = _channel_statistics(b, x)
        running = [
            b.elementwise(lambda r, n: r * momentum + E.cast(n, r.dtype) * (1 - momentum), old, new)
            for old, new in zip((average, variance), now)
        ]
        average, variance = now

    def per_channel(v: Value, i: tuple[Expr, ...]) -> Expr:
        return E.cast(v[(i[1] if len(i) > 1 else E.const(0),) * v.rank], kind)

    def f(*i: Expr) -> Expr:
        factor = per_channel(scale, i) / E.unary("sqrt", per_channel(variance, i) + epsilon)
        y = (E.cast(x[i], kind) - per_channel(average, i)) * factor + per_channel(bias, i)
        return E.cast(y, x.dtype)

    return [b.map(x.shape, f), *running]


def _channel_statistics(b: Builder, x: Value) -> tuple[Value, Value]:
    """Mean and variance of each channel (axis 1)."""
    axes = [axis for axis in range(x.rank) if axis != 1]
    wide = widened(b, x)
    average = mean(b, wide, axes)
    centred = b.elementwise(lambda v, m: v - m, wide, average)
    squares = b.elementwise(lambda v: v * v, centred)
    return mean(b, wide, axes, keepdims=False), mean(b, squares, axes, keepdims=False)
