"""Inferred and declared types: who wins, what contradicts, how unknown sizes are named (row 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_models import F32, model, one, read, value
from onnx import helper

from cuvil.errors import ModelError
from cuvil.frontend.infer import check_strictly
from cuvil.ir.graph import Graph, Node, TensorType


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def refusal(proto: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(proto)
    return str(caught.value)


def test_declared_output_shape_that_is_not_the_real_one() -> None:
    proto = one("Relu", {"x": (F32, [2, 3])}, outputs={"y": (F32, [2, 4])})
    assert refusal(proto) == "value 'y': declared shape [2, 4] contradicts the real one, [2, 3]"


def test_declared_rank_and_type_that_are_not_the_real_ones() -> None:
    nodes = [node("Relu", "x", "t"), node("Neg", "t", "y")]
    rank = model(nodes, {"x": (F32, ["N", 3])}, ["y"], value_info=[value("t", F32, [None, 3, 1])])
    assert refusal(rank) == "value 't': declared shape [?, 3, 1] contradicts the real one, [N, 3]"
    dtype = one("Relu", {"x": (F32, [2])}, outputs={"y": ("int64", [2])})
    assert refusal(dtype) == "value 'y': declared as int64, but its producer makes float32"


def test_declared_rank_of_an_output_gives_way_to_the_real_one() -> None:
    graph = read(one("Relu", {"x": (F32, ["N", 3])}, outputs={"y": (F32, [1, "length", 3])}))
    assert graph.types["y"].shape == ("N", 3)


def test_declared_inner_shape_that_is_not_the_real_one() -> None:
    nodes = [node("Relu", "x", "t"), node("Neg", "t", "y")]
    proto = model(nodes, {"x": (F32, [2, 3])}, ["y"], value_info=[value("t", F32, [9, 9])])
    assert refusal(proto) == "value 't': declared shape [9, 9] contradicts the real one, [2, 3]"


def test_binding_that_contradicts_a_declared_output() -> None:
    proto = one("Relu", {"x": (F32, ["N", 3])}, outputs={"y": (F32, [1, 3])})
    with pytest.raises(
        ModelError, match=r"value 'y': declared shape \[1, 3\] contradicts the real one, \[4, 3\]"
    ):
        read(proto, shapes={"x": [4, 3]})


def test_declared_sizes_count_where_inference_knows_nothing() -> None:
    inputs = {"x": (F32, [6]), "s": ("int64", [2])}
    graph = read(model([node("Reshape", "x s", "t"), node("Relu", "t", "y")], inputs, {"y": (F32, [2, 3])}))
    assert graph.types["y"] == TensorType(F32, (2, 3))
    assert graph.types["t"] == TensorType(F32, (2, 3))


def test_declared_names_of_sizes_are_not_trusted() -> None:
    """torch gives one name to different sizes: Squeeze([1,1,2,3]) declared as [d, d, e] is [1, 2, 3]."""
    inputs = {"x": (F32, [1, 2, "W", 3])}
    proto = one("ReduceMax", inputs, {"axes": np.array([2])}, outputs={"y": (F32, ["d", "d", 3])}, keepdims=0)
    assert read(proto).types["y"].shape == (1, 2, 3)
    window = one("MaxPool", {"x": (F32, [1, 1, "L"])}, outputs={"y": (F32, [1, 1, "L"])}, kernel_shape=[2])
    assert read(window).types["y"].shape == (1, 1, "y_d2")


def test_unknown_sizes_keep_one_name_through_the_graph() -> None:
    nodes = [node("NonZero", "x", "i"), node("Transpose", "i", "t"), node("Neg", "t", "y")]
    graph = read(model(nodes, {"x": (F32, [4])}, {"y": ("int64", None)}))
    assert [graph.types[name].shape for name in "ity"] == [(1, "i_d1"), ("i_d1", 1), ("i_d1", 1)]


def test_types_of_constants_and_subgraph_values_are_known() -> None:
    body = helper.make_graph(
        [node("Add", "a x", "b"), node("Relu", "b", "c"), node("Identity", "k", "k2")],
        "body",
        [value("i", "int64", []), value("k", "bool", []), value("a", F32, [3])],
        [value("k2", "bool", None), value("c", F32, None)],
    )
    loop = helper.make_node("Loop", ["n", "", "z"], ["y"], body=body)
    graph = read(model([loop], {"x": (F32, [3]), "z": (F32, [3])}, ["y"], {"n": np.int64(2)}))
    assert graph.types["n"] == TensorType("int64", ())
    inner = graph.nodes[0].attrs["body"]
    assert inner.types["b"] == TensorType(F32, (3,))
    assert graph.types["y"].dtype == F32


def test_contradiction_inside_a_branch_does_not_count() -> None:
    """A branch may be one that is never taken at these sizes."""
    bad = helper.make_graph([node("Relu", "x", "a")], "g", [], [value("a", F32, [7])])
    good = helper.make_graph([node("Neg", "x", "b")], "g", [], [value("b", F32, None)])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=bad, else_branch=good)
    graph = read(model([choice], {"c": ("bool", []), "x": (F32, [3])}, ["y"]))
    assert graph.nodes[0].attrs["then_branch"].types["a"].shape == (3,)


def test_result_beyond_the_cap() -> None:
    proto = one("Tile", {"x": (F32, [1 << 20])}, {"r": np.array([1 << 21])})
    assert refusal(proto) == f"value 'y': shape [{1 << 41}] has more than {1 << 40} elements"


def test_strict_check_names_the_node() -> None:
    types = {"x": TensorType(F32, (2,)), "w": TensorType("int64", (2,)), "y": TensorType(F32, (2,))}
    graph = Graph("g", ["x", "w"], ["y"], [Node("Add", ["x", "w"], ["y"], name="n")], {}, types, 21)
    with pytest.raises(ModelError) as caught:
        check_strictly(graph)
    assert str(caught.value) == "node 'n' (Add): B has inconsistent type tensor(int64)"
    graph.nodes[0].attrs["foo"] = 1
    with pytest.raises(ModelError) as caught:
        check_strictly(graph)
    assert str(caught.value) == "node 'n' (Add): Unrecognized attribute: foo for operator Add"
