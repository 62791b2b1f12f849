"""Small models for the tests of the front end, and ways to run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.ir.graph import Graph

onnxruntime.set_default_logger_severity(4)

F32 = "float32"
TypedShape = tuple[str, Sequence[Any] | None]


def value(name: str, dtype: str, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(object if dtype == "string" else dtype))
    return helper.make_tensor_value_info(name, code, shape)


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, TypedShape],
    outputs: Mapping[str, TypedShape] | Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int | None = 21,
    **more: Any,
) -> onnx.ModelProto:
    """A model; outputs given by name only are float32 of unknown shape."""
    typed = outputs if isinstance(outputs, Mapping) else {name: (F32, None) for name in outputs}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [value(name, *kind) for name, kind in inputs.items()],
        [value(name, *kind) for name, kind in typed.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
        value_info=more.pop("value_info", ()),
    )
    opsets = [] if opset is None else [helper.make_opsetid("", opset)]
    opsets += more.pop("opsets", [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=more.pop("ir_version", 8), **more)


def one(
    op: str,
    inputs: Mapping[str, TypedShape],
    constants: Mapping[str, Any] | None = None,
    order: Sequence[str] | None = None,
    opset: int = 21,
    outputs: Mapping[str, TypedShape] | Sequence[str] = ("y",),
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node called ``n``; its operands in the order inputs, constants, or `order`."""
    names = list(order) if order is not None else [*inputs, *(constants or {})]
    node = helper.make_node(op, names, list(outputs), name="n", **attrs)
    return model([node], inputs, outputs, constants, opset)


def save(folder: Path, proto: onnx.ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in onnxruntime, with its own optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {i.name for i in session.get_inputs()}
    return list(session.run(None, {k: v for k, v in feeds.items() if k in wanted}))


def read(proto: onnx.ModelProto, **more: Any) -> Graph:
    return graph_from_proto(proto, **more)


def same(left: Graph, right: Graph) -> bool:
    """Whether two graphs are equal, arrays and subgraphs included."""
    return (
        (left.name, left.inputs, left.outputs, left.opset)
        == (right.name, right.inputs, right.outputs, right.opset)
        and left.types == right.types
        and _equal(left.constants, right.constants)
        and len(left.nodes) == len(right.nodes)
        and all(
            (a.op, a.inputs, a.outputs, a.name, a.domain, a.metadata)
            == (b.op, b.inputs, b.outputs, b.name, b.domain, b.metadata)
            and _equal(a.attrs, b.attrs)
            for a, b in zip(left.nodes, right.nodes)
        )
    )


def _equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left.keys() == right.keys() and all(_same_value(left[key], right[key]) for key in left)


def _same_value(left: Any, right: Any) -> bool:
    if isinstance(left, Graph):
        return isinstance(right, Graph) and same(left, right)
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and (left.dtype, left.shape) == (right.dtype, right.shape)
            and (
                left.tolist() == right.tolist() if left.dtype == object else left.tobytes() == right.tobytes()
            )
        )
    return type(left) is type(right) and left == right
