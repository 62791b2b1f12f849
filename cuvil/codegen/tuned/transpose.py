"""Panels of an operand that lies the other way round, as ``K`` of ``Q K^T`` does: transposed in registers.

A panel wants its columns side by side; where the operand has its k side by side instead, plain loops would
gather one element at a time.  Here a square of vectors is read along k, transposed and written along the
columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuvil.codegen.tuned.isa import Tiles
from cuvil.codegen.tuned.pack import step
from cuvil.ir import expr as E
from cuvil.ir.loops import Kernel, Micro
from cuvil.ir.primitives import Map, static
from cuvil.schedule.group import Group
from cuvil.schedule.nest import finish
from cuvil.schedule.storage import Storage


@dataclass(frozen=True)
class Transpose:
    """A micro-kernel ``panel[k][column] = a[column][k]`` for the columns of a panel.

    Called with the addresses, elements from one column to the next in `a`, the number of columns that there
    are (those beyond it repeat the last one), and of k.

    Attributes:
        width: elements of a vector.
        pitch: columns of the panel.
    """

    width: int
    pitch: int

    @property
    def name(self) -> str:
        return f"transpose_{self.width}x{self.pitch}"

    def render(self) -> str:
        """The C function ``name(a, panel, stride, columns, depth)``."""
        n = self.width
        half = n // 2
        low = ", ".join(f"{i}, {i + n}" for i in range(half))
        high = ", ".join(f"{i + half}, {i + half + n}" for i in range(half))
        source = "a + (g + {0} < columns ? g + {0} : columns - 1) * stride + k"
        rows = [f"V r{i} = *(const U *)({source.format(i)});" for i in range(n)]
        names = [f"r{i}" for i in range(n)]
        for stage in range(n.bit_length() - 1):
            fresh = [f"s{stage}_{i}" for i in range(n)]
            for i in range(half):
                pair = f"{names[i]}, {names[i + half]}"
                rows.append(f"const V {fresh[2 * i]} = CV_ZIP_LOW({pair});")
                rows.append(f"const V {fresh[2 * i + 1]} = CV_ZIP_HIGH({pair});")
            names = fresh
        rows += [f"*(U *)(panel + (k + {i}) * {self.pitch} + g) = {name};" for i, name in enumerate(names)]
        body = "\n            ".join(rows)
        return f"""#if defined(__clang__) || __GNUC__ >= 12
#define CV_ZIP_LOW(a, b) __builtin_shufflevector(a, b, {low})
#define CV_ZIP_HIGH(a, b) __builtin_shufflevector(a, b, {high})
#else
#define CV_ZIP_LOW(a, b) __builtin_shuffle(a, b, (M){{{low}}})
#define CV_ZIP_HIGH(a, b) __builtin_shuffle(a, b, (M){{{high}}})
#endif
static __attribute__((noinline)) void {self.name}(
    const float *restrict a, float *restrict panel, cv_idx stride, cv_idx columns, cv_idx depth) {{
    typedef float V __attribute__((vector_size({4 * n})));
    typedef float U __attribute__((vector_size({4 * n}), aligned(4)));
    typedef int32_t M __attribute__((vector_size({4 * n}), unused));
    const cv_idx whole = depth - depth % {n};
    for (cv_idx k = 0; k < whole; k += {n})
        for (cv_idx g = 0; g < {self.pitch}; g += {n}) {{
            {body}
        }}
    for (cv_idx k = whole; k < depth; k++)
        for (cv_idx g = 0; g < {self.pitch}; g++)
            panel[k * {self.pitch} + g] = a[(g < columns ? g : columns - 1) * stride + k];
}}
#undef CV_ZIP_LOW
#undef CV_ZIP_HIGH
"""


def build(group: Group, storage: Storage, name: str, tiles: Tiles) -> Kernel | None:
    """The kernel of a group that is a panel ``[batch..., k, n]`` of an operand with k innermost."""
    panel = group.members[0]
    d, rank = panel.definition, panel.rank
    if len(group.members) > 1 or rank < 2 or not isinstance(d, Map) or d.body.op != "load":
        return None
    layout = storage.layout(panel)
    n, pitch = rank - 1, layout.block
    wanted = (*((i, 1, 0) for i in range(rank - 2)), (n, pitch, 0), (rank - 2, 1, 0), (n, 1, pitch))
    if panel.dtype != "float32" or pitch % tiles.width or layout.dims != wanted:
        return None
    *batch, k, column = d.axes
    along, across = step(storage, d.body, k), step(storage, d.body, column)
    if along is None or across is None or static(along) != 1 or static(across) == 1:
        return None
    number = E.var(E.floordiv(panel.shape[n] + (pitch - 1), pitch), "n")
    zero, first = E.const(0), number * pitch
    at = {k: zero, column: first, **{b: zero for b in batch if static(b.args[0]) == 1}}
    source = tuple(E.substitute(i, at) for i in d.body.args)
    arguments = (across, E.minimum(panel.shape[n] - first, pitch), panel.shape[rank - 2])
    depth = static(panel.shape[rank - 2]) or 0
    micro = Micro(
        Transpose(tiles.width, pitch),
        ((d.body.attr, source),),
        (panel, tuple(E.substitute(i, at) for i in (*batch, k, column))),
        arguments,
        touches=(pitch * depth, pitch * depth),
    )
    parallel = [b for b in batch if static(b.args[0]) != 1]
    return finish(name, (*parallel, number), (micro,), group, (panel,), storage)
