"""Operators that are expanded by their ONNX function: names, attributes, omitted inputs, and what they
compute."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_models import F32, model, one
from onnx import helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from cuvil.frontend.functions import expand_functions
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.onnx_writer import to_proto
from cuvil.frontend.scope import definitions, walk
from cuvil.ir.graph import Graph
from cuvil.ops.registry import OPERATORS

CASES = re.compile(
    "test_(celu|clip_default_min|elu_default|gelu_tanh_1|greater_equal|group_normalization_epsilon|hardswish"
    "|layer_normalization_2d_axis1|logsoftmax_axis_0|linear_attention_gated_delta|mvn|prelu_broadcast"
    "|reduce_l2_keep_dims_random|rms_normalization_2d_axis1|rotary_embedding"
    "|sce_mean_weight_ii|nllloss_NCd1d2_ii|softplus|swish|thresholdedrelu|attention_3d_gqa"
    "|hannwindow_symmetric|blackmanwindow|hammingwindow)"
)
"""Node cases of functions with attributes, defaults, omitted inputs, control flow and other functions."""


def suite() -> list[Any]:
    cases = load_model_tests(kind="node")
    return [case for case in cases if CASES.fullmatch(case.name)]


@pytest.mark.parametrize("case", suite(), ids=lambda case: case.name)
def test_the_body_computes_the_same(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no lowering of its own the operator is replaced, and ONNX's evaluator gets the suite's result."""
    op = case.model.graph.node[0].op_type
    monkeypatch.delitem(OPERATORS, ("", op), raising=False)
    monkeypatch.setitem(OPERATORS, ("", "Scan"), OPERATORS["", "If"])  # only whether it is there counts
    graph = graph_from_proto(case.model)
    canonicalize(graph)
    assert op not in {node.op for inner in walk(graph) for node in inner.nodes}
    inputs, wanted = case.data_sets[0]
    feeds = {name: as_array(value) for name, value in zip(graph.inputs, inputs)}
    got = ReferenceEvaluator(to_proto(graph)).run(None, feeds)
    for left, right in zip(got, map(as_array, wanted)):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=max(case.rtol, 1e-4), atol=1e-5)


def as_array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def expanded(proto: onnx.ModelProto) -> Graph:
    graph = graph_from_proto(proto)
    assert expand_functions(graph)
    return graph


def test_attributes_given_and_by_default() -> None:
    size = {"n": ("int64", [])}
    by_default = expanded(one("HannWindow", size))
    given = expanded(
        one("HannWindow", size, outputs={"y": ("float64", None)}, periodic=0, output_datatype=11)
    )
    assert [int(g.constants["n.IsPeriodic"]) for g in (by_default, given)] == [1, 0]
    assert [g.nodes[-1].attrs["to"] for g in (by_default, given)] == [1, 11]


def test_names_are_new() -> None:
    """Two calls, one of them in a branch, and a value that already has a name that would be used."""
    call = helper.make_node("HannWindow", ["n"], ["w"], name="a")
    inner = helper.make_graph([helper.make_node("HannWindow", ["n"], ["v"], name="a")], "then", [], [
        helper.make_tensor_value_info("v", 1, None)])  # fmt: skip
    other = helper.make_graph([helper.make_node("Neg", ["a.One"], ["u"])], "else", [], [
        helper.make_tensor_value_info("u", 1, None)])  # fmt: skip
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    proto = model(
        [call, branch], {"n": ("int64", []), "c": ("bool", []), "a.One": (F32, ["k"])}, ["w", "y"], opset=17
    )
    graph = expanded(proto)
    names = [name for each in walk(graph) for name in definitions(each)]
    assert len(names) == len(set(names)) and "a.One_1" in names
    feeds = {"n": np.int64(5), "c": np.bool_(True), "a.One": np.ones(2, np.float32)}
    w, y = ReferenceEvaluator(to_proto(graph)).run(None, feeds)
    np.testing.assert_allclose(w, y)
    np.testing.assert_allclose(w, np.hanning(6)[:5], atol=1e-6)


def test_a_node_stays_where_its_body_has_no_lowering() -> None:
    graph = graph_from_proto(one("Bernoulli", {"x": (F32, [3])}))
    assert not expand_functions(graph)
    assert [node.op for node in graph.nodes] == ["Bernoulli"]


def test_outputs_that_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the mean and the inverse deviation need is dead code, which simplifying removes."""
    monkeypatch.delitem(OPERATORS, ("", "LayerNormalization"))
    inputs = {"x": (F32, [2, 3]), "s": (F32, [3])}
    alone = graph_from_proto(one("LayerNormalization", inputs))
    call = helper.make_node("LayerNormalization", ["x", "s"], ["y", "", "d"])
    both = graph_from_proto(model([call], inputs, ["y", "d"]))
    for graph in (alone, both):
        canonicalize(graph)
    x, s = np.float32([[1, 2, 4], [0, 3, 3]]), np.float32([1, 2, 3])
    (y,) = ReferenceEvaluator(to_proto(alone)).run(None, {"x": x, "s": s})
    again, d = ReferenceEvaluator(to_proto(both)).run(None, {"x": x, "s": s})
    np.testing.assert_allclose(y, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) * s, rtol=1e-4)
    np.testing.assert_array_equal(y, again)
    np.testing.assert_allclose(d, 1 / x.std(1, keepdims=True), rtol=1e-4)
