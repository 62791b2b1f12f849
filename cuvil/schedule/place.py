"""View elimination: values that live inside the memory of the value made from them.

A padded tensor, a concatenation, an interleaving and a reshaped output need no copy where their parts
can be written straight to their place.
"""

from __future__ import annotations

import math

from cuvil.ir import expr as E
from cuvil.ir.builder import flatten, unflatten
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Map, Program, Value, elements, operands, static
from cuvil.schedule.storage import Placement, Storage


def as_pad(value: Value) -> tuple[Value, tuple[Expr, ...], Expr] | None:
    """(source, amounts before, fill) where `value` is its source with a constant border."""
    d = value.definition
    if not isinstance(d, Map) or d.body.op != "select":
        return None
    condition, inner, fill = d.body.args
    if inner.op != "load" or not fill.is_const or E.loads(condition):
        return None
    low = tuple(a - i for a, i in zip(d.axes, inner.args)) if len(inner.args) == value.rank else ()
    low = tuple(E.const(0) if static(s) == 1 else n for n, s in zip(low, value.shape))
    if len(low) != value.rank or any(E.variables(n) or E.loads(n) for n in low):
        return None
    if any(E.upper_bound(n + s - t) > 0 for n, s, t in zip(low, inner.attr.shape, value.shape)):
        return None
    if any(n.lo < 0 for n in low):
        return None
    bounds: set[Expr] = set()
    for i, n, size, total in zip(inner.args, low, inner.attr.shape, value.shape):
        before, after = static(n) != 0, static(total - n - size) != 0
        bounds.update([E.le(0, i)] if before else [])
        bounds.update([E.lt(i, size)] if after else [])
    if _conjuncts(condition) != {e for e in bounds if not e.is_const}:
        return None  # what is kept is not the whole source, as in a triangle
    return inner.attr, low, fill


def _conjuncts(condition: Expr) -> set[Expr]:
    """The terms of a conjunction."""
    if condition.op == "and":
        return _conjuncts(condition.args[0]) | _conjuncts(condition.args[1])
    return {condition}


def as_join(value: Value) -> list[tuple[Value, int, Expr]] | None:
    """[(part, axis, start)] where `value` is its parts one after the other along an axis."""
    d = value.definition
    if not isinstance(d, Map) or d.body.op != "select":
        return None
    parts: list[tuple[Value, int, Expr]] = []
    body = d.body
    start: Expr = E.const(0)
    axis = -1
    while True:
        last = body.op != "select"
        part = body if last else body.args[1]
        if part.op != "load" or part.attr.rank != value.rank:
            return None
        moved = [k for k, s in enumerate(part.attr.shape) if s is not value.shape[k]]
        if len(moved) != 1 or (axis >= 0 and moved[0] != axis):
            return None
        axis = moved[0]
        expected = [a - start if k == axis else a for k, a in enumerate(d.axes)]
        size = part.attr.shape[axis]
        for k, (want, got) in enumerate(zip(expected, part.args)):
            if want is not got and static(part.attr.shape[k]) != 1 and static(value.shape[k]) != 1:
                return None
        parts.append((part.attr, axis, start))
        if last:
            return parts if start + size is value.shape[axis] else None
        if body.args[0] is not E.lt(d.axes[axis], start + size):
            return None
        start = start + size
        body = body.args[2]


def as_interleave(value: Value) -> list[tuple[Value, tuple[int, ...], tuple[int, ...]]] | None:
    """[(part, steps, offsets)] where ``part[i]`` is ``value[step * i + offset]``, axis by axis, and the
    parts are the whole: the result of a transposed convolution, one part for each residue of a position."""
    d = value.definition
    if not isinstance(d, Map) or d.body.op != "select":
        return None
    branches: list[tuple[Expr, dict[int, tuple[int, int]]]] = []
    body = d.body
    while body.op == "select":
        residues: dict[int, tuple[int, int]] = {}
        for term in _conjuncts(body.args[0]):
            if term.op != "eq" or term.args[0].op != "mod" or not term.args[1].is_const:
                return None
            axis, step = term.args[0].args
            if axis not in d.axes or not step.is_const:
                return None
            residues[d.axes.index(axis)] = (int(step.attr), int(term.args[1].attr))
        branches.append((body.args[1], residues))
        body = body.args[2]
    steps = tuple(branches[0][1].get(k, (1, 0))[0] for k in range(value.rank))
    branches.append((body, {k: (s, 0) for k, s in enumerate(steps) if s > 1}))
    parts: dict[tuple[int, ...], Value] = {}
    for part, residues in branches:
        offsets = tuple(residues.get(k, (1, 0))[1] for k in range(value.rank))
        if any(residues.get(k, (1, 0))[0] != s for k, s in enumerate(steps)):
            return None
        if part.op != "load" or part.attr.rank != value.rank or part.attr in parts.values():
            return None
        for k, (s, offset) in enumerate(zip(steps, offsets)):
            size = part.attr.shape[k]
            if part.args[k] is not E.floordiv(d.axes[k], s) and static(size) != 1:
                return None
            if size is not E.floordiv(value.shape[k] - offset + (s - 1), s):
                return None
        parts[offsets] = part.attr
    if len(parts) != len(branches) or len(parts) != math.prod(steps):
        return None
    return [(part, steps, offsets) for offsets, part in parts.items()]


def as_reshape(value: Value) -> Value | None:
    """The source where `value` holds the same elements in the same row-major order."""
    d = value.definition
    if not isinstance(d, Map) or d.body.op != "load":
        return None
    source = d.body.attr
    if elements(source.shape) is not elements(value.shape) or source.dtype != value.dtype:
        return None
    axes = [E.const(0) if static(s) == 1 else a for a, s in zip(d.axes, value.shape)]
    wanted = unflatten(flatten(axes, value.shape), source.shape)
    same = all(a is b or static(s) == 1 for a, b, s in zip(wanted, d.body.args, source.shape))
    return source if same else None


class Placer:
    """Finds the values that can live inside another; fills `storage.placements`.

    Attributes:
        borders: per padded host, the (source, amounts before, fill) whose border must be filled.
        joins: per concatenation, the parts that must be copied because they live elsewhere.
        views: values that need no kernel, for they are their source's memory.
    """

    def __init__(self, program: Program, storage: Storage) -> None:
        self.program, self.storage = program, storage
        self.borders: dict[Value, tuple[Value, tuple[Expr, ...], Expr]] = {}
        self.joins: dict[Value, list[tuple[Value, int, Expr]]] = {}
        self.views: set[Value] = set()
        self.outputs = program.pinned

    def run(self) -> None:
        for value in reversed(self.program.values):
            pad = as_pad(value)
            if pad is not None:
                if self._can_live_in(pad[0], value):
                    source, low, _ = pad
                    self._place(source, value, [a + n for a, n in zip(self._axes(source), low)])
                    self.borders[value] = pad
                continue
            parts = as_join(value)
            if parts is not None:
                seen: set[Value] = set()
                left = []
                for part, axis, start in parts:
                    if part not in seen and self._can_live_in(part, value):
                        axes = self._axes(part)
                        self._place(part, value, [a + start if k == axis else a for k, a in enumerate(axes)])
                    else:
                        left.append((part, axis, start))
                    seen.add(part)
                if len(left) < len(parts):
                    self.joins[value] = left
                continue
            mixed = as_interleave(value)
            if mixed is not None:
                if all(self._can_live_in(part, value) for part, _, _ in mixed):
                    for part, steps, offsets in mixed:
                        axes = self._axes(part)
                        self._place(part, value, [a * s + o for a, s, o in zip(axes, steps, offsets)])
                    self.views.add(value)
                continue
            same = as_reshape(value)
            if same is not None and self._can_live_in(same, value):
                axes = self._axes(same)
                self._place(same, value, list(unflatten(flatten(axes, same.shape), value.shape)))
                self.views.add(value)

    def _axes(self, value: Value) -> list[Expr]:
        self._current = tuple(E.var(s) for s in value.shape)
        return [E.const(0) if static(s) == 1 else a for a, s in zip(self._current, value.shape)]

    def _place(self, value: Value, host: Value, indices: list[Expr]) -> None:
        self.storage.placements[value] = Placement(host, self._current, tuple(indices))

    def _can_live_in(self, value: Value, host: Value) -> bool:
        if value in self.outputs or value in self.storage.placements or value.scan is not None:
            return False
        if host.scan is not None or not _known_with(host, value):
            return False
        d = value.definition
        if isinstance(d, Map) and as_reshape(value) is not None and not operands(value):
            return False
        return type(d).__name__ in ("Map", "Reduce")


def _known_with(host: Value, value: Value) -> bool:
    """Where `value` is computed, the data-dependent sizes of `host` are known: they are its own too."""
    late = {e for e in E.walk(*host.shape) if e.op == "sym" and e.args}
    return late <= {e for e in E.walk(*value.shape) if e.op == "sym"}
