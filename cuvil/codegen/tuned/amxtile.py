"""Products of float32 on AMX tiles: micro-kernels as C text.

AMX multiplies tiles of bfloat16 and sums up in float32, sixteen times faster than vectors multiply float32.
A float32 is the exact sum of three bfloat16, each the upper half of what is left: ``x = x1 + x2 + x3``.
Of the nine products of two such sums six matter, ``x1 y1 + x1 y2 + x2 y1 + x1 y3 + x2 y2 + x3 y1``; the
others are below 2^-21 of the product, 2^-24 on average.  So a sum has about the error of one in float32.
Source of the idea: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
Higher-Precision Computations", 2019.  An infinity among the operands may give NaN, and what is below
2^-110 loses digits.

A *position* is a row of the left operand.  It is staged in *pairs* of blocks: element c of one block of 16
and element c of the next lie side by side, in each of the three parts (a plane each), so that a pair of one
position is a row of a tile of 64 bytes.  The right operand is read as packed, [k, 16], and becomes tiles of
the same pairs: row c holds elements c of both blocks, for 16 columns.  A *step* is the six products
of 32 positions, one pair, and 32 columns: 24 tile products.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

POSITIONS = COLUMNS = 32
"""Positions and columns of a step."""

PAIR = 32
"""Elements of k in a step."""

STEP_BYTES = 6 * 1024
"""Bytes of the right operand's tiles for one step."""

UNITS = 8
"""Pieces of the right operand of one step that are converted at a time."""

# processor cycles, as measured on a Xeon of 2023; the choice of kernels and the cost model build on them
STEP, CONVERT, TILE, SPLIT, ENTRY = 400, 400, 200, 11, 1500
"""Of a step; of converting the right operand of a step, as far as tiles do not hide it; of calling for a tile
of sums; of staging a pair of one position; of a strip."""

ALLOWED = """
static int cv_amx_allowed(void) { /* asks the operating system for the tile registers: once for a process */
#if defined(__linux__) && defined(__x86_64__)
    static int known;
    int state = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (state == 0) {
        long result = 158; /* arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) */
        __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
        state = result == 0 ? 1 : 2;
        __atomic_store_n(&known, state, __ATOMIC_RELAXED);
    }
    return state == 1;
#else
    return 0;
#endif
}
"""
"""A C function that tells whether tiles may be used.  Source: Linux, Documentation/arch/x86/xstate.rst."""

_COMMON = """#ifndef CV_AMX
#define CV_AMX
typedef float cv_amx_f __attribute__((vector_size(64), may_alias));
typedef float cv_amx_fu __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t cv_amx_u __attribute__((vector_size(64), may_alias));
#define CV_AMX_LOAD(t, p) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t :: "r"(p), "r"(64L) : "memory")
#define CV_AMX_GET(t, p) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t :: "r"(p), "r"(128L) : "memory")
#define CV_AMX_PUT(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" :: "r"(p), "r"(128L) : "memory")
#define CV_AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define CV_AMX_MULTIPLY(c, a, b) \\
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* A pair of vectors in three parts, `plane` bytes apart. */
static inline __attribute__((always_inline)) void cv_amx_split(
    cv_amx_f a, cv_amx_f b, char *to, cv_idx plane) {
    const cv_amx_u upper = (cv_amx_u){0} + 0xffff0000u;
    cv_amx_u x = (cv_amx_u)a, y = (cv_amx_u)b;
    *(cv_amx_u *)to = (x >> 16) | (y & upper);
    a -= (cv_amx_f)(x & upper), b -= (cv_amx_f)(y & upper), x = (cv_amx_u)a, y = (cv_amx_u)b;
    *(cv_amx_u *)(to + plane) = (x >> 16) | (y & upper);
    a -= (cv_amx_f)(x & upper), b -= (cv_amx_f)(y & upper), x = (cv_amx_u)a, y = (cv_amx_u)b;
    *(cv_amx_u *)(to + 2 * plane) = (x >> 16) | (y & upper);
}

/* Four rows of a tile of the right operand. */
static __attribute__((noinline)) void cv_amx_unit(const float *w, const float *v, char *to) {
    for (int r = 0; r < 4; r++, w += 16, v += 16, to += 64) {
        __builtin_prefetch(w + 512, 0, 2);
        __builtin_prefetch(v + 512, 0, 2);
        cv_amx_split(*(const cv_amx_f *)w, *(const cv_amx_f *)v, to, 1024);
    }
}
static const float cv_amx_none[64] CV_ALIGN64 = {0};
#endif
"""


@dataclass(frozen=True)
class Stage:
    """A micro-kernel that stages positions of the left operand, and sets the tiles up.

    Called with the addresses of the first position's first element and of its place, the number of
    positions of a line, elements from one to the next, the number of lines, elements and places from one to
    the next, pairs, elements from a pair's first block to its second and from pair to pair, positions from
    plane to plane, the number of the pair that has no second block, and the elements that the last block has.
    """

    name: str = "amx_stage"

    allowed = "cv_amx_allowed"
    """The function that must say yes before a kernel runs."""

    def render(self) -> str:
        """The C function."""
        return f"""{_COMMON}{ALLOWED}
static __attribute__((noinline)) void {self.name}(const float *a, uint16_t *staged, cv_idx n, cv_idx row,
    cv_idx lines, cv_idx across, cv_idx pitch, cv_idx pairs, cv_idx half, cv_idx step, cv_idx plane,
    cv_idx bare, cv_idx rest) {{
    static const struct {{ uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; }}
        tiles CV_ALIGN64 = {{1, 0, {{0}}, {{64, 64, 64, 64, 64, 64, 64, 64}},
                            {{16, 16, 16, 16, 16, 16, 16, 16}}}};
    __asm__ volatile("ldtilecfg %0" :: "m"(tiles) : "memory");
    char *pair = (char *)staged;
    for (cv_idx u = 0; u < pairs; u++, a += step, pair += 3 * 64 * plane) {{
        const float *line = a;
        char *to = pair;
        if (u < pairs - 1 || (u != bare && rest == 16)) {{
            for (cv_idx l = 0; l < lines; l++, line += across, to += 64 * pitch) {{
                const float *x = line;
                for (cv_idx i = 0; i < n; i++, x += row)
                    cv_amx_split(*(const cv_amx_fu *)x, *(const cv_amx_fu *)(x + half),
                                 to + 64 * i, 64 * plane);
            }}
            continue;
        }}
        const cv_idx second = u == bare ? 0 : half;
        cv_amx_u first = (cv_amx_u){{0}}, last = first;
        for (int i = 0; i < 16; i++) {{
            first[i] = u != bare || i < rest ? 0xffffffffu : 0;
            last[i] = u != bare && i < rest ? 0xffffffffu : 0;
        }}
        for (cv_idx l = 0; l < lines; l++, line += across, to += 64 * pitch) {{
            for (cv_idx i = 0; i < n; i++) {{
                const cv_amx_fu *const x = (const cv_amx_fu *)(line + i * row);
                const cv_amx_fu *const y = (const cv_amx_fu *)(line + i * row + second);
                cv_amx_split((cv_amx_f)((cv_amx_u)*x & first), (cv_amx_f)((cv_amx_u)*y & last),
                             to + 64 * i, 64 * plane);
            }}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Convert:
    """A micro-kernel that converts the right operand of the first steps.

    Called with the addresses of the operand's first column and of the tiles, elements from there to the
    column 16 further, the element where k starts, the number of taps, of units, and the first step
    without a second block.
    """

    name: str = "amx_convert"

    def render(self) -> str:
        """The C function."""
        return f"""{_COMMON}
static __attribute__((noinline)) void {self.name}(const float *w, uint16_t *tiles, cv_idx second,
    cv_idx start, cv_idx taps, cv_idx units, cv_idx bare) {{
    const float *from = w + start;
    for (cv_idx v = 0, tap = 0; v < units; v++) {{
        const float *const s = from + (v >> 2 & 1) * second + (v & 3) * 64;
        cv_amx_unit(s, v >> 3 < bare ? s + taps * 256 : cv_amx_none,
                    (char *)tiles + (v >> 3) * {STEP_BYTES} + (v >> 2 & 1) * 3072 + (v & 3) * 256);
        if ((v & 7) == 7) {{
            from += 256;
            if (++tap == taps) tap = 0, from += taps * 256;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Product:
    """A micro-kernel that multiplies 32 positions with 32 columns, and meanwhile converts part of the right
    operand of the next call.

    Called with the addresses of the next right operand's first column, of the staged positions, of the tiles
    of the right operand, of those of the next, of the sums so far, and of the sums [32, 32]; the number of
    steps, positions from plane to plane, whether sums are added to those so far, the elements to the
    next right operand's column 16 further, the element where its k starts, its units and the first of its
    steps without a second block; and which of how many parts of it is converted.

    Attributes:
        taps: positions from where a tile starts for a tap to where it starts for the first.
    """

    taps: tuple[int, ...]

    @property
    def name(self) -> str:
        tag = hashlib.sha256(repr(self.taps).encode()).hexdigest()[:8]
        return f"amx_product{len(self.taps)}_{tag}"

    def render(self) -> str:
        """The C function."""
        taps = len(self.taps)
        places = ", ".join(str(64 * p) for p in self.taps)
        table = f"    static const int32_t place[{taps}] = {{{places}}};\n" if taps > 1 else ""
        place = "place[at]" if taps > 1 else str(64 * self.taps[0])
        following = f"if (++at == {taps}) at = 0, pair += 3 * plane;" if taps > 1 else "pair += 3 * plane;"
        after = f"if (++tap == {taps}) tap = 0, from += {taps * 256};" if taps > 1 else "from += 256;"
        multiply = """            CV_AMX_MULTIPLY(0, 4, 6);
            CV_AMX_MULTIPLY(1, 4, 7);
            CV_AMX_MULTIPLY(2, 5, 6);
            CV_AMX_MULTIPLY(3, 5, 7);
            CV_AMX_CONVERT
"""
        return f"""{_COMMON}
static __attribute__((noinline)) void {self.name}(const float *w, const uint16_t *staged,
    const uint16_t *tiles, const uint16_t *next, const float *before, float *sums, cv_idx steps, cv_idx plane,
    cv_idx adds, cv_idx second, cv_idx start, cv_idx units, cv_idx bare, cv_idx part, cv_idx parts) {{
{table}    cv_idx v = units * part / parts, due = 0;
    const cv_idx stop = units * (part + 1) / parts, rate = (stop - v + steps - 1) / steps;
    cv_idx tap = (v >> 3) % {taps};
    const float *from = w + start + ((v >> 3) / {taps} * {2 * taps} + tap) * 256;
    char *const to = (char *)(uintptr_t)next;
    (void)tap;
    plane *= 64;
    if (adds) {{
        CV_AMX_GET(0, before);
        CV_AMX_GET(1, before + 16);
        CV_AMX_GET(2, before + 512);
        CV_AMX_GET(3, before + 528);
    }} else {{
        CV_AMX_ZERO(0);
        CV_AMX_ZERO(1);
        CV_AMX_ZERO(2);
        CV_AMX_ZERO(3);
    }}
#define CV_AMX_CONVERT \\
    for (due += rate; due >= 6 && v < stop; due -= 6) {{ \\
        const float *const s = from + (v >> 2 & 1) * second + (v & 3) * 64; \\
        cv_amx_unit(s, v >> 3 < bare ? s + {taps * 256} : cv_amx_none, \\
                    to + (v >> 3) * {STEP_BYTES} + (v >> 2 & 1) * 3072 + (v & 3) * 256); \\
        if ((v++ & 7) == 7) {{ \\
            from += 256; \\
            {after} \\
        }} \\
    }}
    const char *pair = (const char *)staged, *b = (const char *)tiles;
    for (cv_idx t = 0{", at = 0" if taps > 1 else ""}; t < steps; t++, b += {STEP_BYTES}) {{
        const char *const a = pair + {place};
        CV_AMX_LOAD(4, a);
        CV_AMX_LOAD(6, b + 2048);
        CV_AMX_LOAD(7, b + 5120);
        CV_AMX_LOAD(5, a + 1024);
{multiply}        CV_AMX_LOAD(6, b + 1024);
        CV_AMX_LOAD(7, b + 4096);
{multiply}        CV_AMX_LOAD(6, b);
        CV_AMX_LOAD(7, b + 3072);
{multiply}        CV_AMX_LOAD(4, a + 2 * plane);
        CV_AMX_LOAD(5, a + 2 * plane + 1024);
{multiply}        CV_AMX_LOAD(4, a + plane);
        CV_AMX_LOAD(5, a + plane + 1024);
{multiply}        CV_AMX_LOAD(6, b + 1024);
        CV_AMX_LOAD(7, b + 4096);
{multiply}        {following}
    }}
    while (v < stop) {{
        due = 6;
        CV_AMX_CONVERT
    }}
#undef CV_AMX_CONVERT
    CV_AMX_PUT(0, sums);
    CV_AMX_PUT(1, sums + 16);
    CV_AMX_PUT(2, sums + 512);
    CV_AMX_PUT(3, sums + 528);
}}
"""


@dataclass(frozen=True)
class Release:
    """A micro-kernel that gives the tiles up, so that a switch of threads has less to save."""

    name: str = "amx_release"

    def render(self) -> str:
        """The C function."""
        return f"""{_COMMON}
static inline void {self.name}(uint16_t *staged) {{
    (void)staged;
    __asm__ volatile("tilerelease" ::: "memory");
}}
"""
