"""Where values live: physical layouts, and values that live inside others.

A `Layout` maps logical indices to physical coordinates (row-major, or with an axis split into
blocks).  A `Placement` says that a value is a region or a view of another value's memory, which is
how padding, concatenation and reshapes cost nothing.  `Storage` resolves both to a root value
and an element offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value, static


@dataclass(frozen=True)
class Layout:
    """Physical dimensions from the outermost to the innermost, each ``(axis, divisor, modulus)``:
    the coordinate is ``index[axis] // divisor``, modulo `modulus` unless that is 0.  Where the highest part
    of an axis is bounded too, memory holds a window of it that moves along (`cuvil.schedule.strips`)."""

    dims: tuple[tuple[int, int, int], ...]

    def extents(self, shape: Sequence[Expr]) -> list[Expr]:
        """Physical sizes; a split axis is rounded up to whole blocks."""
        return [
            E.const(modulus) if modulus else E.floordiv(shape[axis] + (divisor - 1), divisor)
            for axis, divisor, modulus in self.dims
        ]

    def coordinates(self, indices: Sequence[Expr]) -> list[Expr]:
        result = []
        for axis, divisor, modulus in self.dims:
            c = E.floordiv(indices[axis], divisor) if divisor != 1 else indices[axis]
            result.append(E.mod(c, modulus) if modulus else c)
        return result

    def offset(self, indices: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
        """The element's position in memory."""
        total: Expr = E.const(0)
        for c, extent in zip(self.coordinates(indices), self.extents(shape)):
            total = total * extent + c
        return total

    def size(self, shape: Sequence[Expr]) -> Expr:
        """Elements of memory."""
        return E.product(self.extents(shape))

    @property
    def is_row_major(self) -> bool:
        return all(d == (i, 1, 0) for i, d in enumerate(self.dims))

    @property
    def block(self) -> int:
        """The size of the innermost block, 1 where no axis is split."""
        return self.dims[-1][2] or 1 if self.dims else 1

    @property
    def blocked_axis(self) -> int:
        """The axis that is split, -1 where none is."""
        return next((axis for axis, _, modulus in self.straight.dims if modulus), -1)

    @property
    def straight(self) -> Layout:
        """The layout without windows: all of an axis whose highest part is bounded, stored round."""
        top = {axis: max(d for a, d, _ in self.dims if a == axis) for axis, _, _ in self.dims}
        return Layout(tuple((a, d, 0 if d == top[a] else m) for a, d, m in self.dims))


def row_major(rank: int) -> Layout:
    return Layout(tuple((i, 1, 0) for i in range(rank)))


def blocked(rank: int, axis: int, block: int) -> Layout:
    """`axis` split into blocks, the block innermost: NCHW16c is ``blocked(4, 1, 16)``."""
    outer = tuple((i, block if i == axis else 1, 0) for i in range(rank))
    return Layout((*outer, (axis, 1, block)))


@dataclass(frozen=True, eq=False)
class Placement:
    """A value lives in `host`: its element at `axes` is ``host[indices]``."""

    host: Value
    axes: tuple[Expr, ...]
    indices: tuple[Expr, ...]


@dataclass
class Storage:
    """Layouts of values and placements in others."""

    layouts: dict[Value, Layout] = field(default_factory=dict)
    placements: dict[Value, Placement] = field(default_factory=dict)

    def root(self, value: Value) -> Value:
        """The value whose memory holds `value`."""
        while value in self.placements:
            value = self.placements[value].host
        return value

    def layout(self, value: Value) -> Layout:
        """The layout of a root value."""
        found = self.layouts.get(value)
        return row_major(value.rank) if found is None else found

    def resolve(self, value: Value, indices: Sequence[Expr]) -> tuple[Value, tuple[Expr, ...]]:
        """The root value and the indices in it."""
        at = tuple(indices)
        while value in self.placements:
            p = self.placements[value]
            mapping = dict(zip(p.axes, at))
            at = tuple(E.substitute(i, mapping) for i in p.indices)
            value = p.host
        return value, at

    def address(self, value: Value, indices: Sequence[Expr]) -> tuple[Value, Expr]:
        """The root value and the element offset in its memory."""
        root, at = self.resolve(value, indices)
        return root, self.layout(root).offset(at, root.shape)

    def stride(self, value: Value, indices: Sequence[Expr], variable: Expr) -> int | None:
        """How far the address moves when `variable` grows by one; None where that is not constant."""
        _, offset = self.address(value, indices)
        return coefficient(offset, variable)

    def elements(self, value: Value) -> Expr:
        """Elements of memory of a root value."""
        return self.layout(value).size(value.shape)


def coefficient(index: Expr, variable: Expr) -> int | None:
    """The constant factor of `variable` in an index, or None where there is none."""
    _, terms = E.linear(index)
    found = 0
    for term, c in terms.items():
        if term is variable:
            found = c
        elif variable in E.variables(term):
            return None
    return found


def split(layout: Layout, shape: Sequence[Expr]) -> tuple[list[Expr], list[Expr], Expr]:
    """Loop variables over the physical dimensions of a shape, the logical indices in terms of
    them, and the condition that these are inside the shape (constant true where they always are)."""
    layout = layout.straight
    extents = layout.extents(shape)
    variables: list[Expr] = []
    indices: list[Expr] = [E.const(0)] * len(shape)
    for (axis, divisor, _), extent in zip(layout.dims, extents):
        v = E.const(0) if static(extent) == 1 else E.var(extent)
        variables.append(v)
        indices[axis] = indices[axis] + v * divisor
    inside: Expr = E.const(True, "bool")
    for axis in {a for a, _, modulus in layout.dims if modulus}:
        inside = E.logical("and", inside, E.lt(indices[axis], shape[axis]))
    return [v for v in variables if v.op == "var"], indices, inside
