"""Resize: interpolation along axes, one after the other.

Where an output lies in the input is kept as an exact fraction of index expressions, so that nearest
neighbours do not hang on rounding, and sizes may be symbolic.  Indices and weights are vectors of
their own, which folding turns into tables where the sizes are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cuvil import limits
from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Map, Value, static
from cuvil.ops.registry import Context, lowering

TRANSFORMATIONS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Ratio:
    """A positive fraction of index expressions."""

    top: Expr
    bottom: Expr


def _simple(number: float) -> Fraction:
    """The simplest fraction that is `number` in float32: what 0.6 was meant to be."""
    exact = Fraction(number)
    for limit in (64, 4096):
        near = exact.limit_denominator(limit)
        if np.float32(near.numerator / near.denominator) == np.float32(number):
            return near
    return exact


def _ratio(f: Fraction) -> Ratio:
    return Ratio(E.const(f.numerator), E.const(f.denominator))


@dataclass(frozen=True)
class Axis:
    """One axis that is resized.

    Attributes:
        axis: which.
        length, out: its sizes before and after.
        scale: after by before, not rounded.
        start, end: the region of interest for ``tf_crop_and_resize``, as fractions of the axis; with one
            bottom.
    """

    axis: int
    length: Expr
    out: Expr
    scale: Ratio
    start: Ratio
    end: Ratio

    def position(self, mode: str, o: Expr) -> Ratio:
        """Where output `o` lies on the input's axis (formulas of ONNX, Resize); the bottom is positive."""
        p, q, n, m = self.scale.top, self.scale.bottom, self.length, self.out
        one = E.const(1)
        if mode == "asymmetric":
            return Ratio(o * q, p)
        if mode == "tf_half_pixel_for_nn":
            return Ratio((o * 2 + 1) * q, p * 2)
        single = E.eq(m, 1)
        if mode == "align_corners":
            return Ratio(E.select(single, 0, o * (n - 1)), E.select(single, one, m - 1))
        if mode == "tf_crop_and_resize":
            start, end, common = self.start.top, self.end.top, self.start.bottom
            many = (n - 1) * ((m - 1) * start + o * (end - start))
            top = E.select(single, (n - 1) * (start + end), many)
            return Ratio(top, E.select(single, common * 2, (m - 1) * common))
        half = (o * 2 + 1) * q - p
        if mode == "half_pixel_symmetric":
            half = half + n * p - m * q
        if mode == "pytorch_half_pixel":
            half = E.select(single, 0, half)
        return Ratio(half, p * 2)


def _sizes(c: Context, axes: Sequence[int]) -> list[Axis]:
    """The axes that change, from the scales or the sizes."""
    x = c.x
    crop = c.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    regions = [(_ratio(Fraction(0)), _ratio(Fraction(1)))] * len(axes)
    if crop:
        corners = _fractions(c, 1, 2 * len(axes), -_FINE)
        regions = [_common(*pair) for pair in zip(corners[: len(axes)], corners[len(axes) :])]
    found = []
    for axis, (size, scale), (start, end) in zip(axes, _targets(c, axes, regions), regions):
        out = c.declared(axis, size)
        if crop or out is not x.shape[axis] or scale.top is not scale.bottom:
            found.append(Axis(axis, x.shape[axis], out, scale, start, end))
    return found


def _targets(
    c: Context, axes: Sequence[int], regions: Sequence[tuple[Ratio, Ratio]]
) -> list[tuple[Expr, Ratio]]:
    """Output size and scale of each of `axes`."""
    lengths = [c.x.shape[a] for a in axes]
    sizes = c.ints(3, "sizes", 0)
    if sizes:
        if len(sizes) != len(axes):
            raise c.error(f"{len(sizes)} sizes for {len(axes)} axes")
        policy = c.attr("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            sizes = [c.declared(a, m) for a, m in zip(axes, sizes)]
            return [(m, Ratio(m, n)) for m, n in zip(sizes, lengths)]
        top, bottom = sizes[0], lengths[0]
        for m, n in zip(sizes[1:], lengths[1:]):
            smaller, larger = E.lt(m * bottom, top * n), E.lt(top * n, m * bottom)
            other = smaller if policy == "not_larger" else larger
            top, bottom = E.select(other, m, top), E.select(other, n, bottom)
        scale = Ratio(top, bottom)
        wanted = [E.floordiv(top * n * 2 + bottom, bottom * 2) for n in lengths]
        return [(c.b.derived(m, limits.MAX_SYMBOL), scale) for m in wanted]
    targets = []
    for n, s, (start, end) in zip(lengths, _fractions(c, 2, len(axes), 1), regions):
        size = E.floordiv(n * s.top * (end.top - start.top), s.bottom * start.bottom)
        targets.append((c.b.derived(size, limits.MAX_SYMBOL), s))
    return targets


_FINE = 1 << 20
"""Bottom of the fractions that stand for numbers which are no simple fraction."""

_BOTTOMS = 4096
"""Largest bottom of a simple fraction."""


def _fractions(c: Context, index: int, count: int, low: int) -> list[Ratio]:
    """The `count` numbers of an input as fractions, at least `low` / `_FINE`.

    A number from the data is the fraction with the smallest bottom that is the same float32.
    """
    given = c.constant(index)
    if given is not None:
        if given.size != count or (low > 0 and not (given > 0).all()):
            raise c.error(f"{given.tolist()} are not {count} {'positive ' if low > 0 else ''}numbers")
        return [_ratio(_simple(float(v))) for v in given]
    value = c[index]
    if static(value.shape[0]) != count:
        raise c.error(f"input {index} has not {count} numbers")
    found = []
    for k in range(count):
        number = E.cast(value[k], "float64")

        def bottom(_: object, r: tuple[Expr, ...], number: Expr = number) -> Expr:
            d = E.cast(r[0] + 1, "float64")
            same = E.eq(E.cast(E.unary("round", number * d) / d, "float32"), E.cast(number, "float32"))
            return E.select(same, r[0] + 1, _FINE)

        smallest = c.b.derived(E.load(c.b.reduce("min", [], [_BOTTOMS], bottom), ()), _FINE, 1)
        top = E.cast(E.unary("round", number * E.cast(smallest, "float64")), E.INDEX)
        found.append(Ratio(c.b.derived(top, 1 << 30, low), smallest))
    return found


def _common(a: Ratio, b: Ratio) -> tuple[Ratio, Ratio]:
    """Both fractions with one bottom."""
    bottom = a.bottom * b.bottom
    return Ratio(a.top * b.bottom, bottom), Ratio(b.top * a.bottom, bottom)


@lowering("Resize")
def resize(c: Context) -> Value:
    """Interpolated to other sizes; nearest, linear and cubic, with or without antialiasing.

    ``align_corners`` uses the output's real size, as onnxruntime does; ONNX's reference takes
    scale times size, unrounded.
    """
    x, mode = c.x, c.attr("mode", "nearest")
    transformation = c.attr("coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear", "cubic") or transformation not in TRANSFORMATIONS:
        raise c.error(f"mode '{mode}' with '{transformation}' is none of ONNX's")
    given = c.attr("axes")
    axes = list(range(x.rank)) if given is None else [c.normal(a, x.rank) for a in given]
    changed = _sizes(c, axes)
    y = x
    if mode != "nearest" and not E.is_float(x.dtype):
        y = c.b.cast(x, "float32")
    for axis in changed:
        y = _nearest(c, y, axis, transformation) if mode == "nearest" else _blend(c, y, axis, transformation)
    if transformation == "tf_crop_and_resize":
        y = _extrapolate(c, y, changed)
    return c.b.cast(y, x.dtype) if y is not x else c.b.map(x.shape, lambda *i: x[i])


def _replaced(shape: Sequence[Expr], axis: Axis) -> list[Expr]:
    return [axis.out if k == axis.axis else s for k, s in enumerate(shape)]


def _clamp(i: Expr, length: Expr) -> Expr:
    return E.maximum(E.minimum(i, length - 1), 0)


def _nearest(c: Context, x: Value, axis: Axis, transformation: str) -> Value:
    rounding = c.attr("nearest_mode", "round_prefer_floor")
    if rounding not in ROUNDINGS:
        raise c.error(f"nearest_mode '{rounding}' is none of {', '.join(ROUNDINGS)}")

    def index(o: Expr) -> Expr:
        at = axis.position(transformation, o)
        top, bottom = at.top, at.bottom
        if rounding.startswith("round"):
            top, bottom = top * 2, bottom * 2
            top = top - at.bottom if rounding == "round_prefer_floor" else top + at.bottom
        down = rounding in ("floor", "round_prefer_ceil")
        whole = E.floordiv(top, bottom) if down else -E.floordiv(-top, bottom)
        return _clamp(whole, axis.length)

    picks = c.b.map([axis.out], index)
    at = _closed_form(picks, axis.length)

    def body(*i: Expr) -> Expr:
        o = i[axis.axis]
        return x[tuple((picks[o] if at is None else at(o)) if k == axis.axis else v for k, v in enumerate(i))]

    return c.b.map(_replaced(x.shape, axis), body)


def _closed_form(picks: Value, length: Expr) -> _Form | None:
    """Indices of known sizes as a plain formula, where they are ``o * step + start`` or
    ``o // repeats``."""
    n, m = static(length), static(picks.shape[0])
    known = isinstance(picks.definition, Map) and all(e.op != "sym" for e in E.walk(picks.definition.body))
    if n is None or not m or not known:
        return None
    table = evaluate.value(picks, lambda v: v.array)
    at = np.arange(m)
    step = int(table[1] - table[0]) if m > 1 else 0
    for form in (_Form(step, int(table[0]), 1), _Form(1, 0, max(m // n, 1))):
        if np.array_equal(table, at * form.step // form.repeats + form.start):
            return form
    return None


@dataclass(frozen=True)
class _Form:
    """``o * step // repeats + start``."""

    step: int
    start: int
    repeats: int

    def __call__(self, o: Expr) -> Expr:
        return E.floordiv(o * self.step, self.repeats) + self.start


def _blend(c: Context, x: Value, axis: Axis, transformation: str) -> Value:
    """Weighted sums of neighbours along one axis."""
    b, kind = c.b, c.attr("mode")
    narrow, sharp = (1, None) if kind == "linear" else (2, c.attr("cubic_coeff_a", -0.75))
    reach, shrink = E.const(narrow), Ratio(E.const(1), E.const(1))
    if c.attr("antialias", 0):
        shrink = Ratio(E.minimum(axis.scale.top, axis.scale.bottom), axis.scale.bottom)
        widest = E.floordiv(shrink.bottom * narrow + shrink.top - 1, shrink.top)
        reach = b.derived(widest, (axis.length + 1) * narrow)
    taps = reach * 2
    real = "float64" if x.dtype == "float64" else "float32"

    def base(o: Expr) -> tuple[Expr, Expr]:
        """The first tap's index and the distance of the position from the tap before the middle."""
        at = axis.position(transformation, o)
        whole = E.floordiv(at.top, at.bottom)
        part = E.cast(at.top - whole * at.bottom, real) / E.cast(at.bottom, real)
        return whole - (reach - 1), part

    def weight(o: Expr, t: Expr) -> Expr:
        first, part = base(o)
        distance = E.unary("abs", E.cast(t - (reach - 1), real) - part)
        if shrink.top is not shrink.bottom:
            distance = distance * (E.cast(shrink.top, real) / E.cast(shrink.bottom, real))
        w = E.maximum(1 - distance, 0) if sharp is None else cubic(distance, sharp)
        if not c.attr("exclude_outside", 0):
            return w
        source = first + t
        inside = E.le(0, source) & E.lt(source, axis.length)
        return E.select(inside, w, E.const(0, real))

    weights = b.map([axis.out, taps], weight)
    if c.attr("exclude_outside", 0) or c.attr("antialias", 0):
        total = b.reduce_axes("sum", weights, [1])
        weights = b.elementwise(lambda w, s: w / s, weights, total)
    picks = b.map([axis.out, taps], lambda o, t: _clamp(base(o)[0] + t, axis.length))

    def term(i: Sequence[Expr], t: Expr) -> Expr:
        o = i[axis.axis]
        at = tuple(picks[(o, t)] if k == axis.axis else v for k, v in enumerate(i))
        return x[at] * E.cast(weights[(o, t)], x.dtype)

    shape = _replaced(x.shape, axis)
    if taps.hi > 4:
        return b.reduce("sum", shape, [taps], lambda i, r: term(i, r[0]))

    def body(*i: Expr) -> Expr:
        total = term(i, E.const(0))
        for t in range(1, int(taps.hi)):
            total = total + term(i, E.const(t))
        return total

    return b.map(shape, body)


def cubic(d: Expr, a: float) -> Expr:
    """Keys' cubic convolution kernel at distance `d`."""
    near = ((d * (a + 2)) - (a + 3)) * d * d + 1
    far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
    return E.select(E.le(d, 1), near, E.select(E.lt(d, 2), far, E.const(0, d.dtype)))


def _extrapolate(c: Context, y: Value, axes: Sequence[Axis]) -> Value:
    """`y` with the extrapolation value where the position is outside of the input."""
    fill = c.attr("extrapolation_value", 0.0)

    def body(*i: Expr) -> Expr:
        inside: Expr = E.const(True, "bool")
        for axis in axes:
            at = axis.position("tf_crop_and_resize", i[axis.axis])
            inside &= E.le(0, at.top) & E.le(at.top, (axis.length - 1) * at.bottom)
        return E.select(inside, y[i], fill if E.is_float(y.dtype) else int(fill))

    return c.b.map(y.shape, body)
