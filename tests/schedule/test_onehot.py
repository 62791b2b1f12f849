"""Products with one-hot rows become picks, where that gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import Isa, schedule_of
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import cuvil
from cuvil.ir.primitives import Map, Reduce
from cuvil.schedule import verify

RNG = np.random.default_rng(5)
WEIGHTS = RNG.standard_normal((7, 5)).astype(np.float32)
PICKS = np.array([[0, 6, 3], [-1, 7, 2], [200, -128, 5]], np.int64)


def model_of(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [3, "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_comparison(
    categories: np.ndarray, weights: np.ndarray = WEIGHTS, kind: int = TensorProto.INT64
) -> onnx.ModelProto:
    """``cast(x == categories) @ weights + 1``, compared as integers of a type."""
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=kind),
        helper.make_node("Unsqueeze", ["c", "axis"], ["u"]),
        helper.make_node("Equal", ["u", "k"], ["e"]),
        helper.make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Add", ["m", "one"], ["y"]),
    ]
    kinds = categories.astype(helper.tensor_dtype_to_np_dtype(kind))
    return model_of(nodes, {"axis": np.array([2]), "k": kinds, "w": weights, "one": np.float32(1)})


def by_operator(on: float = 1.0) -> onnx.ModelProto:
    """OneHot, where negative picks count from the end."""
    nodes = [
        helper.make_node("OneHot", ["x", "depth", "values"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    values = np.array([0.0, on], np.float32)
    return model_of(nodes, {"depth": np.array(7), "values": values, "w": WEIGHTS})


def sums(model: onnx.ModelProto) -> int:
    """How many sums the schedule still has."""
    s = schedule_of(model, Isa(None))
    verify.schedule(s)
    assert any(isinstance(v.definition, Map) for v in s.program.values)
    return sum(isinstance(v.definition, Reduce) for v in s.program.values)


PICKED = {
    "from 0": by_comparison(np.arange(7)),
    "from -2": by_comparison(np.arange(7) - 2),
    "another axis of one": by_comparison(np.arange(7).reshape(1, 1, 7)),
    "int8, where picks wrap": by_comparison(np.arange(7), kind=TensorProto.INT8),
    "OneHot": by_operator(),
}
KEPT = {
    "categories with a gap": by_comparison(np.array([0, 1, 2, 3, 4, 5, 7])),
    "a category twice": by_comparison(np.array([0, 1, 2, 3, 3, 4, 5])),
    "0 times infinity is no number": by_comparison(np.arange(7), np.where(WEIGHTS > 1, np.inf, WEIGHTS)),
    "floats": by_comparison(np.arange(7), kind=TensorProto.FLOAT),
    "other values than 0 and 1": by_operator(2.0),
}


@pytest.mark.parametrize("name", PICKED)
def test_sums_that_become_picks(name: str, tmp_path: Path) -> None:
    model = PICKED[name]
    assert sums(model) == 0
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    (got,) = cuvil.compile(path).run(None, {"x": PICKS})
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": PICKS})
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", KEPT)
def test_sums_that_stay(name: str) -> None:
    assert sums(KEPT[name]) == 1
