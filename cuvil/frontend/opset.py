"""From any opset to one: small named rules (`opset_rules`), each for one operator and one version.

The rule of (operator, version) turns a node in the form that held before that version into the
form the version introduced.  A node of an old model passes through the rules of its operator in
the order of their versions, so each rule knows two neighbouring forms only.
"""

from __future__ import annotations

from onnx import checker, defs, helper, numpy_helper, shape_inference

from cuvil.frontend.infer import SMALL_CONSTANT
from cuvil.frontend.onnx_writer import node_to_proto
from cuvil.frontend.opset_rules import RULES, Context
from cuvil.frontend.scope import Namer, Scope, walk
from cuvil.frontend.tensors import type_from_proto, type_to_proto
from cuvil.ir.graph import Graph, Node

CANONICAL_OPSET = 21
"""The opset of graphs after `upgrade`; a model that asks for a newer one keeps its own."""

_INFERENCE_ERRORS = (
    shape_inference.InferenceError, checker.ValidationError, KeyError, RuntimeError, ValueError
)  # fmt: skip
"""What onnx raises where it cannot infer; the checks that follow name the cause."""


def upgrade(graph: Graph) -> None:
    """Bring `graph` to `CANONICAL_OPSET` in place, subgraphs too; newer graphs stay as they are.

    Types of new values are added to `Graph.types`.

    Raises:
        UnsupportedError: an old form cannot be said in the new opset; names the node.
    """
    if graph.opset >= CANONICAL_OPSET:
        return
    read = {name for inner in walk(graph) for name in inner.outputs}
    read.update(name for inner in walk(graph) for node in inner.nodes for name in node.inputs)
    _upgrade(Scope(graph), Namer.of_values(graph), frozenset(read))
    for inner in walk(graph):
        inner.opset = CANONICAL_OPSET


def _upgrade(scope: Scope, fresh: Namer, read: frozenset[str]) -> None:
    nodes: list[Node] = []
    for node in scope.graph.nodes:
        for inner in node.subgraphs():
            _upgrade(scope.inner(inner), fresh, read)
        for new in [node] if node.domain else _upgraded(node, scope, fresh, read):
            new.metadata = new.metadata or dict(node.metadata)
            _infer(new, scope)
            nodes.append(new)
    scope.graph.nodes = nodes


def _upgraded(node: Node, scope: Scope, fresh: Namer, read: frozenset[str]) -> list[Node]:
    """The nodes that say at the canonical opset what `node` says at the graph's."""
    nodes = [node]
    for version in range(scope.graph.opset + 1, CANONICAL_OPSET + 1):
        context = Context(scope, fresh, read, version)
        step: list[Node] = []
        for current in nodes:
            rule = RULES.get((current.op, version))
            replaced = rule(current, context) if rule else None
            step += [current] if replaced is None else replaced
        nodes = step
    return nodes


def _infer(node: Node, scope: Scope) -> None:
    """Add the types of the results of a canonical node that have none yet, so that the rules of
    later nodes can ask for them."""
    graph = scope.graph
    if node.domain or any(node.subgraphs()) or all(name in graph.types for name in node.outputs if name):
        return
    known = {name: scope.type(name) for name in node.inputs if name}
    constants = {name: scope.constant(name) for name in known}
    try:
        found = shape_inference.infer_node_outputs(
            defs.get_schema(node.op, CANONICAL_OPSET),
            node_to_proto(node, CANONICAL_OPSET),
            {name: type_to_proto(value) for name, value in known.items() if value},
            {
                n: numpy_helper.from_array(v, n)
                for n, v in constants.items()
                if v is not None and v.size <= SMALL_CONSTANT
            },
            opset_imports=[helper.make_opsetid("", CANONICAL_OPSET)],
        )
    except _INFERENCE_ERRORS:
        return
    for name, proto in found.items():
        value = type_from_proto(proto, f"value '{name}'")
        if value is not None:
            graph.types.setdefault(name, value)
