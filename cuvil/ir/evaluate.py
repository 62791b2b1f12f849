"""Evaluation of primitives with numpy: constant folding, and a reference for tests.

Slow and simple on purpose: an expression is evaluated for all points of its domain at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Constant, Map, Opaque, Reduce, Scatter, Value

Array = Any

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor,
    "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "abs": np.abs, "isnan": np.isnan,
    "isinf": np.isinf, "not": np.logical_not, "neg": np.negative, "bnot": np.invert, "erf": _erf,
    "sigmoid": _sigmoid,
}  # fmt: skip

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod,
    "fmod": np.fmod, "pow": np.power, "min": np.minimum, "max": np.maximum, "lt": np.less,
    "le": np.less_equal, "eq": np.equal, "and": np.logical_and, "or": np.logical_or,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor, "shl": np.left_shift,
    "shr": np.right_shift,
}  # fmt: skip

_REDUCE: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "any": np.logical_or,
    "all": np.logical_and,
}  # fmt: skip


def expression(e: Expr, point: Mapping[Expr, Array], arrays: Callable[[Value], np.ndarray]) -> Array:
    """The array of values of `e` where each variable takes the values of an array of `point`."""
    memo: dict[Expr, Array] = dict(point)
    for node in E.walk(e):
        if node in memo:
            continue
        args = [memo[a] for a in node.args] if node.op not in E.LEAVES else []
        kind = E.numpy_dtype(node.dtype)
        with np.errstate(all="ignore"):
            memo[node] = _apply(node, args, kind, arrays)
    return memo[e]


def _apply(
    node: Expr, args: list[Array], kind: np.dtype[Any], arrays: Callable[[Value], np.ndarray]
) -> Array:
    op = node.op
    if op == "const":
        return kind.type(node.attr)
    if op == "affine":
        total = np.int64(node.attr[0])
        for a, c in zip(args, node.attr[1]):
            total = total + a * np.int64(c)
        return total
    if op == "mul" and node.dtype == E.INDEX:
        return math.prod(args[1:], start=args[0])
    if op == "load":
        source = arrays(node.attr)
        clipped = [np.clip(a, 0, max(n - 1, 0)) for a, n in zip(args, source.shape)]
        return source[tuple(np.broadcast_arrays(*clipped))] if clipped else source[()]
    if op == "select":
        return np.where(args[0], args[1], args[2])
    if op == "cast":
        return np.asarray(args[0]).astype(kind)
    if op == "bitcast":
        return np.asarray(args[0]).view(kind)
    if op == "div":
        if E.is_float(node.dtype):
            return np.divide(args[0], args[1])
        quotient = np.floor_divide(args[0], args[1])
        return (quotient + ((quotient < 0) & (quotient * args[1] != args[0]))).astype(kind)
    if op in _BINARY:
        return _BINARY[op](*args)
    if op in _UNARY:
        result = _UNARY[op](args[0])
        return result if node.dtype == "bool" else np.asarray(result).astype(kind)
    raise KeyError(op)


def _grid(axes: tuple[Expr, ...], shape: tuple[int, ...]) -> dict[Expr, Array]:
    rank = len(axes)
    return {
        a: np.arange(n, dtype=np.int64).reshape([-1 if k == i else 1 for k in range(rank)])
        for i, (a, n) in enumerate(zip(axes, shape))
    }


def value(
    v: Value, arrays: Callable[[Value], np.ndarray], bindings: Mapping[str, int] | None = None
) -> np.ndarray:
    """The elements of `v`, given those of the values it reads and the symbolic sizes."""
    bound = bindings or {}
    sizes = tuple(E.evaluate(s, bound) for s in v.shape)
    symbols = {E.sym(name): np.int64(n) for name, n in bound.items()}
    d = v.definition
    kind = E.numpy_dtype(v.dtype)
    if isinstance(d, Constant):
        return d.array
    if isinstance(d, Map):
        result = expression(d.body, {**_grid(d.axes, sizes), **symbols}, arrays)
        return np.broadcast_to(np.asarray(result, dtype=kind), sizes).copy()
    if isinstance(d, Reduce):
        extents = tuple(E.evaluate(r.args[0], bound) for r in d.reduced)
        grid = _grid((*d.axes, *d.reduced), sizes + extents)
        terms = np.asarray(expression(d.body, {**grid, **symbols}, arrays), dtype=E.numpy_dtype(d.body.dtype))
        terms = np.broadcast_to(terms, sizes + extents)
        over = tuple(range(len(sizes), len(sizes) + len(extents)))
        start = E.numpy_dtype(d.body.dtype).type(d.identity.attr)
        return np.asarray(_REDUCE[d.op].reduce(terms, axis=over, initial=start, dtype=kind), dtype=kind)
    if isinstance(d, Scatter):
        return _scatter(d, arrays, bound, symbols)
    assert not isinstance(d, Opaque), "opaque values are not evaluated"
    raise KeyError(v.name)


def _scatter(
    d: Scatter, arrays: Callable[[Value], np.ndarray], bound: Mapping[str, int], symbols: dict[Expr, Array]
) -> np.ndarray:
    result = arrays(d.base).copy()
    extents = tuple(E.evaluate(a.args[0], bound) for a in d.domain)
    point = {**_grid(d.domain, extents), **symbols}
    where = [np.broadcast_to(expression(i, point, arrays), extents) for i in d.indices]
    updates = np.broadcast_to(expression(d.update, point, arrays), extents)
    for at in np.ndindex(*extents):
        index = tuple(int(w[at]) for w in where)
        if d.combine == "set":
            result[index] = updates[at]
        else:
            result[index] = _REDUCE[d.combine](result[index], updates[at])
    return result
