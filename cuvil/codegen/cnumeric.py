"""Element types that C has not: how a value of one is stored, read and written.

A value is stored as numpy with `ml_dtypes` stores it, one element in one byte (two for bfloat16),
and computed with in its carrier, ``float32`` or ``int32``.  `SMALL` is the table of these types.
From float32 all round half to even (e8m0, which has no zero and no sign, half up); what is beyond the
range becomes infinite, or NaN where the type has no infinity, or the largest value where it has
neither, all as in `ml_dtypes`.  Saturation, where an operator asks for it, is a clamp before the
conversion.  Integers keep their low bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cuvil.ir.expr import numpy_dtype

_COMMON = """
static inline float cv_decode(uint32_t code, uint32_t sign, int mantissa, int bias) {
    const uint32_t magnitude = code & (sign - 1), negative = (code & sign) != 0 ? UINT32_C(0x80000000) : 0;
    const uint32_t normal = (magnitude << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23);
    const float unit = cv_float((int32_t)((uint32_t)(128 - bias - mantissa) << 23));
    const uint32_t tiny = (uint32_t)cv_bits((float)(int32_t)magnitude * unit);
    return cv_float((int32_t)((magnitude >> mantissa != 0 ? normal : tiny) | negative));
}
static inline uint32_t cv_encode(float x, int mantissa, int bias, uint32_t largest, uint32_t beyond,
                                 uint32_t nan) {
    const uint32_t a = (uint32_t)cv_bits(x) & 0x7fffffff;
    const int shift = 23 - mantissa;
    const uint32_t rounded = (a + (UINT32_C(1) << (shift - 1)) - 1 + ((a >> shift) & 1)) >> shift;
    const int32_t magic = (int32_t)((uint32_t)(151 - bias - mantissa) << 23); /* ulp: the least value */
    const uint32_t tiny = (uint32_t)(cv_bits(cv_float((int32_t)a) + cv_float(magic)) - magic);
    const uint32_t normal = rounded - ((uint32_t)(127 - bias) << mantissa);
    const uint32_t code = a < ((uint32_t)(128 - bias) << 23) ? tiny : normal;
    return a > 0x7f800000 ? nan : code > largest ? beyond : code;
}
"""


@dataclass(frozen=True)
class Small:
    """A type that C has not.

    Attributes:
        carrier: the type that its values are computed with in.
        read: the value of code ``x``, a C expression of the carrier's type.
        write: the code of value ``x`` of the carrier's type, a C expression.
        arithmetic: operators compute with it, each result rounded; the others are only moved and converted.
    """

    carrier: str
    read: str
    write: str
    storage: str = "uint8_t"
    arithmetic: bool = False


_SIGN = "((uint32_t)cv_bits(x) >> 31)"


def _float(
    bits: int, mantissa: int, bias: int, largest: int, beyond: int, nan: int, special: str = "{}"
) -> Small:
    """A type with a sign, the largest code and what stands for more and for NaN; `special` reads the codes
    that are no numbers."""
    sign = 1 << (bits - 1)
    return Small(
        "float32",
        special.format(f"cv_decode(x, {sign}, {mantissa}, {bias})"),
        f"cv_encode(x, {mantissa}, {bias}, {largest}, {beyond}, {nan}) ^ ({_SIGN} << {bits - 1})",
    )


def _unsigned_zero(mantissa: int, bias: int) -> Small:
    """An 8-bit type with one zero and one NaN, whose code is that of -0 elsewhere."""
    code = f"cv_encode(x, {mantissa}, {bias}, 127, 128, 128)"
    return Small(
        "float32",
        f'x == 128 ? __builtin_nanf("") : cv_decode(x, 128, {mantissa}, {bias})',
        f"{code} | (({code} & 127) != 0 ? {_SIGN} << 7 : 0)",
    )


def _integer(bits: int, signed: bool) -> Small:
    mask, sign = (1 << bits) - 1, 1 << (bits - 1)
    return Small("int32", f"((x & {mask}) ^ {sign}) - {sign}" if signed else f"x & {mask}", f"x & {mask}")


SMALL: dict[str, Small] = {
    "bfloat16": Small(
        "float32", "cv_float((int32_t)((uint32_t)x << 16))",
        "x != x ? 0x7fc0 | (U >> 31 << 15) : (U + 0x7fff + ((U >> 16) & 1)) >> 16".replace(
            "U", "(uint32_t)cv_bits(x)"),
        "uint16_t", arithmetic=True),
    "float8_e4m3fn": _float(8, 3, 7, 126, 127, 127, '(x & 127) == 127 ? __builtin_nanf("") : {}'),
    "float8_e4m3fnuz": _unsigned_zero(3, 8),
    "float8_e5m2": _float(
        8, 2, 15, 123, 124, 126,
        '(x & 127) > 124 ? __builtin_nanf("") '
        ": (x & 127) == 124 ? (x < 128 ? __builtin_inff() : -__builtin_inff()) : {}"),
    "float8_e5m2fnuz": _unsigned_zero(2, 16),
    "float8_e8m0fnu": Small(
        "float32", 'x == 255 ? __builtin_nanf("") : cv_float(x == 0 ? 0x400000 : (int32_t)x << 23)',
        "x > 0 ? ((uint32_t)cv_bits(x) + 0x3fffff + (cv_bits(x) >= 0x800000)) >> 23 : 255"),
    "float4_e2m1fn": _float(4, 1, 1, 7, 7, 8),
    "int4": _integer(4, True), "uint4": _integer(4, False),
    "int2": _integer(2, True), "uint2": _integer(2, False),
}  # fmt: skip
"""The types by name.  Formats: "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), the fnuz ones
"8-bit Numerical Formats for Deep Neural Networks" (Noune et al., 2022), e8m0 and e2m1 the OCP's
"Microscaling Formats (MX)" 1.0."""

_CARRIERS = {"float32": "float", "int32": "int32_t"}


def code(value: float, dtype: str) -> int:
    """The code that stands for `value` in a type of `SMALL`."""
    array = np.array(value).astype(numpy_dtype(dtype))
    return int(array.view(np.uint16 if array.itemsize == 2 else np.uint8))


def text(dtypes: set[str]) -> str:
    """The C functions ``cv_from_<dtype>`` and ``cv_to_<dtype>`` of `dtypes`; they need `cmath`'s ``bits``."""
    if not dtypes:
        return ""
    lines = [_COMMON]
    for name, kind in SMALL.items():
        if name in dtypes:
            carrier = _CARRIERS[kind.carrier]
            lines += [
                f"static inline {carrier} cv_from_{name}({kind.storage} x) {{ return {kind.read}; }}",
                f"static inline {kind.storage} cv_to_{name}({carrier} x) "
                f"{{ return ({kind.storage})({kind.write}); }}",
            ]
    return "\n".join(lines) + "\n"
