"""Images put together from blocks, windows whose taps the data move, and determinants."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Declare, For, If, Stmt, Store
from cuvil.ir.primitives import Value, elements, static
from cuvil.ops.contraction import summed
from cuvil.ops.reduction import widened
from cuvil.ops.registry import Context, lowering
from cuvil.ops.sampling import bounded, weight
from cuvil.ops.windows import window


@lowering("Col2Im")
def col2im(c: Context) -> Value:
    """The sums, at each place of an image, of the entries of all blocks that cover it.

    [N, C * block, blocks] to [N, C, image...]: the transpose of taking blocks out of an image.  Each place
    looks up, for every tap t, the block at ``(place + pad - t * dilation) / stride``.
    """
    x, b = c.x, c.b
    rank = len(c.entries(1, "image_shape") or [])
    strides, dilations = c.attr("strides") or [1] * rank, c.attr("dilations") or [1] * rank
    pads = c.attr("pads") or [0] * (2 * rank)
    block = c.ints(2, "block_shape", 1, x.shape[1]) or []
    reach = x.shape[2] * max(strides, default=1) + x.shape[1] * max(dilations, default=1)
    image = c.ints(1, "image_shape", 1, reach) or []
    if not rank or any(len(given) != n for given, n in (
        (block, rank), (strides, rank), (dilations, rank), (pads, 2 * rank)
    )):  # fmt: skip
        raise c.error(f"block_shape, strides, dilations and pads do not fit an image of {rank} axes")
    counts = [
        E.floordiv(image[a] + (pads[a] + pads[a + rank] - 1) - (block[a] - 1) * dilations[a], strides[a]) + 1
        for a in range(rank)
    ]
    taps = elements(block)
    for what, axis, wanted in (("block", 1, taps), ("blocks", 2, elements(counts))):
        size, known = static(x.shape[axis]), static(wanted)
        if size is not None and known is not None and (size % max(known, 1) if axis == 1 else size != known):
            raise c.error(f"axis {axis} of the input has {size} entries, the {what} {known}")
        if axis == 2:
            b.require_equal(x.shape[2], wanted)
    channels = b.derived(E.floordiv(x.shape[1], taps), x.shape[1])
    kind = "float32" if x.dtype in ("float16", "bfloat16") else x.dtype

    def term(i: tuple[Expr, ...], tap: tuple[Expr, ...]) -> Expr:
        n, channel, *place = i
        inside: Expr = E.const(True, "bool")
        row, column = channel, E.const(0)
        for a in range(rank):
            start = place[a] + pads[a] - tap[a] * dilations[a]
            at = E.floordiv(start, strides[a])
            inside &= E.le(0, start) & E.lt(at, counts[a]) & E.eq(E.mod(start, strides[a]), 0)
            row, column = row * block[a] + tap[a], column * counts[a] + at
        if static(x.shape[2]) is None or static(elements(counts)) is None:
            inside &= E.lt(column, x.shape[2])
        return E.select(inside, E.cast(E.load(x, (n, row, column)), kind), E.const(0, kind))

    op = "any" if x.dtype == "bool" else "sum"
    return b.cast(b.reduce(op, [x.shape[0], channels, *image], block, term), x.dtype)


@lowering("DeformConv")
def deform_conv(c: Context) -> Value:
    """A convolution whose taps are moved by offsets and weighted by a mask: what lies between the elements
    of the input is interpolated linearly, what lies outside is 0."""
    b, x, w, offset, bias, mask = c.b, c[0], c[1], c[2], c.optional(3), c.optional(4)
    kernel = [k for k in map(static, w.shape[2:]) if k is not None]
    rank, channels = x.rank - 2, static(x.shape[1])
    if len(kernel) != rank or channels is None:
        raise c.unsupported("the kernel and the number of channels must be known at compile time")
    group, offset_group = c.attr("group", 1), c.attr("offset_group", 1)
    outputs = static(w.shape[0])
    if channels % offset_group or channels % group or outputs is None or outputs % group:
        raise c.error(f"{channels} input and {outputs} output channels do not fit {group} groups")
    win = window(c, x.shape[2:], kernel)
    taken = math.prod(kernel) * offset_group
    for name, value, wanted in (
        ("offsets", offset, [x.shape[0], E.const(taken * rank), *win.out]),
        ("mask", mask, [x.shape[0], E.const(taken), *win.out]),
        ("weights", w, [w.shape[0], E.const(channels // group), *w.shape[2:]]),
    ):
        if value is not None and not _may_have_shape(value, wanted):
            raise c.error(f"the shape of the {name} does not fit")
    kind = widened(b, x).dtype
    per_offset, per_input, per_output = channels // offset_group, channels // group, outputs // group
    flat = functools.partial(functools.reduce, lambda total, pair: total * pair[1] + pair[0])

    def position(n: Expr, which: Expr, *rest: Expr) -> Expr:
        """Where tap `rest[:rank]` of output `rest[rank:-1]` reads on axis `rest[-1]` with group `which`."""
        tap, place, axis = rest[:rank], rest[rank:-1], rest[-1]
        row = flat(zip(tap, kernel), which) * rank + axis
        regular = [at - begin for at, begin in zip(win.at(place, tap), win.begin)]
        at = regular[-1]
        for a in range(rank - 2, -1, -1):
            at = E.select(E.eq(axis, a), regular[a], at)
        return bounded(E.cast(at, kind) + E.cast(offset[(n, row, *place)], kind))

    where = b.map([x.shape[0], offset_group, *kernel, *win.out, rank], position)

    def sample(n: Expr, channel: Expr, *rest: Expr) -> Expr:
        which = E.floordiv(channel, per_offset)
        at = [where[(n, which, *rest, E.const(a))] for a in range(rank)]
        terms = []
        for corner in itertools.product((0, 1), repeat=rank):
            inside, share = E.const(True, "bool"), E.const(1, kind)
            indices = []
            for a, (p, step) in enumerate(zip(at, corner)):
                i = E.cast(E.unary("floor", p), E.INDEX) + step
                inside &= E.le(0, i) & E.lt(i, x.shape[2 + a])
                indices.append(i)
                share = share * weight(p, E.const(step), 2)
            value = E.cast(E.load(x, (n, channel, *indices)), kind)
            terms.append(E.select(inside, value, E.const(0, kind)) * share)
        total = functools.reduce(E.add, terms)
        if mask is None:
            return total
        row = flat(zip(rest[:rank], kernel), which)
        return total * E.cast(mask[(n, row, *rest[rank:])], kind)

    taps = b.map([x.shape[0], channels, *kernel, *win.out], sample)

    def factors(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        n, o, *place = i
        source = E.floordiv(o, per_output) * per_input + r[0] if group > 1 else r[0]
        return taps[(n, source, *r[1:], *place)], E.cast(w[(o, *r)], kind)

    y = summed(b, [x.shape[0], outputs, *win.out], [per_input, *kernel], factors)
    if bias is not None:
        y = b.map(y.shape, lambda *i: y[i] + E.cast(bias[i[1]], kind))
    return b.cast(y, x.dtype)


def _may_have_shape(value: Value, wanted: Sequence[Expr]) -> bool:
    """No size that is known contradicts the wanted one."""
    pairs = [(static(n), static(m)) for n, m in zip(value.shape, wanted)]
    return value.rank == len(wanted) and all(n == m or n is None or m is None for n, m in pairs)


@lowering("Det")
def det(c: Context) -> Value:
    """Determinants of square matrices [..., M, M]: the product of the pivots of Gaussian elimination with
    the largest element of each column as its pivot, negated for each exchange of rows."""
    b, x = c.b, c.x
    if x.rank < 2 or (x.shape[-1] is not x.shape[-2] and None not in map(static, x.shape[-2:])):
        raise c.error("the last two axes must be equal")
    wide, size = widened(b, x), E.minimum(x.shape[-1], x.shape[-2])
    kind = wide.dtype

    def body(a: Value, result: Value) -> Sequence[Stmt]:
        batch = [E.const(0) if static(s) == 1 else E.var(s) for s in x.shape[:-2]]
        k, row, column, below = (E.var(size, h) for h in "krcb")
        pivot, held = Value("pivot", E.INDEX, ()), Value("held", kind, ())
        best, at = E.load(pivot, ()), tuple(batch)

        def entry(i: Expr, j: Expr) -> Expr:
            return E.load(a, (*at, i, j))

        def magnitude(i: Expr) -> Expr:
            return E.unary("abs", entry(i, k))

        copy_row, copy_column = E.var(size), E.var(size)
        copy = For(copy_row, size, (For(copy_column, size, (
            Store(a, (*at, copy_row, copy_column), E.load(wide, (*at, copy_row, copy_column))),
        )),))  # fmt: skip
        search = For(
            row, size, (If(E.lt(magnitude(best), magnitude(row)), (Store(pivot, (), row),)),), start=k
        )
        exchange = For(column, size, (
            Store(held, (), entry(k, column)),
            Store(a, (*at, k, column), entry(best, column)),
            Store(a, (*at, best, column), E.load(held, ())),
        ), start=k)  # fmt: skip
        across = E.var(size)
        subtract = For(across, size, (
            Store(a, (*at, below, across), entry(below, across) - E.load(held, ()) * entry(k, across)),
        ), start=k + 1)  # fmt: skip
        eliminate = For(below, size, (Store(held, (), entry(below, k) / entry(k, k)), subtract), start=k + 1)
        product = E.load(result, at)
        step = (
            Store(pivot, (), k),
            search,
            If(E.ne(best, k), (exchange, Store(result, at, E.unary("neg", product)))),
            Store(result, at, product * entry(k, k)),
            If(E.ne(entry(k, k), 0), (eliminate,)),
        )
        loops: tuple[Stmt, ...] = (copy, Store(result, at, E.const(1, kind)), For(k, size, step))
        for v in reversed(batch):
            loops = (For(v, v.args[0], loops),) if v.op == "var" else loops
        return [Declare(pivot), Declare(held), *loops]

    _, result = b.opaque([wide], [(kind, x.shape), (kind, x.shape[:-2])], body)
    return b.cast(result, x.dtype)
