"""Operators and arguments that the ONNX schemas do not allow (row 6), and attribute values that
onnx's own shape inference must never see: some of them crash or hang it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_models import F32, one, read

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.schema import domain_versions
from cuvil.ir.graph import Graph, Node

X = {"x": (F32, [1, 4, 6, 6])}
W = {"w": np.zeros((4, 4, 3, 3), np.float32)}


def refusal(proto: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(proto)
    return str(caught.value)


def test_unknown_operator() -> None:
    with pytest.raises(UnsupportedError):
        read(one("Sofmax", X))
    assert (
        refusal(one("Sofmax", X))
        == "node 'n' (Sofmax): ONNX has no operator 'Sofmax'; did you mean 'Softmax'?"
    )
    assert refusal(one("Zzz", X)) == "node 'n' (Zzz): ONNX has no operator 'Zzz'"


def test_operator_of_another_opset() -> None:
    expected = "node 'n' (Gelu): the operator needs opset 20, the model declares 17"
    assert refusal(one("Gelu", X, opset=17)) == expected
    expected = "node 'n' (Upsample): the operator is deprecated since opset 10, the model declares 13"
    assert refusal(one("Upsample", X, {"s": np.ones(4, np.float32)}, opset=13)) == expected


@pytest.mark.parametrize(
    ("op", "order", "outputs", "expected"),
    [
        ("Relu", ["x", "x"], ["y"], "2 inputs, 1 are allowed"),
        ("Clip", ["x", "", "", ""], ["y"], "4 inputs, 1 to 3 are allowed"),
        ("Add", ["x", ""], ["y"], "input 1 (B) must not be omitted"),
        ("Concat", [], ["y"], "0 inputs, 1 or more are allowed"),
        ("Relu", ["x"], ["y", "z"], "2 outputs, 1 are allowed"),
        ("Split", ["x"], [], "0 outputs, 1 or more are allowed"),
    ],
)
def test_number_of_arguments(op: str, order: list[str], outputs: list[str], expected: str) -> None:
    attrs = {"axis": 0} if op == "Concat" else {}
    proto = one(op, X, order=order, outputs=outputs or ["y"], **attrs)
    if not outputs:
        del proto.graph.node[0].output[:]
        proto.graph.output[0].name = "x"
    assert refusal(proto).endswith(f"({op}): {expected}")


@pytest.mark.parametrize(
    ("op", "attrs", "expected"),
    [
        ("Relu", {"alpha": 1.0}, "unknown attribute 'alpha'; allowed are none"),
        ("Softmax", {"axes": 1}, "unknown attribute 'axes'; allowed are axis"),
        ("Softmax", {"axis": 1.0}, "attribute 'axis' must be of type INT"),
        ("Transpose", {"perm": [0.0]}, "attribute 'perm' must be of type INTS"),
        ("Concat", {}, "attribute 'axis' is missing"),
    ],
)
def test_attributes(op: str, attrs: dict[str, Any], expected: str) -> None:
    assert refusal(one(op, X, **attrs)) == f"node 'n' ({op}): {expected}"


@pytest.mark.parametrize(
    ("op", "attrs", "expected"),
    [
        ("Conv", {"group": 0}, "group has 0, only 1 to 2147483647 is allowed"),
        ("Conv", {"strides": [0, 1]}, "strides has 0, only 1 to 2147483647 is allowed"),
        ("Conv", {"dilations": [1, -1]}, "dilations has -1, only 1 to 2147483647 is allowed"),
        ("Conv", {"kernel_shape": [3, 0]}, "kernel_shape has 0, only 1 to 2147483647 is allowed"),
        (
            "MaxPool",
            {"kernel_shape": [2, 2], "strides": [0, 0]},
            "strides has 0, only 1 to 2147483647 is allowed",
        ),
        ("DepthToSpace", {"blocksize": 0}, "blocksize has 0, only 1 to 2147483647 is allowed"),
        ("Softmax", {"axis": 2**63 - 1}, f"axis has {2**63 - 1}, only -32 to 32 is allowed"),
        ("Split", {"num_outputs": 3}, "num_outputs is 3 for 1 outputs"),
        ("Cast", {"to": 0}, "unknown element type 0"),
        ("Cast", {"to": 99}, "unknown element type 99"),
        ("Einsum", {"equation": "ij-"}, "equation 'ij-' is not of the form 'ij,jk->ik'"),
        ("Einsum", {"equation": b"\xff\xfe"}, "equation b'\\xff\\xfe' is not of the form 'ij,jk->ik'"),
    ],
)
def test_attribute_values(op: str, attrs: dict[str, Any], expected: str) -> None:
    assert refusal(one(op, X, W if op == "Conv" else {}, **attrs)) == f"node 'n' ({op}): {expected}"


def test_values_that_crash_onnxs_inference() -> None:
    inputs = {"x": ("int32", [2, 2, 2]), "i": ("int64", [2, 1])}
    expected = "node 'n' (GatherND): batch_dims has -2, only 0 to 32 is allowed"
    assert refusal(one("GatherND", inputs, batch_dims=-2)) == expected


@pytest.mark.parametrize(
    ("nodes", "version"),
    [
        ({"LabelEncoder": "classes_strings"}, 1),
        ({"LabelEncoder": "keys_int64s"}, 4),
        ({"TreeEnsembleClassifier": "nodes_modes"}, 4),
        ({"TreeEnsembleClassifier": "nodes_modes", "LabelEncoder": "keys_tensor"}, 4),
        ({"TreeEnsemble": "nodes_modes", "LabelEncoder": "keys_tensor"}, 5),
    ],
)
def test_version_of_another_domain_is_the_newest_that_has_its_nodes(
    nodes: dict[str, str], version: int
) -> None:
    """TreeEnsembleClassifier is deprecated since version 5, classes_strings is gone since 2."""
    made = [
        Node(op, ["x"], [f"y{n}"], {name: []}, domain="ai.onnx.ml")
        for n, (op, name) in enumerate(nodes.items())
    ]
    graph = Graph("g", ["x"], ["y0"], [*made, Node("Gelu", ["x"], ["z"], domain="com.microsoft")], {}, {}, 21)
    assert domain_versions(graph) == {"ai.onnx.ml": version, "com.microsoft": 1}
