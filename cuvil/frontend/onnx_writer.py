"""A Graph as an ONNX model: the same graph gives the same bytes, and any ONNX tool reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper, numpy_helper

from cuvil import fsio
from cuvil.errors import ModelError
from cuvil.frontend.schema import domain_versions
from cuvil.frontend.tensors import byte_size, type_of, type_to_proto
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.limits import MAX_MODEL_BYTES

PRODUCER = "cuvil"

MIN_IR_VERSION = 10
"""The IR version of opset 21, the first with metadata on nodes."""


def write_model(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `graph` to `path` as ONNX, atomically; equal graphs give equal bytes.

    Raises:
        ModelError: the file would exceed `MAX_MODEL_BYTES`, the most that protobuf can hold.
    """
    fsio.write_bytes(path, to_bytes(graph))


def to_bytes(graph: Graph) -> bytes:
    """`graph` as the bytes of an ONNX file."""
    size = sum(_weight_bytes(graph))
    if size < MAX_MODEL_BYTES:
        data: bytes = to_proto(graph).SerializeToString(deterministic=True)
        size = len(data)
    if size >= MAX_MODEL_BYTES:
        raise ModelError(
            f"the graph needs {size} bytes, an ONNX file holds less than {MAX_MODEL_BYTES}", graph.name
        )
    return data


def to_proto(graph: Graph, keep: Callable[[np.ndarray], bool] | None = None) -> onnx.ModelProto:
    """`graph` as an ONNX model of its own opset.

    Args:
        graph: any graph; values with a known type get a `value_info`.
        keep: says which constants of the outermost graph are written; the others become inputs
            of the model (for tools that need types, not weights).  None writes all.
    """
    proto = _graph(graph, keep)
    opsets = [helper.make_opsetid("", graph.opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in domain_versions(graph).items()]
    version = max(MIN_IR_VERSION, helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", graph.opset), 0))
    return helper.make_model(proto, opset_imports=opsets, producer_name=PRODUCER, ir_version=version)


def node_to_proto(node: Node, opset: int) -> onnx.NodeProto:
    """One node as protobuf, attributes in the order of their names."""
    proto = onnx.NodeProto(
        op_type=node.op, input=node.inputs, output=node.outputs, name=node.name, domain=node.domain
    )
    proto.attribute.extend(_attribute(node, key, opset) for key in sorted(node.attrs))
    for key in sorted(node.metadata):
        proto.metadata_props.add(key=key, value=node.metadata[key])
    return proto


BUNDLES = {"cuvil.inputs": "input_bundles", "cuvil.outputs": "output_bundles"}
"""Keys of a graph's metadata, and what they hold, as JSON."""


def _graph(graph: Graph, keep: Callable[[np.ndarray], bool] | None = None) -> onnx.GraphProto:
    proto = onnx.GraphProto(name=graph.name or "graph")
    proto.input.extend(_value(name, graph.types.get(name)) for name in graph.inputs)
    for name, array in graph.constants.items():
        if keep is None or keep(array):
            proto.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        else:
            proto.input.append(_value(name, type_of(array)))
    outputs = set(graph.outputs)
    for node in graph.nodes:
        proto.node.append(node_to_proto(node, graph.opset))
        proto.value_info.extend(
            _value(name, graph.types[name])
            for name in node.outputs
            if name in graph.types and name not in outputs
        )
    proto.output.extend(
        _value(name, type_of(graph.constants[name]) if name in graph.constants else graph.types.get(name))
        for name in graph.outputs
    )
    for key, field in BUNDLES.items():
        if bundles := getattr(graph, field):
            proto.metadata_props.add(key=key, value=json.dumps([asdict(b) for b in bundles]))
    return proto


def _value(name: str, known: TensorType | None) -> onnx.ValueInfoProto:
    proto = onnx.ValueInfoProto(name=name)
    if known is not None:
        proto.type.CopyFrom(type_to_proto(known))
    return proto


def _attribute(node: Node, key: str, opset: int) -> AttributeProto:
    value: Any = node.attrs[key]
    if isinstance(value, Graph):
        return AttributeProto(name=key, type=AttributeProto.GRAPH, g=_graph(value))
    if isinstance(value, np.ndarray):
        return AttributeProto(name=key, type=AttributeProto.TENSOR, t=numpy_helper.from_array(value))
    if isinstance(value, TensorType):
        return AttributeProto(name=key, type=AttributeProto.TYPE_PROTO, tp=type_to_proto(value))
    if isinstance(value, (list, tuple)) and not value:
        return AttributeProto(name=key, type=_empty_list_type(node, key, opset))
    return helper.make_attribute(key, value)


def _empty_list_type(node: Node, key: str, opset: int) -> int:
    """The list type of an attribute whose value does not show it."""
    if not node.domain and defs.has(node.op):
        attributes = defs.get_schema(node.op, opset).attributes
        if key in attributes:
            return int(AttributeProto.AttributeType.Value(attributes[key].type.name))
    return int(AttributeProto.INTS)


def _weight_bytes(graph: Graph) -> list[int]:
    own = [byte_size(type_of(array).dtype, array.size) for array in graph.constants.values()]
    return own + [size for node in graph.nodes for inner in node.subgraphs() for size in _weight_bytes(inner)]
