"""The geometry that convolution and pooling share: kernels, strides, dilations, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.primitives import Value, depends_on_data, static
from cuvil.ops.registry import Context


@dataclass(frozen=True)
class Window:
    """A window that slides over the spatial axes.

    Attributes:
        kernel, strides, dilations: one entry per spatial axis.
        begin, end: padding before and after each spatial axis.
        out: output sizes.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[Expr, ...]
    end: tuple[Expr, ...]
    out: tuple[Expr, ...]

    def at(self, position: Sequence[Expr], tap: Sequence[Expr]) -> tuple[Expr, ...]:
        """The padded input's spatial indices that output `position` reads with kernel tap `tap`."""
        return tuple(p * s + t * d for p, s, t, d in zip(position, self.strides, tap, self.dilations))


def window(c: Context, spatial: Sequence[Expr], kernel: Sequence[int], ceil_mode: bool = False) -> Window:
    """The window that a node's attributes describe over the given spatial sizes.

    Output size (ONNX, Conv and pooling): ``floor((size + pads - extent) / stride) + 1`` with
    ``extent = (kernel - 1) * dilation + 1``; in ceil mode rounded up, but no window may start in
    the padding after the end.
    """
    rank = len(spatial)
    strides = c.attr("strides") or [1] * rank
    dilations = c.attr("dilations") or [1] * rank
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    auto = c.attr("auto_pad", "NOTSET")
    begin: list[Expr] = []
    end: list[Expr] = []
    out: list[Expr] = []
    pads = c.attr("pads") or [0] * (2 * rank)
    for axis, (size, extent, stride) in enumerate(zip(spatial, extents, strides)):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            count = E.floordiv(size + (stride - 1), stride)
            total = E.maximum((count - 1) * stride + extent - size, 0)
            small = E.floordiv(total, 2)
            first = small if auto == "SAME_UPPER" else total - small
            begin.append(first)
            end.append(total - first)
            out.append(count)
            continue
        before, after = (0, 0) if auto == "VALID" else (pads[axis], pads[axis + rank])
        begin.append(E.const(before))
        end.append(E.const(after))
        span = size + (before + after - extent)
        if ceil_mode:
            count = E.floordiv(span + (stride - 1), stride) + 1
            starts_outside = E.le(size + before, (count - 1) * stride)
            out.append(E.select(starts_outside, count - 1, count))
        else:
            out.append(E.floordiv(span, stride) + 1)
        if depends_on_data(out[-1]):
            c.b.require(E.lt(0, out[-1]))
        if (known := static(out[-1])) is not None and known <= 0:
            raise c.error(f"kernel of extent {extent} does not fit the padded input on spatial axis {axis}")
    return Window(tuple(kernel), tuple(strides), tuple(dilations), tuple(begin), tuple(end), tuple(out))


def padded_size(b: Builder, size: Expr, low: Expr, high: Expr) -> Expr:
    """The size of a padded axis; the run ends with an error code where the data cut more than there is."""
    total = size + low + high
    return b.derived(total, E.capacity(total)) if depends_on_data(total) and total.lo < 0 else total


def pad(b: Builder, x: Value, begin: Sequence[Operand], end: Sequence[Operand], fill: Expr) -> Value:
    """`x` with `begin` and `end` elements of `fill` around it, per axis; `x` itself where there are
    none.  Negative amounts cut."""
    lows = [E.wrap(n, E.INDEX) for n in begin]
    highs = [E.wrap(n, E.INDEX) for n in end]
    if all(static(n) == 0 for n in (*lows, *highs)):
        return x
    shape = [padded_size(b, *item) for item in zip(x.shape, lows, highs)]

    def body(*i: Expr) -> Expr:
        inside: Expr = E.const(True, "bool")
        at = []
        for position, low, high, size in zip(i, lows, highs, x.shape):
            source = position - low
            if static(low) != 0:
                inside = E.logical("and", inside, E.le(0, source))
            if static(high) != 0:
                inside = E.logical("and", inside, E.lt(source, size))
            at.append(source)
        return E.select(inside, E.load(x, at), fill)

    return b.map(shape, body)
