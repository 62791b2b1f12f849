"""Numbers that the data decide: symbols with limits, the most they can be, and what they are read from."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Constant, Map, Program, Value, operands


@pytest.fixture
def b() -> Builder:
    return Builder(Program("p"))


def number(b: Builder, bound: E.Operand, low: int = 0) -> tuple[Value, Expr]:
    """An input of one number, and the symbol of what it holds."""
    x = b.input(f"x{len(b.program.inputs)}", "int64", [])
    return x, b.derived(x[()], bound, low)


# --- derived ---------------------------------------------------------------------------------------


def test_what_does_not_depend_on_data_stays_as_it_is(b: Builder) -> None:
    size = E.sym("n") * 2
    assert b.derived(size, 100) is size
    assert not b.program.derived


def test_a_number_is_one_symbol_with_its_limits(b: Builder) -> None:
    x, d = number(b, 9, -2)
    assert (d.op, d.lo, d.hi) == ("sym", -2, 9)
    assert b.program.derived == [d]
    (load,) = E.loads(d.args[0])
    assert operands(load.attr) == [x]
    assert b.derived(x[()], 9, -2) is d
    assert b.derived(x[()], 8, -2) is not d


def test_where_one_value_is_allowed_it_is_a_constant_and_still_checked(b: Builder) -> None:
    _, d = number(b, 4, 4)
    assert d is E.const(4)
    (check,) = b.program.derived
    assert (check.lo, check.args[1]) == (4, E.const(4))


def test_conditions_become_checks(b: Builder) -> None:
    _, d = number(b, 9)
    b.require(E.lt(E.const(1), E.const(2)))
    b.require_equal(E.sym("n"), E.sym("m"))
    assert b.program.derived == [d]
    b.require_equal(d, E.const(3))
    assert (b.program.derived[1].lo, b.program.derived[1].args[1]) == (0, E.const(0))


def test_broadcast_checks_only_sizes_from_data(b: Builder) -> None:
    _, d = number(b, 9)
    assert b.broadcast([E.sym("n"), E.const(1)], [E.const(1), E.const(4)]) == (E.sym("n"), E.const(4))
    assert len(b.program.derived) == 1
    assert b.broadcast([d], [E.const(4)]) == (E.const(4),)
    assert len(b.program.derived) == 2


def test_a_number_under_a_condition_is_idle_where_it_does_not_hold(b: Builder) -> None:
    flag = b.input("flag", "bool", [])
    x = b.input("x", "int64", [])
    with b.given(flag[()]):
        small, least = b.derived(x[()], 9, -3), b.derived(x[()], 9, 2)
    for symbol, idle in ((small, 0), (least, 2)):
        (load,) = E.loads(symbol.args[0])
        assert load.attr.definition.body is E.select(flag[()], x[()], idle)
    outside = b.derived(x[()], 7)
    with b.given(flag[()]):
        assert b.derived(x[()], 7) is outside


def test_an_attempt_is_taken_back_whole(b: Builder) -> None:
    x, d = number(b, 9)
    values = list(b.program.values)
    undo = b.attempt()
    b.derived(x[()] + 1, 9)
    undo()
    assert (b.program.values, b.program.derived) == (values, [d])
    again = b.derived(x[()] + 1, 9)
    assert again in b.program.derived
    (load,) = E.loads(again.args[0])
    assert load.attr in b.program.values


# --- settle ----------------------------------------------------------------------------------------


def test_a_settled_value_has_the_known_size_and_the_check_comes_before_it(b: Builder) -> None:
    _, d = number(b, 9)
    y = b.map([d, 2], lambda i, j: E.cast(i * 2 + j + d, "float32"))
    b.settle(y, [3, None])
    assert y.shape == (E.const(3), E.const(2))
    assert isinstance(y.definition, Map)
    assert [a.args[0] for a in y.definition.axes] == [E.const(3), E.const(2)]
    assert E.variables(y.definition.body) <= set(y.definition.axes)
    check = b.program.derived[-1]
    (load,) = E.loads(check.args[0])
    assert (check.lo, check.args[1]) == (3, E.const(3))
    assert b.program.values.index(load.attr) < b.program.values.index(y)


def test_an_axis_settled_to_one_entry_is_not_walked(b: Builder) -> None:
    _, d = number(b, 9)
    y = b.map([d], lambda i: E.cast(i + 5, "float32"))
    b.settle(y, [1])
    assert isinstance(y.definition, Map)
    assert y.definition.body is E.cast(E.const(5), "float32")


def test_settling_leaves_other_sizes(b: Builder) -> None:
    _, d = number(b, 9)
    y = b.map([E.sym("n"), d], lambda i, j: E.cast(i + j, "float32"))
    b.settle(y, [7, None])
    assert y.shape == (E.sym("n"), d)
    assert b.program.derived == [d]


def test_what_cannot_be_settled_is_checked(b: Builder) -> None:
    x, d = number(b, 9)
    (y,) = b.opaque([x], [("float32", [d])], lambda y: [])
    b.settle(y, [4])
    assert y.shape == (d,)
    assert (b.program.derived[-1].lo, b.program.derived[-1].args[1]) == (4, E.const(4))


def test_a_branch_settles_nothing(b: Builder) -> None:
    _, d = number(b, 9)
    y = b.map([d], lambda i: E.cast(i, "float32"))
    with b.given(b.input("flag", "bool", [])[()]):
        b.settle(y, [4])
    assert y.shape == (d,)
    assert b.program.derived == [d]


# --- capacity --------------------------------------------------------------------------------------

Number = Callable[[tuple[int, ...]], int]


def draw(rng: np.random.Generator, leaves: list[tuple[Expr, Number]], depth: int) -> tuple[Expr, Number]:
    """A random index expression, and a function that computes it from the leaves' values."""
    if depth == 0:
        if rng.random() < 0.2:
            c = int(rng.integers(-4, 5))
            return E.const(c), lambda v: c
        return leaves[int(rng.integers(len(leaves)))]
    (x, f), (y, g) = (draw(rng, leaves, depth - 1) for _ in range(2))
    kind = rng.choice(["add", "sub", "mul", "min", "max", "floordiv", "mod", "select"])
    if kind == "add":
        return x + y, lambda v: f(v) + g(v)
    if kind == "sub":
        return x - y, lambda v: f(v) - g(v)
    if kind == "mul":
        return x * y, lambda v: f(v) * g(v)
    if kind == "min":
        return E.minimum(x, y), lambda v: min(f(v), g(v))
    if kind == "max":
        return E.maximum(x, y), lambda v: max(f(v), g(v))
    if kind == "select":
        z, h = draw(rng, leaves, depth - 1)
        return E.select(E.lt(x, y), z, x), lambda v: h(v) if f(v) < g(v) else f(v)
    divisor = E.maximum(y, 1)
    if kind == "mod":
        return E.mod(x, divisor), lambda v: f(v) % max(g(v), 1)
    return E.floordiv(x, divisor), lambda v: f(v) // max(g(v), 1)


@pytest.mark.parametrize("seed", range(200))
def test_no_value_exceeds_the_capacity(seed: int, b: Builder) -> None:
    ranges = [(0, 4), (-2, 3), (1, 5)]
    symbols = [number(b, high, low)[1] for low, high in ranges]
    n = E.sym("n")
    leaves: list[tuple[Expr, Number]] = [(s, lambda v, k=k: v[k]) for k, s in enumerate([*symbols, n])]
    size, compute = draw(np.random.default_rng([seed, 3]), leaves, 1 + seed % 3)
    most = E.capacity(size)
    assert not E.depends_on_data(most)
    for values in itertools.product(*(range(low, high + 1) for low, high in ranges), (0, 1, 6)):
        assert compute(values) <= E.evaluate(most, {"n": values[3]})


def test_capacity_of_growing_sizes_is_exact(b: Builder) -> None:
    d, e = number(b, 5)[1], number(b, E.sym("n"))[1]
    assert E.capacity(E.floordiv(d + 4, 2) * 3) is E.const(12)
    assert E.capacity(d * e) is E.sym("n") * 5
    assert E.capacity(E.sym("n") + 1) is E.sym("n") + 1


def test_capacity_of_a_size_that_falls(b: Builder) -> None:
    d = number(b, 20)[1]
    last = E.maximum(E.minimum(d, 3) - E.maximum(d - 5, 0), 0)  # what [-5:3] takes
    assert E.evaluate(E.capacity(last), {}) >= 3


def test_what_nothing_bounds_gets_the_default_capacity(b: Builder) -> None:
    d = number(b, limits.MAX_SYMBOL)[1]
    assert E.capacity(d * 2) is E.const(2 * limits.DATA_SIZE)
    assert E.largest(number(b, limits.MAX_SYMBOL - 1)[1]) is E.const(limits.MAX_SYMBOL - 1)


def test_a_bound_of_symbols_from_data_is_followed(b: Builder) -> None:
    d = number(b, 6)[1]
    e = number(b, d * 2 + 1)[1]
    assert E.capacity(e) is E.const(13)


# --- size_loads ------------------------------------------------------------------------------------


def test_sizes_are_read_also_where_they_are_extents(b: Builder) -> None:
    d, e = number(b, 5)[1], number(b, 7)[1]
    of = {s: E.loads(s.args[0])[0] for s in (d, e)}
    assert E.size_loads(d + 1) == [of[d]]
    assert set(E.size_loads(E.var(d * e) + 2)) == {of[d], of[e]}
    assert E.size_loads(E.var(E.sym("n")) + 2) == []


def test_a_value_reads_the_numbers_of_its_shape(b: Builder) -> None:
    d = number(b, 5)[1]
    x = b.constant(np.arange(5, dtype=np.float32))
    assert isinstance(x.definition, Constant)
    y = b.map([d], lambda i: E.load(x, (i,)))
    assert operands(y) == [x, E.loads(d.args[0])[0].attr]
