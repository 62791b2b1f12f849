"""Constant folding, computed sizes, constant branches, dead code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from frontend_models import F32, TypedShape, model, one, read, run, value
from onnx import helper

from cuvil.frontend.fold import fold_constants, remove_dead_code
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_writer import to_proto
from cuvil.frontend.shape_values import reshape_target
from cuvil.ir.graph import Graph


def i64(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, [name.strip("-") for name in inputs.split()], outputs.split(), **attrs)


def folded(proto: onnx.ModelProto, **shapes: Any) -> Graph:
    graph = read(proto, shapes=shapes)
    canonicalize(graph)
    return graph


def ops(graph: Graph) -> list[str]:
    return [item.op for item in graph.nodes]


def test_constant_chain_becomes_one_constant() -> None:
    nodes = [node("Add", "a b", "c"), node("Sqrt", "c", "d"), node("Mul", "x d", "y")]
    constants = {"a": np.float32(1), "b": np.array([3, 8], np.float32)}
    graph = folded(model(nodes, {"x": (F32, [2])}, ["y"], constants))
    assert ops(graph) == ["Mul"]
    assert list(graph.constants) == ["d"] and graph.constants["d"].tolist() == [2, 3]
    assert set(graph.types) == {"x", "d", "y"}


def test_output_may_become_a_constant() -> None:
    graph = folded(model([node("Neg", "a", "y")], {}, {"y": (F32, None)}, {"a": np.ones(2, np.float32)}))
    assert graph.nodes == [] and graph.constants["y"].tolist() == [-1, -1]
    assert run(to_proto(graph), {})[0].tolist() == [-1, -1]


def test_quantized_weights_stay_quantized() -> None:
    nodes = [
        node("QuantizeLinear", "w s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("MatMul", "x d", "y"),
    ]
    constants = {"w": np.ones((2, 2), np.float32), "s": np.float32(0.5), "z": np.int8(0)}
    graph = folded(model(nodes, {"x": (F32, [1, 2])}, ["y"], constants))
    assert ops(graph) == ["DequantizeLinear", "MatMul"]
    assert graph.constants["q"].dtype == np.int8 and graph.constants["q"].tolist() == [[2, 2], [2, 2]]


def test_dequantization_with_a_scale_from_a_constant_node() -> None:
    """Public report: Q/DQ with a 0-d scale from a Constant node (onnx2c#86)."""
    scale = helper.make_node("Constant", [], ["s"], value_float=0.5)
    proto = model(
        [scale, node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s", "y")],
        {"x": (F32, [2])},
        ["y"],
    )
    graph = folded(proto)
    assert ops(graph) == ["QuantizeLinear", "DequantizeLinear"] and graph.constants["s"].shape == ()
    assert run(to_proto(graph), {"x": np.array([1.1, 200], np.float32)})[0].tolist() == [1, 127.5]


@pytest.mark.parametrize("elements", [1 << 40, 1 << 27])
def test_large_results_are_not_computed(elements: int) -> None:
    graph = folded(one("ConstantOfShape", {}, {"s": i64([elements])}))
    assert ops(graph) == ["ConstantOfShape"] and graph.types["y"].shape == (elements,)


def test_results_up_to_the_budget_are_computed() -> None:
    graph = folded(one("ConstantOfShape", {}, {"s": i64([1000, 1000])}))
    assert graph.nodes == [] and graph.constants["y"].nbytes == 4_000_000


def test_random_and_stateful_operators_are_not_computed() -> None:
    constants = {"a": np.full(4, 0.5, np.float32)}
    for op, typed in (("RandomNormalLike", F32), ("Bernoulli", F32)):
        assert ops(folded(one(op, {}, constants, outputs={"y": (typed, None)}))) == [op]


def test_results_of_unknown_size_are_computed_where_they_are_small() -> None:
    graph = folded(one("NonZero", {}, {"a": i64([0, 3, 5])}, outputs={"y": ("int64", None)}))
    assert graph.constants["y"].tolist() == [[1, 2]]


def test_faulty_constant_node_is_left_for_the_checks() -> None:
    graph = read(one("MatMul", {}, {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)}))
    assert not fold_constants(graph) and ops(graph) == ["MatMul"]


# Sizes


def test_shape_of_a_known_shape() -> None:
    graph = folded(one("Shape", {"x": (F32, [2, 3, 4])}, outputs={"y": ("int64", None)}, start=1, end=-1))
    assert graph.constants["y"].tolist() == [3]
    graph = folded(one("Size", {"x": (F32, [2, 3, 4])}, outputs={"y": ("int64", None)}))
    assert graph.constants["y"].tolist() == 24


def flattened(shape: list[Any]) -> onnx.ModelProto:
    """Public report: x[1, 4, 3] -> Shape -> Gather(0) -> Unsqueeze -> Concat with 12 -> Reshape
    must give [1, 12] (onnx2c#81)."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "u"),
        node("Concat", "u twelve", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    constants = {"zero": np.int64(0), "axis": i64([0]), "twelve": i64([12])}
    return model(nodes, {"x": (F32, shape)}, ["y"], constants)


def test_computed_reshape() -> None:
    graph = folded(flattened([1, 4, 3]))
    assert ops(graph) == ["Reshape"] and graph.types["y"].shape == (1, 12)


def test_computed_reshape_of_a_symbolic_batch() -> None:
    graph = folded(flattened(["N", 4, 3]))
    assert ops(graph) == ["Reshape"]
    assert graph.constants[graph.nodes[0].inputs[1]].tolist() == [0, 12]
    assert graph.types["y"].shape == ("N", 12)
    x = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    assert run(to_proto(graph), {"x": x})[0].tolist() == x.reshape(5, 12).tolist()


def size_model(nodes: list[onnx.NodeProto], constants: dict[str, Any], shape: list[Any]) -> onnx.ModelProto:
    """A computation on the sizes of x, which end as sizes `t` of an Expand of one element."""
    return model(
        [node("Shape", "x", "s"), *nodes, node("Expand", "e t", "y")],
        {"x": (F32, shape), "e": (F32, [1])},
        ["y"],
        constants,
    )


@pytest.mark.parametrize(
    ("nodes", "constants", "expected"),
    [
        ([node("Slice", "s a b", "t")], {"a": i64([1]), "b": i64([3])}, [4, 6]),
        ([node("Slice", "s a b - c", "t")], {"a": i64([-1]), "b": i64([-9]), "c": i64([-2])}, [6, "N"]),
        ([node("Slice", "s a b - c", "t")], {"a": i64([9]), "b": i64([0]), "c": i64([-1])}, [6, 4]),
        ([node("Gather", "s i", "t")], {"i": i64([2, -2])}, [6, 4]),
        ([node("Gather", "s i", "g"), node("Mul", "g k", "m"), node("Unsqueeze", "m z", "t")],
         {"i": np.int64(1), "k": np.int64(5), "z": i64([0])}, [20]),
        ([node("Gather", "s i", "g"), node("Div", "g k", "m"), node("Reshape", "m r", "t")],
         {"i": np.int64(2), "k": np.int64(4), "r": i64([1])}, [1]),
        ([node("Gather", "s i", "g"), node("Sub", "g k", "m"), node("Squeeze", "m z", "q"),
          node("Reshape", "q r", "t")],
         {"i": i64([2]), "k": i64([1]), "z": i64([0]), "r": i64([-1])}, [5]),
        ([node("Cast", "s", "f", to=6), node("Cast", "f", "t", to=7)], {}, ["N", 4, 6]),
        ([node("Gather", "s i", "g"), node("Add", "g k", "t")], 
         {"i": i64([0, 1]), "k": i64([0, 3])}, ["N", 7]),
    ],
)  # fmt: skip
def test_sizes_are_followed(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], expected: list[Any]
) -> None:
    """The followed sizes are those that onnxruntime computes, and symbols pass through."""
    graph = folded(size_model(nodes, constants, ["N", 4, 6]))
    assert list(graph.types["y"].shape or ()) == expected
    feeds = {"x": np.zeros((3, 4, 6), np.float32), "e": np.ones(1, np.float32)}
    (found,) = run(to_proto(graph), feeds)
    assert list(found.shape) == [3 if size == "N" else size for size in expected]
    if "N" not in expected:
        assert ops(graph) == ["Expand"]


@pytest.mark.parametrize(
    ("value_", "shape", "expected"),
    [
        (["N", 12], ("N", 4, 3), [0, 12]),
        ([12, "N"], ("N", 4, 3), [12, -1]),
        (["N", "M", 12], ("N", "M", 12), [0, 0, 12]),
        (["M", "N", 12], ("N", "M", 12), None),
        ([None, 12], None, [-1, 12]),
        ([None, -1], None, None),
        (["N", 0], ("N", 0), None),
    ],
)
def test_sizes_a_reshape_can_be_given(value_: list[Any], shape: Any, expected: list[int] | None) -> None:
    array = np.empty(len(value_), object)
    array[:] = value_
    assert reshape_target(array, shape) == expected


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (one("Reshape", {"x": (F32, ["N", 4, 8])}, {"s": i64([-1, 32])}), ("N", 32)),
        (one("Reshape", {"x": (F32, [4, "N", 8])}, {"s": i64([-1, 32])}), ("N", 32)),
        (one("Reshape", {"x": (F32, ["N", 4, 8])}, {"s": i64([-1, 16])}), ("y_d0", 16)),
        (one("Reshape", {"x": (F32, ["N", "M", 8])}, {"s": i64([0, 8, -1])}), ("N", 8, "M")),
        (one("Slice", {"x": (F32, ["N", 9])}, {"a": i64([0, 1]), "b": i64([2**31 - 1, 5])}), ("N", 4)),
        (one("Slice", {"x": (F32, ["N", 9])}, {"a": i64([0]), "b": i64([100])}), ("y_d0", 9)),
        (one("Slice", {"x": (F32, ["N", 9])}, {"a": i64([1]), "b": i64([2**62])}), ("y_d0", 9)),
        (one("Tile", {"x": (F32, ["N", 2])}, {"r": i64([1, 3])}), ("N", 6)),
        (one("Conv", {"x": (F32, ["N", 2, "L"])}, {"w": np.ones((3, 2, 3), np.float32)}, pads=[1, 1]),
         ("N", 3, "L")),
        (one("Conv", {"x": (F32, ["N", 2, "L"])}, {"w": np.ones((3, 2, 3), np.float32)}), ("N", 3, "y_d2")),
        (one("MaxPool", {"x": (F32, ["N", 2, "L"])}, kernel_shape=[2], auto_pad="SAME_UPPER"), ("N", 2, "L")),
        (one("MaxPool", {"x": (F32, ["N", 2, "L"])}, kernel_shape=[2], strides=[2], pads=[1, 0]),
         ("N", 2, "y_d2")),
        (one("Resize", {"x": (F32, ["N", 2, "L"])}, {"s": np.array([1, 1, 2], np.float32)}, ["x", "", "s"]),
         ("N", 2, "y_d2")),
    ],
)  # fmt: skip
def test_symbolic_sizes_that_onnx_loses(proto: onnx.ModelProto, expected: Any) -> None:
    assert folded(proto).types["y"].shape == expected


def test_found_size_replaces_the_made_up_name_everywhere() -> None:
    """The residual sum needs both operands to have the same size."""
    nodes = [
        node("Reshape", "x s", "r"),
        node("Relu", "r", "a"),
        node("Reshape", "a t", "b"),
        node("Add", "x b", "y"),
    ]
    constants = {"s": i64([-1, 32]), "t": i64([-1, 4, 8])}
    graph = folded(model(nodes, {"x": (F32, ["N", 4, 8])}, ["y"], constants))
    assert [graph.types[name].shape for name in "raby"] == [("N", 32), ("N", 32), ("N", 4, 8), ("N", 4, 8)]


# Branches


def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(name, F32, None)])


def test_constant_condition_selects_its_branch() -> None:
    """Both branches use the name t inside; the one taken squeezes an axis the other could not."""
    squeeze = branch("a", [node("Constant", "", "t", value_ints=[1]), node("Squeeze", "x t", "a")])
    keep = branch("b", [node("Neg", "x", "t"), node("Relu", "t", "b")])
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i", "g"),
        node("Equal", "g one", "c"),
        node("If", "c", "y", then_branch=squeeze, else_branch=keep),
    ]
    constants = {"i": np.int64(1), "one": np.int64(1)}
    proto = model(nodes, {"x": (F32, ["N", "C", 3])}, ["y"], constants)
    taken = folded(proto, x=["N", 1, 3])
    assert ops(taken) == ["Squeeze"] and taken.types["y"].shape == ("N", 3)
    other = folded(proto, x=["N", 2, 3])
    assert ops(other) == ["Neg", "Relu"] and other.types["y"].shape == ("N", 2, 3)
    assert ops(folded(proto)) == ["Shape", "Gather", "Equal", "If"]


def test_branch_that_returns_an_outer_value_or_a_constant() -> None:
    then = branch("a", [node("Identity", "x", "a")])
    other = branch("b", [node("Constant", "", "b", value_floats=[1.0, 2.0])])
    for condition, expected in ((True, "Identity"), (False, None)):
        choice = node("If", "c", "y", then_branch=then, else_branch=other)
        graph = folded(model([choice], {"x": (F32, [2])}, ["y"], {"c": np.array(condition)}))
        assert ops(graph) == ([expected] if expected else [])
        expected_value = [5, 6] if condition else [1, 2]
        assert run(to_proto(graph), {"x": np.array([5, 6], np.float32)})[0].tolist() == expected_value


def test_constants_fold_inside_bodies_too() -> None:
    body = helper.make_graph(
        [node("Add", "k k", "k2"), node("Mul", "a k2", "b"), node("Identity", "c", "c2")],
        "body",
        [value("i", "int64", []), value("c", "bool", []), value("a", F32, [2])],
        [value("c2", "bool", None), value("b", F32, [2])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    constants = {"n": np.int64(3), "k": np.float32(1)}
    typed: dict[str, TypedShape] = {"y": (F32, [2])}
    graph = folded(model([loop], {"x": (F32, [2])}, typed, constants))
    inner = graph.nodes[0].attrs["body"]
    assert ops(inner) == ["Mul", "Identity"] and inner.constants["k2"].tolist() == 2
    assert run(to_proto(graph), {"x": np.ones(2, np.float32)})[0].tolist() == [8, 8]


# Dead code


def test_dead_nodes_constants_and_types_go() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Add", "a w", "dead"),
        node("Split", "a", "y unused", num_outputs=2),
    ]
    graph = read(model(nodes, {"x": (F32, [4]), "idle": (F32, [1])}, ["y"], {"w": np.ones(4, np.float32)}))
    remove_dead_code(graph)
    assert ops(graph) == ["Relu", "Split"] and graph.constants == {}
    assert graph.inputs == ["x", "idle"] and set(graph.types) == {"x", "idle", "a", "y", "unused"}


def test_values_captured_by_a_body_are_alive() -> None:
    then = branch("a", [node("Add", "r w", "a"), node("Neg", "x", "dead")])
    other = branch("b", [node("Neg", "x", "b")])
    nodes = [node("Relu", "x", "r"), node("If", "c", "y", then_branch=then, else_branch=other)]
    inputs = {"c": ("bool", []), "x": (F32, [2])}
    graph = read(model(nodes, inputs, ["y"], {"w": np.ones(2, np.float32)}))
    remove_dead_code(graph)
    assert ops(graph) == ["Relu", "If"] and list(graph.constants) == ["w"]
    assert ops(graph.nodes[1].attrs["then_branch"]) == ["Add"]
