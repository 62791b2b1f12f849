"""Which device runs which node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cuvil.cost.estimate import Cost, cpu_devices, estimate
from cuvil.ir.graph import Graph
from cuvil.partition.segments import Segment, segments

ROUNDS = 3
"""Rounds of placing, and of predicting the kernels that result."""


@dataclass(frozen=True)
class Partition:
    """A placement and what it is expected to cost.

    Attributes:
        segments: in order of execution.
        left_out: the devices that get nothing because they cannot, and why.
        cost: of the kernels that will run, one device after the other.
        objective: ``latency`` or ``throughput``.
        value: the objective, s: latency or the largest load, expected time plus a weight on the
            excess of its quantile (`units.RISK_WEIGHT`).
        lower_bound: no placement of the units has a smaller one.
        method: what found the placement.
        loads: by device, expected kernel times and transfers to it, s.
        memory: by memory, bytes of weights.
        units: how many units were placed.
    """

    segments: list[Segment]
    left_out: dict[str, str]
    cost: Cost
    objective: str
    value: float
    lower_bound: float
    method: str
    loads: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    units: int = 1

    def to_json(self, graph: Graph) -> dict[str, Any]:
        """``partition.json``; times in whole nanoseconds."""
        return {
            "inputs": graph.inputs,
            "outputs": graph.outputs,
            "input_bundles": [asdict(b) for b in graph.input_bundles],
            "output_bundles": [asdict(b) for b in graph.output_bundles],
            "tensors": {n: _declared(graph, n) for n in dict.fromkeys([*graph.inputs, *graph.outputs])},
            "segments": [
                {
                    "device": s.device,
                    "inputs": list(s.inputs),
                    "outputs": list(s.outputs),
                    "nodes": list(s.nodes),
                }
                for s in self.segments
            ],
            "left_out": self.left_out,
            "objective": self.objective,
            "value_ns": round(self.value * 1e9),
            "lower_bound_ns": round(self.lower_bound * 1e9),
            "method": self.method,
            "units": self.units,
            "loads_ns": {d: round(t * 1e9) for d, t in self.loads.items()},
            "memory_bytes": self.memory,
            "transfers": [t.to_json() for t in self.cost.transfers],
            "predicted": self.cost.summary(),
        }


def _declared(graph: Graph, name: str) -> dict[str, Any]:
    kind = graph.types[name]
    return {"dtype": kind.dtype, "shape": list(kind.shape or ())}


def partition(
    graph: Graph, target: Mapping[str, Any], bindings: Mapping[str, int] | None = None
) -> Partition:
    """Place every node of `graph`.

    Args:
        graph: as the import stage leaves it.
        target: the ``partition`` slice of a target.
        bindings: symbolic sizes that costs are predicted for; those that are missing count as 1.

    Raises:
        CuvilError: no CPU device, or the weights do not fit the memories.
    """
    devices = cpu_devices(target)
    left_out = {n: "no back end yet" for n in target["devices"] if n not in devices}
    objective = target["partition"]["objective"]
    sizes = dict(bindings or {})
    if len(devices) == 1 or not graph.nodes:
        placed = segments(graph, devices[:1] * len(graph.nodes))
        cost = estimate(graph, target, sizes)
        return Partition(
            placed,
            left_out,
            cost,
            objective,
            cost.latency,
            cost.latency,
            "single device",
            _loads(devices, cost),
            {target["devices"][devices[0]]["memory"]: sum(a.nbytes for a in graph.constants.values())},
        )
    return _solved(graph, target, devices, left_out, sizes)


def _solved(
    graph: Graph,
    target: Mapping[str, Any],
    devices: Sequence[str],
    left_out: dict[str, str],
    sizes: Mapping[str, int],
) -> Partition:
    """The best of a few placements by the cost of the kernels that result: each is the optimum of a
    problem that has learned from the ones before what their cuts cost."""
    from cuvil.partition import solver
    from cuvil.partition.units import RISK_WEIGHT, units

    objective = target["partition"]["objective"]
    made = units(graph, target, devices, sizes)
    best: Partition | None = None
    bound = 0.0
    seen: set[tuple[int, ...]] = set()
    learned = made
    for _ in range(ROUNDS):
        solution = solver.solve(learned.problem, objective)
        bound = bound or solution.lower_bound
        for placement in (solution.chain, solution.placement):
            if placement is None or tuple(placement) in seen:
                continue
            seen.add(tuple(placement))
            placed = segments(graph, learned.placed(placement))
            cost = estimate(graph, target, sizes, placed)
            weighed = _loads(devices, cost, RISK_WEIGHT)
            value = sum(weighed.values()) if objective == "latency" else max(weighed.values())
            learned = learned.corrected(placement, cost)
            if best is not None and value >= best.value:
                continue
            used = made.problem.used(placement)
            best = Partition(
                placed,
                left_out,
                cost,
                objective,
                value,
                min(bound, value),
                solution.method if placement is solution.placement else "dynamic programming over ideals",
                _loads(devices, cost),
                {m: int(b) for m, b in zip(made.memories, used)},
                made.problem.nodes,
            )
    assert best is not None
    return best


def _loads(devices: Sequence[str], cost: Cost, weight: float = 0.0) -> dict[str, float]:
    """By device, expected kernel times and transfers to it, with a weight on the quantile's excess."""
    found = dict.fromkeys(devices, 0.0)
    for k in cost.kernels:
        found[k.device] += k.latency + weight * max(k.late - k.latency, 0.0)
    for t in cost.transfers:
        found[t.sink] += t.time + weight * max(t.late - t.time, 0.0)
    return found
