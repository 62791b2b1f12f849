"""Moves whose sizes are symbolic, and masks that look like padding but are not."""

from __future__ import annotations

import native
import numpy as np
import pytest
from single import Array, model, node, reference

X = np.random.default_rng(11).standard_normal((4, 6)).astype(np.float32)
END = np.iinfo(np.int64).max

SYMBOLIC = {
    "to the end": ([node("Slice", "x a b c")], {"a": [1], "b": [END], "c": [1]}),
    "from the end": ([node("Slice", "x a b c")], {"a": [-3], "b": [-1], "c": [1]}),
    "backwards": ([node("Slice", "x a b c d")], {"a": [-1], "b": [-END], "c": [0], "d": [-2]}),
    "beyond": ([node("Slice", "x a b c")], {"a": [2], "b": [100], "c": [0]}),
    "pad": ([node("Pad", "x p")], {"p": [1, 0, 2, 3]}),
    "reflect": ([node("Pad", "x p", mode="reflect")], {"p": [1, 2, 2, 3]}),
    "cut": ([node("Pad", "x p")], {"p": [-1, 0, 2, -3]}),
    "crop and pad": ([node("CenterCropPad", "x s")], {"s": [7, 3]}),
    "flatten": ([node("Reshape", "x s")], {"s": [-1]}),
    "split": ([node("Split", "x s", "y z", axis=1)], {"s": [2, 4]}),
    "tile": ([node("Tile", "x s")], {"s": [2, 3]}),
    "triangle of a sum": ([node("Add", "x x", "s"), node("Trilu", "s k")], {"k": 1}),
    "lower triangle": ([node("Neg", "x", "s"), node("Trilu", "s", upper=0)], {}),
    "reverse": ([node("ReverseSequence", "x n")], {"n": [1, 4, 3, 2, 4, 1]}),
    "gather of computed places": ([node("Gather", "x i", axis=1)], {"i": [-1, 0, 5]}),
    "join": ([node("Neg", "x", "s"), node("Concat", "s x s", axis=1)], {}),
}


def case(name: str, fixed: bool = False) -> native.Case:
    nodes, constants = SYMBOLIC[name]
    arrays = {k: np.array(v, np.int64) for k, v in constants.items()}
    outputs = [o for o in nodes[-1].output]
    columns = 6 if name == "split" or name == "reverse" else "columns"
    return model(nodes, {"x": X}, outputs, arrays, None if fixed else {"x": ["rows", columns]}), {"x": X}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    models = {f"{kind} {n}": case(n, kind == "fixed") for n in SYMBOLIC for kind in ("fixed", "symbolic")}
    return native.outputs(models)


@pytest.mark.parametrize("kind", ["fixed", "symbolic"])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_agrees_with_onnxruntime(name: str, kind: str, results: dict[str, list[Array]]) -> None:
    for got, want in zip(results[f"{kind} {name}"], reference(*case(name)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_indices_outside_are_taken_for_the_nearest_inside() -> None:
    """As docs/abi.md says; onnxruntime refuses them."""
    at = np.array([-END, -7, -6, -1, 0, 5, 6, END])
    inside = np.array([0, 0, 0, 5, 0, 5, 5, 5])
    feeds: dict[str, Array] = {"x": X, "i": at}
    places = {"x": X, "i": at.reshape(4, 2), "u": np.full((4, 2), 7, np.float32)}
    found = native.outputs(
        {
            "gather": (model([node("Gather", "x i", axis=1)], feeds, ["y"]), feeds),
            "scatter": (model([node("ScatterElements", "x i u", axis=1)], places, ["y"]), places),
        }
    )
    np.testing.assert_array_equal(found["gather"][0], X[:, inside])
    want = X.copy()
    np.put_along_axis(want, inside.reshape(4, 2), 7, 1)
    np.testing.assert_array_equal(found["scatter"][0], want)
