"""Predicted cost of a model on a target: the kernels that will run, each with its time.

The graph is lowered and scheduled as code generation does it, segment by segment, so that a prediction
speaks of the kernels of the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cuvil.codegen.tuned import claims
from cuvil.cost import model, transfers, uncertainty
from cuvil.cost.model import Features, Machine
from cuvil.cost.transfers import Transfer
from cuvil.cost.uncertainty import COVERAGE
from cuvil.errors import CuvilError
from cuvil.ir.graph import Graph
from cuvil.partition.segments import Segment, subgraph
from cuvil.rewrite import integer
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import Schedule, roots_of, schedule
from cuvil.target.schema import Target

QUANTILE = 0.95
"""Of late times where no target says another."""


@dataclass(frozen=True)
class KernelCost:
    """The prediction for one kernel.

    Attributes:
        origin: names of the graph nodes it came from.
        flops: floating-point operations, of the contraction alone where there is one.
        epilogue_flops: those of bias, activation and the like, fused into it.
        int_ops: integer operations.
        dram_bytes: read from and written to DRAM.
        pcie_bytes: of its inputs, over PCIe, each link counted.
        latency: expected, s.
        late: the quantile that the target works with, s.
        interval: s, with the coverage that `Cost` states.
    """

    name: str
    device: str
    tag: str
    origin: tuple[str, ...]
    flops: float
    epilogue_flops: float
    int_ops: float
    dram_bytes: float
    pcie_bytes: float
    latency: float
    late: float
    interval: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "device": self.device,
            "tag": self.tag,
            "origin": list(self.origin),
            "flops": round(self.flops),
            "epilogue_flops": round(self.epilogue_flops),
            "int_ops": round(self.int_ops),
            "dram_bytes": round(self.dram_bytes),
            "pcie_bytes": round(self.pcie_bytes),
            "latency_ns": round(self.latency * 1e9),
            "quantile_ns": round(self.late * 1e9),
            "interval_ns": [round(x * 1e9) for x in self.interval],
        }


@dataclass(frozen=True)
class Cost:
    """The prediction for a model.

    Attributes:
        latency: of one inference, one device after the other, transfers included, s.
        interval: s.
        coverage: nominal share of cases inside their interval.
        family: of the interval, see `model.family`.
        bindings: symbolic sizes that it holds for; others count as 1.
    """

    latency: float
    interval: tuple[float, float]
    kernels: tuple[KernelCost, ...]
    transfers: tuple[Transfer, ...] = ()
    coverage: float = COVERAGE
    family: str = ""
    bindings: Mapping[str, int] = field(default_factory=dict)

    @property
    def latency_ns(self) -> float:
        return self.latency * 1e9

    @property
    def interval_ns(self) -> list[float]:
        return [x * 1e9 for x in self.interval]

    @property
    def flops(self) -> float:
        return sum(k.flops for k in self.kernels)

    @property
    def dram_bytes(self) -> float:
        return sum(k.dram_bytes for k in self.kernels)

    def summary(self) -> dict[str, Any]:
        """The totals, JSON-like."""
        return {
            "latency_ns": round(self.latency_ns),
            "interval_ns": [round(x) for x in self.interval_ns],
            "coverage": self.coverage,
            "family": self.family,
            "flops": round(self.flops),
            "dram_bytes": round(self.dram_bytes),
            "pcie_bytes": round(sum(k.pcie_bytes for k in self.kernels)),
            "bindings": dict(self.bindings),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, JSON-like; times in whole nanoseconds."""
        return {
            **self.summary(),
            "kernels": [k.to_json() for k in self.kernels],
            "transfers": [t.to_json() for t in self.transfers],
        }


def cpu_devices(target: Mapping[str, Any]) -> list[str]:
    """The devices of a ``partition`` slice that code can be generated for.

    Raises:
        CuvilError: there is none.
    """
    found = [n for n, d in target["devices"].items() if d["kind"] == "cpu"]
    if not found:
        raise CuvilError("has no cpu device; a device of another kind has no back end yet", "target")
    return found


def machine_of(target: Mapping[str, Any], device: str) -> Machine:
    """A device of a ``partition`` slice in numbers."""
    facts = target["devices"][device]
    return model.machine(facts, target["memories"][facts["memory"]]["bandwidth"])


def scheduled(graph: Graph, target: Mapping[str, Any], device: str, tuned: bool = True) -> Schedule:
    """The schedule that code generation makes of `graph` for a device; the graph is left as it is."""
    facts = target["devices"][device]
    options = {**facts, "bandwidth": target["memories"][facts["memory"]]["bandwidth"]}
    nodes = [replace(node, name=node.name or node.outputs[0]) for node in graph.nodes]
    copy = replace(graph, nodes=nodes, constants=dict(graph.constants), types=dict(graph.types))
    integer.rewrite(copy)
    return schedule(lower(copy), claims.for_device(options) if tuned else None)


def estimate(
    graph: Graph,
    target: Target | Mapping[str, Any],
    bindings: Mapping[str, int] | None = None,
    segments: Sequence[Segment] | None = None,
    tuned: bool = True,
) -> Cost:
    """Predict the cost of one inference.

    Args:
        graph: as the partition stage reads it.
        target: the target, or its ``partition`` slice.
        bindings: symbolic sizes by name; those that are missing count as 1.
        segments: who runs what; everything on the first CPU device where None.
        tuned: with tuned kernels, as `cuvil.compile` takes it.

    Raises:
        CuvilError: no device can run it, or an operator has no lowering.
    """
    board = target.slice("partition") if isinstance(target, Target) else target
    sizes = dict(bindings or {})
    if segments is None:
        device = cpu_devices(board)[0]
        parts = [(machine_of(board, device), scheduled(graph, board, device, tuned))]
        return assembled(parts, sizes, (), float(board["partition"]["quantile"]))
    machines = {d: machine_of(board, d) for d in dict.fromkeys(s.device for s in segments)}
    parts = [
        (machines[s.device], scheduled(subgraph(graph, s, graph.name), board, s.device, tuned))
        for s in segments
    ]
    moved = crossing(graph, board, segments, sizes)
    return assembled(parts, sizes, moved, float(board["partition"]["quantile"]))


def crossing(
    graph: Graph, target: Mapping[str, Any], segments: Sequence[Segment], bindings: Mapping[str, int]
) -> list[Transfer]:
    """The tensors that pass from one device to another, each once for each destination."""
    maker = {name: s.device for s in segments for name in s.outputs}
    needed = dict.fromkeys(
        (n, s.device) for s in segments for n in s.inputs if maker.get(n, s.device) != s.device
    )
    if not needed:
        return []
    board = transfers.topology(target)
    quantile = float(target["partition"]["quantile"])
    return [
        transfers.transfer(board, n, maker[n], sink, transfers.tensor_bytes(graph, n, bindings), quantile)
        for n, sink in needed
    ]


def assembled(
    parts: Sequence[tuple[Machine, Schedule]],
    bindings: Mapping[str, int],
    moved: Sequence[Transfer] = (),
    quantile: float = QUANTILE,
) -> Cost:
    """The cost of schedules that run one after the other, each on its device.

    Args:
        moved: the tensors that pass between them.
        quantile: of the kernels' late times.
    """
    kernels: list[KernelCost] = []
    waiting = {(t.tensor, t.sink): t for t in moved}
    total = deviation = 0.0
    features: list[Features] = []
    times: list[float] = []
    spread: dict[str, float] = {}
    for number, (machine, part) in enumerate(parts):
        found = model.features(part, machine, bindings)
        seconds = model.predict(found, machine.parameters)
        fetched = _fetched(part, machine.name, waiting)
        prefix = f"s{number}_" if len(parts) > 1 else ""
        for k, (f, t) in enumerate(zip(found, seconds)):
            kernels.append(_kernel(f, float(t), machine, prefix, fetched.get(k, 0.0), quantile))
            features.append(f)
            times.append(float(t))
        if found:
            nominal = np.array([f.nominal for f in found])
            deviation += float(seconds.sum()) * uncertainty.log_deviation(nominal, machine.parameters)
            for name, width in machine.parameters.spread.items():
                spread[name] = max(width, spread.get(name, 0.0))
        total += float(seconds.sum())
    family = model.family(features, times)
    half = uncertainty.half_width(deviation / total if total else 0.0, spread.get(family))
    low, high = uncertainty.interval(total, half)
    travel, late = sum(t.time for t in moved), sum(t.late for t in moved)
    return Cost(
        total + travel,
        (low + travel, high + late),
        tuple(kernels),
        tuple(moved),
        COVERAGE,
        family,
        dict(bindings),
    )


def _kernel(
    f: Features, seconds: float, machine: Machine, prefix: str, fetched: float, quantile: float
) -> KernelCost:
    deviation = uncertainty.log_deviation(f.nominal[None], machine.parameters)
    half = uncertainty.half_width(deviation, machine.parameters.spread.get(f.tag))
    low, high = uncertainty.interval(seconds, half)
    return KernelCost(
        f"{prefix}{f.kernel.name}",
        machine.name,
        f.kernel.tag,
        f.kernel.origin,
        f.work.flops,
        f.work.epilogue_flops,
        f.work.int_ops,
        f.dram,
        fetched,
        seconds,
        seconds * uncertainty.quantile_factor(deviation, quantile),
        (max(low, min(f.floor, seconds)), high),
    )


def _fetched(part: Schedule, device: str, waiting: dict[tuple[str, str], Transfer]) -> dict[int, float]:
    """PCIe bytes by the number of the first kernel that reads a tensor from elsewhere."""
    found: dict[int, float] = {}
    for value in part.program.inputs:
        t = waiting.pop((value.name, device), None)
        if t is None or not t.pcie_bytes:
            continue
        root = part.storage.root(value)
        reader = next(
            (k for k, kernel in enumerate(part.kernels) if root in roots_of(kernel, part.storage)), 0
        )
        found[reader] = found.get(reader, 0.0) + t.pcie_bytes
    return found
