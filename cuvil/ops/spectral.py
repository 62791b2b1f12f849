"""Fourier transforms, as products with matrices of sines and cosines, and the mel scale of their spectra."""

from __future__ import annotations

import math

from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value, depends_on_data, static
from cuvil.ops.contraction import summed
from cuvil.ops.registry import Context, lowering
from cuvil.ops.runtime import along

MAX_LENGTH = 1 << 13
"""Points of a transform; the matrices have this many columns and rows."""


@lowering("DFT")
def dft(c: Context) -> Value:
    """The transform along an axis of [..., 1 or 2], real or complex; one-sided it gives or takes half
    of the spectrum of a real signal."""
    x, inverse, onesided = c.x, bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    (given,) = c.ints(2, "axis", -x.rank, x.rank - 2) or [E.const(-2)]
    if depends_on_data(given):
        line = along(c.b, x, E.select(E.lt(given, 0), given + x.rank, given))
        parts = x.shape[-1]
        behind = c.b.derived(E.floordiv(line.shape[2], parts), line.shape[2])
        split = c.b.reshape(line, [*line.shape[:2], behind, parts])
        result = _dft(c, split, 1, inverse, onesided)
        sizes = [
            c.b.derived(E.select(E.eq(given, k) | E.eq(given, k - x.rank), result.shape[1], n), MAX_LENGTH)
            for k, n in enumerate(x.shape[:-1])
        ]
        return c.b.reshape(result, [*sizes, result.shape[-1]])
    return _dft(c, x, c.normal(static(given) or 0, x.rank), inverse, onesided)


def _dft(c: Context, x: Value, axis: int, inverse: bool, onesided: bool) -> Value:
    """The transform along `axis` with the length that input 1 gives."""
    held, wanted = x.shape[axis], c.ints(1, "dft_length", 1, MAX_LENGTH)
    length = wanted[0] if wanted else (held - 1) * 2 if inverse and onesided else held
    if (known := static(length)) is not None and not 0 < known <= MAX_LENGTH:
        raise c.unsupported(f"a transform of {known} points; 1 to {MAX_LENGTH} are supported")
    return transform(c.b, x, axis, length, E.minimum(held, length), inverse, onesided)


def transform(
    b: Builder, x: Value, axis: int, length: Expr, used: Expr, inverse: bool, onesided: bool
) -> Value:
    """The discrete Fourier transform of `length` points of the first `used` entries of `axis`."""
    is_complex = static(x.shape[-1]) == 2
    real_result = inverse and onesided
    half = E.floordiv(length, 2) + 1
    if real_result:
        used = E.minimum(used, half)
    count = half if onesided and not inverse else length

    def table(function: str, sign: int) -> Value:
        def entry(k: Expr, t: Expr) -> Expr:
            points = E.cast(length, "float64")
            turn = E.cast(E.mod(k * t, length), "float64") * (2 * math.pi) / points
            weight = sign / points if inverse else E.const(sign, "float64")
            if real_result:  # the other half of the spectrum is the conjugate of this one
                both = E.le(1, t) & E.lt(t, E.floordiv(length + 1, 2))
                weight = weight * E.select(both, E.const(2, "float64"), E.const(1, "float64"))
            return E.cast(E.unary(function, turn) * weight, x.dtype)

        values = b.map([count, used], entry)
        if static(count * used) is not None:
            return b.constant(evaluate.value(values, lambda v: v.array))
        return values

    cosine, sine = table("cos", 1), table("sin", 1 if inverse else -1)
    shape = [count if k == axis else s for k, s in enumerate(x.shape[:-1])]

    def product(table: Value, part: int) -> Value:
        def factors(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
            at = tuple(r[0] if k == axis else v for k, v in enumerate(i))
            return x[(*at, E.const(part))], E.load(table, (i[axis], r[0]))

        return summed(b, shape, [used], factors)

    real, imaginary = product(cosine, 0), product(sine, 0)
    if is_complex:
        real = b.elementwise(lambda p, q: p - q, real, product(sine, 1))
        imaginary = b.elementwise(lambda p, q: p + q, imaginary, product(cosine, 1))
    if real_result:
        return b.map([*shape, 1], lambda *i: real[i[:-1]])
    return b.map([*shape, 2], lambda *i: E.select(E.eq(i[-1], 0), real[i[:-1]], imaginary[i[:-1]]))


@lowering("STFT")
def stft(c: Context) -> Value:
    """Transforms of windowed frames of a signal [batch, length, 1 or 2], [batch, frames, points, 2]."""
    b, x, window = c.b, c.x, c.optional(2)
    (step,) = c.ints(1, "frame_step", 1) or [E.const(0)]
    wanted = c.ints(3, "frame_length", 1, E.minimum(x.shape[1], MAX_LENGTH))
    size = wanted[0] if wanted else window.shape[0] if window is not None else E.const(0)
    if step.hi <= 0 or not 0 < size.hi <= MAX_LENGTH:
        raise c.unsupported(f"frames must have a length, at most {MAX_LENGTH}, and a positive step")
    frames = c.declared(1, E.floordiv(x.shape[1] - size, step) + 1)

    def frame(n: Expr, f: Expr, t: Expr, part: Expr) -> Expr:
        value = x[(n, f * step + t, part)]
        return value if window is None else value * window[t]

    framed = b.map([x.shape[0], frames, size, x.shape[-1]], frame)
    return transform(b, framed, 2, size, size, False, bool(c.attr("onesided", 1)))


@lowering("MelWeightMatrix")
def mel_weight_matrix(c: Context) -> Value:
    """The matrix [dft_length / 2 + 1, num_mel_bins] that brings a spectrum to the mel scale: overlapping
    triangles with a peak of 1 whose corners are evenly spaced on that scale,
    ``mel(f) = 2595 log10(1 + f / 700)``."""
    b, dtype = c.b, ONNX_TYPES[c.attr("output_datatype", 1)]
    (count,) = c.ints(0, "num_mel_bins", 0, MAX_LENGTH) or [E.const(0)]
    (length,) = c.ints(1, "dft_length", 0, MAX_LENGTH) or [E.const(0)]
    rate, *edges = (E.cast(c[k][(E.const(0),) * c[k].rank], "float64") for k in (2, 3, 4))
    scale = 2595 / math.log(10)
    low, high = (E.unary("log", 1 + edge / 700) * scale for edge in edges)

    def corner(k: Expr) -> Expr:
        """The frequency that corner `k` falls on, as a row of the matrix."""
        mel = low + E.cast(k, "float64") * ((high - low) / E.cast(count + 2, "float64"))
        hertz = (E.unary("exp", mel * (1 / scale)) - 1) * 700
        return E.cast(E.unary("floor", E.cast(length + 1, "float64") * hertz / rate), E.INDEX)

    corners = b.map([count + 2], corner)
    kind = "float64" if dtype == "float64" else "float32"

    def body(row: Expr, column: Expr) -> Expr:
        left, peak, right = (E.load(corners, (column + k,)) for k in range(3))

        def slope(run: Expr, whole: Expr) -> Expr:
            return E.select(E.lt(run, 0), E.const(0, kind), E.cast(run, kind) / E.cast(whole, kind))

        rising, falling = slope(row - left, peak - left), slope(right - row, right - peak)
        inside = E.select(E.eq(row, peak), E.const(1, kind), falling)
        return E.cast(E.select(E.lt(row, peak), rising, inside), dtype)

    return b.map([E.floordiv(length, 2) + 1, count], body)
