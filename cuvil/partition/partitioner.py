"""Which device runs which node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuvil.cost.estimate import Cost, cpu_devices, estimate
from cuvil.ir.graph import Graph
from cuvil.partition.segments import Segment, segments


@dataclass(frozen=True)
class Partition:
    """A placement and what it is expected to cost.

    Attributes:
        segments: in order of execution.
        left_out: the devices that get nothing because they cannot, and why.
        cost: of the kernels that will run, one device after the other.
        objective: ``latency`` or ``throughput``.
        value: the solver's objective, s, with the weight on the quantile.
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
    from cuvil.partition import solver
    from cuvil.partition.units import units

    made = units(graph, target, devices, sizes)
    solution = solver.solve(made.problem, objective)
    chosen = [devices[solution.placement[u]] for u in made.unit]
    placed = segments(graph, chosen)
    used = made.problem.used(solution.placement)
    cost = estimate(graph, target, sizes, placed)
    return Partition(
        placed,
        left_out,
        cost,
        objective,
        solution.value,
        solution.lower_bound,
        solution.method,
        _loads(devices, cost),
        {m: int(b) for m, b in zip(made.memories, used)},
        made.problem.nodes,
    )


def _loads(devices: Sequence[str], cost: Cost) -> dict[str, float]:
    found = dict.fromkeys(devices, 0.0)
    for k in cost.kernels:
        found[k.device] += k.latency
    for t in cost.transfers:
        found[t.sink] += t.time
    return found
