"""Numbers from their decimal notation, correctly rounded.

Floats by the method of Eisel and Lemire (D. Lemire, Number parsing at a gigabyte per second, 2021): the
digits as a 64-bit integer times a power of five of 128 bits, from whose product the float is read off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.loops import If, Stmt, Store, While
from cuvil.ir.primitives import Value
from cuvil.ops.characters import Local, byte, each
from cuvil.ops.registry import Context, lowering

FIRST, LAST = -342, 308
"""Powers of ten below give 0 with any 64-bit integer, above infinity."""


@dataclass(frozen=True)
class _Format:
    """An IEEE 754 format.

    Attributes:
        word: the unsigned type of its width.
        bits: bits of the stored mantissa.
        bias: of the exponent.
        ties: the powers of ten between which a product can lie half-way between two numbers.
    """

    word: str
    bits: int
    bias: int
    ties: tuple[int, int]


_FORMATS = {
    "float32": _Format("uint32", 23, 127, (-17, 10)),
    "float64": _Format("uint64", 52, 1023, (-4, 23)),
}


@lowering("Cast", strings=True)
def cast(c: Context) -> Value:
    """Numbers from strings.

    Of a float the first 19 digits count; infinity is what starts with i, a NaN with n.  Integers end where
    no digit follows, and wrap.
    """
    x, kind = c.x, ONNX_TYPES.get(c.attr("to", 0), "")
    if kind == "string":
        return x
    if kind in ("float16", "bfloat16"):
        return c.b.cast(_parsed(c, x, "float32"), kind)
    if kind not in _FORMATS and not kind.startswith(("int", "uint")):
        raise c.unsupported(f"strings are cast to floats and integers, not to {kind}")
    return _parsed(c, x, kind)


def _parsed(c: Context, x: Value, kind: str) -> Value:
    """The numbers that the strings of `x` start with."""
    floating = kind in _FORMATS
    powers = c.b.constant(_powers())

    def body(y: Value) -> Sequence[Stmt]:
        here, negative, point, power = Local("here"), Local("negative"), Local("point"), Local("power")
        special, down, explicit = Local("special"), Local("down"), Local("explicit")
        digits = Local("digits", "uint64")
        onward = here.set(here.now + 1)

        def element(*at: Expr) -> Sequence[Stmt]:
            now = E.cast(byte(x, at, here.now), E.INDEX)
            digit = now - ord("0")
            is_digit = E.le(0, digit) & E.le(digit, 9)
            is_blank = E.eq(now, ord(" ")) | (E.le(9, now) & E.le(now, 13))

            def letter(name: str) -> Expr:
                return E.eq(now, ord(name)) | E.eq(now, ord(name.upper()))

            def sign(flag: Local) -> tuple[Stmt, ...]:
                minus = E.eq(now, ord("-"))
                return flag.set(E.cast(minus, E.INDEX)), If(minus | E.eq(now, ord("+")), (onward,))

            append = digits.set(digits.now * 10 + E.cast(digit, "uint64"))
            start = (here.set(0), digits.set(0), While(is_blank, (onward,)), *sign(negative))
            if not floating:
                signed = E.select(E.eq(negative.now, 1), 0 - digits.now, digits.now)
                return [*start, While(is_digit, (append, onward)), Store(y, at, E.cast(signed, kind))]
            room = E.lt(digits.now, E.const(10**18, "uint64"))
            keep = If(
                room, (append, power.set(power.now - point.now)), (power.set(power.now + 1 - point.now),)
            )
            is_point = E.eq(now, ord(".")) & E.eq(point.now, 0)
            mantissa = While(is_digit | is_point, (If(is_point, (point.set(1),), (keep,)), onward))
            more = explicit.set(E.minimum(explicit.now * 10 + digit, 10_000))
            tail = If(letter("e"), (onward, *sign(down), While(is_digit, (more, onward))))
            assembly, magnitude = _assembled(digits.now, power.now, powers, kind)
            infinite, nan = E.const(np.inf, kind), E.const(np.nan, kind)
            named = E.select(E.eq(special.now, 1), infinite, E.select(E.eq(special.now, 2), nan, magnitude))
            return [
                *start,
                *(v.set(0) for v in (point, power, down, explicit)),
                special.set(E.select(letter("i"), E.const(1), E.select(letter("n"), E.const(2), E.const(0)))),
                mantissa,
                tail,
                power.set(power.now + E.select(E.eq(down.now, 1), 0 - explicit.now, explicit.now)),
                *assembly,
                Store(y, at, E.select(E.eq(negative.now, 1), E.unary("neg", named), named)),
            ]

        used = (here, negative, digits, *((point, power, special, down, explicit) if floating else ()))
        return [*(v.declaration for v in used), *each(x.shape[:-1], element)]

    (y,) = c.b.opaque([x, powers] if floating else [x], [(kind, x.shape[:-1])], body)
    return y


def _powers() -> np.ndarray:
    """The 128 leading bits of 5**q for q from `FIRST` to `LAST`, `uint64` [count, (high, low)]; rounded down
    for positive q, up for negative."""
    rows = []
    for q in range(FIRST, LAST + 1):
        power = 5 ** abs(q)
        if q < 0:
            size = (power - 1).bit_length()
            power = (1 << (size + 127 if q >= -27 else 2 * size + 128)) // power + 1
        excess = power.bit_length() - 128
        leading = power >> excess if excess > 0 else power << -excess
        rows.append((leading >> 64, leading & (1 << 64) - 1))
    return np.array(rows, np.uint64)


def _assembled(digits: Expr, power: Expr, powers: Value, kind: str) -> tuple[list[Stmt], Expr]:
    """Statements, and the float of type `kind` nearest to ``digits * 10**power`` after them."""
    form = _FORMATS[kind]
    factor, high, low, carry, bits = (
        Local(name, "uint64") for name in ("factor", "high", "low", "carry", "bits")
    )
    zeros, exponent = Local("zeros"), Local("exponent")
    infinite = 2 * form.bias + 1
    first, second = (E.load(powers, (power - FIRST, E.const(k))) for k in range(2))
    undecided = _word((1 << 61 - form.bits) - 1)
    top = _shift("shr", high.now, 63)
    places = top + (61 - form.bits)
    is_tie = E.le(low.now, _word(1)) & E.le(form.ties[0], power) & E.le(power, form.ties[1])
    is_tie = is_tie & E.eq(E.binary("band", bits.now, _word(3)), _word(1))
    is_tie = is_tie & E.eq(E.binary("shl", bits.now, places), high.now)
    rounded = bits.set(_shift("shr", bits.now + E.binary("band", bits.now, _word(1)), 1))
    hidden = 1 << form.bits
    lost = E.cast(E.minimum(1 - exponent.now, 63), "uint64")
    subnormal = (
        bits.set(E.select(E.lt(exponent.now, -62), _word(0), E.binary("shr", bits.now, lost))),
        rounded,
        exponent.set(E.cast(E.le(_word(hidden), bits.now), E.INDEX)),
    )
    normal = (
        If(is_tie, (bits.set(bits.now - 1),)),
        rounded,
        If(E.le(_word(2 * hidden), bits.now), (bits.set(hidden), exponent.set(exponent.now + 1))),
        If(E.le(infinite, exponent.now), (bits.set(0), exponent.set(infinite))),
    )
    finite = (
        factor.set(digits),
        zeros.set(0),
        While(E.lt(factor.now, _word(1 << 63)), (factor.set(factor.now * 2), zeros.set(zeros.now + 1))),
        high.set(_high_product(factor.now, first)),
        low.set(factor.now * first),
        If(
            E.eq(E.binary("band", high.now, undecided), undecided),
            (
                carry.set(_high_product(factor.now, second)),
                low.set(low.now + carry.now),
                If(E.lt(low.now, carry.now), (high.set(high.now + 1),)),
            ),
        ),
        bits.set(E.binary("shr", high.now, places)),
        exponent.set(
            E.floordiv(power * 217706, 1 << 16) + E.cast(top, E.INDEX) - zeros.now + (63 + form.bias)
        ),  # 217706 / 2**16 is log2(10)
        If(E.le(exponent.now, 0), subnormal, normal),
    )
    vanishes = E.eq(digits, _word(0)) | E.lt(power, FIRST)
    statements = [
        *(v.declaration for v in (factor, high, low, carry, bits, zeros, exponent)),
        bits.set(0),
        exponent.set(E.select(vanishes, E.const(0), E.const(infinite))),
        If(E.unary("not", vanishes) & E.le(power, LAST), finite),
    ]
    mantissa = E.binary("band", bits.now, _word(hidden - 1))
    word = E.binary("bor", mantissa, _shift("shl", E.cast(exponent.now, "uint64"), form.bits))
    return statements, E.bitcast(E.cast(word, form.word), kind)


def _word(number: int) -> Expr:
    return E.const(number, "uint64")


def _shift(op: str, x: Expr, count: int) -> Expr:
    return E.binary(op, x, _word(count))


def _high_product(a: Expr, b: Expr) -> Expr:
    """The high 64 bits of the product of two 64-bit numbers."""
    mask = _word((1 << 32) - 1)
    a0, b0 = E.binary("band", a, mask), E.binary("band", b, mask)
    a1, b1 = _shift("shr", a, 32), _shift("shr", b, 32)
    middle = _shift("shr", a0 * b0, 32) + E.binary("band", a0 * b1, mask) + a1 * b0
    return a1 * b1 + _shift("shr", a0 * b1, 32) + _shift("shr", middle, 32)
