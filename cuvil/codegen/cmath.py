"""Elementary functions in C, as text: branch-free on floats, so that loops over them vectorise; and
integer division, which in Cuvil never traps.

Each entry lists what it needs first.  Errors are in units in the last place (ulp) of float32,
over the whole range.  No entry needs the C library; `LIBM` names those functions that are left to
it.
"""

from __future__ import annotations

_F32 = {
    "bits": ((), """
static inline int32_t cv_bits(float x) { union { float f; int32_t i; } u; u.f = x; return u.i; }
static inline float cv_float(int32_t x) { union { float f; int32_t i; } u; u.i = x; return u.f; }
"""),
    "abs": ((), "static inline float cv_abs_f32(float x) { return __builtin_fabsf(x); }\n"),
    "sqrt": ((), "static inline float cv_sqrt_f32(float x) { return __builtin_sqrtf(x); }\n"),
    "round": (("bits",), """
static inline float cv_round_f32(float x) { /* half to even */
    float magic = cv_float((cv_bits(x) & INT32_MIN) | 0x4b000000);
    float r = (x + magic) - magic;
    return __builtin_fabsf(x) < 8388608.0f ? r : x;
}
"""),
    "floor": (("round",), """
static inline float cv_floor_f32(float x) { float r = cv_round_f32(x); return r > x ? r - 1.0f : r; }
"""),
    "ceil": (("round",), """
static inline float cv_ceil_f32(float x) { float r = cv_round_f32(x); return r < x ? r + 1.0f : r; }
"""),
    "trunc": (("round",), """
static inline float cv_trunc_f32(float x) {
    float a = __builtin_fabsf(x), r = cv_round_f32(a);
    r = r > a ? r - 1.0f : r;
    return cv_float(cv_bits(r) | (cv_bits(x) & INT32_MIN));
}
"""),
    "exp": (("bits",), """
static inline float cv_exp_f32(float x) { /* 1 ulp; gradual underflow and infinity as they should be */
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float shifted = c * 1.44269504f + 12582912.0f;
    int32_t k = cv_bits(shifted) - 0x4b400000;
    float n = shifted - 12582912.0f;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t half = k >> 1;
    p = p * cv_float((int32_t)((uint32_t)(half + 127) << 23));
    p = p * cv_float((int32_t)((uint32_t)(k - half + 127) << 23));
    return x != x ? x : p;
}
"""),
    "log": (("bits",), """
static inline float cv_log_f32(float x) { /* 1 ulp */
    float tiny = x < 1.17549435e-38f ? 1.0f : 0.0f;
    float scaled = tiny != 0.0f ? x * 8388608.0f : x;
    int32_t i = cv_bits(scaled);
    int32_t e = (i - 0x3f3504f3) >> 23;
    float m = cv_float(i - (int32_t)((uint32_t)e << 23)) - 1.0f;
    float k = (float)e - tiny * 23.0f;
    float z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float r = p * m * z + k * -2.12194440e-4f - 0.5f * z + m + k * 0.693359375f;
    r = x == 0.0f ? -__builtin_inff() : r;
    r = x < 0.0f ? __builtin_nanf("") : r;
    return x > 3.4028235e38f || x != x ? x : r;
}
"""),
    "tanh": ((), """
static inline float cv_tanh_f32(float x) { /* 5 ulp: a fraction in x * x, fitted for least relative error */
    float c = x < -9.01f ? -9.01f : x;
    c = c > 9.01f ? 9.01f : c;
    float s = c * c;
    float p = -1.22248479e-11f;
    p = p * s + 3.06137764e-08f;
    p = p * s + 2.8019389e-05f;
    p = p * s + 0.00386891817f;
    p = p * s + 0.136803865f;
    p = p * s + 1.0f;
    float q = 1.28820102e-06f;
    q = q * s + 0.000393967261f;
    q = q * s + 0.0272479989f;
    q = q * s + 0.470137179f;
    q = q * s + 1.0f;
    float y = c * p / q;
    y = y > 1.0f ? 1.0f : y;
    return y < -1.0f ? -1.0f : y;
}
"""),
    "sigmoid": (("bits",), """
static inline float cv_sigmoid_f32(float x) { /* 3 ulp; 0 below -87 */
    float c = x < -87.0f ? -87.0f : x;
    c = c > 87.0f ? 87.0f : c;
    float shifted = c * -1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = (-c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    float power = cv_float((int32_t)((uint32_t)cv_bits(p) + ((uint32_t)cv_bits(shifted) << 23)));
    float y = x < -87.0f ? 0.0f : 1.0f / (1.0f + power);
    return x != x ? x : y;
}
"""),
    "erf": ((), """
static inline float cv_erf_f32(float x) { /* 6 ulp: a fraction in x * x, fitted for least relative error */
    float c = x < -3.92f ? -3.92f : x;
    c = c > 3.92f ? 3.92f : c;
    float s = c * c;
    float p = 1.99242631e-08f;
    p = p * s + -1.95784492e-06f;
    p = p * s + 0.000141852142f;
    p = p * s + 0.00370167242f;
    p = p * s + 0.0505735241f;
    p = p * s + 0.199925929f;
    p = p * s + 1.12837911f;
    float q = 0.000956054893f;
    q = q * s + 0.0143533293f;
    q = q * s + 0.114999004f;
    q = q * s + 0.510511398f;
    q = q * s + 1.0f;
    float y = c * p / q;
    y = y > 1.0f ? 1.0f : y;
    return y < -1.0f ? -1.0f : y;
}
"""),
    "sincos": ((), """
static inline float cv_sine(float x, int32_t quarter) { /* 2 ulp for |x| below 2**30 */
    double d = (double)x * 0.63661977236758134;
    double n = (d + 6755399441055744.0) - 6755399441055744.0;
    float r = (float)(((double)x - n * 1.5707963267948966) - n * 6.123233995736766e-17);
    int32_t q = (int32_t)n + quarter;
    float z = r * r;
    float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
    float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z
        - 0.5f * z + 1.0f;
    float y = (q & 1) != 0 ? c : s;
    return (q & 2) != 0 ? -y : y;
}
"""),
    "sin": (("sincos",), "static inline float cv_sin_f32(float x) { return cv_sine(x, 0); }\n"),
    "cos": (("sincos",), "static inline float cv_cos_f32(float x) { return cv_sine(x, 1); }\n"),
    "tan": (("sin", "cos"), """
static inline float cv_tan_f32(float x) { return cv_sin_f32(x) / cv_cos_f32(x); }
"""),
}  # fmt: skip

INTEGERS = """
static inline int64_t cv_div(int64_t a, int64_t b) {
    return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
static inline uint64_t cv_udiv(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }
static inline uint64_t cv_umod(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }
static inline int64_t cv_floordiv(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return cv_div(a, b);
    return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}
static inline int64_t cv_mod(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0);
}
"""
"""Division that rounds down, and towards zero; by 0 it gives 0."""

LIBM = frozenset(["asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "fmod"])
"""Functions that are called in the C library (and all elementary functions on float64)."""


def text(names: set[str]) -> str:
    """The C definitions of the float32 functions `names` and what they need, in a fixed order."""
    needed: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in _F32 and name not in needed:
            needed.add(name)
            stack.extend(_F32[name][0])
    return "".join(_F32[name][1] for name in _F32 if name in needed)


def has(name: str) -> bool:
    """There is a float32 definition of `name` here."""
    return name in _F32
