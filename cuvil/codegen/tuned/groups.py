"""Grouped convolutions, and those of a slice of channels, as dense ones over a window of channels.

The outputs of a panel belong to one group or to neighbouring ones, whose input channels lie side by
side.  So a panel is an ordinary contraction over a window of channels, the same number for every
panel, whose weights between different groups are zero: the micro-kernels need not know of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value, static

MAX_WASTE = 8
"""Multiplications with a zero per one that counts, beyond which plain loops do as well."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of a convolution: output channel `column` sums over `inputs` channels, counted by
    `channel`, from ``base + column // outputs * inputs`` on.

    Attributes:
        axis: the axis of channels in the first operand, which has `channels`.
        total: output channels of all groups.
    """

    column: Expr
    channel: Expr
    axis: int
    inputs: int
    outputs: int
    total: int
    base: int
    channels: int

    def width(self, lanes: int, align: int) -> int:
        """Channels of the window of a panel of `lanes` outputs; windows start at multiples of `align`."""
        spans = []
        for start in range(0, self.total, lanes):
            last = min(start + lanes, self.total) - 1
            first, stop = (self.base + o // self.outputs * self.inputs for o in (start, last + self.outputs))
            spans.append((first // align * align, stop))
        width = max(stop - first for first, stop in spans)
        while any(
            stop > min(first, (self.channels - width) // align * align) + width for first, stop in spans
        ):
            width += 1
        return width

    def first(self, lanes: int, align: int) -> Expr:
        """The first channel of the window that belongs to the panel of `column`."""
        group = E.floordiv(E.floordiv(self.column, lanes) * lanes, self.outputs)
        last = (self.channels - self.width(lanes, align)) // align
        return E.minimum(E.floordiv(self.base + group * self.inputs, align), last) * align

    def waste(self, lanes: int, align: int) -> float:
        """Multiplications per one that is needed, in panels of `lanes` outputs."""
        padded = -(-self.total // lanes) * lanes
        return padded * self.width(lanes, align) / (self.total * self.inputs)

    def dense(self, a: Expr, w: Expr, lanes: int, align: int) -> tuple[Expr, Expr, Expr]:
        """(channel of the window, the two factors as functions of it), in panels of `lanes` outputs."""
        inner = E.var(self.width(lanes, align), "r")
        source = self.first(lanes, align) + inner
        own = source - E.floordiv(self.column, self.outputs) * self.inputs - self.base
        args = [source if i == self.axis else e for i, e in enumerate(a.args)]
        inside = E.logical("and", E.le(0, own), E.lt(own, self.inputs))
        safe = E.minimum(E.maximum(own, 0), self.inputs - 1)
        weight = E.select(inside, E.substitute(w, {self.channel: safe}), E.const(0, w.dtype))
        return inner, E.load(a.attr, args), weight


def find(value: Value, a: Expr, column: Expr, k: Sequence[Expr]) -> Groups | None:
    """The groups where `a` reads channel ``base + column // outputs * inputs + channel`` and nothing else
    of it depends on the column; one group where it depends on none."""
    total = static(column.args[0])
    users = [i for i, e in enumerate(a.args) if column in E.variables(e)]
    axis = users[0] if users else 1
    size = static(a.attr.shape[axis]) if axis < a.attr.rank else None
    if total is None or size is None or len(users) > 1 or value.scan is not None:
        return None
    base, terms = E.linear(a.args[axis])
    channel = next((r for r in k if terms.get(r) == 1), None)
    inputs = static(channel.args[0]) if channel is not None else None
    if channel is None or inputs is None or base < 0:
        return None
    outputs = total
    for group in terms:
        if group is channel:
            continue
        outputs = (static(group.args[1]) or 0) if group.op == "floordiv" and group.args[0] is column else 1
        if len(terms) > 2 or terms[group] != inputs or not outputs or (outputs == 1 and group is not column):
            return None
    if total % outputs or base + total // outputs * inputs > size:
        return None
    return Groups(column, channel, axis, inputs, outputs, total, base, size)
