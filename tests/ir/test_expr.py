"""The simplifier never changes a value, proves what it should, and its bounds hold."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, flatten, unflatten
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Program

Point = dict[Expr, int]


class Random:
    """Random index expressions, each with a function that computes it in plain Python integers.

    Attributes:
        leaves: loop variables and symbols that occur, with the values they take.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 23])
        self.symbol = E.sym("S")
        extents: list[E.Operand] = [int(n) for n in self.rng.integers(1, 6, 3)]
        if self.rng.random() < 0.5:
            extents[0] = self.symbol
        self.variables = [E.var(n) for n in extents]
        self.sizes = [0, 1, 2, 4, 7]

    def points(self) -> list[Point]:
        """All values of the leaves."""
        found = []
        for s in self.sizes:
            ranges = [
                range(s) if v.args[0] is self.symbol else range(v.args[0].value) for v in self.variables
            ]
            for values in itertools.product(*ranges):
                found.append({self.symbol: s, **dict(zip(self.variables, values))})
        return found

    def make(self, depth: int) -> tuple[Expr, object]:
        """(expression, tree): the tree is evaluated by `value`."""
        kind = int(self.rng.integers(0, 14 if depth else 3))
        if kind == 0 or (not depth and kind == 1):
            v = self.variables[int(self.rng.integers(3))]
            return v, v
        if kind == 1:
            return self.symbol, self.symbol
        if kind == 2:
            c = int(self.rng.integers(-9, 10))
            return E.const(c), c
        a, ta = self.make(depth - 1)
        if kind in (3, 4):
            factor = int(self.rng.choice([-3, -1, 2, 3, 4, 6, 8]))
            return a * factor, ("mul", ta, factor)
        if kind in (5, 6):
            positive = int(self.rng.choice([1, 2, 3, 4, 6, 8, 12]))
            if kind == 5:
                return a // positive, ("floordiv", ta, positive)
            return a % positive, ("mod", ta, positive)
        b, tb = self.make(depth - 1)
        if kind == 7 and self.rng.random() < 0.5:  # a symbolic divisor; sizes are positive where it matters
            operation = self.rng.choice(["floordiv", "mod"])
            divided = a // self.symbol if operation == "floordiv" else a % self.symbol
            return divided, (operation, ta, self.symbol)
        if kind in (7, 8):
            return a + b, ("add", ta, tb)
        if kind == 9:
            return a - b, ("sub", ta, tb)
        if kind == 10:
            return E.minimum(a, b), ("min", ta, tb)
        if kind == 11:
            return E.maximum(a, b), ("max", ta, tb)
        if kind == 12:
            return a * b, ("mul", ta, tb)
        c, tc = self.make(depth - 1)
        test = self.rng.choice(["lt", "le", "eq"])
        condition = {"lt": E.lt, "le": E.le, "eq": E.eq}[test](a, b)
        return E.select(condition, c, a), ("select", (test, ta, tb), tc, ta)


class Undefined(Exception):
    """A division by a size that is zero."""


def value(tree: object, point: Point) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, Expr):
        return point[tree]
    assert isinstance(tree, tuple)
    op, *args = tree
    if op == "select":
        test, yes, no = args
        return value(yes if value(test, point) else no, point)
    a, b = (value(t, point) for t in args)
    if op in ("floordiv", "mod"):
        if b == 0:
            raise Undefined
        return a // b if op == "floordiv" else a % b
    return {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "min": lambda: min(a, b),
        "max": lambda: max(a, b), "lt": lambda: a < b, "le": lambda: a <= b, "eq": lambda: a == b,
    }[op]()  # fmt: skip


def computed(e: Expr, point: Point) -> int:
    """The simplified expression at a point, by numpy."""
    arrays = {leaf: np.int64(n) for leaf, n in point.items()}
    return int(evaluate.expression(e, arrays, lambda v: np.zeros(0)))


@pytest.mark.parametrize("seed", range(300))
def test_simplified_expressions_keep_their_values(seed: int) -> None:
    random = Random(seed)
    e, tree = random.make(4)
    points = random.points()
    top = E.upper_bound(e)
    for point in points:
        try:
            wanted = value(tree, point)
        except Undefined:
            continue
        assert computed(e, point) == wanted, (e, point)
        assert e.lo <= wanted <= e.hi, (e, e.lo, e.hi, point)
        assert wanted <= top, (e, top, point)


@pytest.mark.parametrize("seed", range(100))
def test_substitution_keeps_values(seed: int) -> None:
    random = Random(1000 + seed)
    e, tree = random.make(3)
    inner, inner_tree = random.make(1)
    replaced = random.variables[2]
    moved = E.substitute(e, {replaced: inner})
    for point in random.points():
        there = value(inner_tree, point)
        if not 0 <= there < replaced.args[0].value:
            continue
        try:
            wanted = value(tree, {**point, replaced: there})
        except Undefined:
            continue
        assert computed(moved, point) == wanted, (e, inner, point)


def test_equal_expressions_are_one_object() -> None:
    i, n = E.var(8), E.sym("N")
    assert (i + n) * 2 is 2 * n + i * 2
    assert i * n + i is i * (n + 1)
    assert E.minimum(i, 8) is i and E.maximum(i - 8, 0) is E.const(0)
    assert E.const(3) is E.const(3) and E.const(3.0, "float32") is not E.const(3)
    assert E.const(-0.0, "float32") is not E.const(0.0, "float32")
    assert E.const(math.nan, "float32") is E.const(math.nan, "float32")


@pytest.mark.parametrize(
    "sizes",
    [(6, 4), (2, 3, 5), ("S", 4), (4, "S"), (3, "S", 8), ("S", "T", 4), ("S", 2, "T"), (1, "S", 1)],
)
def test_reshape_of_reshape_cancels(sizes: tuple[int | str, ...]) -> None:
    """Flattening and unflattening again is the identity, also with symbolic sizes."""
    shape = [E.sym(s) if isinstance(s, str) else E.const(s) for s in sizes]
    axes = [E.const(0) if s == 1 else E.var(n) for s, n in zip(sizes, shape)]
    assert all(a is b for a, b in zip(unflatten(flatten(axes, shape), shape), axes))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, 12), (2, 3, 4)), ((2, 12), (6, 4)), (("S", 12), ("S", 3, 4)), (("S", "T", 12), ("S", "T", 3, 4)),
        ((4, "S", 3), (4, 1, "S", 3)), ((8, "S"), (2, 4, "S")),
    ],
)  # fmt: skip
def test_there_and_back(first: tuple[int | str, ...], second: tuple[int | str, ...]) -> None:
    """Reshape to another shape and back leaves no division behind."""

    def sizes(dims: tuple[int | str, ...]) -> list[Expr]:
        return [E.sym(s) if isinstance(s, str) else E.const(s) for s in dims]

    program = Program("p")
    builder = Builder(program)
    x = builder.input("x", "float32", sizes(first))
    y = builder.reshape(builder.reshape(x, sizes(second)), sizes(first))
    inner, outer = x.shape, y.definition
    assert outer is not None
    middle = outer.body.attr.definition  # type: ignore[union-attr]
    body = E.substitute(middle.body, dict(zip(middle.axes, outer.body.args)))  # type: ignore[union-attr]
    assert body is E.load(x, outer.axes), (inner, body)  # type: ignore[union-attr]


def test_comparisons_are_decided_by_ranges() -> None:
    i, j, s = E.var(4), E.var(E.sym("S")), E.sym("S")
    assert E.lt(i, 4).value is True and E.lt(i, 0).value is False and not E.lt(i, 3).is_const
    assert E.lt(j, s).value is True and E.lt(j + 1, s).is_const is False
    assert E.le(0, j).value is True and E.eq(i, 7).value is False
    assert E.lt(j, s + 3).value is True and E.lt(s, j).value is False


def test_quotients_join_again() -> None:
    f, s = E.var(24), E.sym("S")
    assert (f // 4) * 4 + f % 4 is f
    assert (f // 4) * 8 + (f % 4) * 2 is f * 2
    g = E.var(s * 6)
    assert (g // 6) * 6 + g % 6 is g
    assert (f * 6 + 3) // 2 is f * 3 + 1 and (f * 6 + 3) % 3 is E.const(0)
    assert (f // 4) // 3 is f // 12 and (f % 12) % 4 is f % 4


def test_range_of_sums_with_symbols() -> None:
    s = E.sym("S")
    j = E.var(s)
    assert E.upper_bound(j - s) == -1
    assert E.upper_bound(j * 4 + E.var(4) - s * 4) == -1
    assert E.upper_bound(s) == math.inf


@pytest.mark.parametrize(
    ("a", "b", "quotient"),
    [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), ((1 << 62) + 1, 3, ((1 << 62) + 1) // 3)],
)
def test_constant_division_truncates_exactly(a: int, b: int, quotient: int) -> None:
    assert E.binary("div", E.const(a), E.const(b)).value == quotient


def test_constants_wrap_and_round_to_their_type() -> None:
    assert E.const(300, "uint8").value == 44 and E.const(-129, "int8").value == 127
    assert E.const(0.1, "float32").value == float(np.float32(0.1))
    assert E.const(1e300, "float32").value == math.inf
    assert E.binary("div", E.const(-128, "int8"), E.const(-1, "int8")).value == -128
    assert E.cast(E.const(-1.9, "float32"), "int32").value == -1
    assert E.cast(E.const(3), "bool").value is True


def test_division_of_whole_multiples_and_a_small_rest() -> None:
    i, k, s, t = E.var(4), E.var(6), E.sym("S"), E.sym("T")
    assert (k * 4 + i) // 8 is k // 2
    assert (k * 4 + i) % 8 is (k % 2) * 4 + i
    j = E.var(s)
    assert (k * s + j) // (s * 2) is k // 2
    assert (k * s + j) % (s * 2) is (k % 2) * s + j
    h = E.var(t)
    assert (h * s + j) // (s * t) is E.const(0) and (k * s + j) // s is k


def test_sizes_survive_narrow_types() -> None:
    """Sizes are at most `limits.MAX_SYMBOL`, so a detour through int32 changes nothing."""
    s, i = E.sym("S"), E.var(100)
    assert E.cast(E.cast(s, "int32"), "int64") is s
    assert E.cast(E.cast(s * 4 + 3, "int32"), "int64") is s * 4 + 3
    assert E.cast(E.cast(i, "int8"), "int64") is i
    assert E.cast(E.cast(s, "int16"), "int64") is not s
    assert E.cast(E.cast(i * 2, "int8"), "int64") is not i * 2
    assert E.minimum(s, 1_000_000_000) is s and E.maximum(1_000_000_000, s) is E.const(1_000_000_000)
    assert E.minimum(s, 1000) is not s


def test_a_joined_loop_over_blocks_is_its_own_address() -> None:
    f = E.var(15 * 28 * 28 * 16)
    block, line = E.floordiv(f, 12544) * 12544, E.floordiv(E.mod(f, 12544), 448) * 448
    assert block + line + E.floordiv(E.mod(f, 448), 16) * 16 + E.mod(f, 16) is f
    assert E.floordiv(E.mod(f, 448), 14) * 16 + E.mod(f, 14) is not E.mod(f, 448)
