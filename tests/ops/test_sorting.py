"""TopK against numpy's stable sort."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import onnx
import pytest
from single import Array, model, node

from cuvil.errors import ModelError

Case = tuple[onnx.ModelProto, dict[str, Array]]


def top(x: Array, k: int, outputs: str = "values places", symbolic: bool = False, **attributes: Any) -> Case:
    dims = {"x": [f"d{i}" for i in range(x.ndim)]} if symbolic else None
    n = node("TopK", "x k", "values places", **attributes)
    return model([n], {"x": x}, outputs.split(), {"k": np.array([k])}, dims), {"x": x}


def expected(x: Array, k: int, axis: int = -1, largest: int = 1) -> list[Array]:
    """Values and places: the best first, equals in the order of their places, NaN the largest."""
    key = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x.astype(np.int64)
    order = np.argsort(-key if largest else key, axis=axis, kind="stable")
    places = np.take(order, np.arange(k), axis=axis)
    return [np.take_along_axis(x, places, axis), places]


RNG = np.random.default_rng(8)
FLOATS = RNG.standard_normal((3, 17, 5)).astype(np.float32)
TIES = RNG.integers(0, 4, (4, 30)).astype(np.int32)
ODD = np.float32([[1, np.nan, 3, -np.inf, 2, np.nan, 7]])

CASES: dict[str, tuple[Array, int, dict[str, Any]]] = {
    "last axis": (FLOATS, 3, {}),
    "middle axis": (FLOATS, 4, {"axis": 1}),
    "first axis, smallest": (FLOATS, 2, {"axis": 0, "largest": 0}),
    "all, a sort": (TIES, 30, {"largest": 0}),
    "ties": (TIES, 7, {}),
    "bytes": (RNG.integers(0, 256, 40).astype(np.uint8), 5, {}),
    "not a number": (ODD, 3, {}),
    "not a number, smallest": (ODD, 3, {"largest": 0}),
    "one of one": (np.float32([[4]]), 1, {}),
    "none": (FLOATS, 0, {}),
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    models = {name: top(x, k, **attributes) for name, (x, k, attributes) in CASES.items()}
    models["symbolic"] = top(FLOATS, 3, symbolic=True)
    models["places only"] = top(FLOATS, 3, "places")
    return native.outputs(models)


@pytest.mark.parametrize("name", CASES)
def test_top_k(name: str, results: dict[str, list[Array]]) -> None:
    x, k, attributes = CASES[name]
    for got, want in zip(results[name], expected(x, k, **attributes), strict=True):
        np.testing.assert_array_equal(got, want)


def test_symbolic_sizes(results: dict[str, list[Array]]) -> None:
    for got, want in zip(results["symbolic"], expected(FLOATS, 3), strict=True):
        np.testing.assert_array_equal(got, want)


def test_places_alone(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["places only"][0], expected(FLOATS, 3)[1])


def test_k_beyond_the_axis() -> None:
    with pytest.raises(ModelError, match="6"):
        native.prepare(top(FLOATS, 6)[0])
