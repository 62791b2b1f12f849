"""Lanes beyond the last channel of a partial block: where they may be computed like the others.

A loop over whole blocks needs no guard then.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Map, Reduce, Value, static
from cuvil.schedule.storage import Storage


def stray_is_safe(
    storage: Storage,
    members: Sequence[Value],
    internal: set[Value],
    anchor: Value,
    computed: Value | None = None,
) -> bool:
    """Whether lanes beyond the last channel of a partial block may be computed and stored.

    They lie in padded memory, no reader looks at them, and what they are computed from must lie in
    such memory too: blocked values, or constants, which are padded with zeros.  The member `computed`
    has such lanes whatever it reads.
    """
    layout = storage.layout(storage.root(anchor))
    block = layout.block
    axis = layout.blocked_axis
    whole = [a for a, _, _ in layout.dims]  # but for windows, the part of an axis that there is at a time
    split = {a for a, _, n in layout.dims if n and whole.count(a) > 1}
    if block <= 1 or axis < 0 or axis >= anchor.rank or split != {axis}:
        return False
    if (static(anchor.shape[axis]) or 1) % block == 0:
        return True
    if any(v not in internal and not _owns_padding(storage, v, axis, block) for v in members):
        return False
    for v in members:
        d = v.definition
        if not isinstance(d, (Map, Reduce)) or v.rank != anchor.rank:
            return False
        channel = d.axes[axis]
        for e in E.walk(d.body) if v is not computed else ():
            if e.op == "load" and e.attr not in members:
                if channel in E.variables(*e.args) and not _padded(storage, e, channel, block):
                    return False
            elif e.dtype == E.INDEX and e.op in ("floordiv", "mod") and channel in E.variables(e):
                return False
    return True


def _owns_padding(storage: Storage, value: Value, axis: int, block: int) -> bool:
    """The channels of `value` start at a whole block of its root's memory and are the root's last."""
    d = value.definition
    if not isinstance(d, (Map, Reduce)) or axis >= value.rank:
        return False
    root, at = storage.resolve(value, d.axes)
    layout = storage.layout(root)
    if (layout.blocked_axis, layout.block) != (axis, block):
        return False
    start = static(at[axis] - d.axes[axis])
    return start is not None and start % block == 0 and value.shape[axis] + start is root.shape[axis]


def _padded(storage: Storage, load: Expr, channel: Expr, block: int) -> bool:
    """Reading `load` up to the end of the last block of `channel` stays in memory of its root."""
    root, at = storage.resolve(load.attr, load.args)
    layout = storage.layout(root)
    axis = layout.blocked_axis
    if axis >= 0:
        difference = at[axis] - channel
        others = [i for k, i in enumerate(at) if k != axis]
        whole = difference.is_const and difference.attr % block == 0
        return layout.block == block and whole and channel not in E.variables(*others)
    small = root.is_constant and E.numpy_dtype(root.dtype).itemsize * block <= limits.WORKSPACE_ALIGNMENT
    users = [k for k, i in enumerate(at) if channel in E.variables(i)]
    return (
        small
        and users == [k for k, i in enumerate(at) if i is channel]
        and len(users) == 1
        and all(static(s) == 1 for k, s in enumerate(root.shape) if k != users[0])
    )
