"""Vector loops cut at the edges of conditions."""

from __future__ import annotations

import pytest

from cuvil.ir import expr as E
from cuvil.ir.loops import For, Kernel, Store
from cuvil.ir.primitives import Value, static
from cuvil.schedule.ranges import cut


def kernel(size: int, low: int, high: int, kind: str = "simd") -> Kernel:
    """``y[i] = x[i - low] if low <= i < high else 0``."""
    x, y = (Value(n, "float32", (E.const(m),)) for n, m in (("x", high - low), ("y", size)))
    i = E.var(size, "i")
    inside = E.logical("and", E.le(low, i), E.lt(i, high))
    value = E.select(inside, E.load(x, (i - low,)), E.const(0.0, "float32"))
    loop = For(i, i.args[0], (Store(y, (i,), value),), kind)
    return Kernel("pad", (), (loop,), (x,), (y,))


def stores(k: Kernel) -> list[tuple[int, int, str]]:
    """(first element, elements, what is stored) of each piece."""
    result = []
    for s in k.body:
        size = (static(s.stop) or 0) if isinstance(s, For) else 1
        (store,) = s.body if isinstance(s, For) else (s,)
        assert isinstance(store, Store)
        first = E.linear(store.indices[0])[0]
        result.append((first, size, store.value.op))
    return result


@pytest.mark.parametrize(
    ("size", "low", "high", "pieces"),
    [
        (226, 1, 225, [(0, 1, "const"), (1, 224, "load"), (225, 1, "const")]),
        (10, 0, 7, [(0, 7, "load"), (7, 3, "const")]),
        (10, 4, 10, [(0, 4, "const"), (4, 6, "load")]),
    ],
)
def test_a_padded_row_is_fills_and_a_copy(
    size: int, low: int, high: int, pieces: list[tuple[int, int, str]]
) -> None:
    assert stores(cut(kernel(size, low, high))) == pieces


def test_a_choice_that_never_changes_needs_no_cut() -> None:
    (loop,) = cut(kernel(10, 0, 10)).body
    assert isinstance(loop, For) and static(loop.stop) == 10


def test_other_loops_stay() -> None:
    """A loop that is no vector loop gains nothing."""
    (loop,) = cut(kernel(10, 3, 7, "serial")).body
    assert isinstance(loop, For) and static(loop.stop) == 10
