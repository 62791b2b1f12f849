"""Register-blocked micro-kernels: one tile of a contraction, as C text on GNU vectors.

``acc[p][lane] = sum over k of a[row p, k] * w[k][lane]``: each element of `a` is broadcast against
packed vectors of `w`.  Rows are fixed element offsets (a convolution's pixels) or have a run-time
stride (a matrix's rows); k runs over nested loops whose strides in `a` are known, or one loop with
run-time length and stride, while `w` is read straight through.

Two things found by measurement: accumulators are named scalars of vector type, and a compiler
barrier between the k steps keeps the compilers from hoisting loads and spilling accumulators.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_ELEMENT = {"float32": "float", "int32": "int32_t", "uint8": "uint8_t", "int8": "int8_t"}

UNROLL = 4
"""Steps of k between two loop tests."""


@dataclass(frozen=True)
class KNest:
    """Nested loops over k, outermost first: (extent, stride in `a`), None where given at run time.

    Attributes:
        start: element offset of the nest in `a`.
        skip: elements of `w` to pass over after each run of the innermost loop.
    """

    loops: tuple[tuple[int | None, int | None], ...]
    start: int = 0
    skip: int = 0


@dataclass(frozen=True)
class Tile:
    """A micro-kernel.

    Attributes:
        rows: element offset of each row, or None entries' count where the stride is a run-time one.
        stride: rows are at multiples of a run-time stride; those from a run-time count on repeat
            the last one (the caller does not store them).
        nests: the loops over k, one nest after the other.
        vectors, width: vectors per row, and their elements.
        a, w, acc: element types.
        dot: k runs in groups of 4 bytes, in `w` side by side.
        vnni: one instruction multiplies and adds such a group.
        lanewise: `a` has an element for each lane, as a depthwise convolution's channels.
        backward: k runs from its last step to the first, in one loop of known length and stride.
        ahead: elements of `w` to prefetch ahead (the same place in the next panel), 0 for none.
        pitch: columns of a panel, which lie side by side in `w`; those of the tile if 0.
        apart: elements of `w` from one panel to the next, where a tile covers several.
        adds: the sums are added to those in `acc`.
    """

    rows: tuple[int, ...]
    stride: bool
    nests: tuple[KNest, ...]
    vectors: int
    width: int
    a: str = "float32"
    w: str = "float32"
    acc: str = "float32"
    dot: bool = False
    ahead: int = 0
    pitch: int = 0
    apart: int = 0
    adds: bool = False
    vnni: bool = False
    lanewise: bool = False
    backward: bool = False

    @property
    def lanes(self) -> int:
        """Elements of one row of the tile."""
        return self.vectors * self.width

    @property
    def name(self) -> str:
        """A name that says what it is, and is the same for equal tiles only."""
        tag = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return f"tile_{len(self.rows)}x{self.lanes}_{tag}"

    @property
    def run_time(self) -> list[str]:
        """Names of the run-time arguments after the pointers, in order."""
        names = ["row_stride", "row_count"] if self.stride else []
        for n, nest in enumerate(self.nests):
            for i, (extent, stride) in enumerate(nest.loops):
                names += [f"e{n}_{i}"] if extent is None else []
                names += [f"s{n}_{i}"] if stride is None else []
        return names

    @property
    def _group(self) -> int:
        """Products that one instruction adds up."""
        return 4 if self.dot else 1

    def _place(self, step: int, column: int) -> int:
        """The first element of `w` for a step (of `_group` k) and a column of the tile."""
        pitch = self.pitch or self.lanes
        step = -step if self.backward else step
        return (step * pitch + column % pitch) * self._group + column // pitch * self.apart

    def render(self) -> str:
        """The C function ``name(a, w, acc, run-time arguments...)``."""
        a, w, acc = _ELEMENT[self.a], _ELEMENT[self.w], _ELEMENT[self.acc]
        parameters = [f"const {a} *restrict a", f"const {w} *restrict w", f"{acc} *restrict acc"]
        parameters += [f"cv_idx {n}" for n in self.run_time]
        intrinsics = self.dot or self.lanewise
        lines = ["#include <immintrin.h>"] if intrinsics else []
        lines += [
            f"static __attribute__((noinline)) void {self.name}({', '.join(parameters)}) {{",
            f"    typedef {acc} V __attribute__((vector_size({self.width * 4})));",
        ]
        if not self.dot and not self.lanewise and self.w != self.acc:
            lines.append(f"    typedef {w} W __attribute__((vector_size({self.width})));")
        if self.stride:
            for p in range(len(self.rows)):
                where = f"({p} < row_count ? {p} : row_count - 1) * row_stride" if p else "0"
                lines.append(f"    const {a} *const a{p} = a + {where};")
        for b in range(self.vectors):
            lines.append("    V " + ", ".join(f"c{b}_{p} = {{0}}" for p in range(len(self.rows))) + ";")
        for n, nest in enumerate(self.nests):
            lines += self._nest(n, nest, a)
        for p in range(len(self.rows)):
            for b in range(self.vectors):
                to = f"*(V *)(acc + {(p * self.vectors + b) * self.width})"
                lines.append(f"    {to} {'+=' if self.adds else '='} c{b}_{p};")
        return "\n".join([*lines, "}\n"])

    def _nest(self, n: int, nest: KNest, a: str) -> list[str]:
        lines = ["    {"]
        offset = str(nest.start)
        depth = 2
        for i, (extent, stride) in enumerate(nest.loops):
            pad = "    " * depth
            stop = f"e{n}_{i}" if extent is None else str(extent)
            step = f"s{n}_{i}" if stride is None else str(stride)
            if self.backward:
                assert extent is not None and stride is not None and len(nest.loops) == 1
                last = extent // self._group - 1
                lines.append(f"{pad}w -= {self._place(last, 0)};")
                offset, step = f"{offset} + {last * self._group * stride}", str(-stride)
            if i < len(nest.loops) - 1:
                if extent == 1:
                    continue
                lines.append(f"{pad}for (cv_idx i{i} = 0; i{i} < {stop}; i{i}++) {{")
                offset = f"{offset} + i{i} * {step}"
                depth += 1
            else:
                lines += self._innermost(pad, offset, extent, stop, stride, step)
                if nest.skip:
                    lines.append(f"{pad}w += {nest.skip};")
        for d in range(depth - 1, 0, -1):
            lines.append("    " * d + "}")
        return lines

    def _innermost(
        self, pad: str, offset: str, extent: int | None, stop: str, stride: int | None, step: str
    ) -> list[str]:
        lines = [f"{pad}cv_idx o = {offset};"]
        group, unroll = self._group, 1
        if extent is not None:
            steps = extent // group
            unroll = next(u for u in (UNROLL, 3, 2, 1) if steps % u == 0)
        if extent == unroll * group:
            return [*lines, *self._steps(pad, unroll, step), *self._advance(pad, unroll, step)]
        lines.append(f"{pad}for (cv_idx k = 0; k < {stop}; k += {unroll * group}) {{")
        lines += self._steps(pad + "    ", unroll, step)
        lines += self._advance(pad + "    ", unroll, step)
        return [*lines, f"{pad}}}"]

    def _advance(self, pad: str, unroll: int, step: str) -> list[str]:
        return [f"{pad}o += {unroll * self._group} * {step};", f"{pad}w += {self._place(unroll, 0)};"]

    def _steps(self, pad: str, unroll: int, step: str) -> list[str]:
        lines: list[str] = []
        group, element = self._group, 1 if self.w in ("int8", "uint8") else 4
        for u in range(unroll):
            lines.append(f'{pad}__asm__ volatile("" ::: "memory");')
            lines.append(f"{pad}{{")
            for column in range(0, self.lanes if self.ahead else 0, 64 // (group * element)):
                offset = self.ahead + self._place(u, column)
                lines.append(f"{pad}    __builtin_prefetch(w + {offset}, 0, 2);")
            for b in range(self.vectors):
                lines += [f"{pad}    {line}" for line in self._weights(b, self._place(u, b * self.width))]
            for p, row in enumerate(self.rows):
                base = f"a{p}[o" if self.stride else f"a[o + {row}"
                if u:
                    base += f" + {u * group} * {step}"
                lines.append(f"{pad}    {self._multiply(p, base + ']')}")
            lines.append(f"{pad}}}")
        return lines

    def _weights(self, b: int, at: int) -> list[str]:
        """The vectors of `w` from an element on, as the products need them."""
        if self.lanewise:
            low = f" w{b} &= 0xFFFF;" if self.w == "int8" else ""
            return [f"V w{b}; {self._widen(f'w{b}', self.w, f'w + {at}')}{low}"]
        if not self.dot and self.w != self.acc:
            return [f"const V w{b} = __builtin_convertvector(*(const W *)(w + {at}), V);"]
        if not self.dot or self.vnni:
            return [f"const V w{b} = *(const V *)(w + {at});"]
        bits, _ = self._intrinsics
        load = f"const __m{bits}i w{b} = *(const __m{bits}i *)(w + {at})"
        return [f"{load}, {self._halves(f'w{b}', self.w)};"]

    @property
    def _intrinsics(self) -> tuple[int, str]:
        """The bits of a vector, and how the intrinsic functions for such vectors start."""
        bits = self.width * 32
        return bits, "_mm" if bits == 128 else f"_mm{bits}"

    def _halves(self, name: str, dtype: str) -> str:
        """Declarators of a vector's even and odd bytes, each as 16 bits."""
        _, prefix = self._intrinsics
        right = f"{prefix}_srai_epi16" if dtype == "int8" else f"{prefix}_srli_epi16"
        return f"{name}e = {right}({prefix}_slli_epi16({name}, 8), 8), {name}o = {right}({name}, 8)"

    def _widen(self, name: str, dtype: str, at: str) -> str:
        """Statements that fill a vector with bytes as int32; gcc has no instruction for vectors of its own
        that are converted to four times their size."""
        _, prefix = self._intrinsics
        kind = "epu8" if dtype == "uint8" else "epi8"
        if self.width == 4:
            load = f"int32_t y; __builtin_memcpy(&y, {at}, 4); __m128i z = _mm_cvtsi32_si128(y);"
            with_sign = f"{name} = (V)_mm_srai_epi32(_mm_unpacklo_epi16(z, z), 24);"
            plain = f"{name} = (V)_mm_unpacklo_epi16(_mm_unpacklo_epi8(z, o), o);"
            if dtype == "int8":
                return f"{{ {load} z = _mm_unpacklo_epi8(z, z); {with_sign} }}"
            return f"{{ {load} const __m128i o = _mm_setzero_si128(); {plain} }}"
        load = "_mm_loadu_si128" if self.width == 16 else "_mm_loadl_epi64"
        return f"{name} = (V){prefix}_cvt{kind}_epi32({load}((const __m128i *)({at})));"

    def _multiply(self, p: int, element: str) -> str:
        """The products of one row's element, or group, of `a` with all vectors of `w`."""
        bits, prefix = self._intrinsics
        vector, vectors = f"__m{bits}i", range(self.vectors)
        if self.lanewise:
            load = " ".join(
                f"V x{b}; {self._widen(f'x{b}', self.a, f'&{element} + {b * self.width}')}" for b in vectors
            )
            terms = [f"c{b}_{p} += (V){prefix}_madd_epi16(({vector})x{b}, ({vector})w{b});" for b in vectors]
        elif self.dot:
            load = f"int32_t x; __builtin_memcpy(&x, &{element}, 4); "
            load += f"const {vector} v = {prefix}_set1_epi32(x)"
            if self.vnni:
                load += ";"
                terms = [
                    f"c{b}_{p} = (V){prefix}_dpbusd_epi32(({vector})c{b}_{p}, v, ({vector})w{b});"
                    for b in vectors
                ]
            else:
                load += f", {self._halves('v', self.a)};"
                terms = [
                    f"c{b}_{p} += (V){prefix}_madd_epi16(ve, w{b}e) + (V){prefix}_madd_epi16(vo, w{b}o);"
                    for b in vectors
                ]
        else:
            load = f"const {_ELEMENT[self.acc]} x = {element};"
            terms = [f"c{b}_{p} += w{b} * x;" for b in vectors]
        return f"{{ {load} {' '.join(terms)} }}"
