"""One node at a time: what onnx's checker lets pass and `checks` refuses (rows 4, 5 and 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontend_models import F32, model, one, save, value
from onnx import helper

from cuvil.errors import ModelError
from cuvil.frontend.checks import check_graph
from cuvil.frontend.importer import import_model
from cuvil.ir.graph import Graph, Node


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def refusal(proto: Any, folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(save(folder, proto))
    return str(caught.value)


IMAGE = [1, 4, 6, 6]

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "kernel larger than the input": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 9, 9)}, {"pads": [1, 1, 1, 1]},
        "the kernel covers 9 elements of axis 2, the padded input has only 8",
    ),
    "dilated kernel larger than the input": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3, 3)}, {"dilations": [1, 3]},
        "the kernel covers 7 elements of axis 3, the padded input has only 6",
    ),
    "channel mismatch": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 3, 3, 3)}, {},
        "the input has 4 channels, the weights ask for 3 (3 in each of 1 groups)",
    ),
    "channels of groups": (
        "Conv", {"x": IMAGE}, {"w": f32(3, 2, 3, 3)}, {"group": 2},
        "3 output channels cannot be split into 2 groups",
    ),
    "kernel_shape": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3, 3)}, {"kernel_shape": [3, 1]},
        "kernel_shape [3, 1] differs from that of the weights, [3, 3]",
    ),
    "bias": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3, 3), "b": f32(3)}, {},
        "the size of the bias is 3, it must be 2",
    ),
    "rank of the weights": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3)}, {}, "the rank of the weights is 3, it must be 4"
    ),
    "strides of another rank": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3, 3)}, {"strides": [1]},
        "the number of strides is 1, it must be 2",
    ),
    "negative pads": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3, 3)}, {"pads": [-1, 0, 0, 0]},
        "pads [-1, 0, 0, 0] have a negative one",
    ),
    "auto_pad": (
        "Conv", {"x": IMAGE}, {"w": f32(2, 4, 3, 3)}, {"auto_pad": "SAME"},
        "auto_pad 'SAME' is unknown, only NOTSET, SAME_UPPER, SAME_LOWER, VALID are allowed",
    ),
    "convolution of a matrix": (
        "Conv", {"x": [4, 4]}, {"w": f32(4, 4)}, {},
        "the input has 2 dimensions, at least 3 (batch, channels, space) are needed",
    ),
    "transposed channels": (
        "ConvTranspose", {"x": IMAGE}, {"w": f32(3, 2, 3, 3)}, {},
        "the number of input channels is 4, it must be 3",
    ),
    "transposed groups": (
        "ConvTranspose", {"x": IMAGE}, {"w": f32(4, 2, 3, 3)}, {"group": 3},
        "4 input channels cannot be split into 3 groups",
    ),
    "pool larger than the input": (
        "MaxPool", {"x": IMAGE}, {}, {"kernel_shape": [7, 1]},
        "the kernel covers 7 elements of axis 2, the padded input has only 6",
    ),
    "blocks": ("DepthToSpace", {"x": [1, 6, 2, 2]}, {}, {"blocksize": 2},
               "axis 1 of size 6 cannot be split into blocks of 4"),
    "two open dimensions": (
        "Reshape", {"x": [6]}, {"s": i64(-1, -1)}, {},
        "the shape [-1, -1] leaves more than one dimension open (-1)",
    ),
    "negative shape": (
        "Reshape", {"x": [6]}, {"s": i64(-2, 3)}, {},
        "the shape [-2, 3] has a negative dimension",
    ),
    "elements": ("Reshape", {"x": [6]}, {"s": i64(4, -1)}, {}, "6 elements do not fit the shape [4, -1]"),
    "copied dimension": (
        "Reshape", {"x": [6]}, {"s": i64(6, 0)}, {},
        "the shape [6, 0] copies dimension 1 of an input of rank 1",
    ),
    "allowzero": (
        "Reshape", {"x": [0]}, {"s": i64(0, -1)}, {"allowzero": 1},
        "the shape [0, -1] has both 0 and -1, which allowzero forbids",
    ),
    "repeated perm": (
        "Transpose", {"x": [2, 3]}, {}, {"perm": [0, 0]}, "perm [0, 0] is not a permutation of the 2 axes"
    ),
    "short perm": (
        "Transpose", {"x": [2, 3]}, {}, {"perm": [0]},
        "perm [0] is not a permutation of the 2 axes",
    ),
    "concat axis": (
        "Concat", {"x": [2, 3]}, {"w": f32(2, 3)}, {"axis": 2},
        "axis 2 is out of range for rank 2",
    ),
    "concat sizes": (
        "Concat", {"x": [2, 3]}, {"w": f32(3, 3)}, {"axis": 1}, "input 1 has size 3 at axis 0, input 0 has 2"
    ),
    "concat ranks": (
        "Concat", {"x": [2, 3]}, {"w": f32(2)}, {"axis": 0},
        "input 1 has rank 1, input 0 has rank 2",
    ),
    "softmax axis": ("Softmax", {"x": [2, 3]}, {}, {"axis": -3}, "axis -3 is out of range for rank 2"),
    "reduce axis": ("ReduceSum", {"x": [2, 3]}, {"a": i64(5)}, {}, "axis 5 is out of range for rank 2"),
    "reduced twice": ("ReduceSum", {"x": [2, 3]}, {"a": i64(1, -1)}, {}, "axes [1, -1] name one axis twice"),
    "flatten axis": ("Flatten", {"x": [2, 3]}, {}, {"axis": 3}, "axis 3 is out of range for rank 2"),
    "cumsum axis": ("CumSum", {"x": [2, 3]}, {"a": np.int64(2)}, {}, "axis 2 is out of range for rank 2"),
    "squeeze": (
        "Squeeze", {"x": [2, 3]}, {"a": i64(1)}, {}, "axis 1 has size 3, only axes of size 1 can be squeezed"
    ),
    "squeeze of what may be 1": (
        "Squeeze", {"x": ["N", 3]}, {}, {},
        "no axes are given, and whether size 'N' is 1 is not known; bind it"
    ),
    "unsqueeze": ("Unsqueeze", {"x": [2, 3]}, {"a": i64(9)}, {}, "axis 9 is out of range for rank 3"),
    "gather index": (
        "Gather", {"x": [3, 2]}, {"i": i64(0, 3)}, {}, "index 3 is out of range for axis 0 of size 3"
    ),
    "negative gather index": (
        "Gather", {"x": [3, 2]}, {"i": i64(-3)}, {"axis": 1}, "index -3 is out of range for axis 1 of size 2"
    ),
    "gather axis": ("Gather", {"x": [3, 2]}, {"i": i64(0)}, {"axis": 2}, "axis 2 is out of range for rank 2"),
    "gather elements rank": (
        "GatherElements", {"x": [3, 2]}, {"i": i64(0)}, {}, "the indices have rank 1, the data has rank 2"
    ),
    "gathernd index": (
        "GatherND", {"x": [3, 2]}, {"i": np.array([[0, 2]])}, {},
        "index 2 is out of range for axis 1 of size 2",
    ),
    "gathernd depth": (
        "GatherND", {"x": [3, 2]}, {"i": np.array([[0, 0, 0]])}, {},
        "indices of 3 numbers behind 0 batch axes do not fit data of rank 2",
    ),
    "expand": (
        "Expand", {"x": [2, 3]}, {"s": i64(4, 3)}, {},
        "the shapes [2, 3] and [4, 3] do not broadcast",
    ),
    "negative expand": ("Expand", {"x": [1]}, {"s": i64(-4)}, {}, "the sizes [-4] have a negative one"),
    "repeats": ("Tile", {"x": [2, 3]}, {"r": i64(2)}, {}, "the number of repeats is 1, it must be 2"),
    "step": ("Slice", {"x": [4]}, {"s": i64(0), "e": i64(4), "a": i64(0), "t": i64(0)}, {}, "a step is 0"),
    "slice lengths": (
        "Slice", {"x": [4]}, {"s": i64(0, 1), "e": i64(4)}, {},
        "starts, ends, axes and steps have different lengths",
    ),
    "slice axis": (
        "Slice", {"x": [4]}, {"s": i64(0), "e": i64(4), "a": i64(1)}, {}, "axis 1 is out of range for rank 1"
    ),
    "pads": ("Pad", {"x": [2, 3]}, {"p": i64(1, 1)}, {}, "the number of pads is 2, it must be 4"),
    "pad mode": (
        "Pad", {"x": [2]}, {"p": i64(1, 1)}, {"mode": "mirror"},
        "mode 'mirror' is unknown, only constant, reflect, edge and wrap are allowed",
    ),
    "pads that remove too much": (
        "Pad", {"x": [2]}, {"p": i64(-2, -1)}, {}, "pads -2 and -1 remove more than axis 0's 2 elements"
    ),
    "k": ("TopK", {"x": [2, 3]}, {"k": i64(4)}, {}, "k is 4, from 0 to 3 is allowed"),
    "broadcast": ("Add", {"x": [2, 3]}, {"w": f32(2)}, {}, "the shapes [2, 3] and [2] do not broadcast"),
    "matmul": (
        "MatMul", {"x": [2, 3]}, {"w": f32(2, 3)}, {},
        "the inner size of the second operand is 2, it must be 3",
    ),
    "matmul of a scalar": ("MatMul", {"x": []}, {"w": f32(2)}, {}, "an operand is a scalar"),
    "gemm": ("Gemm", {"x": [2, 3]}, {"w": f32(2, 3)}, {}, "the inner size of B is 2, it must be 3"),
    "gemm bias": (
        "Gemm", {"x": [2, 3]}, {"w": f32(3, 5), "c": f32(4)}, {},
        "the size of C at axis -1 is 4, it must be 5",
    ),
    "gemm rank": ("Gemm", {"x": [1, 2, 3]}, {"w": f32(3, 5)}, {}, "input 0 has 3 dimensions, 2 are needed"),
    "normalization parameters": (
        "InstanceNormalization", {"x": IMAGE}, {"s": f32(4), "b": f32(3)}, {},
        "the size of input 2 is 3, it must be 4",
    ),
    "groups": (
        "GroupNormalization", {"x": IMAGE}, {"s": f32(4), "b": f32(4)}, {"num_groups": 3},
        "4 channels cannot be split into 3 groups",
    ),
    "recurrent weights": (
        "GRU", {"x": [2, 1, 3]}, {"w": f32(1, 8, 3), "r": f32(1, 6, 2)}, {"hidden_size": 2},
        "the size of input 1 at axis 1 is 8, it must be 6",
    ),
    "recurrent direction": (
        "LSTM", {"x": [2, 1, 3]}, {"w": f32(1, 8, 3), "r": f32(1, 8, 2)},
        {"hidden_size": 2, "direction": "both"},
        "direction 'both' is unknown, only forward, reverse and bidirectional are allowed",
    ),
    "split sizes": (
        "Split", {"x": [7]}, {"s": i64(3)}, {}, "the part sizes [3] add up to 3, axis 0 has size 7"
    ),
    "split parts": ("Split", {"x": [7]}, {"s": i64(3, 4)}, {}, "the number of parts is 2, it must be 1"),
    "range step": ("Range", {"x": []}, {"e": np.float32(4), "d": np.float32(0)}, {}, "the step is 0"),
    "scale 0": (
        "QuantizeLinear", {"x": [2]}, {"s": np.float32(0)}, {},
        "scale 0 is not a positive finite number",
    ),
    "scale NaN": (
        "QuantizeLinear", {"x": [2]}, {"s": np.float32("nan")}, {},
        "scale nan is not a positive finite number",
    ),
    "negative scale in one channel": (
        "QuantizeLinear", {"x": [2, 3]}, {"s": np.array([1, -0.5, 1], np.float32)}, {},
        "scale -0.5 is not a positive finite number",
    ),
    "number of scales": (
        "QuantizeLinear", {"x": [2, 3]}, {"s": f32(2)}, {}, "the number of scales is 2, it must be 3"
    ),
    "quantization axis": (
        "QuantizeLinear", {"x": [2, 3]}, {"s": f32(2)}, {"axis": 2}, "axis 2 is out of range for rank 2"
    ),
    "zero points": (
        "QuantizeLinear", {"x": [2, 3]}, {"s": f32(3), "z": np.zeros(2, np.int8)}, {},
        "2 zero points for 3 scales",
    ),
    "blocks of scales": (
        "QuantizeLinear", {"x": [2, 6]}, {"s": f32(2, 2)}, {"block_size": 2},
        "the number of scales at axis 1 is 2, it must be 3",
    ),
    "scales in more dimensions": (
        "QuantizeLinear", {"x": [2, 6]}, {"s": f32(2, 6)}, {},
        "the scale has rank 2, without block_size at most 1 is allowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_faulty_node(case: str, tmp_path: Path) -> None:
    op, shapes, constants, attrs, expected = CASES[case]
    outputs = {"TopK": ["y", "i"]}.get(op, ["y"])
    kinds = {"QuantizeLinear": "uint8" if "z" not in constants else "int8"}
    typed = {name: ("int64" if name == "i" else kinds.get(op, F32), None) for name in outputs}
    inputs = {name: (F32, shape) for name, shape in shapes.items()}
    assert (
        refusal(one(op, inputs, constants, outputs=typed, **attrs), tmp_path)
        == f"node 'n' ({op}): {expected}"
    )


@pytest.mark.parametrize(
    ("dtype", "zero", "expected"),
    [
        ("int8", np.uint8(1), "the zero point is uint8, the input is int8"),
        ("int32", np.int32(1), "the zero point of an int32 input must be 0"),
    ],
)
def test_faulty_zero_point(dtype: str, zero: np.generic, expected: str, tmp_path: Path) -> None:
    proto = one("DequantizeLinear", {"x": (dtype, [2])}, {"s": np.float32(1), "z": zero})
    assert refusal(proto, tmp_path) == f"node 'n' (DequantizeLinear): {expected}"


def test_scales_of_fused_operators(tmp_path: Path) -> None:
    constants = {
        "xs": np.float32(1), "xz": np.uint8(0), "w": np.ones((2, 4, 3, 3), np.uint8), "ws": np.float32(-1),
        "wz": np.uint8(0), "ys": np.float32(1), "yz": np.uint8(0),
    }  # fmt: skip
    proto = one("QLinearConv", {"x": ("uint8", IMAGE)}, constants, outputs={"y": ("uint8", None)})
    assert refusal(proto, tmp_path) == "node 'n' (QLinearConv): scale -1 is not a positive finite number"
    nodes = [
        helper.make_node(
            "QLinearAdd", ["x", "s", "z", "x", "s", "z", "s", "z"], ["y"], domain="com.microsoft", name="n"
        )
    ]
    small = {"s": np.float32("inf"), "z": np.uint8(0)}
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    micro = model(nodes, {"x": ("uint8", [2])}, {"y": ("uint8", [2])}, small, opsets=opsets)
    assert refusal(micro, tmp_path) == "node 'n' (QLinearAdd): scale inf is not a positive finite number"


SCALED: dict[str, tuple[int, tuple[int, ...]]] = {
    "QuantizeLinear": (3, (1,)), "DequantizeLinear": (3, (1,)),
    "QLinearMatMul": (8, (1, 4, 6)), "QLinearConv": (8, (1, 4, 6)),
    "QLinearAdd": (8, (1, 4, 6)), "QLinearMul": (8, (1, 4, 6)), "QLinearConcat": (8, (0, 3, 6)),
    "QGemm": (9, (1, 4, 7)), "MatMulIntegerToFloat": (7, (2, 3)), "DynamicQuantizeMatMul": (4, (2,)),
    **{f"QLinear{op}": (5, (1, 3)) for op in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "ReduceMean",
                                              "Sigmoid", "Softmax")},
}  # fmt: skip
"""Operators with scales: the number of inputs, and which of them are scales."""


@pytest.mark.parametrize(("op", "position"), [(op, i) for op, (_, where) in SCALED.items() for i in where])
@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_every_scale_of_every_quantized_operator_is_checked(op: str, position: int, scale: float) -> None:
    count, where = SCALED[op]
    names = [f"i{k}" for k in range(count)]
    constants = {names[k]: np.float32(scale if k == position else 1) for k in where}
    graph = Graph("g", [], ["y"], [Node(op, names, ["y"], name="n")], constants, {}, 21)
    with pytest.raises(ModelError) as caught:
        check_graph(graph)
    assert str(caught.value) == f"node 'n' ({op}): scale {scale:g} is not a positive finite number"


def test_small_scales_pass(tmp_path: Path) -> None:
    constants = {"s": np.array([1e-30, 2], np.float32), "z": np.zeros(2, ml_dtypes.int4)}
    typed = {"y": ("int8", None)}
    proto = one("QuantizeLinear", {"x": (F32, [3, 2])}, constants, outputs=typed)
    proto.graph.output[0].type.tensor_type.elem_type = 22
    assert import_model(save(tmp_path, proto)).types["y"].dtype == "int4"


def test_resize_arguments(tmp_path: Path) -> None:
    x = {"x": (F32, IMAGE)}
    both = one("Resize", x, {"s": f32(4), "z": i64(1, 1, 2, 2)}, ["x", "", "s", "z"])
    assert refusal(both, tmp_path) == "node 'n' (Resize): exactly one of scales and sizes must be given"
    zero = one("Resize", x, {"s": np.array([1, 1, 0, 2], np.float32)}, ["x", "", "s"])
    expected = "node 'n' (Resize): the scales [1.0, 1.0, 0.0, 2.0] must be positive and finite"
    assert refusal(zero, tmp_path) == expected
    short = one("Resize", x, {"s": f32(2)}, ["x", "", "s"])
    assert refusal(short, tmp_path) == "node 'n' (Resize): the number of scales is 2, it must be 4"


def test_fault_inside_a_branch_that_may_be_taken(tmp_path: Path) -> None:
    bad = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["a"], perm=[0, 0], name="t")], "g", [], [value("a", F32, None)]
    )
    good = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "g", [], [value("b", F32, None)])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=bad, else_branch=good)
    proto = model([choice], {"c": ("bool", []), "x": (F32, [2, 3])}, ["y"])
    assert refusal(proto, tmp_path) == "node 't' (Transpose): perm [0, 0] is not a permutation of the 2 axes"


def test_bodies_with_the_wrong_number_of_values(tmp_path: Path) -> None:
    one_out = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "g", [], [value("a", F32, None)])
    none_out = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "g", [], [])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=one_out, else_branch=none_out, name="n")
    proto = model([choice], {"c": ("bool", []), "x": (F32, [2])}, ["y"])
    expected = "node 'n' (If): the number of results of else_branch is 0, it must be 1"
    assert refusal(proto, tmp_path) == expected
    body = helper.make_graph([], "g", [value("i", "int64", [])], [value("i", "int64", [])])
    loop = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body, name="n")
    expected = "node 'n' (Loop): the number of inputs of the body is 1, it must be 3"
    assert refusal(model([loop], {"m": ("int64", []), "x": (F32, [2])}, ["y"]), tmp_path) == expected
    scan = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=2, name="n")
    expected = "node 'n' (Scan): num_scan_inputs is 2, there are only 1 inputs"
    assert refusal(model([scan], {"x": (F32, [2])}, ["y"]), tmp_path) == expected


def test_symbolic_sizes_are_not_guessed_at(tmp_path: Path) -> None:
    proto = one("Conv", {"x": (F32, ["N", "C", "H", 6])}, {"w": f32(2, 4, 3, 3)})
    assert import_model(save(tmp_path, proto)).types["y"].shape == ("N", 2, "y_d2", 4)
