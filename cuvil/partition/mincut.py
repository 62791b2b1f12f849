"""The latency objective by minimum cuts: exact for two devices, pair by pair for more.

With one device running at a time, a placement costs a sum of terms that each depend on one node or
on one tensor, and for two devices that sum is the weight of a cut (Stone, "Multiprocessor scheduling
with the aid of network flow algorithms", 1977).  That a tensor is paid once for all its readers on a
device takes one auxiliary vertex for each tensor and direction.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

from cuvil.partition.problem import Placement, Problem

_RESOLUTION = 1 << 40
"""Capacities are whole multiples of the largest one divided by this, so that the flow is exact."""

_SOURCE, _SINK = "source", "sink"


class _Network:
    """A flow network; vertices on the source's side go to the first device."""

    def __init__(self) -> None:
        self.capacity: dict[tuple[Hashable, Hashable], float] = {}

    def arc(self, tail: Hashable, head: Hashable, weight: float) -> None:
        """`weight` is paid where `tail` is on the source's side and `head` on the sink's."""
        if weight > 0:
            self.capacity[tail, head] = self.capacity.get((tail, head), 0.0) + weight

    def source_side(self) -> set[Any]:
        import networkx as nx

        top = max((c for c in self.capacity.values() if c < math.inf), default=1.0)
        graph: nx.DiGraph[Any] = nx.DiGraph()
        graph.add_nodes_from((_SOURCE, _SINK))
        for (tail, head), weight in self.capacity.items():
            if weight == math.inf:
                graph.add_edge(tail, head)
            else:
                graph.add_edge(tail, head, capacity=round(weight / top * _RESOLUTION))
        _, (near, _) = nx.minimum_cut(graph, _SOURCE, _SINK)
        return set(near)


def swap(
    problem: Problem, placement: Sequence[int], a: int, b: int, price: Sequence[float] = ()
) -> Placement:
    """The best placement that differs from `placement` only by moves between devices `a` and `b`.

    Args:
        price: cost of a byte in each memory, added to the nodes' costs; none where empty.

    Every node on `a` or `b` must be able to run on one of the two.
    """
    free = {v for v, device in enumerate(placement) if device in (a, b)}
    network = _Network()
    for v in free:
        on = []
        for device in (a, b):
            memory = problem.memory_of[device]
            extra = price[memory] * problem.size[v, device] if price else 0.0
            on.append(float(problem.cost[v, device] + extra))
        least = min(on)
        network.arc(v, _SINK, on[0] - least)
        network.arc(_SOURCE, v, on[1] - least)
    for k, t in enumerate(problem.tensors):
        readers = [c for c in t.consumers if c in free]
        elsewhere = {placement[c] for c in t.consumers if c not in free}
        p = t.producer
        if p in free:
            here = t.leave if elsewhere else t.leave * 0
            network.arc(p, _SINK, float(here[a] + sum(t.enter[a, d] for d in elsewhere)))
            network.arc(_SOURCE, p, float(here[b] + sum(t.enter[b, d] for d in elsewhere)))
            there = t.leave * 0 if elsewhere else t.leave
            network.arc(p, ("to b", k), float(there[a] + t.enter[a, b]))
            network.arc(("to a", k), p, float(there[b] + t.enter[b, a]))
        else:
            source = placement[p]
            network.arc(_SOURCE, ("to b", k), float(t.enter[source, b]))
            network.arc(("to a", k), _SINK, float(t.enter[source, a]))
        for c in readers:
            network.arc(("to b", k), c, math.inf)
            network.arc(c, ("to a", k), math.inf)
    near = network.source_side()
    return [(a if v in near else b) if v in free else device for v, device in enumerate(placement)]


def swaps(problem: Problem, placement: Sequence[int]) -> Placement:
    """`swap` over all pairs of devices until none of them helps (alpha-beta swaps, Boykov, Veksler
    and Zabih 2001); what does not fit the memories is not taken."""
    best = list(placement)
    value = float(problem.loads(best).sum())
    again = True
    while again:
        again = False
        for a in range(problem.devices):
            for b in range(a + 1, problem.devices):
                found = swap(problem, best, a, b)
                new = float(problem.loads(found).sum())
                if new < value * (1 - 1e-12) and problem.fits(found):
                    best, value, again = found, new, True
    return best
