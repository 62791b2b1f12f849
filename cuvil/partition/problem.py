"""The placement problem on its own: nodes with a cost on each device, tensors that cost when they travel.

Nothing here knows a graph, a kernel or a board; `cuvil.partition.units` makes a `Problem` of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Placement = list[int]
"""The device of each node."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """What one node makes and others read.

    Attributes:
        producer: the node.
        consumers: the other nodes that read it, each once.
        leave: [D] cost that the producer's device bears once if any consumer is elsewhere.
        enter: [D, D] cost by (producer's device, reader's device) that the reader's device bears
            once, however many of its nodes read the tensor; the diagonal counts for nothing.
    """

    producer: int
    consumers: tuple[int, ...]
    leave: Floats
    enter: Floats


@dataclass(frozen=True, eq=False)
class Problem:
    """A directed acyclic graph to be placed.

    Attributes:
        cost: [n, D] cost of each node on each device; infinite where it cannot run.
        size: [n, D] memory that a node occupies on each device.
        tensors: what travels; they are the edges.
        memory_of: [D] the memory of each device.
        capacity: [M] size of each memory.
        alike: [D] class of each device; devices of a class are interchangeable.
    """

    cost: Floats
    size: Floats
    tensors: tuple[Tensor, ...]
    memory_of: tuple[int, ...]
    capacity: Floats
    alike: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return int(self.cost.shape[0])

    @property
    def devices(self) -> int:
        return int(self.cost.shape[1])

    def edges(self) -> list[tuple[int, int]]:
        """(producer, consumer) pairs, each once."""
        return list(dict.fromkeys((t.producer, c) for t in self.tensors for c in t.consumers))

    def loads(self, placement: Sequence[int]) -> Floats:
        """[D] compute and transfer cost that each device bears."""
        total = np.zeros(self.devices)
        np.add.at(total, np.asarray(placement, int), self.cost[np.arange(self.nodes), placement])
        for t in self.tensors:
            source = placement[t.producer]
            sinks = {placement[c] for c in t.consumers} - {source}
            if sinks:
                total[source] += t.leave[source]
                for sink in sinks:
                    total[sink] += t.enter[source, sink]
        return total

    def used(self, placement: Sequence[int]) -> Floats:
        """[M] bytes that the placement occupies in each memory."""
        used = np.zeros(len(self.capacity))
        for node, device in enumerate(placement):
            used[self.memory_of[device]] += self.size[node, device]
        return used

    def fits(self, placement: Sequence[int]) -> bool:
        """Every memory holds what is placed in it, and every node can run where it is."""
        possible = np.isfinite(self.cost[np.arange(self.nodes), placement]).all()
        return bool(possible and (self.used(placement) <= self.capacity).all())

    def is_contiguous(self, placement: Sequence[int]) -> bool:
        """The devices' parts can run one after the other, each in one piece."""
        import networkx as nx

        quotient = nx.DiGraph(
            (placement[a], placement[b]) for a, b in self.edges() if placement[a] != placement[b]
        )
        return bool(nx.is_directed_acyclic_graph(quotient))


def contract(problem: Problem, together: Sequence[Sequence[int]]) -> tuple[Problem, list[int]]:
    """The problem whose nodes are groups of nodes that stay together, and the group of each node.

    Args:
        together: sets of nodes, which may overlap.  What a cycle through a group holds joins it.
    """
    import networkx as nx

    merged = nx.utils.UnionFind(range(problem.nodes))
    for nodes in together:
        merged.union(*nodes)
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(merged[v] for v in range(problem.nodes))
    graph.add_edges_from((merged[a], merged[b]) for a, b in problem.edges() if merged[a] != merged[b])
    condensed = nx.condensation(graph)
    component = condensed.graph["mapping"]
    first: dict[int, int] = {}
    for v in range(problem.nodes):
        first.setdefault(component[merged[v]], v)
    order = list(nx.lexicographical_topological_sort(condensed, key=first.__getitem__))
    position = {c: k for k, c in enumerate(order)}
    group = [position[component[merged[v]]] for v in range(problem.nodes)]
    cost, size = (np.zeros((len(order), problem.devices)) for _ in range(2))
    np.add.at(cost, group, problem.cost)
    np.add.at(size, group, problem.size)
    tensors = []
    for t in problem.tensors:
        consumers = tuple(dict.fromkeys(group[c] for c in t.consumers if group[c] != group[t.producer]))
        if consumers:
            tensors.append(Tensor(group[t.producer], consumers, t.leave, t.enter))
    made = Problem(cost, size, tuple(tensors), problem.memory_of, problem.capacity, problem.alike)
    return made, group
