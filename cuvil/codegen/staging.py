"""Loops over bytes, taken apart so that compilers vectorize them at full width.

gcc chooses one size of vectors for a loop: where bytes meet 32-bit numbers, a vector of 16 bytes makes it
compute with 4 numbers at a time.  So bytes that a loop reads are widened to int32 before it, those that it
writes are narrowed behind it, and the loop itself knows 32-bit types only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, For, Stmt, Store
from cuvil.ir.primitives import Value, static
from cuvil.schedule.storage import coefficient

BYTES = ("uint8", "int8")

LANES = 16
"""Iterations of a loop that is taken apart."""

MAX_READS = 6
"""Different bytes that an iteration reads; with more of them the arrays in between stay in memory."""

Offset = Callable[[Value, Sequence[Expr]], Expr]
"""The element offset of a value's element in memory."""


@dataclass(frozen=True, eq=False)
class Staged:
    """A loop of `LANES` iterations, taken apart.

    Attributes:
        reads: values of int32 [LANES], each with the bytes that it is filled with: a value, and the indices
            of the first.
        loop: what is computed.
        writes: values of int32 [LANES], each with the bytes that it becomes.
    """

    reads: list[tuple[Value, Value, tuple[Expr, ...]]]
    loop: For
    writes: list[tuple[Value, Value, tuple[Expr, ...]]]


@dataclass(frozen=True, eq=False)
class Pieces:
    """A loop as staged ones, counted by the variable `number` (0 where there is one), and what is left."""

    number: Expr
    staged: Staged
    rest: For | None


def pieces(s: For, offset: Offset) -> Pieces | None:
    """A vectorized loop taken apart, or None where it has no bytes, or not in order."""
    start, stop = static(s.start), static(s.stop)
    if s.kind != "simd" or s.reduction or start is None or stop is None or stop - start < LANES:
        return None
    if not any(_has_bytes(b) for b in s.body):
        return None
    whole, rest = divmod(stop - start, LANES)
    number = E.const(0) if whole == 1 else E.var(whole, "q")
    staged = _stage(s, number * LANES + start, offset)
    if staged is None:
        return None
    left = For(s.var, s.stop, s.body, s.kind, E.const(start + whole * LANES)) if rest else None
    return Pieces(number, staged, left)


def _has_bytes(s: Stmt) -> bool:
    if not isinstance(s, (Store, Accumulate)):
        return False
    return s.target.dtype in BYTES or any(e.dtype in BYTES for e in E.loads(s.value))


def _stage(s: For, first: Expr, offset: Offset) -> Staged | None:
    """The `LANES` iterations of a loop from `first` on."""
    lane = E.var(LANES, "l")
    here = {s.var: first + lane}
    reads: list[tuple[Value, Value, tuple[Expr, ...]]] = []
    writes: list[tuple[Value, Value, tuple[Expr, ...]]] = []
    wide: dict[Expr, Value] = {}
    shape = (E.const(LANES),)
    at_first = {lane: E.const(0)}

    def in_order(value: Value, indices: Sequence[Expr]) -> bool:
        return coefficient(offset(value, indices), lane) == 1

    def widened(e: Expr) -> Expr | None:
        """A conversion of bytes from memory, or of a value that fits into them, without the bytes."""
        if e.op != "cast" or e.args[0].dtype not in BYTES or e.dtype not in ("int32", "float32"):
            return None
        inner = e.args[0]
        if inner.op == "load" and in_order(inner.attr, inner.args):
            if inner not in wide:
                wide[inner] = Value("wide", "int32", shape)
                at = tuple(E.substitute(i, at_first) for i in inner.args)
                reads.append((wide[inner], inner.attr, at))
            return E.cast(E.load(wide[inner], (lane,)), e.dtype)
        if inner.op == "cast" and inner.args[0].dtype == "float32" and _fits(inner.args[0], inner.dtype):
            return E.cast(E.cast(inner.args[0], "int32"), e.dtype)
        return None

    body: list[Stmt] = []
    for b in s.body:
        if not isinstance(b, (Store, Accumulate)) or any(b.target is v for _, v, _ in writes):
            return None
        indices = tuple(E.substitute(i, here) for i in b.indices)
        value = E.substitute(b.value, here)
        narrow = b.target.dtype in BYTES
        if narrow:
            if isinstance(b, Accumulate) or value.op != "cast" or not in_order(b.target, indices):
                return None
            if value.args[0].dtype not in ("float32", "int32"):
                return None
            value = E.cast(value.args[0], "int32")
        if not _unconditional(value):
            return None
        value = E.transform(value, widened)
        if any(_is_byte_lane(e, lane) for e in E.walk(value)):
            return None
        if isinstance(b, Accumulate):
            body.append(Accumulate(b.target, indices, b.op, value))
        elif narrow:
            to = Value("narrow", "int32", shape)
            writes.append((to, b.target, tuple(E.substitute(i, at_first) for i in indices)))
            body.append(Store(to, (lane,), value))
        else:
            body.append(Store(b.target, indices, value))
    if len(reads) > MAX_READS:
        return None
    return Staged(reads, For(lane, E.const(LANES), tuple(body), "simd"), writes)


def _is_byte_lane(e: Expr, lane: Expr) -> bool:
    """A byte that differs from lane to lane."""
    return e.dtype in BYTES and lane in E.variables(e)


def _unconditional(e: Expr) -> bool:
    """No bytes are read under a condition."""
    return not any(
        load.dtype in BYTES
        for n in E.walk(e)
        if n.op in ("select", "and", "or")
        for load in E.loads(*n.args[1:])
    )


def _fits(e: Expr, dtype: str) -> bool:
    """Bounded by constants within a type of bytes."""
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    found = {e.op: e}
    inner = e.args[0] if e.op in ("min", "max") else e
    found.setdefault(inner.op, inner)
    if "min" not in found or "max" not in found:
        return False
    ends = [found[op].args[1] for op in ("max", "min")]
    return all(x.is_const for x in ends) and low <= ends[0].attr <= ends[1].attr <= high


FUNCTIONS = """
static inline void cv_widen_{t}(int32_t *restrict to, const {c} *restrict from) {{
#if defined(__AVX512F__)
    _mm512_store_si512(to, _mm512_cvt{e}_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
    _mm256_store_si256((__m256i *)to, _mm256_cvt{e}_epi32(_mm_loadl_epi64((const __m128i *)from)));
    _mm256_store_si256((__m256i *)(to + 8),
                       _mm256_cvt{e}_epi32(_mm_loadl_epi64((const __m128i *)(from + 8))));
#else
    for (int l = 0; l < 16; l++) to[l] = from[l];
#endif
}}
static inline void cv_narrow_{t}({c} *restrict to, const int32_t *restrict from) {{
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_load_si512(from)));
#elif defined(__AVX2__)
    const __m256i low = _mm256_set1_epi32(255);
    const __m256i a = _mm256_and_si256(_mm256_load_si256((const __m256i *)from), low);
    const __m256i b = _mm256_and_si256(_mm256_load_si256((const __m256i *)(from + 8)), low);
    const __m256i p = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    _mm_storeu_si128((__m128i *)to,
                     _mm_packus_epi16(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1)));
#else
    for (int l = 0; l < 16; l++) to[l] = ({c})from[l];
#endif
}}
"""


def functions(types: dict[str, str]) -> str:
    """The C functions that widen and narrow `LANES` bytes of some types, with their names in C."""
    kinds = {"uint8": "epu8", "int8": "epi8"}
    text = "".join(FUNCTIONS.format(t=t, c=c, e=kinds[t]) for t, c in types.items())
    return f"#include <immintrin.h>\n{text}" if types else ""
