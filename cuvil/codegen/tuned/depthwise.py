"""Depthwise convolutions of bytes on blocked layouts: a tile's lanes are the channels of a block.

As contractions they have no operand to broadcast: each lane multiplies its own channel with its own weight.
Everything else, rows, loops over taps and the epilogue, is that of other tiles (`contract`).
"""

from __future__ import annotations

from cuvil.codegen.tuned.isa import BLOCK, Tiles
from cuvil.codegen.tuned.pack import TYPES, Contraction, step
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Reduce, Value, definition_loads, static
from cuvil.schedule.storage import Storage


def find(storage: Storage, value: Value, tiles: Tiles) -> Contraction | None:
    """The contraction of a depthwise convolution whose channels, and their weights, lie in blocks."""
    d = value.definition
    if not tiles.dot or not isinstance(d, Reduce) or value.scan is not None:
        return None
    if d.op != "sum" or d.body.op != "mul":
        return None
    loads = list(definition_loads(value))
    if len(loads) != 2 or d.body.dtype != "int32" or storage.layout(storage.root(value)).block != BLOCK:
        return None
    channel = d.axes[1]
    a, w = loads if loads[1].attr.is_constant else reversed(loads)
    taps = [r for r in d.reduced if static(r.args[0]) != 1]
    if (a.dtype, w.dtype, "int32") not in TYPES or not taps or not _weights(storage, w, channel, taps):
        return None
    rows = [x for x in d.axes if x is not channel and static(x.args[0]) != 1]
    steps = [step(storage, a, v) for v in (*rows, *taps)]
    if any(s is None for s in steps) or not _by_blocks(storage, a, channel):
        return None
    vectors = max(BLOCK // tiles.width, 1)
    return Contraction(
        value, a, w, w.attr, [], rows, channel, taps, vectors, BLOCK, BLOCK, True, False, lanewise=True
    )


def _weights(storage: Storage, w: Expr, channel: Expr, taps: list[Expr]) -> bool:
    """The constant lies in blocks of channels, the taps between them in their order."""
    layout = storage.layout(w.attr)
    if not w.attr.is_constant or (layout.blocked_axis, layout.block) != (0, BLOCK):
        return False
    return w.args[0] is channel and [i for i in w.args[1:] if not i.is_const] == taps


def _by_blocks(storage: Storage, a: Expr, channel: Expr) -> bool:
    """The operand's channels are those of the result, or start whole blocks later."""
    root, at = storage.resolve(a.attr, a.args)
    layout = storage.layout(root)
    axis = layout.blocked_axis
    others = [i for k, i in enumerate(at) if k != axis]
    if axis < 0 or layout.block != BLOCK or channel in E.variables(*others):
        return False
    first = static(at[axis] - channel)
    return first is not None and first % BLOCK == 0
