from __future__ import annotations

import pytest
from cost_nets import board, conv, graph, layer_norm, matmul, scheduled, unary
from zoo.net import Net

from cuvil.codegen.tuned.amxtile import CONVERT, ENTRY, SPLIT, STEP, TILE
from cuvil.cost import estimate
from cuvil.cost.flops import Work, count
from cuvil.cost.nests import Sizes, nest
from cuvil.ir import expr as E
from cuvil.ir.loops import Accumulate, Declare, For, If, Kernel, Store
from cuvil.ir.primitives import Value
from cuvil.schedule.plan import Schedule
from cuvil.schedule.storage import Storage


def works(s: Schedule, bindings: dict[str, int] | None = None, lanes: int = 16) -> list[Work]:
    return [count(k, s.storage, Sizes(bindings), lanes) for k in s.kernels]


def total(s: Schedule, bindings: dict[str, int] | None = None) -> float:
    return sum(w.flops for w in works(s, bindings))


@pytest.mark.parametrize("tuned", [False, True], ids=["plain", "tuned"])
@pytest.mark.parametrize(
    ("c_in", "c_out", "kernel", "size", "stride", "groups"),
    [
        (16, 32, 3, 14, 1, 1),
        (3, 10, 3, 9, 2, 1),
        (8, 24, 1, 7, 1, 1),
        (16, 16, 3, 10, 1, 16),
        (6, 9, 5, 8, 1, 3),
    ],
)
def test_convolution(
    c_in: int, c_out: int, kernel: int, size: int, stride: int, groups: int, tuned: bool
) -> None:
    """``2 * oc * oh * ow * ic * kh * kw``: bias and ReLU are the epilogue's, taps on padding count. The tuned
    kernel of few groups multiplies with the zeros between them, all `c_in` channels of this one."""
    out = (size + stride - 1) // stride
    s = scheduled(conv(c_in, c_out, kernel, size, stride, groups), tuned)
    summed = c_in if tuned and 1 < groups < c_in else c_in // groups
    assert total(s) == 2 * c_out * out * out * summed * kernel * kernel
    assert sum(w.epilogue_flops for w in works(s)) == 2 * c_out * out * out


@pytest.mark.parametrize("tuned", [False, True], ids=["plain", "tuned"])
@pytest.mark.parametrize(("m", "k", "n"), [(7, 13, 10), (64, 32, 48), (1, 100, 33)])
def test_matmul(m: int, k: int, n: int, tuned: bool) -> None:
    assert total(scheduled(matmul(m, k, n), tuned)) == 2 * m * n * k


def test_idle_lanes_cost_time_but_are_no_operations() -> None:
    narrow, full = (sum(w.slots for w in works(scheduled(matmul(8, 32, n), True))) for n in (10, 16))
    assert narrow == pytest.approx(full, rel=0.05)


def test_layer_normalization() -> None:
    """5 an element (mean, centring, square, sum, scaling), 2 more for scale and bias; per row a few."""
    rows, columns = 8, 512
    elements = rows * columns
    assert total(scheduled(layer_norm(rows, columns, False))) == pytest.approx(5 * elements, rel=0.01)
    assert total(scheduled(layer_norm(rows, columns, True))) == pytest.approx(7 * elements, rel=0.01)


def test_softmax() -> None:
    """Maximum, difference, exponential, sum, quotient."""
    assert total(scheduled(unary("Softmax", 4, 256, axis=-1))) == pytest.approx(5 * 4 * 256, rel=0.01)


def test_elementary_functions_weigh_more_than_additions() -> None:
    plain, exponential = (works(scheduled(unary(kind, 1024)))[0] for kind in ("Relu", "Exp"))
    assert plain.flops == exponential.flops == 1024
    assert exponential.slots > 4 * plain.slots


def test_symbolic_sizes_count_as_one_unless_bound() -> None:
    s = scheduled(matmul("N", 16, 24))
    assert total(s) == 2 * 16 * 24
    assert total(s, {"N": 5}) == 5 * 2 * 16 * 24


def test_strips_with_a_rest_count_exactly() -> None:
    """Loops over strips stop at the row's end: a trip count that depends on an outer variable."""
    s = scheduled(matmul(3, 4, 77))
    (kernel,) = s.kernels
    inner = {site.levels[-1].trips for site in nest(kernel, Sizes()).sites}
    assert any(n % 1 for n in inner), "this size leaves a partly filled strip"
    assert total(s) == 2 * 3 * 4 * 77


def test_integers_are_counted_apart() -> None:
    x, y = (Value(n, "int32", (E.const(64),)) for n in "xy")
    i = E.var(64)
    body = (For(i, i.args[0], (Store(y, (i,), E.add(E.load(x, (i,)), E.const(1, "int32"))),), "simd"),)
    work = count(Kernel("k", (), body, (x,), (y,)), Storage(), Sizes(), 16)
    assert (work.flops, work.int_ops) == (0, 64)


def test_what_does_not_depend_on_a_loop_is_counted_outside_it() -> None:
    x, scale = Value("x", "float32", (E.const(8), E.const(64))), Value("s", "float32", (E.const(8),))
    y = Value("y", "float32", x.shape)
    i, j = E.var(8), E.var(64)
    root = E.unary("sqrt", E.load(scale, (i,)))
    body = (For(j, j.args[0], (Store(y, (i, j), E.mul(E.load(x, (i, j)), root)),), "simd"),)
    work = count(Kernel("k", (i,), body, (x, scale), (y,)), Storage(), Sizes(), 16)
    assert work.flops == 8 * 64 + 8
    assert work.entries == 8


def test_a_choice_counts_its_dearer_side() -> None:
    x, y = (Value(n, "float32", (E.const(10),)) for n in "xy")
    i = E.var(10)
    load = E.load(x, (i,))
    value = E.select(E.lt(load, 0.0), E.unary("exp", load), E.add(load, E.add(load, load)))
    body = (For(i, i.args[0], (Store(y, (i,), value),)),)
    assert count(Kernel("k", (), body, (x,), (y,)), Storage(), Sizes()).flops == 10


def test_guards_count_as_taken_and_two_sides_by_the_sizes() -> None:
    y = Value("y", "float32", (E.const(8),))
    i = E.var(8)
    one = Accumulate(y, (i,), "sum", E.const(1.0, "float32"))
    guarded = For(i, i.args[0], (If(E.lt(i, 4), (one,)),))
    chosen = For(i, i.args[0], (If(E.lt(E.sym("N"), 4), (one, one), (one,)),))
    for body, bindings, expected in ((guarded, {}, 8), (chosen, {"N": 1}, 16), (chosen, {"N": 9}, 8)):
        work = count(Kernel("k", (), (body,), (), (y,)), Storage(), Sizes(bindings))
        assert work.flops == expected


def test_scattered_elements() -> None:
    """A transposition reads down columns: no vector loads."""

    def transpose(net: Net) -> None:
        net.output(net.op("Transpose", net.input("x", [24, 40]), perm=[1, 0]), "y", [40, 24])

    (kernel,) = (s := scheduled(transpose)).kernels
    work = count(kernel, s.storage, Sizes(), 16)
    assert work.flops == 0
    assert work.scattered == 24 * 40


def test_locals_are_neither_loads_nor_stores() -> None:
    y, row = Value("y", "float32", (E.const(4),)), Value("r", "float32", (E.const(4),))
    i, j = E.var(4), E.var(4)
    body = (
        Declare(row),
        For(i, i.args[0], (Store(row, (i,), E.const(1.0, "float32")),), "simd"),
        For(j, j.args[0], (Store(y, (j,), E.load(row, (j,))),), "simd"),
    )
    assert count(Kernel("k", (), body, (), (y,)), Storage(), Sizes(), 4).slots == 4


def test_micro_kernels_that_state_their_cycles() -> None:
    """A product of [128, 768] by [768, 768] on tiles of 32 x 32: 4 times 24 tiles of 24 steps, the right
    operand converted once, 128 positions of 24 pairs staged."""
    net = graph(matmul(128, 768, 768))
    amx = board().slice("partition")
    caches = {"l1d": 48 << 10, "l2": 2 << 20, "l3": 48 << 20, "line": 64}
    amx["devices"]["socket0"] |= {"isa": "x86-64-v4-amx", "amx": True, "caches": caches}
    s = estimate.scheduled(net, amx, "socket0")
    (work,) = (count(k, s.storage, Sizes(), 16) for k in s.kernels)
    steps = 24 * 24
    assert work.cycles == 4 * steps * STEP + steps * CONVERT + 4 * 24 * TILE + 128 * 24 * SPLIT + ENTRY
    assert work.flops == 2 * 128 * 768 * 768
    assert work.slots < 0.01 * work.flops, "the epilogue's"
    assert work.tiles == 0
