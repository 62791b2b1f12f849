"""Selection by rank: loops written out, for no sum or map can say them."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Declare, For, If, Stmt, Store, While
from cuvil.ir.primitives import Value, static
from cuvil.ops.registry import Context, lowering


@lowering("TopK")
def top_k(c: Context) -> list[Value]:
    """The k largest or smallest along an axis and where they are, best first; of equals the one with
    the lower index comes first.  A NaN is the largest number, as in numpy's order.

    Each element is inserted into the sorted list of the best so far: about one comparison an
    element where few of them enter the list.
    """
    x = c.x
    axis = c.axis(x.rank, -1)
    length = x.shape[axis]
    (k,) = c.ints(1, "k", 0, length) or [E.const(0)]
    if (count := static(k)) is not None and (known := static(length)) is not None and not 0 <= count <= known:
        raise c.error(f"k is {count}, the axis has {known} elements")
    shape = [k if i == axis else s for i, s in enumerate(x.shape)]
    largest = bool(c.attr("largest", 1))

    def beats(a: Expr, b: Expr) -> Expr:
        """`a` comes before an earlier `b`."""
        better = E.lt(b, a) if largest else E.lt(a, b)
        if not E.is_float(x.dtype):
            return better
        odd, ordinary = (a, b) if largest else (b, a)
        return better | (E.unary("isnan", odd) & E.unary("not", E.unary("isnan", ordinary)))

    def body(values: Value, places: Value) -> Sequence[Stmt]:
        outer = [E.const(0) if static(s) == 1 else E.var(s) for s in x.shape]
        step = E.var(length)
        at = Value("at", E.INDEX, ())
        position = E.load(at, ())

        def element(i: Expr) -> tuple[Expr, ...]:
            return tuple(i if n == axis else v for n, v in enumerate(outer))

        new, before = E.load(x, element(step)), element(position - 1)
        shift: tuple[Stmt, ...] = (
            Store(values, element(position), E.load(values, before)),
            Store(places, element(position), E.load(places, before)),
            Store(at, (), position - 1),
        )
        insert: tuple[Stmt, ...] = (
            Store(at, (), E.minimum(step, k - 1)),
            While(E.lt(0, position) & beats(new, E.load(values, before)), shift),
            Store(values, element(position), new),
            Store(places, element(position), step),
        )
        enters = E.lt(step, k) | (E.lt(0, k) & beats(new, E.load(values, element(k - 1))))
        loop: Stmt = For(step, length, (If(enters, insert),))
        for n, v in enumerate(outer):
            if n != axis and v.op == "var":
                loop = For(v, v.args[0], (loop,))
        return [Declare(at), loop]

    return c.b.opaque([x], [(x.dtype, shape), (E.INDEX, shape)], body)
