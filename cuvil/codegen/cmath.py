"""Elementary functions in C, as text: branch-free on floats, so that loops over them vectorise; and
integer division, which in Cuvil never traps.

Each entry lists what it needs first.  Errors are in units in the last place (ulp) of float32,
over the whole range.  No entry needs the C library; `LIBM` names those functions that are left to
it.

What counts is the number of instructions: a division takes as long as twenty of the others, and these
functions have about as many beside it.  Selects between constants are what to avoid: gcc 12 never makes
a minimum of one, and splits a loop's body into paths where two depend on each other.  Hence bounds are
minima of bit patterns (`least`), or are left out where the arithmetic saturates by itself.
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
#if defined(__SSE4_1__) || defined(__aarch64__)
static inline float cv_round_f32(float x) { return __builtin_rintf(x); } /* half to even */
static inline float cv_floor_f32(float x) { return __builtin_floorf(x); }
static inline float cv_ceil_f32(float x) { return __builtin_ceilf(x); }
static inline float cv_trunc_f32(float x) { return __builtin_truncf(x); }
#else
static inline float cv_round_f32(float x) {
    float magic = cv_float((cv_bits(x) & INT32_MIN) | 0x4b000000);
    float r = (x + magic) - magic;
    r = cv_float(cv_bits(r) | (cv_bits(x) & INT32_MIN)); /* -0 where x is negative, or -0 */
    return __builtin_fabsf(x) < 8388608.0f ? r : x;
}
static inline float cv_floor_f32(float x) { float r = cv_round_f32(x); return r > x ? r - 1.0f : r; }
static inline float cv_ceil_f32(float x) { return -cv_floor_f32(-x); }
static inline float cv_trunc_f32(float x) {
    float a = __builtin_fabsf(x), r = cv_round_f32(a);
    r = r > a ? r - 1.0f : r;
    return cv_float(cv_bits(r) | (cv_bits(x) & INT32_MIN));
}
#endif
"""),
    "floor": (("round",), ""),
    "ceil": (("round",), ""),
    "trunc": (("round",), ""),
    "least": (("bits",), """
static inline float cv_at_most(float x, float c) { /* the smaller one, c > 0; NaN is lost */
    int32_t a = cv_bits(x), b = cv_bits(c);
    return cv_float(a < b ? a : b);
}
static inline float cv_at_least(float x, float c) { /* the larger one, c < 0; NaN is lost */
    uint32_t a = (uint32_t)cv_bits(x), b = (uint32_t)cv_bits(c);
    return cv_float((int32_t)(a < b ? a : b));
}
"""),
    "exp": (("least",), """
static inline float cv_exp_f32(float x) { /* 1.1 ulp; gradual underflow and infinity as they should be */
    float c = x < -104.0f ? -104.0f : x;
    float shifted = cv_at_most(c * 1.44269504f + 12583166.0f, 12583294.0f); /* k + 254 in its last bits */
    float n = shifted - 12583166.0f;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f; /* large, or infinite, where n is bounded */
    float p = 1.3814179692e-3f;
    p = p * r + 8.3689196035e-3f;
    p = p * r + 4.1668407619e-2f;
    p = p * r + 1.6666519642e-1f;
    p = p * r + 4.9999994040e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t k = (uint32_t)cv_bits(shifted), half = k >> 1;
    p = p * cv_float((int32_t)(half << 23));
    return p * cv_float((int32_t)((k - half) << 23));
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
    "tanh": (("least",), """
static inline float cv_tanh_f32(float x) { /* 6 ulp: a fraction in x * x, fitted as it is rounded */
    float s = cv_at_most(x * x, 81.1801f);
    float p = -1.22248461e-11f;
    p = p * s + 3.06137906e-08f;
    p = p * s + 2.80193872e-05f;
    p = p * s + 0.0038689177f;
    p = p * s + 0.136803821f;
    p = p * s + 1.0f;
    float q = 1.28820068e-06f;
    q = q * s + 0.000393967232f;
    q = q * s + 0.0272479933f;
    q = q * s + 0.470137089f;
    q = q * s + 1.0f;
    float y = cv_at_least(cv_at_most(x * p / q, 1.0f), -1.0f);
    return x != x ? x : y;
}
"""),
    "sigmoid": (("least",), """
static inline float cv_sigmoid_f32(float x) { /* 2.5 ulp; 0 below -88.4 */
    float c = x > 87.0f ? 87.0f : x;
    float shifted = cv_at_most(c * -1.44269504f + 12583039.0f, 12583167.0f); /* k + 127 in its last bits */
    float n = shifted - 12583039.0f;
    float r = (-c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.3814179692e-3f;
    p = p * r + 8.3689196035e-3f;
    p = p * r + 4.1668407619e-2f;
    p = p * r + 1.6666519642e-1f;
    p = p * r + 4.9999994040e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return 1.0f / (p * cv_float((int32_t)((uint32_t)cv_bits(shifted) << 23)) + 1.0f);
}
"""),
    "erf": (("least",), """
static inline float cv_erf_f32(float x) { /* 6.5 ulp: a fraction in x * x, fitted as it is rounded */
    float s = cv_at_most(x * x, 15.3664f);
    float p = 1.9924272e-08f;
    p = p * s + -1.9578456e-06f;
    p = p * s + 0.000141852186f;
    p = p * s + 0.00370167312f;
    p = p * s + 0.0505735129f;
    p = p * s + 0.199925914f;
    p = p * s + 1.12837899f;
    float q = 0.000956055068f;
    q = q * s + 0.0143533284f;
    q = q * s + 0.114998989f;
    q = q * s + 0.510511339f;
    q = q * s + 1.0f;
    float y = cv_at_least(cv_at_most(x * p / q, 1.0f), -1.0f);
    return x != x ? x : y;
}
"""),
    "sincos": ((), """
static inline float cv_sine(float x, int32_t quarter) { /* 2 ulp for |x| below 2**30 */
    double d = (double)x * 0.63661977236758134;
    double n = (d + 6755399441055744.0) - 6755399441055744.0;
    /* pi / 2 in parts whose multiples are exact */
    double rest = ((double)x - n * 1.570796251296997) - n * 7.549789415861596e-08;
    float r = (float)(rest - n * 5.390302858158119e-15);
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
