"""Contractions that a tile can compute: recognised, and their second operand packed.

A contraction ``y[m..., n] = sum over k of a[m, k] * w[k, n]`` is recognised by which variables
its two loads use, whatever operator it came from.  The operand that carries `n` is packed into
panels (at compile time where it is constant), the other one is read as it lies.  A grouped convolution
becomes such a contraction panel by panel (`groups`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cuvil.codegen.tuned.groups import MAX_WASTE, Groups
from cuvil.codegen.tuned.groups import find as find_groups
from cuvil.codegen.tuned.isa import BLOCK, Tiles
from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Constant, Map, Program, Reduce, Value, operands, static
from cuvil.schedule.fuse import is_contraction
from cuvil.schedule.storage import Layout, Storage, coefficient

TYPES = frozenset((
    ("float32", "float32", "float32"),
    *((a, w, "int32") for a in ("uint8", "int8") for w in ("uint8", "int8")),
))  # fmt: skip
"""Element types of the operands, and of the sum."""


@dataclass(eq=False)
class Contraction:
    """A recognised contraction.

    Attributes:
        value: the Reduce.
        a, w: the loads; `w` reads the packed panel ``[batch..., k..., n]``, `a` at most the number of the
            panel that `n` is in.
        panel: the packed value.
        batch: output axes in both operands; `rows`: not in `w`; `column`: the panels'.
        k: reduced variables, outermost first.
        vectors: vectors in a tile's row.
        pitch: columns of a panel.
        lanes: columns are padded to a multiple of it.
        spatial: the rows are a convolution's positions (tiles of pixels).
        dot: bytes in groups of four.
        lanewise: `a` has an element for each column.
        block: elements of the last of `k` that `panel` has before the next step of the others; 0 for all.
    """

    value: Value
    a: Expr
    w: Expr
    panel: Value
    batch: list[Expr]
    rows: list[Expr]
    column: Expr
    k: list[Expr]
    vectors: int
    pitch: int
    lanes: int
    spatial: bool
    dot: bool
    lanewise: bool = False
    block: int = 0


@dataclass(frozen=True, eq=False)
class _Match:
    """What `recognise` finds: the parts of a `Contraction` before it is packed."""

    a: Expr
    w: Expr
    batch: list[Expr]
    rows: list[Expr]
    column: Expr
    k: list[Expr]
    groups: Groups | None = None


def recognise(value: Value) -> _Match | None:
    """The parts of a contraction that a tile can compute, or None."""
    d = value.definition
    if not isinstance(d, Reduce) or d.op != "sum" or d.body.op != "mul":
        return None
    factors = [_load(f) for f in d.body.args]
    if factors[0] is None or factors[1] is None:
        return None
    axes = [a for a, s in zip(d.axes, value.shape) if static(s) != 1 and a is not _step_axis(value)]
    reduced = [r for r in d.reduced if static(r.args[0]) != 1]
    if not reduced:
        return None
    orders = [(factors[0], factors[1]), (factors[1], factors[0])]
    for a, w in sorted(orders, key=lambda pair: pair[1].dtype != "int8"):
        if (a.dtype, w.dtype, d.body.dtype) not in TYPES:
            continue
        in_a, in_w = E.variables(*a.args), E.variables(*w.args)
        rows = [x for x in axes if x not in in_w]
        batch = [x for x in axes if x in in_a and x in in_w]
        k = [r for r in reduced if r in in_a and r in in_w]
        if len(k) != len(reduced):
            continue
        if len(batch) == 1 and isinstance(w.attr.definition, Constant):
            groups = find_groups(value, a, batch[0], k)
            if groups is not None and [x for x in axes if x not in rows] == batch:
                return _Match(a, w, [], rows, batch[0], k, groups)
        columns = [x for x in axes if x in in_w and x not in in_a]
        if len(columns) == 1 and not any(
            x.op in ("load", "select", "floordiv", "mod") for i in (*a.args, *w.args) for x in E.walk(i)
        ):
            return _Match(a, w, batch, rows, columns[0], k)
    return None


def _step_axis(value: Value) -> Expr | None:
    """The axis of the steps of a recurrence, which a tile does not run over."""
    d = value.definition
    return d.axes[0] if value.scan is not None and isinstance(d, Reduce) else None


def _load(e: Expr) -> Expr | None:
    while e.op == "cast":
        e = e.args[0]
    return e if e.op == "load" else None


def step(storage: Storage, load: Expr, variable: Expr) -> Expr | None:
    """How far the address of a load moves per step of a variable: an expression without it."""
    _, offset = storage.address(load.attr, load.args)
    moved = E.substitute(offset, {variable: variable + 1}) - offset
    return None if E.variables(moved) else moved


def pack(program: Program, storage: Storage, value: Value, tiles: Tiles) -> Contraction | None:
    """Recognise a contraction and give its second operand the layout a tile reads; changes the
    program: the panel is a value of its own before `value`."""
    found = recognise(value)
    d = value.definition
    if found is None or not isinstance(d, Reduce):
        return None
    a, w, rows, column, k = found.a, found.w, found.rows, found.column, found.k
    if d.body.dtype not in ("float32", "int32"):
        return None
    spatial = storage.layout(storage.root(value)).block > 1 or _is_window(a, rows, k)
    constant = isinstance(w.attr.definition, Constant)
    columns = static(column.args[0])
    if columns is None and not constant and spatial:
        return None
    if columns is not None and columns < (2 if constant else 4):
        return None
    vectors = tiles.vectors(columns, spatial, _product(rows))
    packing = (tiles.packing if constant else None) or tiles
    lanes = packing.vectors(columns, spatial, _product(rows)) * packing.width
    factor: Expr = w
    groups = found.groups
    if constant and groups is None and not found.batch and _starts_within_block(storage, a):
        groups = find_groups(value, a, column, k)
    if groups is not None:
        align = storage.layout(storage.root(a.attr)).block
        choices = [v * packing.width for v in packing.grouped(lanes // packing.width)]
        waste = {n: groups.waste(n, align) for n in choices}
        lanes = min(waste, key=lambda n: waste[n])
        if waste[lanes] > MAX_WASTE:
            return None
        inner, a, factor = groups.dense(a, w, lanes, align)
        k = [inner if r is groups.channel else r for r in k]
        d = Reduce(d.axes, tuple(inner if r is groups.channel else r for r in d.reduced), d.op, d.body)
    order = _k_order(storage, a, k)
    block = block_of(storage, a, order[-1])
    steps = {r: step(storage, a, r) for r in (*rows, *k) if not (block and r is order[-1])}
    if any(s is None for s in steps.values()):
        return None
    if not constant and (value.scan is not None or (_product(rows) or 64) < 4):
        return None
    size = static(order[-1].args[0])
    together = bool(block) or static(steps[order[-1]] or 0) == 1
    dot = tiles.dot and d.body.dtype == "int32" and together
    if dot and (size is None or (size % 4 and not block)):
        dot = False
    if not block and constant and d.body.dtype == "float32" and _shares_taps(rows, order, steps):
        block = BLOCK
    narrow = packing is not tiles or (tiles.amx and constant and _product(rows) != 1)
    pitch = math.gcd(lanes, BLOCK) if narrow else lanes
    layout = _layout(len(found.batch), len(order), (pitch, lanes), dot, block)
    panel, new_w = w.attr, w
    index = [*found.batch, *order, column]
    if not dot or constant or w.attr is a.attr or not _lay_out(program, storage, value, w, index, layout):
        panel = _panel(program, storage, value, factor, index, layout)
        new_w = E.load(panel, index)
    to = d.body.dtype
    value.definition = Reduce(d.axes, d.reduced, d.op, E.cast(a, to) * E.cast(new_w, to))
    vectors = lanes // tiles.width if pitch == lanes else tiles.within(lanes, vectors)
    return Contraction(
        value, a, new_w, panel, found.batch, rows, column, order, vectors, pitch, lanes, spatial, dot,
        block=block,
    )  # fmt: skip


def _shares_taps(rows: Sequence[Expr], k: Sequence[Expr], steps: Mapping[Expr, Expr | None]) -> bool:
    """A convolution over channels that lie side by side, whole blocks of them, whose positions share what
    their taps read."""
    if not rows or len(k) < 2 or (static(k[-1].args[0]) or 1) % BLOCK:
        return False
    channel, tap, position = (static(steps[v] or 0) for v in (k[-1], k[-2], rows[-1]))
    if channel != 1 or not tap or not position:
        return False
    return position % tap == 0 and position // tap < (static(k[-2].args[0]) or 0)


def _starts_within_block(storage: Storage, a: Expr) -> bool:
    """The load starts in the middle of a block of channels of a value that is stored whole."""
    layout = storage.layout(a.attr)
    axis = layout.blocked_axis
    return axis >= 0 and a.attr is storage.root(a.attr) and E.linear(a.args[axis])[0] % layout.block > 0


def _product(variables: Sequence[Expr]) -> int | None:
    total = 1
    for v in variables:
        n = static(v.args[0])
        if n is None:
            return None
        total *= n
    return total


def _is_window(a: Expr, rows: Sequence[Expr], k: Sequence[Expr]) -> bool:
    """Some index of `a` adds a position and a tap: a convolution."""
    for i in a.args:
        used = E.variables(i)
        if any(r in used for r in rows) and any(r in used for r in k):
            return True
    return False


def block_of(storage: Storage, a: Expr, variable: Expr) -> int:
    """The block size where `variable` runs along the blocked axis of `a`'s memory from the start of a
    block on, else 0."""
    root, at = storage.resolve(a.attr, a.args)
    layout = storage.layout(root)
    axis = layout.blocked_axis
    if axis < 0 or coefficient(at[axis], variable) != 1:
        return 0
    constant, terms = E.linear(at[axis] - variable)
    return layout.block if all(n % layout.block == 0 for n in (constant, *terms.values())) else 0


def _k_order(storage: Storage, a: Expr, k: Sequence[Expr]) -> list[Expr]:
    """The reduced variables from the largest stride to the smallest; a blocked one last."""
    blocked = [r for r in k if block_of(storage, a, r)]

    def size(r: Expr) -> float:
        s = step(storage, a, r)
        known = static(s) if s is not None else None
        return float("inf") if known is None else abs(known)

    rest = sorted((r for r in k if r not in blocked), key=lambda r: -size(r))
    return [*rest, *blocked]


def _lay_out(
    program: Program, storage: Storage, value: Value, w: Expr, order: Sequence[Expr], layout: Layout
) -> bool:
    """Give the operand itself the layout of a panel with axes in that order, where it can have it."""
    source = w.attr
    axes = {v: i for i, v in enumerate(w.args) if v.op == "var"}
    rest = [static(s) for i, s in enumerate(source.shape) if i not in axes.values()]
    if source.scan is not None or not isinstance(source.definition, Map) or set(axes) != set(order):
        return False
    if any(n != 1 for n in rest) or source in program.pinned or source in storage.layouts:
        return False
    if storage.root(source) is not source or any(storage.root(v) is source for v in storage.placements):
        return False
    if any(v is not value and is_contraction(v) and source in operands(v) for v in program.values):
        return False
    dims = tuple((axes[order[axis]], divisor, modulus) for axis, divisor, modulus in layout.dims)
    units = ((i, 1, 0) for i in range(source.rank) if i not in axes.values())
    storage.layouts[source] = Layout((*units, *dims))
    return True


def _panel(
    program: Program, storage: Storage, value: Value, w: Expr, order: Sequence[Expr], layout: Layout
) -> Value:
    """The packed operand, a value of its own with axes in that order."""
    fresh = [E.var(v.args[0]) for v in order]
    body = E.substitute(w, dict(zip(order, fresh)))
    shape = tuple(v.args[0] for v in order)
    panel = Value(f"{value.name}.panel", w.dtype, shape, Map(tuple(fresh), body), origin=value.origin)
    known = all(e.attr.is_constant for e in E.loads(w))
    if known and all(static(s) is not None for s in shape):
        panel.definition = Constant(np.asarray(evaluate.value(panel, lambda v: v.array)))
    storage.layouts[panel] = layout
    program.values.insert(program.values.index(value), panel)
    return panel


def _layout(batch: int, k: int, lanes: tuple[int, int], dot: bool, block: int) -> Layout:
    """The layout of a packed operand ``[batch..., k..., n]``: panels of ``lanes[0]`` columns, padded to a
    multiple of ``lanes[1]`` columns."""
    n = batch + k
    dims: list[tuple[int, int, int]] = [(i, 1, 0) for i in range(batch)]
    pitch, padded = lanes
    dims += [(n, padded, 0), (n, pitch, padded // pitch)] if padded > pitch else [(n, pitch, 0)]
    inner = n - 1
    if block:
        dims.append((inner, block, 0))
        dims += [(i, 1, 0) for i in range(batch, inner)]
        tail = (
            [(inner, 4, block // 4), (n, 1, pitch), (inner, 1, 4)]
            if dot
            else [(inner, 1, block), (n, 1, pitch)]
        )
    else:
        dims += [(i, 1, 0) for i in range(batch, inner)]
        tail = [(inner, 4, 0), (n, 1, pitch), (inner, 1, 4)] if dot else [(inner, 1, 0), (n, 1, pitch)]
    return Layout((*dims, *tail))
