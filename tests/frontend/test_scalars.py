"""Scalars that are given as tensors of one element."""

from __future__ import annotations

import numpy as np
from frontend_models import model, run
from onnx import helper

from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.onnx_writer import to_proto


def test_range_of_tensors_of_one_element() -> None:
    """A start and a step of shape [1], as onnxruntime takes them; the limit is a scalar."""
    nodes = [helper.make_node("Range", ["a", "b", "s"], ["y"], name="n")]
    constants = {"b": np.int64(9), "s": np.int64([3])}
    proto = model(nodes, {"a": ("int64", [1])}, {"y": ("int64", None)}, constants)
    graph = graph_from_proto(proto)
    canonicalize(graph)
    assert [node.op for node in graph.nodes] == ["Squeeze", "Range"]  # the constant step is folded
    feeds = {"a": np.int64([2])}
    (y,) = run(to_proto(graph), feeds)
    np.testing.assert_array_equal(y, [2, 5, 8])
    np.testing.assert_array_equal(y, run(proto, feeds)[0])
