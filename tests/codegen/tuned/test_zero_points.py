"""Integer products with zero points of either side: bytes in the sum, and exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import Array, Case, Program, isa, schedule_of
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(3)
A = RNG.integers(0, 256, (7, 48)).astype(np.uint8)
B = RNG.integers(0, 256, (48, 50)).astype(np.uint8)
COLUMNS = RNG.integers(0, 256, 50).astype(np.uint8)

WEIGHTS = {
    "fit": (B // 2, np.uint8(100)),
    "one": (B, np.uint8(121)),
    "largest": (B, np.uint8(255)),
    "per column": (B, COLUMNS),
    "signed": (B.view(np.int8), np.int8(-7)),
    "signed, per column": (B.view(np.int8), COLUMNS.view(np.int8)),
}


def model(weights: Array, zero: Array) -> onnx.ModelProto:
    """MatMulInteger with constant weights, their constant zero point, and one of the input's at run time."""
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, A.shape),
        helper.make_tensor_value_info("z", TensorProto.UINT8, []),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [7, 50])
    constants = [numpy_helper.from_array(weights, "b"), numpy_helper.from_array(np.asarray(zero), "v")]
    node = helper.make_node("MatMulInteger", ["a", "b", "z", "v"], ["y"])
    graph = helper.make_graph([node], "zero_points", inputs, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("chosen", ["plain", "x86-64-v3", "x86-64-v4-vnni"])
def test_results(chosen: str, tmp_path: Path) -> None:
    cases, wanted = [], []
    for name, (weights, zero) in WEIGHTS.items():
        schedule = schedule_of(model(weights, zero), isa(chosen))
        if chosen != "plain":
            assert "gemm" in [k.tag for k in schedule.kernels], name
        for z in (0, 131, 255):
            cases.append(Case(f"{name} {z}", schedule, {"a": A, "z": np.array(z, np.uint8)}))
            wanted.append((A.astype(np.int32) - z) @ (weights.astype(np.int32) - zero.astype(np.int32)))
    program = Program(cases, tmp_path, isa(chosen))
    for number, case in enumerate(cases):
        np.testing.assert_array_equal(program.run(number)[0], wanted[number], err_msg=case.name)
