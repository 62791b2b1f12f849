"""Operators that select: how many elements, slices or boxes they give is decided by the data.

Each writes the places of what it selects, and how many there are, into memory that holds the most there can
be; the results read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.builder import flatten, unflatten
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, If, Stmt, Store, While
from cuvil.ir.primitives import Value, elements, static
from cuvil.ops.characters import Local, each
from cuvil.ops.registry import Context, lowering


@lowering("NonZero", strings=True)
def non_zero(c: Context) -> Value:
    """The indices of what is not 0 (or not an empty string) as [rank, count], in row-major order."""
    x = c.x
    shape = x.shape[:-1] if x.text else x.shape

    def chosen(*at: Expr) -> Expr:
        entry = x[(*at, 0)] if x.text else x[at]
        return entry if x.dtype == "bool" else E.ne(entry, E.const(0, x.dtype))

    places, count = _places(c, x, shape, elements(shape), chosen)
    count = c.declared(1, count)

    def index(axis: Expr, k: Expr) -> Expr:
        at = unflatten(E.load(places, (k,)), shape) or (E.const(0),)
        result = at[-1]
        for n in range(len(at) - 2, -1, -1):
            result = E.select(E.eq(axis, n), at[n], result)
        return result

    return c.b.map([len(shape), count], index)


@lowering("Compress")
def compress(c: Context) -> Value:
    """The slices along an axis, or the elements of the flattened input, at which a condition holds; what
    lies behind the end of the condition is left out."""
    x, condition = c.x, c[1]
    axis = None if c.attr("axis") is None else c.axis(x.rank)
    length = elements(x.shape) if axis is None else x.shape[axis]
    most = E.minimum(length, condition.shape[0])
    places, count = _places(c, condition, [most], most, lambda i: condition[i])
    count = c.declared(axis or 0, count)
    if axis is None:
        return c.b.map([count], lambda k: x[unflatten(E.load(places, (k,)), x.shape)])
    return c.b.map(
        [*x.shape[:axis], count, *x.shape[axis + 1 :]],
        lambda *i: x[(*i[:axis], E.load(places, (i[axis],)), *i[axis + 1 :])],
    )


def _places(
    c: Context, source: Value, sizes: Sequence[Expr], most: Expr, chosen: Callable[..., Expr]
) -> tuple[Value, Expr]:
    """The row-major positions in `sizes`, at most `most` of them, at which ``chosen(*indices)`` holds, a
    condition on `source`; and how many there are."""

    def body(places: Value, count: Value) -> Sequence[Stmt]:
        n = Local("n")

        def element(*at: Expr) -> Sequence[Stmt]:
            return [If(chosen(*at), (Store(places, (n.now,), flatten(at, sizes)), n.set(n.now + 1)))]

        return [n.declaration, n.set(0), *each(sizes, element), Store(count, (), n.now)]

    places, count = c.b.opaque([source], [(E.INDEX, [most]), (E.INDEX, [])], body)
    return places, c.b.derived(count[()], most)


def merge_sort(
    order: Value, count: Expr, before: Callable[[Expr, Expr], tuple[Sequence[Stmt], Expr]]
) -> tuple[tuple[Stmt, ...], Expr]:
    """Statements that sort the first `count` entries of ``order[0]``, a stable merge sort from below.

    Args:
        order: int64 of shape [2, at least `count`]; the other row is for the work.
        before: statements, and a condition that holds after them where one entry belongs before another.

    Returns:
        The statements, and the row of `order` that holds the result.
    """
    names = ("side", "width", "low", "middle", "high", "left", "right", "at", "take")
    side, width, low, middle, high, left, right, at, take = map(Local, names)
    first, second = E.load(order, (side.now, left.now)), E.load(order, (side.now, right.now))
    compare, condition = before(second, first)
    later = (*compare, take.set(E.select(condition, E.const(1), E.const(0))))
    target = (E.const(1) - side.now, at.now)
    step = (
        take.set(1),
        If(
            E.lt(left.now, middle.now),
            (If(E.lt(right.now, high.now), later, (take.set(0),)),),
        ),
        If(
            E.eq(take.now, 1),
            (Store(order, target, second), right.set(right.now + 1)),
            (Store(order, target, first), left.set(left.now + 1)),
        ),
        at.set(at.now + 1),
    )
    merge = (
        middle.set(E.minimum(low.now + width.now, count)),
        high.set(E.minimum(middle.now + width.now, count)),
        left.set(low.now),
        right.set(middle.now),
        at.set(low.now),
        While(E.lt(at.now, high.now), step),
        low.set(high.now),
    )
    double = (
        low.set(0),
        While(E.lt(low.now, count), merge),
        side.set(E.const(1) - side.now),
        width.set(width.now * 2),
    )
    locals_ = (side, width, low, middle, high, left, right, at, take)
    start = (*(v.declaration for v in locals_), side.set(0), width.set(1))
    return (*start, While(E.lt(width.now, count), double)), side.now


# --- equal elements -----------------------------------------------------------------------------------


@lowering("Unique", strings=True)
def unique(c: Context) -> list[Value]:
    """The different elements, or slices along an axis: in ascending order or that of their first occurrence,
    where they occur first, which of them each of the input's is, and how often each occurs.

    Slices are ordered by their first difference; NaN is the largest number and equal to itself, as in
    ``numpy.unique``, here also inside of slices.
    """
    x, b = c.x, c.b
    shape = x.shape[:-1] if x.text else x.shape
    axis = None if c.attr("axis") is None else c.axis(len(shape))
    count = elements(shape) if axis is None else shape[axis]
    inner = x.shape[len(shape) :] if axis is None else (*x.shape[:axis], *x.shape[axis + 1 :])

    def entry(item: Expr, place: Sequence[Expr]) -> Expr:
        if axis is None:
            return x[(*unflatten(item, shape), *place)]
        return x[(*place[:axis], item, *place[axis:])]

    def body(order: Value, first: Value, inverse: Value, counts: Value, total: Value) -> Sequence[Stmt]:
        slices = _Slices(entry, inner, x.dtype)
        sort, side = merge_sort(order, count, slices.before)
        n, head, new = Local("n"), Local("head"), Local("new")
        found = (Store(counts, (n.now,), E.const(0)), n.set(n.now + 1))

        def fill(i: Expr) -> Sequence[Stmt]:
            return [Store(order, (E.const(0), i), i)]

        def group(k: Expr) -> Sequence[Stmt]:
            here = E.load(order, (side, k))
            compare, differ = slices.differ(E.load(order, (side, k - 1)), here)
            heads: tuple[Stmt, ...] = (head.set(here),)
            if ascending:
                heads = (Store(first, (n.now,), here), head.set(n.now), *found)
            return [
                new.set(1),
                If(E.lt(0, k), (*compare, new.set(E.select(differ, E.const(1), E.const(0))))),
                If(E.eq(new.now, 1), heads),
                Store(inverse, (here,), head.now),
                *([Accumulate(counts, (head.now,), "sum", E.const(1))] if ascending else []),
            ]

        def renumber(i: Expr) -> Sequence[Stmt]:
            """`inverse` has the first occurrence of each element's equals: their number instead."""
            entered = (head.set(n.now), Store(first, (n.now,), i), *found)
            return [
                head.set(E.load(inverse, (i,))),
                If(E.eq(head.now, i), entered, (head.set(E.load(inverse, (head.now,))),)),
                Store(inverse, (i,), head.now),
                Accumulate(counts, (head.now,), "sum", E.const(1)),
            ]

        return [
            *(v.declaration for v in (n, head, new, slices.place)),
            *each([count], fill),
            *sort,
            n.set(0),
            *each([count], group),
            *(() if ascending else each([count], renumber)),
            Store(total, (), n.now),
        ]

    ascending = bool(c.attr("sorted", 1))
    kinds = [(E.INDEX, sizes) for sizes in ([E.const(2), count], [count], [count], [count], [])]
    _, first, inverse, counts, total = b.opaque([x], kinds, body)
    size = c.declared(axis or 0, b.derived(total[()], count))
    result = [size] if axis is None else [*shape[:axis], size, *shape[axis + 1 :]]

    def item(*i: Expr) -> Expr:
        at, place = (i[0], i[1:]) if axis is None else (i[axis], (*i[:axis], *i[axis + 1 :]))
        return entry(E.load(first, (at,)), place)

    y = b.map([*result, *x.shape[len(shape) :]], item)
    y.text = x.text
    places, numbers = (b.map([size], lambda k, v=v: E.load(v, (k,))) for v in (first, counts))
    return [y, places, inverse, numbers]


class _Slices:
    """Comparisons of slices whose elements are ``entry(number of the slice, place)``, places in `sizes`."""

    def __init__(self, entry: Callable[..., Expr], sizes: Sequence[Expr], dtype: str) -> None:
        self.entry, self.sizes, self.dtype = entry, sizes, dtype
        self.total = elements(sizes)
        self.place = Local("place")

    def before(self, a: Expr, b: Expr) -> tuple[Sequence[Stmt], Expr]:
        """Statements, and a condition that holds after them where slice `a` comes before slice `b`."""
        compare, differ = self.differ(a, b)
        p, q = self._entries(a, b)
        less = E.lt(p, q)
        if E.is_float(self.dtype):
            less = less | (E.unary("isnan", q) & E.unary("not", E.unary("isnan", p)))
        return compare, less if static(self.total) == 1 else differ & less

    def differ(self, a: Expr, b: Expr) -> tuple[Sequence[Stmt], Expr]:
        """Statements that leave the first difference in `place`, and the condition that there is one."""
        p, q = self._entries(a, b)
        same = E.eq(p, q)
        if E.is_float(self.dtype):
            same = same | (E.unary("isnan", p) & E.unary("isnan", q))
        if static(self.total) == 1:
            return (), E.unary("not", same)
        more = E.lt(self.place.now, self.total)
        return (self.place.set(0), While(more & same, (self.place.set(self.place.now + 1),))), more

    def _entries(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        at = E.const(0) if static(self.total) == 1 else self.place.now
        place = unflatten(at, self.sizes)
        return self.entry(a, place), self.entry(b, place)


# --- boxes --------------------------------------------------------------------------------------------


@lowering("NonMaxSuppression")
def non_max_suppression(c: Context) -> Value:
    """Boxes by falling score, of each class of each batch, without those that overlap with one taken before
    by more than a threshold: rows of [batch, class, box]; of equal scores the lower box comes first."""
    boxes, scores, b = c[0], c[1], c.b
    for axis, other, name in ((0, 0, "batches"), (1, 2, "boxes")):
        known = static(boxes.shape[axis]), static(scores.shape[other])
        if None not in known and known[0] != known[1]:
            raise c.error(f"the boxes are of {known[0]} {name}, the scores of {known[1]}")
    batches, classes = E.minimum(boxes.shape[0], scores.shape[0]), scores.shape[1]
    count = E.minimum(boxes.shape[1], scores.shape[2])
    if static(boxes.shape[2]) not in (4, None):
        raise c.error(f"a box has {static(boxes.shape[2])} numbers, 4 are expected")
    given = [c.optional(k) for k in (2, 3, 4)]
    read = [v for v in given if v is not None and static(elements(v.shape)) != 0]
    limit, overlap, least = (v[(0,) * v.rank] if v is not None and v in read else None for v in given)
    if limit is None:
        return b.constant(np.zeros((0, 3), np.int64))
    limit = E.maximum(limit, 0)
    threshold = E.const(0, boxes.dtype) if overlap is None else overlap
    bound = batches * classes * (count if E.depends_on_data(limit) else E.minimum(limit, count))

    def body(heap: Value, corners: Value, selected: Value, total: Value) -> Sequence[Stmt]:
        names = ("n", "k", "here", "rows", "start", "row", "keep")
        n, k, here, rows, start, row, keep = map(Local, names)
        common = Local("common", boxes.dtype)

        def batch(i: Expr) -> Sequence[Stmt]:
            def box(s: Expr) -> Sequence[Stmt]:
                sides = _corners([E.load(boxes, (i, s, E.const(m))) for m in range(4)], centred)
                area = (sides[2] - sides[0]) * (sides[3] - sides[1])
                return [Store(corners, (s, E.const(m)), e) for m, e in enumerate((*sides, area))]

            def select(j: Expr) -> Sequence[Stmt]:
                def score(s: Expr) -> Expr:
                    return E.load(scores, (i, j, s))

                def better(p: Expr, q: Expr) -> Expr:
                    a, b = score(p), score(q)
                    return E.lt(b, a) | (E.eq(a, b) & E.lt(p, q))

                def candidate(s: Expr) -> Sequence[Stmt]:
                    enter = (Store(heap, (n.now,), s), n.set(n.now + 1))
                    return enter if least is None else [If(E.lt(least, score(s)), enter)]

                other = E.load(selected, (row.now, E.const(2)))
                ours, theirs = (
                    [E.load(corners, (s, E.const(m))) for m in range(5)] for s in (here.now, other)
                )
                union = ours[4] + theirs[4] - common.now
                real = E.lt(0, common.now) & E.lt(0, ours[4]) & E.lt(0, theirs[4]) & E.lt(0, union)
                taken = (
                    *(Store(selected, (rows.now, E.const(m)), e) for m, e in enumerate((i, j, here.now))),
                    rows.set(rows.now + 1),
                )
                compare = (
                    common.set(_overlap(ours, theirs)),
                    If(real & E.lt(threshold, common.now / union), (keep.set(0),)),
                    row.set(row.now + 1),
                )
                step = (
                    here.set(E.load(heap, (E.const(0),))),
                    n.set(n.now - 1),
                    *_sink(heap, n.now, E.load(heap, (n.now,)), E.const(0), better),
                    keep.set(1),
                    row.set(start.now),
                    While(E.lt(row.now, rows.now) & E.eq(keep.now, 1), compare),
                    If(E.eq(keep.now, 1), taken),
                )
                more = E.lt(0, n.now) & E.lt(rows.now - start.now, limit)
                lower = (k.set(k.now - 1), *_sink(heap, n.now, E.load(heap, (k.now,)), k.now, better))
                fill = (n.set(0), *each([count], candidate))
                order = (k.set(E.floordiv(n.now, 2)), While(E.lt(0, k.now), lower))
                return [*fill, *order, start.set(rows.now), While(more, step)]

            return [*each([count], box), *each([classes], select)]

        locals_ = (v.declaration for v in (n, k, here, rows, start, row, keep, common))
        return [*locals_, rows.set(0), *each([batches], batch), Store(total, (), rows.now)]

    centred = bool(c.attr("center_point_box", 0))
    kinds = [
        (E.INDEX, [count]),
        (boxes.dtype, [count, E.const(5)]),
        (E.INDEX, [bound, E.const(3)]),
    ]
    _, _, selected, total = b.opaque([boxes, scores, *read], [*kinds, (E.INDEX, [])], body)
    return b.map([c.declared(0, b.derived(total[()], bound)), 3], lambda *i: E.load(selected, i))


def _sink(
    heap: Value, count: Expr, entry: Expr, place: Expr, before: Callable[[Expr, Expr], Expr]
) -> tuple[Stmt, ...]:
    """Statements that put `entry` into the hole at `place` of a heap of `count` entries, or below it.

    The entries under the hole are heaps: none comes ``before`` the one above it.
    """
    item, hole, below = Local("item"), Local("hole"), Local("below")
    here, beside = E.load(heap, (below.now,)), E.load(heap, (below.now + 1,))
    step = (
        If(E.lt(below.now + 1, count) & before(beside, here), (below.set(below.now + 1),)),
        If(
            before(here, item.now),
            (Store(heap, (hole.now,), here), hole.set(below.now), below.set(below.now * 2 + 1)),
            (below.set(count),),
        ),
    )
    return (
        *(v.declaration for v in (item, hole, below)),
        item.set(entry),
        hole.set(place),
        below.set(hole.now * 2 + 1),
        While(E.lt(below.now, count), step),
        Store(heap, (hole.now,), item.now),
    )


def _corners(box: Sequence[Expr], centred: bool) -> list[Expr]:
    """The corner with the smaller and that with the larger coordinates, from [centre, size] or from any two
    opposite corners."""
    if centred:
        half = [size * E.const(0.5, size.dtype) for size in box[2:]]
        return [p - h for p, h in zip(box, half)] + [p + h for p, h in zip(box, half)]
    pairs = list(zip(box[:2], box[2:]))
    return [E.select(E.le(q, p), q, p) for p, q in pairs] + [E.select(E.le(q, p), p, q) for p, q in pairs]


def _overlap(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """The area that two boxes have in common."""
    sides = []
    for low in (0, 1):
        begin = E.select(E.lt(a[low], b[low]), b[low], a[low])
        end = E.select(E.lt(a[low + 2], b[low + 2]), a[low + 2], b[low + 2])
        sides.append(E.select(E.lt(begin, end), end - begin, E.const(0, begin.dtype)))
    return sides[0] * sides[1]
