"""Scalars given as tensors of one element, which runtimes accept and exporters (and the function bodies
of ONNX itself, AffineGrid's) write, become what the standard asks for."""

from __future__ import annotations

from cuvil.frontend.scope import Namer, Scope
from cuvil.ir.graph import Graph, Node

SCALARS = {"Range": (0, 1, 2)}
"""Operators that are refused otherwise, and which of their inputs must be scalars."""


def make_scalars(graph: Graph) -> bool:
    """Squeeze such inputs in `graph`, at opset 13 or later, and its subgraphs, in place; says whether
    there were any.  The types of what depends on them are not known yet."""
    return _make(Scope(graph), Namer.of_values(graph))


def _make(scope: Scope, fresh: Namer) -> bool:
    nodes: list[Node] = []
    changed = False
    for node in scope.graph.nodes:
        for inner in node.subgraphs():
            changed |= _make(scope.inner(inner), fresh)
        for index in SCALARS.get(node.op, ()) if not node.domain else ():
            name = node.inputs[index]
            shape = scope.shape(name)
            if shape and all(size == 1 for size in shape):
                node.inputs[index] = fresh(f"{name}_scalar")
                nodes.append(Node("Squeeze", [name], [node.inputs[index]], name=node.inputs[index]))
                changed = True
        nodes.append(node)
    scope.graph.nodes = nodes
    return changed
