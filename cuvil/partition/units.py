"""From a graph to a placement problem: what is placed as one, what it costs, what travels.

The unit is the fusion group.  Groups are formed on the whole graph, once for each kind of device; a
kernel says by its origin which nodes it stems from.  What is contracted further:

* nodes that leave no kernel (views, what is inlined) go with the unit that reads them, or with
  the one that makes what they read where several units do;
* tensors that may not travel: index vectors, which must be known when their readers are lowered, and
  tensors whose shape is not known from the model's inputs;
* whatever a cycle between units runs through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuvil.cost import model, transfers, uncertainty
from cuvil.cost.estimate import Cost, machine_of, scheduled
from cuvil.cost.nests import Sizes
from cuvil.ir.graph import Graph, captured
from cuvil.ir.loops import Kernel
from cuvil.partition.problem import Floats, Problem, Tensor, contract
from cuvil.schedule.plan import Schedule, roots_of

RISK_WEIGHT = 0.25
"""Weight of the quantile's excess over the expected time in the objective."""

NEGLIGIBLE = 0.02
"""Share of a unit's time by which it may miss what was expected without a correction."""


@dataclass(frozen=True, eq=False)
class Units:
    """A placement problem of a graph.

    Attributes:
        problem: its nodes are the units, its devices those of `devices`; costs in seconds.
        plain: the problem before corrections.
        unit: of each graph node.
        expected: [n, D] expected times of the units, without weight on their quantiles.
        devices: names.
        memories: names, in the order of the problem's capacities.
        names: the unit of each node by the node's name, and by what it makes.
    """

    problem: Problem
    plain: Problem
    unit: list[int]
    expected: Floats
    devices: list[str]
    memories: list[str]
    names: dict[str, int]

    def placed(self, placement: Sequence[int]) -> list[str]:
        """The device of each graph node."""
        return [self.devices[placement[u]] for u in self.unit]

    def corrected(self, placement: Sequence[int], predicted: Cost) -> Units:
        """The same problem, with cuts as dear as they turned out to be.

        Where a tensor is cut it lies in memory in row-major order, and kernels on both sides may be
        slower than in the whole graph.  What a unit takes longer than expected is put on the tensors
        that it makes, or else those that it reads, and that `placement` cuts; other devices are taken
        to lose as much in proportion.
        """
        actual = np.zeros(self.problem.nodes)
        for kernel in predicted.kernels:
            unit = next((self.names[n] for n in kernel.origin if n in self.names), None)
            if unit is not None:
                actual[unit] += kernel.latency
        before, tensors = self.plain.tensors, list(self.problem.tensors)
        sources = [placement[t.producer] for t in tensors]
        cut = [k for k, t in enumerate(tensors) if {placement[c] for c in t.consumers} != {sources[k]}]
        for u, device in enumerate(placement):
            made = [k for k in cut if tensors[k].producer == u]
            read = [k for k in cut if u in tensors[k].consumers and sources[k] != device]
            known = sum(float((tensors[k].leave - before[k].leave)[device]) for k in made)
            known += sum(float((tensors[k].enter - before[k].enter)[sources[k], device]) for k in read)
            excess = actual[u] - self.expected[u, device] - known
            if excess <= NEGLIGIBLE * actual[u]:
                continue
            cost = self.problem.cost[u]
            share = excess * cost / cost[device] if cost[device] > 0 else np.full(len(cost), excess)
            for k in made:
                tensors[k] = replace(tensors[k], leave=tensors[k].leave + share / len(made))
            for k in () if made else read:
                tensors[k] = replace(tensors[k], enter=tensors[k].enter + share / len(read))
        return replace(self, problem=replace(self.problem, tensors=tuple(tensors)))


def units(
    graph: Graph, target: Mapping[str, Any], devices: Sequence[str], bindings: Mapping[str, int]
) -> Units:
    """The problem of placing `graph` on `devices` of a target's ``partition`` slice."""
    schedules: dict[str, Schedule] = {}
    of_device: list[Schedule] = []
    for name in devices:
        facts = {k: v for k, v in target["devices"][name].items() if k not in ("name", "memory")}
        key = json.dumps(facts, sort_keys=True)
        if key not in schedules:
            schedules[key] = scheduled(graph, target, name)
        of_device.append(schedules[key])
    mapper = _Mapper(graph)
    homes = {id(s): mapper.kernel_nodes(s) for s in schedules.values()}
    together = [nodes for home in homes.values() for nodes in home if len(nodes) > 1]
    made = {v for home in homes.values() for nodes in home for v in nodes}
    together += mapper.vanished(made)
    together += mapper.fixed()
    memories = list(dict.fromkeys(target["devices"][d]["memory"] for d in devices))
    memory_of = tuple(memories.index(target["devices"][d]["memory"]) for d in devices)
    expected, cost = _costs(graph, target, devices, of_device, homes, bindings)
    weights = np.array([mapper.weight_bytes(i) for i in range(len(graph.nodes))], float)
    size = np.repeat(weights[:, None], len(devices), axis=1)
    sizes = Sizes(bindings)
    taken = max(sizes(s.arena_bytes) + sum(s.prepared.values()) for s in of_device)
    capacity = np.array([float(target["memories"][m]["size"]) - taken for m in memories])
    tensors = _tensors(graph, target, devices, bindings, mapper)
    alike = tuple(range(len(devices)))
    problem, unit = contract(Problem(cost, size, tensors, memory_of, capacity, alike), together)
    whole = np.zeros((problem.nodes, len(devices)))
    np.add.at(whole, unit, expected)
    names = {n: unit[i] for n, indices in mapper.named.items() for i in indices}
    names |= {n: unit[i] for n, i in mapper.producer.items() if n not in names}
    return Units(problem, problem, unit, whole, list(devices), memories, names)


def _costs(
    graph: Graph,
    target: Mapping[str, Any],
    devices: Sequence[str],
    schedules: Sequence[Schedule],
    homes: Mapping[int, list[list[int]]],
    bindings: Mapping[str, int],
) -> tuple[Floats, Floats]:
    """[node, device] expected seconds, and with a weight on the quantile; a kernel's on the first of
    its nodes."""
    quantile = float(target["partition"]["quantile"])
    expected, cost = np.zeros((2, len(graph.nodes), len(devices)))
    for d, (name, s) in enumerate(zip(devices, schedules)):
        machine = machine_of(target, name)
        found = model.features(s, machine, bindings)
        for f, seconds, nodes in zip(found, model.predict(found, machine.parameters), homes[id(s)]):
            if nodes:
                deviation = uncertainty.log_deviation(f.nominal[None], machine.parameters)
                excess = max(uncertainty.quantile_factor(deviation, quantile) - 1, 0.0)
                expected[nodes[0], d] += seconds
                cost[nodes[0], d] += seconds * (1 + RISK_WEIGHT * excess)
    return expected, cost


def _tensors(
    graph: Graph,
    target: Mapping[str, Any],
    devices: Sequence[str],
    bindings: Mapping[str, int],
    mapper: _Mapper,
) -> tuple[Tensor, ...]:
    board = transfers.topology(target)
    quantile = float(target["partition"]["quantile"])
    leave = np.zeros(len(devices))
    by_size: dict[int, Floats] = {}
    found = []
    for name, producer in mapper.producer.items():
        readers = tuple(v for v in mapper.readers.get(name, ()) if v != producer)
        if not readers:
            continue
        size = transfers.tensor_bytes(graph, name, bindings)
        if size not in by_size:
            enter = np.zeros((len(devices), len(devices)))
            for a, source in enumerate(devices):
                for b, sink in enumerate(devices):
                    if a != b:
                        t = transfers.transfer(board, name, source, sink, size, quantile)
                        enter[a, b] = t.time + RISK_WEIGHT * max(t.late - t.time, 0.0)
            by_size[size] = enter
        found.append(Tensor(producer, readers, leave, by_size[size]))
    return tuple(found)


class _Mapper:
    """Names of a graph as indices of its nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producer = {n: i for i, node in enumerate(graph.nodes) for n in node.outputs if n}
        self.readers: dict[str, list[int]] = {}
        self.named: dict[str, list[int]] = {}
        self.inputs: list[list[str]] = []
        for i, node in enumerate(graph.nodes):
            read = [n for n in dict.fromkeys([*node.inputs, *captured(node)]) if n]
            self.inputs.append(read)
            for n in read:
                self.readers.setdefault(n, []).append(i)
            self.named.setdefault(node.name or node.outputs[0], []).append(i)

    def nodes_of(self, kernel: Kernel) -> list[int]:
        """The graph nodes that a kernel stems from; an output's copy belongs to its producer."""
        found: dict[int, None] = {}
        for name in kernel.origin:
            for i in self.named.get(name, [self.producer[name]] if name in self.producer else []):
                found[i] = None
        return sorted(found)

    def kernel_nodes(self, s: Schedule) -> list[list[int]]:
        """The nodes of each kernel; one without any joins the next kernel that reads what it writes."""
        homes = [self.nodes_of(kernel) for kernel in s.kernels]
        for k, kernel in enumerate(s.kernels):
            if not homes[k]:
                written = {s.storage.root(v) for v in kernel.writes}
                later = range(k + 1, len(s.kernels))
                reader = next(
                    (j for j in later if homes[j] and written & {*roots_of(s.kernels[j], s.storage)}), None
                )
                homes[k] = homes[reader][:1] if reader is not None else []
        return homes

    def vanished(self, made: set[int]) -> list[list[int]]:
        """Pairs of a node without a kernel and the node whose unit it joins."""
        pairs = []
        for i in reversed(range(len(self.graph.nodes))):
            if i in made:
                continue
            readers = [r for n in self.graph.nodes[i].outputs for r in self.readers.get(n, ())]
            makers = [self.producer[n] for n in self.inputs[i] if n in self.producer]
            if len({*readers}) == 1:
                pairs.append([i, readers[0]])
            elif makers:
                pairs.append([i, max(makers)])
            elif readers:
                pairs.append([i, min(readers)])
        return pairs

    def fixed(self) -> list[list[int]]:
        """Producer and readers of each tensor that may not travel."""
        graph = self.graph
        symbols = {n for name in graph.inputs for n in (graph.types[name].shape or ()) if isinstance(n, str)}
        groups = []
        for name, producer in self.producer.items():
            kind = graph.types.get(name)
            known = kind is not None and kind.shape is not None and kind.dtype != "string" and kind.is_tensor
            if known and kind is not None and kind.shape is not None:
                known = all(isinstance(n, int) or n in symbols for n in kind.shape)
                known = known and not (len(kind.shape) <= 1 and kind.dtype in ("int64", "int32", "bool"))
            if not known and name in self.readers:
                groups.append([producer, *self.readers[name]])
        return groups

    def weight_bytes(self, node: int) -> int:
        """Bytes of the constants that a node reads."""
        constants = self.graph.constants
        return sum(constants[n].nbytes for n in self.inputs[node] if n in constants)
