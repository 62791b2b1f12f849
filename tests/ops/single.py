"""Models of a few nodes, and what onnxruntime says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    dims: Mapping[str, Sequence[int | str]] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model of `nodes` whose inputs have the types of `feeds` and, but for those in `dims`, their shapes.

    The outputs' types are left to shape inference and thus to the compiler.
    """
    symbolic = dims or {}
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), symbolic.get(name, list(a.shape))
        )
        for name, a in feeds.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(
    op: str, inputs: str, outputs: str = "y", domain: str = "", name: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node with space-separated inputs and outputs; ``-`` omits one."""
    ins, outs = ([("" if n == "-" else n) for n in text.split()] for text in (inputs, outputs))
    return helper.make_node(op, ins, outs, domain=domain, name=name or op, **attributes)


def reference(m: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """onnxruntime's outputs, without graph optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, dict(feeds))]
