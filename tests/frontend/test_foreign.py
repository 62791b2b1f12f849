"""Types of the results of operators that onnx cannot infer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from cuvil.frontend.foreign import foreign_types
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.onnx_writer import to_proto
from cuvil.ir import expr as E
from cuvil.ir.graph import Node, TensorType

ML = "ai.onnx.ml"
SCALER = Node("Scaler", ["x"], ["y"], {"offset": [1.0], "scale": [2.0]}, domain=ML)


def scaled(dtype: str, *dims: int | str) -> dict[str, TensorType]:
    return foreign_types(SCALER, {"x": TensorType(dtype, dims)}, {}, 21)


def test_sizes_and_names_are_carried_over() -> None:
    assert scaled("float64", "n", 4) == {"y": TensorType("float32", ("n", 4))}


def test_unknown_sizes_stay_unknown() -> None:
    assert scaled("float32", "", 3, "unk__7") == {"y": TensorType("float32", ("", 3, "unk__7"))}


def test_computed_sizes_are_unknown() -> None:
    node = Node("FeatureVectorizer", ["x"], ["y"], domain=ML)
    assert foreign_types(node, {"x": TensorType("float32", ("n", "a", 2))}, {}, 21) == {
        "y": TensorType("float32", ("n", ""))
    }


def test_constants_are_seen() -> None:
    node = Node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=ML)
    found = foreign_types(node, {"x": TensorType("int32", (5,))}, {"i": np.array([1, 2, 3])}, 21)
    assert found == {"y": TensorType("int32", (1, 3))}


def test_strings() -> None:
    node = Node("LabelEncoder", ["x"], ["y"], {"keys_strings": ["a"], "values_strings": ["bc"]}, domain=ML)
    known = TensorType("string", ("n",))
    assert foreign_types(node, {"x": known}, {}, 21) == {"y": known}


def test_nothing_is_found() -> None:
    assert foreign_types(SCALER, {"x": TensorType("float32", None)}, {}, 21) == {}
    assert foreign_types(SCALER, {}, {}, 21) == {}
    bad = Node("Scaler", ["x"], ["y"], {"offset": [1.0, 2.0]}, domain=ML)
    assert foreign_types(bad, {"x": TensorType("float32", (2, 3))}, {}, 21) == {}
    other = Node("Unheard", ["x"], ["y"], domain=ML)
    assert foreign_types(other, {"x": TensorType("float32", (2, 3))}, {}, 21) == {}


def test_expressions_around_it_are_left_alone() -> None:
    before = E.sym("n") + E.const(3)
    scaled("float32", "n", 2)
    assert E.sym("n") + E.const(3) is before


def test_chain_into_standard_operators() -> None:
    """A pipeline whose inner values have no declared types."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["a"], domain=ML, offset=[0.5], scale=[2.0]),
        helper.make_node("Normalizer", ["a"], ["b"], domain=ML),
        helper.make_node("ReduceMax", ["b"], ["c"], axes=[1], keepdims=0),
        helper.make_node("SVMRegressor", ["b"], ["d"], domain=ML, coefficients=[1.0] * 4, rho=[0.0]),
        helper.make_node("Gelu", ["d"], ["e"], domain="com.microsoft"),
        helper.make_node("Transpose", ["e"], ["f"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [None, 4])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name=n) for n in ("c", "f")])
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid(ML, 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    known = graph_from_proto(helper.make_model(graph, opset_imports=opsets))
    canonicalize(known)
    (n, _) = known.types["x"].shape or ()
    shapes = {"a": (n, 4), "b": (n, 4), "c": (n,), "d": (n, 1), "e": (n, 1), "f": (1, n)}
    assert {v: known.types[v] for v in shapes} == {v: TensorType("float32", s) for v, s in shapes.items()}
    again = graph_from_proto(to_proto(known))
    assert again.types == known.types


def test_long_alternation() -> None:
    """Each Scaler is known only once onnx has inferred the Transpose before it."""
    nodes = []
    for k in range(12):
        nodes.append(helper.make_node("Scaler", [f"x{k}"], [f"a{k}"], domain=ML, offset=[0.5], scale=[2.0]))
        nodes.append(helper.make_node("Transpose", [f"a{k}"], [f"x{k + 1}"]))
    x = helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="x12")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 3)]
    known = graph_from_proto(helper.make_model(graph, opset_imports=opsets))
    assert known.types["a11"] == TensorType("float32", (4, "n"))
    assert known.types["x12"] == TensorType("float32", ("n", 4))
