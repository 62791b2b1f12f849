"""Winograd's transforms F(m x m, 3 x 3): matrices, and the micro-kernels that apply them to tiles.

``y = A' ((G g G') * (B' d B)) A`` (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
2016): a tile of (m + 2)^2 inputs gives m^2 outputs with one product for each position.  The matrices come
from the points of Toom and Cook's algorithm (Barabasz et al., "Error Analysis and Improving the Accuracy
of Winograd Convolution", 2020), in pairs +-p around 0, and infinity.

Points that were tried for m = 4, error over the output's sigma with random normal data, largest and rms (256
channels, summed in a row): +-1, +-2 7e-5 and 3.2e-6; +-1/2, +-1 6e-5 and 3.2e-6; +-3/4, +-3/2 1.3e-5 and
1.5e-6; +-5/8, +-3/2 1.2e-5 and 1.4e-6; +-11/16, +-3/2 1.1e-5 and 1.45e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cuvil.codegen.tuned.isa import BLOCK

POINTS = {2: (1.0,), 4: (0.6875, 1.5)}
"""The positive finite points by m.  Their products are exact in float32."""

Matrix = npt.NDArray[np.float64]


def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """``A'`` [m, m + 2], ``G`` [m + 2, 3] and ``B'`` [m + 2, m + 2] of F(m, 3)."""
    points = [0.0, *(sign * p for p in POINTS[m] for sign in (1.0, -1.0))]
    n = m + 2
    a, g, b = np.zeros((m, n)), np.zeros((n, 3)), np.zeros((n, n))
    for i, p in enumerate(points):
        others = np.array([q for q in points if q != p])
        a[:, i] = p ** np.arange(m)
        g[i] = p ** np.arange(3) / np.prod(p - others)
        b[i, : n - 1] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1.0
    b[-1] = np.poly(np.array(points))[::-1]
    return a, g, b


def weights(m: int, taps: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Weights [outputs, inputs, 3, 3] transformed, [(m + 2)^2, inputs, outputs]: in float64, rounded once;
    sums are written out, for those of a BLAS library differ from machine to machine."""
    g = matrices(m)[1]
    n = m + 2
    w = np.ascontiguousarray(taps.transpose(2, 3, 1, 0), np.float64)
    result = np.empty((n * n, *w.shape[2:]), np.float32)
    for i in range(n):
        row = g[i, 0] * w[0] + g[i, 1] * w[1] + g[i, 2] * w[2]
        for j in range(n):
            result[i * n + j] = g[j, 0] * row[0] + g[j, 1] * row[1] + g[j, 2] * row[2]
    return result


@dataclass(frozen=True)
class WeightTransform:
    """A micro-kernel that computes what `weights` does, to the bit, from taps that are filled up with zeros.

    Called with the address of the taps, [panels, inputs, 9, pitch] in memory, that of the result,
    [(m + 2)^2, panels, inputs, pitch], and ``panels * inputs``.  The products pass through memory, for
    compilers must not fuse a multiplication and the addition after it.

    Attributes:
        m: rows of outputs of a tile.
        pitch: outputs of a panel.
    """

    m: int
    pitch: int

    @property
    def name(self) -> str:
        return f"winograd{self.m}_weights_{self.pitch}"

    def render(self) -> str:
        """The C function ``name(taps, u, count)``."""
        n, pitch = self.m + 2, self.pitch
        g = ", ".join(f"{{{', '.join(float(x).hex() for x in row)}}}" for row in matrices(self.m)[1])
        lanes = f"for (int lane = 0; lane < {pitch}; lane++)"
        apart = '__asm__ volatile("" : : "r"(product) : "memory");'
        return f"""static __attribute__((noinline)) void {self.name}(
    const float *restrict taps, float *restrict u, cv_idx count) {{
    static const double g[{n}][3] = {{{g}}};
    double w[9][{pitch}] CV_ALIGN64, product[9][{pitch}] CV_ALIGN64, row[3][{pitch}] CV_ALIGN64;
    const cv_idx position = count * {pitch};
    for (; count > 0; count--, taps += {9 * pitch}, u += {pitch}) {{
        for (int k = 0; k < 9; k++)
            {lanes} w[k][lane] = taps[k * {pitch} + lane];
        float *to = u;
        for (int i = 0; i < {n}; i++) {{
            for (int k = 0; k < 9; k++)
                {lanes} product[k][lane] = g[i][k / 3] * w[k][lane];
            {apart}
            for (int k = 0; k < 3; k++)
                {lanes} row[k][lane] = product[k][lane] + product[3 + k][lane] + product[6 + k][lane];
            for (int j = 0; j < {n}; j++, to += position) {{
                for (int k = 0; k < 3; k++)
                    {lanes} product[k][lane] = g[j][k] * row[k][lane];
                {apart}
                {lanes} to[lane] = (float)(product[0][lane] + product[1][lane] + product[2][lane]);
            }}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class InputTransform:
    """A micro-kernel ``V = B' d B`` on a row of tiles, one block of channels.

    Called with the address of the first tile's first element, that of its first result, the number of tiles,
    and the rows and columns of the input from there on: what lies beyond is taken as zeros.

    Attributes:
        m: rows of outputs of a tile.
        width: elements of a vector.
        line: elements from one row of the input to the next.
        position: elements from one position of V to the next; tiles follow each other.
    """

    m: int
    width: int
    line: int
    position: int

    @property
    def name(self) -> str:
        return f"winograd{self.m}_in_{self.line}_{self.position}"

    def render(self) -> str:
        """The C function ``name(d, v, tiles, height, width)``."""
        n, m = self.m + 2, self.m
        rows = matrices(m)[2]
        first = _indent(_product(rows, [f"x{i}" for i in range(n)], [f"t[{i}][j]" for i in range(n)]), 4)
        second = _indent(_product(rows, [f"t[i][{j}]" for j in range(n)],
                                  [f"*(V *)(to + {j} * {self.position})" for j in range(n)]), 4)  # fmt: skip
        loads = " ".join(f"const V x{i} = *(const V *)(from + {i} * line + j * {BLOCK});" for i in range(n))
        return f"""static __attribute__((noinline)) void {self.name}(
    const float *restrict d, float *restrict v, cv_idx tiles, cv_idx height, cv_idx width) {{
    typedef float V __attribute__((vector_size({self.width * 4})));
    float edge[{n * n * BLOCK}] CV_ALIGN64;
    for (cv_idx tile = 0; tile < tiles; tile++, d += {m * BLOCK}, v += {BLOCK}, width -= {m}) {{
        const float *source = d;
        cv_idx line = {self.line};
        if (height < {n} || width < {n}) {{
            __builtin_memset(edge, 0, sizeof edge);
            for (cv_idx y = 0; y < {n} && y < height && width > 0; y++)
                __builtin_memcpy(edge + y * {n * BLOCK}, d + y * {self.line},
                                 (size_t)(width < {n} ? width : {n}) * {BLOCK * 4});
            source = edge;
            line = {n * BLOCK};
        }}
        for (int lane = 0; lane < {BLOCK}; lane += {self.width}) {{
            const float *const from = source + lane;
            V t[{n}][{n}];
            for (int j = 0; j < {n}; j++) {{
                {loads}
{first}
            }}
            float *to = v + lane;
            for (int i = 0; i < {n}; i++, to += {n} * {self.position}) {{
{second}
            }}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class OutputTransform:
    """A micro-kernel ``y = A' M A`` on one tile and one block of channels.

    Called with the address of the tile's first sum, and that of its outputs [m * m, 16].

    Attributes:
        m: rows of outputs of a tile.
        width: elements of a vector.
        position: elements from one position of M to the next.
    """

    m: int
    width: int
    position: int

    @property
    def name(self) -> str:
        return f"winograd{self.m}_out_{self.position}"

    def render(self) -> str:
        """The C function ``name(sums, y)``."""
        n, m = self.m + 2, self.m
        rows = matrices(m)[0]
        first = _indent(_shared(rows, [f"x{i}" for i in range(n)], [f"t[{i}][j]" for i in range(m)]), 3)
        second = _indent(_shared(rows, [f"t[i][{j}]" for j in range(n)],
                                 [f"*(V *)(to + {j * BLOCK})" for j in range(m)]), 3)  # fmt: skip
        loads = " ".join(f"const V x{i} = *(const V *)(from + {i * n} * {self.position});" for i in range(n))
        return f"""static __attribute__((noinline)) void {self.name}(
    const float *restrict sums, float *restrict y) {{
    typedef float V __attribute__((vector_size({self.width * 4})));
    for (int lane = 0; lane < {BLOCK}; lane += {self.width}) {{
        const float *from = sums + lane;
        V t[{m}][{n}];
        for (int j = 0; j < {n}; j++, from += {self.position}) {{
            {loads}
{first}
        }}
        float *to = y + lane;
        for (int i = 0; i < {m}; i++, to += {m * BLOCK}) {{
{second}
        }}
    }}
}}
"""


def _indent(lines: Sequence[str], depth: int) -> str:
    return "\n".join("    " * depth + line for line in lines)


def _product(matrix: Matrix, x: Sequence[str], y: Sequence[str]) -> list[str]:
    """C statements ``y = matrix @ x``; the rows of +p and -p differ in the sign of their odd columns only,
    and share both halves."""
    lines = [f"{y[0]} = {_sum(matrix[0], x)};"]
    for i in range(1, len(y) - 1, 2):
        even, odd = matrix[i].copy(), matrix[i].copy()
        even[1::2], odd[::2] = 0.0, 0.0
        scale = odd[np.flatnonzero(odd)[-1]]
        lines.append(f"{{ const V even = {_sum(even, x)}, odd = {_sum(odd / scale, x)};")
        lines.append(f"  {y[i]} = {_sum((1.0, scale), ('even', 'odd'))};")
        lines.append(f"  {y[i + 1]} = {_sum((1.0, -scale), ('even', 'odd'))}; }}")
    return [*lines, f"{y[-1]} = {_sum(matrix[-1], x)};"]


def _shared(matrix: Matrix, x: Sequence[str], y: Sequence[str]) -> list[str]:
    """C statements ``y = matrix @ x``; the columns of +p and -p are equal in even rows and opposite in odd
    ones, and enter as their operands' sum or difference."""
    n = len(x)
    lines = []
    for i in range(1, n - 1, 2):
        lines.append(f"const V s{i} = {x[i]} + {x[i + 1]}, d{i} = {x[i]} - {x[i + 1]};")
    for r, row in enumerate(matrix):
        terms = [(row[0], x[0])]
        terms += [(row[i], f"{'sd'[r % 2]}{i}") for i in range(1, n - 1, 2)]
        terms.append((row[-1], x[-1]))
        lines.append(f"{y[r]} = {_sum([c for c, _ in terms], [name for _, name in terms])};")
    return lines


def _sum(factors: Sequence[float] | Matrix, names: Sequence[str]) -> str:
    """The C text of a linear combination, the term of factor 1 first."""
    terms = sorted(((c, name) for c, name in zip(factors, names) if c), key=lambda t: t[0] != 1.0)
    text = ""
    for c, name in terms:
        sign = ("" if c > 0 else "-") if not text else (" + " if c > 0 else " - ")
        text += sign + (name if abs(c) == 1.0 else f"{abs(float(c))!r}f * {name}")
    return text
