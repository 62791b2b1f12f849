"""Every upgrade rule: the old model and the upgraded one give the same outputs.

The old form runs in onnxruntime where that knows it (from opset 7 on), else numpy says what it
meant.  The upgraded model always runs in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_models import F32, TypedShape, model, one, read, run, value
from onnx import defs, helper

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.infer import infer_types
from cuvil.frontend.onnx_writer import to_proto
from cuvil.frontend.opset import CANONICAL_OPSET, upgrade
from cuvil.frontend.opset_rules import RULES
from cuvil.ir.graph import Graph

RNG = np.random.default_rng(0)
USED: set[Callable[..., Any]] = set()


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def upgraded(proto: onnx.ModelProto, **shapes: Any) -> Graph:
    graph = read(proto, shapes=shapes)
    opset = graph.opset
    for node in graph.nodes:
        USED.update(rule for (op, version), rule in RULES.items() if op == node.op and version > opset)
    upgrade(graph)
    infer_types(graph)
    onnx.checker.check_model(to_proto(graph), full_check=True)
    assert graph.opset == CANONICAL_OPSET
    return graph


@dataclass
class Case:
    """An old node on random inputs; `expected` in numpy where onnxruntime cannot run it."""

    op: str
    opset: int
    inputs: dict[str, np.ndarray]
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    expected: Callable[..., Any] | None = None
    order: list[str] | None = None
    outputs: dict[str, TypedShape] = field(default_factory=lambda: {"y": (F32, None)})
    becomes: list[str] | None = None


def bn(x: np.ndarray, s: np.ndarray, b: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
    shape = (1, -1) + (1,) * (x.ndim - 2)
    s, b, m, v = (p.reshape(shape) for p in (s, b, m, v))
    return (x - m) / np.sqrt(v + 1e-5) * s + b


def selu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.float32(1.6732) * (np.exp(x) - 1)) * np.float32(1.0507)


def group_normalization(x: np.ndarray, s: np.ndarray, b: np.ndarray) -> np.ndarray:
    grouped = x.reshape(x.shape[0], 2, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    return (normal * s[:, None] + b[:, None]).reshape(x.shape)


PARAMETERS = {"s": data(4), "b": data(4), "m": data(4), "v": np.abs(data(4)) + 1}
PLANE = {"s": data(4, 3), "b": data(4, 3), "m": data(4, 3), "v": np.abs(data(4, 3)) + 1}
X, IMAGE = data(2, 3), data(1, 4, 5, 6)
MATRIX_SOFTMAX = {"x": data(2, 3, 2, 4)}
BOOLS = {"y": ("bool", None)}
GRID = np.clip(data(1, 3, 3, 2), -1, 1)
ROIS = {"r": np.array([[0, 0, 4, 4], [1, 1, 5, 3]], np.float32), "i": np.array([0, 0])}
RNN = {"w": data(1, 6, 3), "r": data(1, 6, 2)}

CASES = {
    # opset 2 to 6
    "Pad-1": Case("Pad", 1, {"x": X}, {"paddings": [0, 1, 1, 0], "value": 2.0},
                  expected=lambda x: np.pad(x, ((0, 1), (1, 0)), constant_values=2)),
    "LpPool-1": Case("LpPool", 1, {"x": IMAGE}, {"p": 2.0, "kernel_shape": [5, 6]},
                     expected=lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))),
    "GlobalLpPool-1": Case("GlobalLpPool", 1, {"x": IMAGE}, {"p": 1.0},
                           expected=lambda x: np.abs(x).sum((2, 3), keepdims=True)),
    "Split-1": Case("Split", 1, {"x": data(5)}, constants={"p": np.array([2, 3], np.float32)},
                    outputs={"y": (F32, None), "z": (F32, None)}, expected=lambda x: (x[:2], x[2:])),
    "GRU-1": Case("GRU", 1, {"x": data(4, 1, 3)}, {"direction": "foward", "hidden_size": 2}, RNN,
                  outputs={"y": (F32, None), "h": (F32, None)}, expected=lambda x: run(
                      one("GRU", {"x": (F32, [4, 1, 3])}, RNN, hidden_size=2, opset=14, outputs=["y", "h"]),
                      {"x": x})),
    "Concat-1": Case("Concat", 1, {"x": X, "w": X}, expected=lambda x, w: np.concatenate([x, w], 1)),
    "Reshape-1": Case("Reshape", 1, {"x": X}, {"shape": [3, -1]}, expected=lambda x: x.reshape(3, 2)),
    "Relu-1": Case("Relu", 1, {"x": X}, {"consumed_inputs": [0]}, expected=lambda x: np.maximum(x, 0)),
    "Selu-1": Case("Selu", 1, {"x": X}, {"consumed_inputs": [0]}, expected=selu),
    "Cast-1": Case("Cast", 1, {"x": X}, {"to": "DOUBLE"}, expected=lambda x: x.astype(np.float64),
                   outputs={"y": ("float64", None)}),
    "Tile-1": Case("Tile", 1, {"x": X}, constants={"t": np.float32(3), "a": np.float32(1)},
                   expected=lambda x: np.tile(x, (1, 3))),
    # opset 7
    "Add-6 in the middle": Case("Add", 6, {"x": IMAGE, "w": data(4, 5)}, {"broadcast": 1, "axis": 1},
                                expected=lambda x, w: x + w[:, :, None], becomes=["Unsqueeze", "Add"]),
    "Add-6 from the end": Case("Add", 6, {"x": IMAGE, "w": data(4, 5)}, {"broadcast": 1, "axis": -3},
                               expected=lambda x, w: x + w[:, :, None]),
    "Mul-6 as suffix": Case("Mul", 6, {"x": IMAGE, "w": data(5, 6)}, {"broadcast": 1},
                            expected=lambda x, w: x * w, becomes=["Mul"]),
    "Sub-6 equal shapes": Case("Sub", 6, {"x": X, "w": X}, {"axis": 0}, expected=lambda x, w: x - w),
    "Greater-1": Case("Greater", 1, {"x": IMAGE, "w": data(1)}, {"broadcast": 1, "axis": 0},
                      expected=lambda x, w: x > w[0], outputs=BOOLS),
    "PRelu-6": Case("PRelu", 6, {"x": IMAGE}, constants={"s": data(4)},
                    expected=lambda x: np.where(x < 0, x * CASES["PRelu-6"].constants["s"][:, None, None], x),
                    becomes=["Unsqueeze", "PRelu"]),
    "PRelu-6 shared": Case("PRelu", 6, {"x": IMAGE}, constants={"s": data(1)}, becomes=["PRelu"],
                           expected=lambda x: np.where(x < 0, x * CASES["PRelu-6 shared"].constants["s"], x)),
    "Gemm-6": Case("Gemm", 6, {"x": X, "w": data(3, 4), "c": data(4)}, {"broadcast": 1, "alpha": 2.0},
                   expected=lambda x, w, c: 2 * x @ w + c),
    "BatchNormalization-6": Case("BatchNormalization", 6, {"x": IMAGE}, {"is_test": 1}, PARAMETERS,
                                 expected=lambda x: bn(x, *PARAMETERS.values())),
    "LSTM-1": Case("LSTM", 1, {"x": data(4, 1, 3)}, {"output_sequence": 1, "hidden_size": 2},
                   {"w": data(1, 8, 3), "r": data(1, 8, 2)}, expected=lambda x: run(
                       one("LSTM", {"x": (F32, [4, 1, 3])}, CASES["LSTM-1"].constants, hidden_size=2,
                           opset=14), {"x": x})),
    "Upsample-1": Case("Upsample", 1, {"x": IMAGE},
                       {"height_scale": 2.0, "width_scale": 3.0, "mode": "nearest"},
                       expected=lambda x: x.repeat(2, 2).repeat(3, 3)),
    "Upsample-1 bilinear": Case(
        "Upsample", 1, {"x": IMAGE}, {"height_scale": 2.0, "width_scale": 2.0, "mode": "bilinear"},
        expected=lambda x: run(one("Upsample", {"x": (F32, list(x.shape))}, scales=[1.0, 1.0, 2.0, 2.0],
                                   mode="linear", opset=7), {"x": x})),
    "Dropout-6": Case("Dropout", 6, {"x": X}, {"is_test": 1, "ratio": 0.3}, expected=lambda x: x),
    # opset 9 to 12
    "BatchNormalization-7": Case("BatchNormalization", 7, {"x": IMAGE}, {"epsilon": 0.1}, PARAMETERS),
    "BatchNormalization-7 per activation": Case(
        "BatchNormalization", 7, {"x": data(2, 4, 3)}, {"spatial": 0}, PLANE,
        expected=lambda x: (x - PLANE["m"]) / np.sqrt(PLANE["v"] + 1e-5) * PLANE["s"] + PLANE["b"]),
    "Upsample-7": Case("Upsample", 7, {"x": IMAGE}, {"scales": [1.0, 1.0, 2.0, 1.5]}),
    "Upsample-9": Case("Upsample", 9, {"x": IMAGE}, {"mode": "linear"},
                       {"s": np.array([1, 1, 2, 3], np.float32)}, becomes=["Resize"]),
    "Slice-1": Case("Slice", 9, {"x": IMAGE}, {"starts": [1, -4], "ends": [1000, -1], "axes": [1, 3]}),
    "Slice-1 without axes": Case("Slice", 9, {"x": IMAGE}, {"starts": [0, 1], "ends": [1, 3]}),
    "TopK-1": Case("TopK", 9, {"x": data(3, 6)}, {"k": 2, "axis": 1},
                   outputs={"y": (F32, None), "i": ("int64", None)}),
    "Resize-10 larger": Case("Resize", 10, {"x": IMAGE}, {}, {"s": np.array([1, 1, 2.3, 1.6], np.float32)}),
    "Resize-10 smaller": Case("Resize", 10, {"x": IMAGE}, {}, {"s": np.array([1, 1, 0.6, 0.4], np.float32)}),
    "Resize-10 linear": Case("Resize", 10, {"x": IMAGE}, {"mode": "linear"},
                             {"s": np.array([1, 1, 0.6, 1.7], np.float32)}),
    "Clip-6": Case("Clip", 10, {"x": X}, {"min": -0.5}),
    "Clip-6 both": Case("Clip", 6, {"x": X}, {"min": -0.5, "max": 0.25},
                        expected=lambda x: x.clip(-0.5, 0.25)),
    "Pad-2": Case("Pad", 10, {"x": X}, {"pads": [1, 0, -1, 2], "value": 3.5}),
    "Pad-2 reflecting": Case("Pad", 10, {"x": X}, {"pads": [1, 0, 0, 2], "mode": "reflect"}),
    "Scatter-9": Case("Scatter", 10, {"x": X, "u": data(1, 2)}, {"axis": 1}, {"i": np.array([[2, 0]])},
                      order=["x", "i", "u"], becomes=["ScatterElements"]),
    "Dropout-10 with mask": Case("Dropout", 10, {"x": X}, {"ratio": 0.75},
                                 outputs={"y": (F32, None), "m": ("bool", None)},
                                 expected=lambda x: (x, np.ones_like(x, bool))),
    # opset 13 to 21
    "Softmax-11 in the middle": Case("Softmax", 11, MATRIX_SOFTMAX, {"axis": 2}),
    "Softmax-11 default axis": Case("Softmax", 11, MATRIX_SOFTMAX,
                                    becomes=["Flatten", "Softmax", "Shape", "Reshape"]),
    "Softmax-11 negative axis": Case("Softmax", 11, MATRIX_SOFTMAX, {"axis": -2}),
    "Softmax-11 last axis": Case("Softmax", 11, MATRIX_SOFTMAX, {"axis": 3}, becomes=["Softmax"]),
    "LogSoftmax-1": Case("LogSoftmax", 9, MATRIX_SOFTMAX, {"axis": 1}),
    "Hardmax-11": Case("Hardmax", 11, MATRIX_SOFTMAX, {"axis": 1}),
    "Squeeze-11": Case("Squeeze", 11, {"x": data(1, 2, 1, 3)}, {"axes": [0, -2]}),
    "Squeeze-11 of all": Case("Squeeze", 11, {"x": data(1, 2, 1, 3)}),
    "Unsqueeze-11": Case("Unsqueeze", 11, {"x": X}, {"axes": [0, -1]}),
    "ReduceSum-11": Case("ReduceSum", 11, {"x": IMAGE}, {"axes": [1, -1], "keepdims": 0}),
    "ReduceMean-13": Case("ReduceMean", 13, {"x": IMAGE}, {"axes": [2, 3]}),
    "ReduceMax-13 of all": Case("ReduceMax", 13, {"x": IMAGE}, {"keepdims": 0}),
    "ReduceLogSumExp-11": Case("ReduceLogSumExp", 11, {"x": IMAGE}, {"axes": [-2]}),
    "Split-11": Case("Split", 11, {"x": data(2, 7)}, {"axis": 1, "split": [3, 3, 1]},
                     outputs={"y": (F32, None), "z": (F32, None), "w": (F32, None)}),
    "Split-2 equal": Case("Split", 11, {"x": data(4, 2)}, outputs={"y": (F32, None), "z": (F32, None)}),
    "Resize-11 with empty inputs": Case("Resize", 11, {"x": IMAGE}, {"mode": "linear"},
                                        {"r": np.zeros(0, np.float32), "s": np.zeros(0, np.float32),
                                         "z": np.array([1, 4, 7, 9])}),
    "Resize-11 tf_half_pixel_for_nn": Case(
        "Resize", 11, {"x": IMAGE},
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"},
        {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 1.7, 0.6], np.float32)}),
    "Resize-11 tf_half_pixel_for_nn round": Case(
        "Resize", 11, {"x": IMAGE}, {"coordinate_transformation_mode": "tf_half_pixel_for_nn"},
        {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 1.7, 0.6], np.float32)}),
    "BatchNormalization-9 training": Case(
        "BatchNormalization", 9, {"x": IMAGE}, {"momentum": 0.5}, PARAMETERS,
        outputs={"y": (F32, None), "rm": (F32, None), "rv": (F32, None)},
        expected=lambda x: (bn(x, PARAMETERS["s"], PARAMETERS["b"], x.mean((0, 2, 3)), x.var((0, 2, 3))),
                            0.5 * (PARAMETERS["m"] + x.mean((0, 2, 3))),
                            0.5 * (PARAMETERS["v"] + x.var((0, 2, 3))))),
    "RoiAlign-10": Case("RoiAlign", 10, {"x": IMAGE}, {"output_height": 2, "output_width": 3}, ROIS),
    "DFT-17": Case("DFT", 17, {"x": data(1, 8, 3, 1)}, {"axis": 2, "onesided": 1}),
    "DFT-17 default axis": Case("DFT", 17, {"x": data(1, 8, 3, 1)}),
    "GridSample-16": Case("GridSample", 16, {"x": IMAGE, "g": GRID}, {"mode": "bicubic", "align_corners": 1}),
    "GridSample-16 default": Case("GridSample", 16, {"x": IMAGE, "g": GRID}),
    "GroupNormalization-18": Case("GroupNormalization", 18, {"x": IMAGE, "s": data(2), "b": data(2)},
                                  {"num_groups": 2}, expected=group_normalization),
    # no rule needed
    "AveragePool-7": Case("AveragePool", 7, {"x": IMAGE}, {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    "DequantizeLinear-10": Case("DequantizeLinear", 10, {"x": np.array([0, 7, 255], np.uint8)},
                                constants={"s": np.float32(0.5), "z": np.uint8(3)}),
    "ArgMax-11": Case("ArgMax", 11, {"x": IMAGE}, {"axis": 1}, outputs={"y": ("int64", None)}),
    "GatherND-11": Case("GatherND", 11, {"x": X}, constants={"i": np.array([[0, 1], [1, 2]])}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_old_form_means_the_same(name: str) -> None:
    case = CASES[name]
    inputs = {key: (array.dtype.name, list(array.shape)) for key, array in case.inputs.items()}
    old = one(case.op, inputs, case.constants, case.order, case.opset, case.outputs, **case.attrs)
    graph = upgraded(old)
    if case.becomes is not None:
        assert [node.op for node in graph.nodes] == case.becomes
    found = run(to_proto(graph), case.inputs)
    expected = run(old, case.inputs) if case.expected is None else case.expected(*case.inputs.values())
    if isinstance(expected, np.ndarray):
        expected = [expected]
    assert len(found) == len(expected)
    for left, right in zip(found, expected):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_scan_8_over_a_batch() -> None:
    """Scan-8 has a batch axis in front of everything: two samples, running sums, one reversed input."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "a"], ["t"]), helper.make_node("Add", ["t", "b"], ["u"]),
         helper.make_node("Identity", ["u"], ["o"])],
        "body",
        [value("s", F32, [2]), value("a", F32, [2]), value("b", F32, [2])],
        [value("u", F32, [2]), value("o", F32, [2])],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["", "x0", "xa", "xb"], ["y", "z"], body=body, num_scan_inputs=2, directions=[0, 1]
    )
    feeds = {"x0": data(3, 2), "xa": data(3, 4, 2), "xb": data(3, 4, 2)}
    old = model([node], {k: (F32, list(v.shape)) for k, v in feeds.items()}, ["y", "z"], opset=8)
    sums = feeds["x0"][:, None] + np.cumsum(feeds["xa"] + feeds["xb"][:, ::-1], axis=1)
    found = run(to_proto(upgraded(old)), feeds)
    np.testing.assert_allclose(found[0], sums[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(old, feeds)[1], sums, rtol=1e-5, atol=1e-6)


def test_softmax_where_the_oracles_disagree() -> None:
    """Opset 11, axis 1 of [1, 2, 2, 2]: the specification makes a [1, 8] matrix of it, so one row of
    eight adds up to 1.  onnxruntime does so, the reference evaluator normalizes along axis 1."""
    x = data(1, 2, 2, 2)
    old = one("Softmax", {"x": (F32, [1, 2, 2, 2])}, opset=11)
    (found,) = run(to_proto(upgraded(old)), {"x": x})
    np.testing.assert_allclose(found, np.exp(x) / np.exp(x).sum(), rtol=1e-5)


def test_softmax_of_symbolic_sizes() -> None:
    x = data(3, 2, 5)
    graph = upgraded(one("Softmax", {"x": (F32, ["N", 2, "L"])}, opset=11))
    np.testing.assert_allclose(
        run(to_proto(graph), {"x": x})[0], np.exp(x) / np.exp(x).sum((1, 2), keepdims=True), rtol=1e-5
    )
    assert graph.types["y"].shape is not None and len(graph.types["y"].shape) == 3


def test_softmax_whose_rank_only_folding_knows() -> None:
    """The rank of a Reshape to computed sizes is known in time for the last axis to be recognized."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=2),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([2, 3])}
    graph = read(model(nodes, {"x": (F32, ["N", 6])}, ["y"], constants, opset=11))
    canonicalize(graph)
    assert [node.op for node in graph.nodes] == ["Reshape", "Softmax"]


def test_rules_reach_subgraphs_and_use_outer_types() -> None:
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["a"], broadcast=1, axis=1)], "t", [], [value("a", F32, None)]
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "e", [], [value("b", F32, None)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = {"c": ("bool", []), "x": (F32, [2, 3, 4]), "w": (F32, [3])}
    feeds = {"c": np.array(True), "x": data(2, 3, 4), "w": data(3)}
    found = run(to_proto(upgraded(model([node], inputs, ["y"], opset=6))), feeds)
    np.testing.assert_allclose(found[0], feeds["x"] + feeds["w"][:, None], rtol=1e-6)


def test_rules_in_sequence_with_unknown_shapes_between() -> None:
    """onnx infers nothing behind an Add-6 with axis; the next rule needs its rank."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], broadcast=1, axis=1),
        helper.make_node("Mul", ["a", "w"], ["b"], broadcast=1, axis=1),
        helper.make_node("Clip", ["b"], ["y"], min=0.0),
    ]
    feeds = {"x": data(2, 3, 4), "w": data(3)}
    old = model(nodes, {"x": (F32, [2, 3, 4]), "w": (F32, [3])}, ["y"], opset=6)
    w = feeds["w"][:, None]
    np.testing.assert_allclose(
        run(to_proto(upgraded(old)), feeds)[0], np.maximum((feeds["x"] + w) * w, 0), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (one("LpPool", {"x": (F32, [1, 1, 4, 4])}, p=1.5, kernel_shape=[2, 2], opset=1),
         "(LpPool): the form before opset 2 cannot be upgraded: p = 1.5 is not an integer"),
        (one("Add", {"x": (F32, None), "w": (F32, [3])}, broadcast=1, axis=1, opset=6),
         "(Add): the form before opset 7 cannot be upgraded: the rank of 'x' is unknown, which it needs"),
        (one("Tile", {"x": (F32, [2]), "t": (F32, [1]), "a": (F32, [1])}, opset=1),
         "(Tile): the form before opset 6 cannot be upgraded: input 1 must be a constant"),
        (one("BatchNormalization", {"x": (F32, [1, 4, 3])}, PLANE, spatial=0, opset=7,
             outputs=["y", "a", "b2", "c", "d"]),
         "(BatchNormalization): the form before opset 9 cannot be upgraded: training with spatial = 0"),
        (one("BatchNormalization", {"x": (F32, [1, 4, 3])}, PARAMETERS, opset=9,
             outputs=["y", "a", "b2", "c", "d"]),
         "(BatchNormalization): the form before opset 14 cannot be upgraded: "
         "saved_mean or saved_var is read"),
        (one("Resize", {"x": (F32, [4, 4])}, {"s": np.array([2, 0.5], np.float32)}, opset=10),
         "(Resize): the form before opset 11 cannot be upgraded: nearest both enlarges and shrinks"),
        (one("Resize", {"x": (F32, [4])}, {"r": np.zeros(0, np.float32), "s": np.array([2], np.float32)},
             opset=11, coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="ceil"),
         "(Resize): the form before opset 13 cannot be upgraded: "
         "tf_half_pixel_for_nn with nearest_mode ceil"),
        (one("GroupNormalization", {"x": (F32, [1, "C", 3]), "s": (F32, [2]), "b": (F32, [2])},
             num_groups=2, opset=18),
         "(GroupNormalization): the form before opset 21 cannot be upgraded: C channels in 2 groups"),
    ],
)  # fmt: skip
def test_forms_without_an_equal(proto: onnx.ModelProto, expected: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        upgraded(proto)
    assert str(caught.value) == f"node 'n' {expected}"


def test_faulty_old_forms() -> None:
    with pytest.raises(ModelError) as caught:
        upgraded(one("Cast", {"x": (F32, [2])}, to="FLOAT31", opset=1))
    assert str(caught.value) == "node 'n' (Cast): 'FLOAT31' is not an element type"
    with pytest.raises(ModelError) as caught:
        upgraded(one("Tile", {"x": (F32, [2])}, {"t": np.float32(2), "a": np.float32(1)}, opset=1))
    assert str(caught.value) == "node 'n' (Tile): axis 1 is out of range for rank 1"


def test_newer_models_keep_their_opset() -> None:
    graph = read(one("Relu", {"x": (F32, [2])}, opset=23))
    upgrade(graph)
    assert graph.opset == 23


def test_metadata_goes_to_every_new_node() -> None:
    old = one("Softmax", {"x": (F32, [2, 2, 2])}, opset=11)
    old.graph.node[0].metadata_props.add(key="layer", value="head")
    assert [node.metadata for node in upgraded(old).nodes] == [{"layer": "head"}] * 4


def test_every_rule_was_tried() -> None:
    """Runs last: each function among the rules took part in a case above."""
    assert {rule.__name__ for rule in RULES.values()} - {rule.__name__ for rule in USED} == set()


def test_no_operator_changed_unseen() -> None:
    """Every change of an operator's arguments up to the canonical opset has a rule, or stands here
    with the reason why it needs none."""
    defaults_keep_the_meaning = {
        "ArgMax-12", "ArgMin-12", "AveragePool-7", "AveragePool-10", "AveragePool-19", "Cast-19",
        "CastLike-19",
        "DepthToSpace-11", "DequantizeLinear-13", "DequantizeLinear-21", "GRU-14", "GatherND-12",
        "LSTM-14", "LpPool-18", "MaxPool-8", "MaxPool-10", "Pad-18", "QuantizeLinear-13",
        "QuantizeLinear-19", "QuantizeLinear-21", "RNN-14", "Reshape-14", "Resize-18", "ScatterElements-16",
        "ScatterND-16", "Shape-15", "TopK-11",
    }  # fmt: skip
    read_as_constants = {"Constant-11", "Constant-12"}
    history: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= CANONICAL_OPSET:
            history.setdefault(schema.name, []).append(schema)
    changed = set()
    for op, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for before, after in pairwise(schemas):
            if arguments(before) != arguments(after) or after.deprecated:
                changed.add(f"{op}-{after.since_version}")
    ruled = {f"{op}-{version}" for op, version in RULES}
    assert changed - ruled - read_as_constants == defaults_keep_the_meaning


def arguments(schema: Any) -> Any:
    """The names, kinds and defaults of a schema's attributes, inputs and outputs."""
    attributes = sorted(
        (a.name, a.type.name, a.required, str(a.default_value)) for a in schema.attributes.values()
    )
    return attributes, len(schema.inputs), len(schema.outputs)
