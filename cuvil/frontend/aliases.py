"""Values that are other values under a new name: Identity, and Dropout at inference."""

from __future__ import annotations

from cuvil.frontend.scope import Scope, constant_flag, substitute
from cuvil.ir.graph import Graph, Node


def remove_aliases(graph: Graph, outer: Scope | None = None) -> None:
    """Remove Identity and inference Dropout nodes from `graph` and its subgraphs, in place, by
    renaming.

    Names of graph inputs and outputs never change.  A node stays where renaming cannot say what
    it says: a graph output that is a graph input, an outer value, or another graph output.
    """
    scope = Scope(graph, outer)
    for node in graph.nodes:
        for inner in node.subgraphs():
            remove_aliases(inner, scope)
    producers = {name for node in graph.nodes for name in node.outputs}
    outputs = set(graph.outputs)
    renamed: dict[str, str] = {}

    def current(name: str) -> str:
        while name in renamed:
            name = renamed[name]
        return name

    kept: list[Node] = []
    for node in graph.nodes:
        if not _is_alias(node, scope, outputs):
            kept.append(node)
            continue
        source, target = current(node.inputs[0]), node.outputs[0]
        if target not in outputs:
            renamed[target] = source
        elif source in graph.constants:
            graph.constants[target] = graph.constants[source]
        elif source in producers and source not in outputs:
            renamed[source] = target
        else:
            kept.append(node)
    graph.nodes = kept
    substitute(graph, {name: current(name) for name in renamed})


def _is_alias(node: Node, scope: Scope, outputs: set[str]) -> bool:
    if node.domain or not node.inputs or not node.inputs[0]:
        return False
    if node.op == "Identity":
        return True
    if node.op != "Dropout" or _mask_is_read(node, scope, outputs):
        return False
    return scope.graph.opset < 12 or constant_flag(scope, node, 2) is False


def _mask_is_read(node: Node, scope: Scope, outputs: set[str]) -> bool:
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    return bool(mask) and (mask in outputs or mask in scope.graph.consumers())
