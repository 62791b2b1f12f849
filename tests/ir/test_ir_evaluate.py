"""Evaluation of primitives agrees with numpy, written in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, flatten, unflatten
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Program, Value

Array = np.ndarray


class Bench:
    """A program whose inputs have data."""

    def __init__(self, **bindings: int) -> None:
        self.program = Program("p", symbols=list(bindings))
        self.build = Builder(self.program)
        self.arrays: dict[Value, Array] = {}
        self.bindings = bindings

    def input(self, array: Array, *shape: int | str) -> Value:
        sizes = [E.sym(n) if isinstance(n, str) else E.const(n) for n in shape or array.shape]
        v = self.build.input(f"x{len(self.arrays)}", str(array.dtype), sizes)
        self.arrays[v] = array
        return v

    def __call__(self, v: Value) -> Array:
        """The value, and all that it reads."""
        for w in self.program.values:
            if w not in self.arrays:
                self.arrays[w] = evaluate.value(w, self.arrays.__getitem__, self.bindings)
        return self.arrays[v]


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "floor": np.floor,
    "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "abs": np.abs, "neg": np.negative, "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.0, 100.0, np.inf, -np.inf, np.nan], np.float32)
    b = Bench()
    v = b.input(x)
    with np.errstate(all="ignore"):
        wanted = UNARY[op](x)
    got = b(b.build.elementwise(lambda e: E.unary(op, e), v))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert got.dtype == wanted.dtype


def test_round_is_half_to_even() -> None:
    b = Bench()
    v = b.input(np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32))
    assert b(b.build.elementwise(lambda e: E.unary("round", e), v)).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("div", [3, -3, -3, 3, 0, -128]), ("floordiv", [3, -4, -4, 3, 0, -128]),
        ("mod", [1, 1, -1, -1, 0, 0]), ("add", [9, -5, 5, -9, 5, -127]),
    ],
)  # fmt: skip
def test_integer_division(op: str, wanted: list[int]) -> None:
    """C's division, Python's floor division and remainder; nothing where the divisor is 0; sums wrap."""
    b = Bench()
    x = b.input(np.array([7, -7, 7, -7, 5, -128], np.int8))
    y = b.input(np.array([2, 2, -2, -2, 0, 1], np.int8))
    apply = {"floordiv": E.floordiv, "mod": E.mod}.get(op, lambda p, q: E.binary(op, p, q))
    assert b(b.build.elementwise(apply, x, y)).tolist() == wanted


def test_division_of_64_bits_is_exact() -> None:
    b = Bench()
    x = b.input(np.array([2**63 - 1, -(2**63) + 1, 2**53 + 1], np.int64))
    y = b.input(np.array([1, 1, 3], np.int64))
    assert b(b.build.elementwise(lambda p, q: E.binary("div", p, q), x, y)).tolist() == [
        2**63 - 1, -(2**63) + 1, (2**53 + 1) // 3,
    ]  # fmt: skip


def test_bits() -> None:
    b = Bench()
    x, y = b.input(np.array([0b1100, 255], np.uint8)), b.input(np.array([0b1010, 1], np.uint8))
    for op, wanted in (("band", [8, 1]), ("bor", [14, 255]), ("bxor", [6, 254])):
        assert b(b.build.elementwise(lambda p, q, op=op: E.binary(op, p, q), x, y)).tolist() == wanted
    assert b(b.build.elementwise(lambda p: E.unary("bnot", p), x)).tolist() == [243, 0]
    f = b.input(np.array([1.0, -0.0], np.float32))
    assert b(b.build.elementwise(lambda p: E.bitcast(p, "int32"), f)).tolist() == [0x3F800000, -(2**31)]


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int8"), ("int64", "float32"), ("float32", "float16"), ("float32", "bfloat16"),
     ("int32", "bool"), ("bool", "float32"), ("float32", "float8_e4m3fn"), ("uint8", "int8")],
)  # fmt: skip
def test_conversions(source: str, target: str) -> None:
    b = Bench()
    x = np.array([0, 1, 3, 100]).astype(source)
    kind: Any = getattr(ml_dtypes, target, None) or target
    got = b(b.build.cast(b.input(x), target))
    assert got.dtype == np.dtype(kind) and np.array_equal(got, x.astype(kind))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axes", [[0], [2], [0, 2], [0, 1, 2]])
def test_reductions(op: str, axes: list[int]) -> None:
    x = normal(2, 3, 4)
    b = Bench()
    got = b(b.build.reduce_axes(op, b.input(x), axes, keepdims=False))
    np.testing.assert_allclose(got, getattr(np, op)(x, axis=tuple(axes)), rtol=1e-5)


def test_reductions_of_nothing_give_the_neutral_element() -> None:
    b = Bench()
    v = b.input(np.zeros((2, 0), np.float32))
    assert b(b.build.reduce_axes("sum", v, [1], keepdims=False)).tolist() == [0, 0]
    assert b(b.build.reduce_axes("prod", v, [1], keepdims=False)).tolist() == [1, 1]
    assert b(b.build.reduce_axes("max", v, [1], keepdims=False)).tolist() == [-np.inf, -np.inf]
    assert b(
        b.build.reduce_axes("min", b.input(np.zeros((1, 0), np.int8)), [1], keepdims=False)
    ).tolist() == [127]


def test_matrix_product_and_convolution() -> None:
    x, w = normal(3, 5), normal(5, 4)
    b = Bench()
    p, q = b.input(x), b.input(w)
    product = b.build.reduce("sum", [3, 4], [5], lambda i, r: p[i[0], r[0]] * q[r[0], i[1]])
    np.testing.assert_allclose(b(product), x @ w, rtol=1e-5)
    k = b.input(normal(2))
    taps = b.build.reduce("sum", [3, 4], [2], lambda i, r: p[i[0], i[1] + r[0]] * k[r[0]])
    wanted = np.stack([np.convolve(row, b.arrays[k][::-1], "valid") for row in x])
    np.testing.assert_allclose(b(taps), wanted, rtol=1e-4, atol=1e-6)


def test_views() -> None:
    x = normal(2, 6, 3)
    b = Bench()
    v = b.input(x)
    np.testing.assert_array_equal(b(b.build.transpose(v, [2, 0, 1])), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(b(b.build.reshape(v, [3, 12])), x.reshape(3, 12))
    np.testing.assert_array_equal(b(b.build.map([2, 2, 3], lambda i, j, k: v[i, 5 - j * 2, k])), x[:, 5:2:-2])
    padded = b.build.map(
        [4],
        lambda i: E.select(E.logical("and", E.le(1, i), E.lt(i, 3)), v[0, i - 1, 0], E.const(9.0, "float32")),
    )
    assert b(padded).tolist() == [9, x[0, 0, 0], x[0, 1, 0], 9]


def test_symbolic_sizes() -> None:
    x = normal(3, 4)
    b = Bench(N=3, M=4)
    v = b.input(x, "N", "M")
    n, m = E.sym("N"), E.sym("M")
    np.testing.assert_array_equal(b(b.build.reshape(v, [m, n])), x.reshape(4, 3))
    np.testing.assert_array_equal(b(b.build.map([n * m + 1], lambda i: E.cast(i, "int32"))), np.arange(13))
    assert b(b.build.vector(v.shape)).tolist() == [3, 4]


@pytest.mark.parametrize("combine", ["set", "sum", "max", "min", "prod"])
def test_scatter(combine: str) -> None:
    x, updates = normal(5), normal(4) * 2
    places = np.array([1, 3, 1, 0])
    b = Bench()
    base, v, at = b.input(x), b.input(updates), b.input(places)
    got = b(b.build.scatter(base, [4], lambda i: ([at[i]], v[i]), combine))
    wanted = x.copy()
    for place, update in zip(places, updates):
        old = wanted[place]
        wanted[place] = {
            "set": update, "sum": old + update, "prod": old * update, "max": max(old, update),
            "min": min(old, update),
        }[combine]  # fmt: skip
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_gather_reads_inside() -> None:
    """Run-time indices out of range are brought into range."""
    b = Bench()
    x, at = b.input(np.arange(4, dtype=np.float32)), b.input(np.array([0, 3, 9, -5]))
    assert b(b.build.map([4], lambda i: x[at[i]])).tolist() == [0, 3, 3, 0]


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 4, 1), (3, 2, 2)])
def test_flat_positions(shape: tuple[int, ...]) -> None:
    """`flatten` is numpy's ravel_multi_index, `unflatten` its inverse."""
    axes = [E.var(n) for n in shape]
    position = E.var(int(np.prod(shape)))
    back = unflatten(position, [E.const(n) for n in shape])
    for point in np.ndindex(*shape):
        at: dict[Expr, Any] = {a: np.int64(i) for a, i in zip(axes, point)}
        there = int(
            evaluate.expression(flatten(axes, [E.const(n) for n in shape]), at, lambda v: np.zeros(0))
        )
        assert there == np.ravel_multi_index(point, shape)
        values = [evaluate.expression(i, {position: np.int64(there)}, lambda v: np.zeros(0)) for i in back]
        assert tuple(map(int, values)) == point


def test_broadcasting_follows_numpy() -> None:
    x, y, z = normal(3, 1, 4), normal(2, 1), np.float32(2.0)
    b = Bench()
    added = b.build.elementwise(lambda p, q, r: (p + q) * r, b.input(x), b.input(y), b.input(np.asarray(z)))
    np.testing.assert_allclose(b(added), (x + y) * z, rtol=1e-6)


def test_constants_are_followed_through_definitions() -> None:
    """Elements of small computed vectors are numbers or sizes, not loads."""
    b = Bench(N=5)
    v = b.input(normal(5), "N")
    shape = b.build.vector(v.shape)
    doubled = b.build.elementwise(lambda e: e * 2, shape)
    assert doubled[0] is E.sym("N") * 2
    total = b.build.reduce_axes("prod", b.build.vector([E.sym("N"), 3]), [0], keepdims=False)
    assert total[()] is E.sym("N") * 3
