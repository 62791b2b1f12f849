"""Random numbers: uniform, normal, Bernoulli, multinomial, and dropout while training.

A number is a function of the node and of the number's place alone, the output of SplitMix64 (Steele, Lea
and Flood, "Fast Splittable Pseudorandom Number Generators", 2014) at that place, so there is no state: a
model gives the same numbers in every build, on every device and in every call, and in every iteration of a
loop.  The attribute `seed` is the generator's; nodes with equal seeds give equal numbers.  Without it the
seed comes from the name of the node's first output.
"""

from __future__ import annotations

import hashlib
import math
import struct

from cuvil.ir import expr as E
from cuvil.ir.builder import flatten
from cuvil.ir.expr import Expr
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value
from cuvil.ops.reduction import widened
from cuvil.ops.registry import Context, lowering

_GAMMA = 0x9E3779B97F4A7C15


def _seed(c: Context) -> int:
    """The generator's first state: the bits of the attribute `seed`, or a digest of the node's output."""
    seed = c.attr("seed")
    if seed is None:
        name = next(name for name in c.node.outputs if name)
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return seed if isinstance(seed, int) else int.from_bytes(struct.pack("<f", seed), "little")


def _bits(seed: int, place: Expr) -> Expr:
    """The 64 bits of output `place` of the generator that starts at `seed`."""
    z = E.cast(place, "uint64") * _GAMMA + E.const(seed + _GAMMA, "uint64")
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = E.binary("bxor", z, E.binary("shr", z, shift)) * factor
    return E.binary("bxor", z, E.binary("shr", z, 31))


def _unit(seed: int, place: Expr, kind: str) -> Expr:
    """A number in [0, 1) of type `kind`, float32 or float64: a multiple of its epsilon's half."""
    bits = _bits(seed, place)
    if kind == "float64":
        return E.cast(E.binary("shr", bits, 11), kind) * 2.0**-53
    return E.cast(E.cast(E.binary("shr", bits, 40), "int32"), kind) * 2.0**-24


def _wide(dtype: str) -> str:
    """The type that numbers of type `dtype` are made in."""
    return "float64" if dtype == "float64" else "float32"


def _target(c: Context) -> tuple[tuple[Expr, ...], str]:
    """Shape and element type of the result."""
    like = c.node.op.endswith("Like")
    dtype = ONNX_TYPES[number] if (number := c.attr("dtype")) else c.x.dtype if like else "float32"
    if not E.is_float(dtype):
        raise c.error(f"there are no random numbers of type {dtype}")
    return (c.x.shape if like else tuple(map(E.const, c.attr("shape")))), dtype


@lowering("RandomUniform", "RandomUniformLike")
def random_uniform(c: Context) -> Value:
    """Numbers spread evenly over [low, high); the same in every build and call."""
    shape, dtype = _target(c)
    kind, seed = _wide(dtype), _seed(c)
    low: float = c.attr("low", 0.0)
    span: float = c.attr("high", 1.0) - low

    def body(*i: Expr) -> Expr:
        return E.cast(_unit(seed, flatten(i, shape), kind) * span + low, dtype)

    return c.b.map(shape, body)


@lowering("RandomNormal", "RandomNormalLike")
def random_normal(c: Context) -> Value:
    """Normally distributed numbers (Box and Muller's transform); the same in every build and call."""
    shape, dtype = _target(c)
    kind, seed = _wide(dtype), _seed(c)
    mean, scale = c.attr("mean", 0.0), c.attr("scale", 1.0)

    def body(*i: Expr) -> Expr:
        place = flatten(i, shape) * 2
        radius = E.unary("sqrt", E.unary("log", 1 - _unit(seed, place, kind)) * -2)
        turn = E.unary("cos", _unit(seed, place + 1, kind) * (2 * math.pi))
        return E.cast(radius * turn * scale + mean, dtype)

    return c.b.map(shape, body)


@lowering("Bernoulli")
def bernoulli(c: Context) -> Value:
    """1 with the probability that the input says, else 0; the same in every build and call."""
    x, seed = c.x, _seed(c)
    kind = _wide(x.dtype)
    dtype = ONNX_TYPES[number] if (number := c.attr("dtype")) else x.dtype

    def body(*i: Expr) -> Expr:
        return E.cast(E.lt(_unit(seed, flatten(i, x.shape), kind), E.cast(x[i], kind)), dtype)

    return c.b.map(x.shape, body)


@lowering("Multinomial")
def multinomial(c: Context) -> Value:
    """Classes drawn with the probabilities whose logarithms, up to a constant, are the rows [batch, class];
    the same in every build and call.

    A draw is the number of classes whose running total of probabilities does not exceed a random share of
    the whole.
    """
    b, x, seed = c.b, widened(c.b, c.x), _seed(c)
    if x.rank != 2:
        raise c.error(f"the input has rank {x.rank}, it must be [batch, class]")
    samples: int = c.attr("sample_size", 1)
    dtype = ONNX_TYPES[c.attr("dtype", 6)]
    batch, classes = x.shape
    largest = b.reduce_axes("max", x, [1])
    scan = b.scan(classes)
    totals = b.member(scan, x.dtype, [batch])

    def total(k: Expr, n: Expr) -> Expr:
        share = E.unary("exp", E.load(x, (n, k)) - largest[(n, E.const(0))])
        return share + E.select(E.eq(k, 0), E.const(0, x.dtype), E.load(totals, (k - 1, n)))

    b.define(totals, total)

    def reached(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        share = _unit(seed, flatten(i, (batch, E.const(samples))), x.dtype)
        whole = E.load(totals, (classes - 1, i[0]))
        return E.cast(E.le(E.load(totals, (r[0], i[0])), share * whole), dtype)

    return b.reduce("sum", [batch, samples], [classes - 1], reached)


@lowering("Dropout")
def dropout(c: Context) -> list[Value]:
    """Inference: the input itself, and a mask of ones.  Training: zeros with the probability `ratio`, the
    rest divided by 1 - ratio, and the mask of what is left; the same in every build and call."""
    b, x, given, training = c.b, c.x, c.optional(1), c.optional(2)
    if training is None or (training.is_constant and not training.array.any()):
        return [b.elementwise(lambda v: v, x), b.map(x.shape, lambda *i: E.const(True, "bool"))]
    seed, kind = _seed(c), _wide(x.dtype)
    ratio = E.const(0.5, kind) if given is None else E.cast(given[(E.const(0),) * given.rank], kind)
    ratio = E.select(training[(E.const(0),) * training.rank], ratio, E.const(0, kind))
    mask = b.map(x.shape, lambda *i: E.le(ratio, _unit(seed, flatten(i, x.shape), kind)))

    def body(*i: Expr) -> Expr:
        return E.select(mask[i], E.cast(E.cast(x[i], kind) * (1 / (1 - ratio)), x.dtype), E.const(0, x.dtype))

    return [b.map(x.shape, body), mask]
