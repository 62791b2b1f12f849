"""Reductions where the accumulator matters, and norms of symbolic rows."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from single import Array, model, node, reference

RNG = np.random.default_rng(12)
LONG = np.full((2, 5000), 1.001, np.float16)
LOUD = (RNG.standard_normal((3, 64)) * 3000).astype(np.float16)
ROWS = RNG.standard_normal((3, 5, 33)).astype(np.float32)
AXES = {"axes": np.array([1])}
WEIGHTS = RNG.standard_normal((2, 33)).astype(np.float32)


def rows(
    op: str, constants: dict[str, Array] | None = None, columns: int | str = "columns", **attributes: Any
) -> native.Case:
    fixed = constants or {}
    n = node(op, " ".join(["x", *fixed]), **attributes)
    return model([n], {"x": ROWS}, ["y"], fixed, {"x": ["n", "rows", columns]}), {"x": ROWS}


def half(op: str, x: Array, constants: dict[str, Array]) -> native.Case:
    return model([node(op, " ".join(["x", *constants]))], {"x": x}, ["y"], constants), {"x": x}


SYMBOLIC = {
    "Softmax": rows("Softmax"),
    "Softmax of the middle": rows("Softmax", axis=1),
    "LogSoftmax": rows("LogSoftmax"),
    "Hardmax": rows("Hardmax"),
    "LayerNormalization": rows("LayerNormalization", {"g": WEIGHTS[0], "b": WEIGHTS[1]}, 33),
    "ReduceMean": rows("ReduceMean", {"axes": np.array([1, 2])}),
    "ReduceLogSumExp": rows("ReduceLogSumExp", AXES),
    "ReduceL2": rows("ReduceL2", AXES, keepdims=0),
    "ArgMax": rows("ArgMax", axis=2),
    "CumSum": rows("CumSum", {"axis": np.array(1)}, reverse=1),
    "GlobalMaxPool": rows("GlobalMaxPool"),
}
HALF = {
    "ReduceSum": half("ReduceSum", LONG, AXES),
    "ReduceMean": half("ReduceMean", LONG, AXES),
    "LayerNormalization": half(
        "LayerNormalization", LOUD, {"g": np.ones(64, np.float16), "b": np.zeros(64, np.float16)}
    ),
    "MatMul": half("MatMul", LONG, {"w": np.ones((5000, 1), np.float16)}),
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**SYMBOLIC, **{f"half {n}": case for n, case in HALF.items()}})


@pytest.mark.parametrize("name", SYMBOLIC)
def test_rows_of_symbolic_size(name: str, results: dict[str, list[Array]]) -> None:
    for got, want in zip(results[name], reference(*SYMBOLIC[name]), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", HALF)
def test_float16_is_summed_in_float32(name: str, results: dict[str, list[Array]]) -> None:
    """Sums in float16 would stop at 4096, and squares of thousands would be infinite."""
    wide = LOUD.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    total = LONG.astype(np.float64).sum(1, keepdims=True)
    wanted = {
        "ReduceSum": total,
        "MatMul": total,
        "ReduceMean": total / 5000,
        "LayerNormalization": centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5),
    }[name]
    np.testing.assert_allclose(results[f"half {name}"][0].astype(np.float64), wanted, rtol=2e-3, atol=2e-3)
