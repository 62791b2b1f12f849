"""The board as a graph: devices, memories and the PCIe tree, and what data meets on its way.

Nodes are the profile's names.  Every connection is two directed edges, since PCIe links and the
connections between sockets carry both directions at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import networkx as nx

from cuvil.target.schema import Link, Target

Edge = tuple[str, str]
E = TypeVar("E", bound=Hashable)

_TRANSFERS = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9}


def pcie_raw_bandwidth(generation: int, lanes: int) -> float:
    """Bytes a second of a link in one direction after the line code.

    PCI Express Base Specification: 2.5, 5, 8, 16, 32 GT/s a lane; 8b/10b up to generation 2,
    128b/130b from 3 on.
    """
    code = 8 / 10 if generation <= 2 else 128 / 130
    return _TRANSFERS[generation] * code * lanes / 8


@dataclass(frozen=True)
class Path:
    """A way through the board.

    Attributes:
        nodes: names, both ends included.
        bandwidth: B/s of its narrowest edge; infinite for a path of one node.
        bottleneck: that edge; None for a path of one node.
        latency: s one way, the sum over the edges.
    """

    nodes: tuple[str, ...]
    bandwidth: float
    bottleneck: Edge | None
    latency: float

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The directed edges in order."""
        return tuple(itertools.pairwise(self.nodes))


class Topology:
    """The graph of a target.

    Attributes:
        graph: a `networkx.DiGraph`.  Nodes have ``kind`` (device, memory, root_port, switch, endpoint);
            edges have ``kind`` (memory: a device's own; numa; bridge: memory and root port; pcie; seat:
            endpoint and device), ``bandwidth`` in B/s, ``latency`` in s, and for pcie ``link``.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.graph: nx.DiGraph[Any] = nx.DiGraph()
        pcie = target.pcie
        for kind, items in (
            ("device", target.devices),
            ("memory", target.memories),
            ("root_port", pcie.root_ports),
            ("switch", pcie.switches),
            ("endpoint", pcie.endpoints),
        ):
            self.graph.add_nodes_from((item.name for item in items), kind=kind)
        for device in target.devices:
            memory = target.memory(device.memory)
            self._connect(device.name, memory.name, "memory", memory.bandwidth, memory.latency)
        for memory in target.memories:
            for other, remote in memory.remote.items():
                # A load from a remote node passes the local edge as well.
                self.graph.add_edge(
                    memory.name,
                    other,
                    kind="numa",
                    bandwidth=remote.bandwidth,
                    latency=max(remote.latency - memory.latency, 0.0),
                )
        for port in pcie.root_ports:
            memory = target.memory(port.memory)
            self._connect(port.name, memory.name, "bridge", memory.bandwidth, memory.latency)
        for link in pcie.links:
            raw = pcie_raw_bandwidth(link.generation, link.lanes)
            self._connect(link.upstream, link.downstream, "pcie", raw, link.latency, link=link)
        for endpoint in pcie.endpoints:
            if endpoint.device:
                self._connect(endpoint.name, endpoint.device, "seat", math.inf, 0.0)

    def _connect(self, a: str, b: str, kind: str, bandwidth: float, latency: float, **more: Link) -> None:
        for edge in ((a, b), (b, a)):
            self.graph.add_edge(*edge, kind=kind, bandwidth=bandwidth, latency=latency, **more)

    def path(self, source: str, sink: str) -> Path:
        """The way of least latency between any two nodes of the graph.

        Raises:
            KeyError: no such node.
        """
        for name in (source, sink):
            if name not in self.graph:
                raise KeyError(name)
        nodes = tuple(nx.dijkstra_path(self.graph, source, sink, weight="latency"))
        edges = [(edge, self.graph.edges[edge]) for edge in itertools.pairwise(nodes)]
        bottleneck, narrowest = min(
            edges, key=lambda item: item[1]["bandwidth"], default=(None, {"bandwidth": math.inf})
        )
        return Path(nodes, narrowest["bandwidth"], bottleneck, sum(data["latency"] for _, data in edges))

    def numa_weights(self) -> dict[Edge, float]:
        """(memory of the reader, memory of the data) -> latency relative to the local one.

        1.0 locally; a remote of 192 ns beside 85 ns weighs 2.26.  Memories that are reached through
        PCIe only are left out.
        """
        weights: dict[Edge, float] = {}
        for memory in self.target.memories:
            weights[memory.name, memory.name] = 1.0
            for other, remote in memory.remote.items():
                weights[memory.name, other] = remote.latency / memory.latency
        return weights

    def capacities(self) -> dict[Edge, float]:
        """B/s of every directed edge."""
        return {(a, b): data["bandwidth"] for a, b, data in self.graph.edges(data=True)}


def fair_share(flows: Sequence[Sequence[E]], capacities: Mapping[E, float]) -> list[float]:
    """Max-min fair rates of concurrent flows, in the unit of `capacities`.

    Progressive filling (Bertsekas & Gallager, Data Networks, section 6.5.2): all rates grow together; when an
    edge is full, the flows through it keep their rate.

    Args:
        flows: for each flow the edges it passes.
        capacities: capacity of every edge.

    Returns:
        The rate of each flow; infinite for a flow that passes no finite edge.
    """
    rates = [math.inf] * len(flows)
    growing = {index for index, flow in enumerate(flows) if flow}
    left = {edge: capacities[edge] for flow in flows for edge in flow}
    level = 0.0
    while growing:
        users = {edge: sum(edge in flows[index] for index in growing) for edge in left}
        step = min(left[edge] / count for edge, count in users.items() if count)
        if step == math.inf:
            break
        level += step
        left = {edge: room - step * users[edge] for edge, room in left.items()}
        full = {e for e, room in left.items() if users[e] and room <= 1e-9 * capacities[e] < math.inf}
        for index in [index for index in growing if full.intersection(flows[index])]:
            rates[index] = level
            growing.remove(index)
    return rates
