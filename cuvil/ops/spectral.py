"""Fourier transforms, as products with matrices of sines and cosines."""

from __future__ import annotations

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Builder, Value, static
from cuvil.ops.contraction import summed
from cuvil.ops.registry import Context, lowering

MAX_LENGTH = 1 << 13
"""Points of a transform; the matrices have this many columns and rows."""


@lowering("DFT")
def dft(c: Context) -> Value:
    """The transform along an axis of [..., 1 or 2], real or complex; one-sided it gives or takes half
    of the spectrum of a real signal."""
    x, inverse, onesided = c.x, bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    (given,) = c.static_ints(2, "axis") or [-2]
    axis = c.normal(given, x.rank)
    held, wanted = static(x.shape[axis]), c.static_ints(1, "dft_length")
    if held is None:
        raise c.unsupported("the length of the transform must be known at compile time")
    length = wanted[0] if wanted else 2 * (held - 1) if inverse and onesided else held
    if not 0 < length <= MAX_LENGTH:
        raise c.unsupported(f"a transform of {length} points; 1 to {MAX_LENGTH} are supported")
    return transform(c.b, x, axis, length, min(held, length), inverse, onesided)


def transform(
    b: Builder, x: Value, axis: int, length: int, used: int, inverse: bool, onesided: bool
) -> Value:
    """The discrete Fourier transform of `length` points of the first `used` entries of `axis`."""
    is_complex = static(x.shape[-1]) == 2
    real_result = inverse and onesided
    if real_result:
        used = min(used, length // 2 + 1)
    count = length // 2 + 1 if onesided and not inverse else length
    turns = np.outer(np.arange(count), np.arange(used)) % length * (2 * np.pi / length)
    weight = np.full(used, 1 / length if inverse else 1.0)
    if real_result:  # the other half of the spectrum is the conjugate of this one
        weight[1 : (length + 1) // 2] *= 2
    cosine = b.constant((np.cos(turns) * weight).astype(x.dtype))
    sine = b.constant((np.sin(turns) * weight * (1 if inverse else -1)).astype(x.dtype))
    shape = [E.const(count) if k == axis else s for k, s in enumerate(x.shape[:-1])]

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
    (step,) = c.static_ints(1, "frame_step") or [0]
    wanted = c.static_ints(3, "frame_length")
    size = wanted[0] if wanted else static(window.shape[0]) if window is not None else None
    if size is None or not 0 < size <= MAX_LENGTH or step <= 0:
        raise c.unsupported(f"frames must have a known length, at most {MAX_LENGTH}, and a positive step")
    frames = E.floordiv(x.shape[1] - size, step) + 1

    def frame(n: Expr, f: Expr, t: Expr, part: Expr) -> Expr:
        value = x[(n, f * step + t, part)]
        return value if window is None else value * window[t]

    framed = b.map([x.shape[0], frames, size, x.shape[-1]], frame)
    return transform(b, framed, 2, size, size, False, bool(c.attr("onesided", 1)))
