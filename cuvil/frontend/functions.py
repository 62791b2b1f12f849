"""Operators that ONNX defines by a function body, and that have no lowering of their own, become
the nodes of that body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, defs, helper

import cuvil.ops  # noqa: F401  (fills the registry)
from cuvil.errors import CuvilError
from cuvil.frontend.infer import UNKNOWN
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.onnx_writer import PRODUCER, node_to_proto
from cuvil.frontend.opset import upgrade
from cuvil.frontend.scope import Namer, Scope, definitions, substitute, walk
from cuvil.frontend.tensors import type_to_proto
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.ops.registry import OPERATORS


def expand_functions(graph: Graph) -> bool:
    """Replace such nodes in `graph` and its subgraphs, in place; says whether there were any.

    A node stays, for the error to name it, where its body has an operator without a lowering too or
    does not fit its inputs.
    The types of the new values are not known yet.
    """
    return _expand(Scope(graph), Namer.of_values(graph))


def _expand(scope: Scope, fresh: Namer) -> bool:
    graph, expanded = scope.graph, False
    nodes: list[Node] = []
    for node in graph.nodes:
        for inner in node.subgraphs():
            expanded |= _expand(scope.inner(inner), fresh)
        body = None if node.domain or _is_lowered(node) else _body(node, scope)
        if body is None:
            nodes.append(node)
            continue
        nodes += _insert(body, node, graph, fresh)
        expanded = True
    graph.nodes = nodes
    return expanded


def _is_lowered(node: Node) -> bool:
    return (node.domain, node.op) in OPERATORS


def _body(node: Node, scope: Scope) -> Graph | None:
    """What `node` computes, at its scope's opset or the one before in which it was written.

    Its inputs and outputs are those that `node` has, by their formal names.
    """
    types = [scope.type(name) if name else None for name in node.inputs]
    if any(name and known is None for name, known in zip(node.inputs, types)):
        return None
    opset = scope.graph.opset
    function = _function(node, types, opset)
    if function is None:
        return None
    schema = defs.get_schema(node.op, opset)
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    given |= {a.name: a for a in node_to_proto(node, opset).attribute}
    inputs = [
        helper.make_value_info(formal, type_to_proto(known))
        for formal, known in zip(function.input, types)
        if known is not None
    ]
    outputs = [onnx.ValueInfoProto(name=f) for f, name in zip(function.output, node.outputs) if name]
    present = {value.name for value in inputs}
    nodes = _bound(function.node, given, frozenset(set(function.input) - present))
    proto = helper.make_model(
        helper.make_graph(nodes, node.op, inputs, outputs),
        opset_imports=function.opset_import,
        producer_name=PRODUCER,
    )
    try:
        body = graph_from_proto(proto)
        upgrade(body)
    except CuvilError:
        return None
    expand_functions(body)
    return body if all(_is_lowered(n) for inner in walk(body) for n in inner.nodes) else None


def _function(node: Node, types: Sequence[TensorType | None], opset: int) -> FunctionProto | None:
    """The newest function that defines `node` up to `opset`; some depend on attributes and types."""
    schema = defs.get_schema(node.op, opset)
    plain = [v for v in schema.function_opset_versions if v <= opset]
    if plain:
        return FunctionProto.FromString(schema.get_function_with_opset_version(max(plain)))
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        return None
    protos = [onnx.TypeProto() if t is None else type_to_proto(t) for t in types]
    data = schema.get_context_dependent_function_with_opset_version(
        max(versions),
        node_to_proto(node, opset).SerializeToString(),
        [proto.SerializeToString() for proto in protos],
    )
    return FunctionProto.FromString(data) if data else None


def _bound(
    nodes: Iterable[NodeProto], given: Mapping[str, AttributeProto], omitted: frozenset[str]
) -> list[NodeProto]:
    """The nodes of a function with the attributes `given` to it in the place of references, and
    without its `omitted` inputs."""
    bound = []
    for original in nodes:
        node = NodeProto()
        node.CopyFrom(original)
        del node.attribute[:], node.input[:]
        node.input.extend("" if name in omitted else name for name in original.input)
        for attribute in original.attribute:
            value = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if value is None:
                continue
            copy = node.attribute.add()
            copy.CopyFrom(value)
            copy.name = attribute.name
            if copy.type == AttributeProto.GRAPH and not attribute.ref_attr_name:
                del copy.g.node[:]
                copy.g.node.extend(_bound(value.g.node, given, omitted))
        bound.append(node)
    return bound


def _insert(body: Graph, node: Node, graph: Graph, fresh: Namer) -> list[Node]:
    """The nodes of `body` under names that are new to `graph`; constants go to the graph."""
    base = node.name or next(name for name in node.outputs if name)
    for inner in walk(body):
        for name, known in inner.types.items():
            shape = (
                None
                if known.shape is None
                else tuple(d if isinstance(d, int) else UNKNOWN for d in known.shape)
            )
            inner.types[name] = TensorType(known.dtype, shape)
    own = dict.fromkeys(name for inner in walk(body) for name in definitions(inner))
    for name in own:  # so that no new name is an old one
        fresh(name)
    new = {name: fresh(f"{base}.{name}") for name in own}
    substitute(body, new)
    actual = dict(zip(body.inputs, (name for name in node.inputs if name)))
    made: dict[str, str] = {}
    copies = []
    computed = {name for n in body.nodes for name in n.outputs}
    for formal, name in zip(body.outputs, (name for name in node.outputs if name)):
        if formal in computed:
            made[formal] = name
        else:
            copies.append(Node("Identity", [formal], [name]))
    body.nodes += copies
    substitute(body, {**actual, **made})
    graph.constants.update(body.constants)
    for number, inside in enumerate(body.nodes):
        inside.name = f"{base}.{inside.name or number}"
        inside.metadata = {**node.metadata, **inside.metadata}
    return body.nodes
