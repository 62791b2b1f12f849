"""Segments: the pieces of a graph that one device runs without waiting for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cuvil.ir.graph import Graph, Node, captured


@dataclass(frozen=True)
class Segment:
    """Nodes of a graph that run on one device in one call.

    Attributes:
        device: its name.
        nodes: indices into the graph's nodes, ascending.
        inputs: values that come from elsewhere (graph inputs and other segments), in order.
        outputs: values that others or the user need.
    """

    device: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def segments(graph: Graph, devices: Sequence[str]) -> list[Segment]:
    """Cut `graph` into segments, in an order in which they can run.

    Args:
        graph: nodes in topological order.
        devices: the device of each node.

    A node joins the earliest later segment of its device that nothing it reads comes after, so the
    number of segments stays small.
    """
    level: dict[str, int] = {}
    plan: list[tuple[str, list[int]]] = []
    for index, (node, device) in enumerate(zip(graph.nodes, devices)):
        after = max((level[name] for name in _reads(node) if name in level), default=0)
        position = next((p for p in range(after, len(plan)) if plan[p][0] == device), None)
        if position is None:
            position = len(plan)
            plan.append((device, []))
        plan[position][1].append(index)
        for name in node.outputs:
            level[name] = position
    return [_close(graph, device, indices) for device, indices in plan]


def _reads(node: Node) -> list[str]:
    return [n for n in dict.fromkeys([*node.inputs, *captured(node)]) if n]


def _close(graph: Graph, device: str, indices: list[int]) -> Segment:
    inside = set(indices)
    made = {name for i in indices for name in graph.nodes[i].outputs}
    read_outside = set(graph.outputs)
    for i, node in enumerate(graph.nodes):
        if i not in inside:
            read_outside.update(_reads(node))
    reads = dict.fromkeys(n for i in indices for n in _reads(graph.nodes[i]))
    inputs = tuple(n for n in reads if n not in made and n not in graph.constants)
    outputs = [n for i in indices for n in graph.nodes[i].outputs if n in read_outside]
    ordered = sorted(
        dict.fromkeys(outputs), key=lambda n: graph.outputs.index(n) if n in graph.outputs else -1
    )
    return Segment(device, tuple(indices), inputs, tuple(ordered))


def subgraph(graph: Graph, segment: Segment, name: str) -> Graph:
    """The part of `graph` that a segment computes, as a graph of its own."""
    nodes = [graph.nodes[i] for i in segment.nodes]
    needed = {n for node in nodes for n in _reads(node)}
    constants = {n: a for n, a in graph.constants.items() if n in needed or n in segment.outputs}
    touched = needed | {n for node in nodes for n in node.outputs} | set(segment.outputs)
    types = {n: t for n, t in graph.types.items() if n in touched}
    return Graph(name, list(segment.inputs), list(segment.outputs), nodes, constants, types, graph.opset)


SEGMENT_KEY = "cuvil.segment"
"""Metadata of a node in a device's graph: the number of its segment in the whole program."""


def device_graph(graph: Graph, plan: Sequence[Segment], device: str, name: str) -> Graph:
    """All segments of `device` in one graph; each node says in its metadata which it belongs to."""
    mine = [(k, s) for k, s in enumerate(plan) if s.device == device]
    nodes: list[Node] = []
    for k, segment in mine:
        for i in segment.nodes:
            node = graph.nodes[i]
            metadata = {**node.metadata, SEGMENT_KEY: str(k)}
            nodes.append(
                Node(node.op, node.inputs, node.outputs, node.attrs, node.name, node.domain, metadata)
            )
    made = {n for node in nodes for n in node.outputs}
    inputs = dict.fromkeys(n for _, s in mine for n in s.inputs if n not in made)
    outputs = dict.fromkeys(n for _, s in mine for n in s.outputs)
    needed = {n for node in nodes for n in _reads(node)} | set(outputs)
    constants = {n: a for n, a in graph.constants.items() if n in needed}
    known = needed | made
    types = {n: t for n, t in graph.types.items() if n in known}
    return Graph(name, list(inputs), list(outputs), nodes, constants, types, graph.opset)


def split_device_graph(graph: Graph, wanted: Mapping[int, Mapping[str, Sequence[str]]]) -> dict[int, Graph]:
    """The segments of a device's graph by number, each a graph.

    Args:
        graph: a device's graph as `device_graph` makes it (quantized or not).
        wanted: inputs and outputs of each of its segments.
    """
    result: dict[int, Graph] = {}
    for k, ports in wanted.items():
        indices = tuple(i for i, n in enumerate(graph.nodes) if int(n.metadata.get(SEGMENT_KEY, k)) == k)
        segment = Segment("", indices, tuple(ports["inputs"]), tuple(ports["outputs"]))
        result[k] = subgraph(graph, segment, f"{graph.name}_{k}")
    return result
