"""Blocked layouts for whole regions of a program.

Values between convolutions get their channels in blocks of 16, innermost in memory, so that a tile
is stored and read in order.  Inputs and outputs of the program stay as the user has them.
"""

from __future__ import annotations

from cuvil.codegen.tuned.isa import BLOCK
from cuvil.ir import expr as E
from cuvil.ir.primitives import (
    Constant,
    Input,
    Map,
    Program,
    Reduce,
    Value,
    definition_loads,
    operands,
    static,
)
from cuvil.schedule.fuse import is_contraction
from cuvil.schedule.place import Placer, as_join, as_pad, as_reshape
from cuvil.schedule.storage import Layout, Storage, blocked

Readers = dict[Value, list[Value]]
"""The values that read each value."""


def assign(program: Program, storage: Storage, placer: Placer) -> None:
    """Choose the values that are stored in blocks of channels."""
    region: set[Value] = set()
    outputs = set(program.outputs)
    readers: Readers = {v: [] for v in program.values}
    for value in program.values:
        for source in operands(value):
            readers[source].append(value)
    for value in program.values:
        if value not in outputs and value.scan is None and _wants(value, region):
            region.add(value)
            region.update(_made_for(readers, value) - region - outputs)
    for value in region:
        _keep_apart(readers, storage, placer, value)
        _leave_view(readers, storage, placer, value, region)
    for value in region:
        root = storage.root(value)
        if root in region:
            storage.layouts[root] = blocked(root.rank, 1, BLOCK)
    _interleave_bytes(program, storage)
    for value in list(program.values):
        if storage.root(value) in region:
            _pack_channel_weights(program, storage, value)


def _interleave_bytes(program: Program, storage: Storage) -> None:
    """The bytes that convolutions read in planes get channels side by side, for products in groups of four:
    those of an image in blocks of 4 or 8."""
    kept = {storage.root(v) for v in program.pinned}
    for value in program.values:
        d = value.definition
        if not is_contraction(value) or value.rank < 3 or not isinstance(d, Reduce):
            continue
        if not _is_convolution(value, d):
            continue
        for e in definition_loads(value):
            source, root = e.attr, storage.root(e.attr)
            channels = static(source.shape[1]) if source.rank == value.rank else None
            inner = channels is not None and any(r in E.variables(e.args[1]) for r in d.reduced)
            if not inner or source.dtype not in ("uint8", "int8") or d.axes[1] in E.variables(*e.args):
                continue
            if channels is None or channels < 3 or root in kept or root in storage.layouts:
                continue
            alike = root.rank == value.rank and root.shape[1] is source.shape[1]
            if isinstance(root.definition, Map) and alike:
                block = next((b for b in (4, 8) if channels <= b), BLOCK)
                storage.layouts[root] = blocked(root.rank, 1, block)


def _wants(value: Value, region: set[Value]) -> bool:
    d = value.definition
    if not isinstance(d, (Map, Reduce)) or value.rank < 3 or isinstance(d, (Input, Constant)):
        return False
    channels = static(value.shape[1])
    if channels is None or channels < 8 or any(static(s) is None for s in value.shape[2:]):
        return False
    if is_contraction(value):
        return _is_convolution(value, d)
    pad = as_pad(value)
    if pad is not None:
        return pad[0] in region and static(pad[1][1]) == 0
    sources = [e for e in definition_loads(value) if not e.attr.is_constant]
    if as_join(value) is not None:
        return all(e.attr in region for e in sources)
    big = [e for e in sources if e.attr.rank == value.rank and (static(e.attr.shape[1]) or 0) >= channels]
    blocked_ones = [e for e in big if e.attr in region]
    if not blocked_ones:
        return False
    in_step = all(e.args[0] is d.axes[0] and _along(e, d.axes[1]) for e in blocked_ones)
    return in_step or all(_along(e, d.axes[1]) for e in big)


def _along(e: E.Expr, channel: E.Expr) -> bool:
    """The load runs over the same channels, or a slice of them, that `channel` counts."""
    return (e.args[1] - channel).is_const


def _made_for(readers: Readers, value: Value) -> set[Value]:
    """The operand of a depthwise convolution, which takes as many channels at a time as its result, where
    nothing else reads it: a padded or normalised image."""
    d = value.definition
    if not isinstance(d, Reduce) or not is_contraction(value):
        return set()
    loads = [e for e in definition_loads(value) if e.attr.rank == value.rank and e.args[1] is d.axes[1]]
    found = {e.attr for e in loads if isinstance(e.attr.definition, Map) and e.attr.scan is None}
    return {s for s in found if readers[s] == [value]}


def _is_convolution(value: Value, d: Map | Reduce) -> bool:
    """A sum over taps of a window: positions and taps meet in an index."""
    assert isinstance(d, Reduce)
    for e in definition_loads(value):
        if e.attr.rank == value.rank and len(d.reduced) == value.rank - 1 and e.args[0] is not d.axes[1]:
            return all(set(E.variables(i)) <= {*d.axes, *d.reduced} for i in e.args[2:])
        if len(d.reduced) == value.rank - 1 and not e.attr.is_constant and _slides(e, d):
            return True
    return False


def _slides(e: E.Expr, d: Reduce) -> bool:
    """The load of an operand whose channels lie elsewhere, and that is read for a window."""
    used = [E.variables(i) for i in e.args]
    if any(d.axes[1] in u or not u <= {*d.axes, *d.reduced} for u in used):
        return False
    return any(u & {*d.axes[2:]} and u & {*d.reduced} for u in used)


def _keep_apart(readers: Readers, storage: Storage, placer: Placer, value: Value) -> None:
    """The parts of a concatenation that a contraction also reads on its own, and that start in the middle
    of a block, get memory of their own and are copied: tiles read whole blocks."""
    for part, axis, start in as_join(value) or ():
        placed = storage.placements.get(part)
        if axis != 1 or not (static(start) or 0) % BLOCK or placed is None or placed.host is not value:
            continue
        if any(map(is_contraction, readers[part])):
            del storage.placements[part]
            placer.joins.setdefault(value, []).append((part, axis, start))


def _leave_view(readers: Readers, storage: Storage, placer: Placer, value: Value, region: set[Value]) -> None:
    """A value that lives in a reshaped one, row by row, but is also read as an image: the reshaped one
    becomes a copy."""
    placed = storage.placements.get(value)
    if placed is None or placed.host not in placer.views or as_reshape(placed.host) is not value:
        return
    if any(v is not placed.host and (v in region or is_contraction(v)) for v in readers[value]):
        del storage.placements[value]
        placer.views.discard(placed.host)


def _pack_channel_weights(program: Program, storage: Storage, value: Value) -> None:
    """Depthwise weights ``[C, 1, taps...]`` in blocks of channels too."""
    d = value.definition
    if not isinstance(d, Reduce) or not any(
        d.axes[1] in E.variables(*e.args) for e in definition_loads(value) if not e.attr.is_constant
    ):
        return
    replaced: dict[E.Expr, E.Expr] = {}
    for e in definition_loads(value):
        w = e.attr
        if (
            w.is_constant
            and w.rank >= 2
            and e.args[0] is d.axes[1]
            and len(d.reduced)
            and w.array.size > w.array.shape[0]
        ):
            packed = Value(f"{w.name}.blocked", w.dtype, w.shape, Constant(w.array), origin=value.origin)
            rest = tuple((i, 1, 0) for i in range(1, w.rank))
            storage.layouts[packed] = Layout(((0, BLOCK, 0), *rest, (0, 1, BLOCK)))
            program.values.insert(program.values.index(value), packed)
            replaced[e] = E.load(packed, e.args)
    if replaced:
        value.definition = Reduce(d.axes, d.reduced, d.op, E.substitute(d.body, replaced))
