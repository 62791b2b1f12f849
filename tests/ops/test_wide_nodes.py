"""Nodes of some hundred inputs: no expression is as deep as the node is wide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cuvil


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Concat"])
def test_many_inputs_of_one_node(kind: str, tmp_path: Path) -> None:
    count = 600
    names = [f"x{i}" for i in range(count)]
    shape = [2 * count] if kind == "Concat" else [2]
    node = helper.make_node(kind, names, ["y"], **({"axis": 0} if kind == "Concat" else {}))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in names]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    onnx.save(helper.make_model(helper.make_graph([node], "wide", ports, [result])), tmp_path / "wide.onnx")
    values = np.random.default_rng(3).standard_normal((count, 2), np.float32)
    (y,) = cuvil.compile(tmp_path / "wide.onnx").run(None, dict(zip(names, values)))
    whole = {"Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min}
    wanted = values.reshape(-1) if kind == "Concat" else whole[kind](values.astype(np.float64), axis=0)
    assert np.allclose(y, wanted, rtol=1e-5, atol=1e-4)
