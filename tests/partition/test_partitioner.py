from __future__ import annotations

import json
from typing import Any

import pytest
from placed_nets import DIGITS, branches, graph, reshaped, residual, slice_of

from cuvil.cost.estimate import Cost, estimate
from cuvil.errors import CuvilError
from cuvil.frontend.onnx_reader import read_model
from cuvil.ir.graph import Graph, captured
from cuvil.partition.partitioner import Partition, partition
from cuvil.partition.segments import segments
from cuvil.partition.units import RISK_WEIGHT, units


@pytest.fixture(scope="module")
def net() -> Graph:
    return graph(residual)


def check_order(net: Graph, made: Partition) -> None:
    """Every node runs once, and what a segment reads was made before."""
    ran = [i for s in made.segments for i in s.nodes]
    assert sorted(ran) == list(range(len(net.nodes)))
    known = {*net.inputs, *net.constants}
    for s in made.segments:
        assert set(s.inputs) <= known
        inside = set(known)
        for i in s.nodes:
            node = net.nodes[i]
            assert {n for n in (*node.inputs, *captured(node)) if n} <= inside
            inside.update(node.outputs)
        known.update(s.outputs)
    assert set(net.outputs) <= known


def test_one_device_needs_no_solver(net: Graph) -> None:
    made = partition(net, slice_of("x86_64-unknown-linux-gnu"))
    assert made.method == "single device"
    assert [(s.device, len(s.nodes)) for s in made.segments] == [("cpu0", len(net.nodes))]
    assert made.value == made.lower_bound == made.cost.latency
    assert made.loads == {"cpu0": pytest.approx(made.value)}
    assert made.left_out == {}


def test_devices_without_a_back_end_are_named(net: Graph) -> None:
    assert partition(net, slice_of("jetson-nano")).left_out == {"gpu0": "no back end yet"}
    assert partition(net, slice_of("rk3588")).left_out == {"npu": "no back end yet"}


def test_latency_goes_to_the_fast_cluster(net: Graph) -> None:
    """One cluster runs at a time, and the big one is faster at everything."""
    made = partition(net, slice_of("rk3588", objective="latency"))
    assert [s.device for s in made.segments] == ["big"]
    assert made.method == "minimum cut" and made.value == made.lower_bound
    assert made.loads["little"] == 0


def cuts(net: Graph, target: dict[str, Any]) -> dict[tuple[int, str], Cost]:
    """What each cut in two would cost, by its place among the units and the device of the first part; at
    place 0 the other device runs everything."""
    devices = [n for n, d in target["devices"].items() if d["kind"] == "cpu"]
    made = units(net, target, devices, {})
    found = {}
    for at in range(made.problem.nodes):
        for first, device in enumerate(devices):
            placed = made.placed([first] * at + [1 - first] * (made.problem.nodes - at))
            found[at, device] = estimate(net, target, {}, segments(net, placed))
    return found


def busiest(cost: Cost, weight: float = 0.0) -> float:
    """The largest load of a device, with a weight on the quantile's excess over the expected time."""
    loads: dict[str, float] = {}
    for k in cost.kernels:
        loads[k.device] = loads.get(k.device, 0.0) + k.latency + weight * max(k.late - k.latency, 0)
    for t in cost.transfers:
        loads[t.sink] += t.time + weight * max(t.late - t.time, 0)
    return max(loads.values())


@pytest.mark.parametrize(
    ("name", "accuracy", "share"),
    [
        ("rk3588", "strict", 0.9),
        ("rk3588", "default", 1),
        ("xeon-2s", "strict", 0.7),
        ("xeon-2s", "default", 0.7),
    ],
)
def test_throughput_uses_both(net: Graph, name: str, accuracy: str, share: float) -> None:
    """As well as the best cut in two, each counted with the kernels that would run.

    Two equal sockets could at best halve the time, and a big cluster that is 2.6 times as fast as the little
    one save 28 %; what units there are leaves 30 and 10 %.  Winograd convolutions (`accuracy: default`) take
    about half the time of direct ones, but read blocks of channels: the first one after a cut, where tensors
    lie in row-major order, is a direct one.  On the RK3588 that costs more than the little cluster saves, but
    for the end of the net.
    """
    target = slice_of(name, objective="throughput")
    for device in target["devices"].values():
        device["accuracy"] = accuracy
    made, possible = partition(net, target), cuts(net, target)
    check_order(net, made)
    assert len({s.device for s in made.segments}) == 2
    whole = min(busiest(cost) for (at, _), cost in possible.items() if at == 0)
    assert max(made.loads.values()) < share * whole
    assert made.value <= min(busiest(cost, RISK_WEIGHT) for cost in possible.values()) * (1 + 1e-9)
    if share == 1:
        convolutions = {i for i, node in enumerate(net.nodes) if node.op == "Conv"}
        assert convolutions <= {i for s in made.segments if s.device == "big" for i in s.nodes}
        assert all(busiest(cost) > whole for (at, _), cost in possible.items() if 0 < at < 6)
    assert 0 < made.lower_bound <= made.value
    assert made.cost.transfers
    assert sum(made.loads.values()) == pytest.approx(made.cost.latency)


def test_branches_run_on_a_socket_each() -> None:
    net = graph(branches)
    made = partition(net, slice_of("xeon-2s", objective="throughput"))
    check_order(net, made)
    low, high = sorted(made.loads.values())
    assert high < 1.6 * low


def test_a_small_memory_spreads_the_weights(net: Graph) -> None:
    """Neither node holds the weights alone, though one socket would be fastest."""
    target = slice_of("xeon-2s", objective="latency")
    weights = sum(a.nbytes for a in net.constants.values())
    for memory in target["memories"].values():
        memory["size"] = 1 << 30
    activations = (1 << 30) - int(units(net, target, ["socket0", "socket1"], {}).problem.capacity[0])
    for memory in target["memories"].values():
        memory["size"] = int(0.8 * weights) + activations
    made = partition(net, target)
    check_order(net, made)
    assert len({s.device for s in made.segments}) == 2
    assert all(size <= 0.8 * weights for size in made.memory.values())
    assert sum(made.memory.values()) == weights
    for memory in target["memories"].values():
        memory["size"] = int(0.3 * weights) + activations
    with pytest.raises(
        CuvilError, match=r"partition: needs \d+ bytes of weights, the memories have room for \d+"
    ):
        partition(net, target)


def test_symbolic_sizes() -> None:
    for net in (graph(reshaped), read_model(DIGITS)):
        made = partition(net, slice_of("rk3588", objective="throughput"), {"N": 16})
        check_order(net, made)


def test_json(net: Graph) -> None:
    target = slice_of("rk3588", objective="throughput")
    text = json.dumps(partition(net, target).to_json(net), sort_keys=True)
    assert text == json.dumps(partition(net, target).to_json(net), sort_keys=True), "same inputs, same bytes"
    said = json.loads(text)
    assert (said["inputs"], said["outputs"]) == (net.inputs, net.outputs)
    assert set(said["loads_ns"]) == {"big", "little"}
    low, high = said["predicted"]["interval_ns"]
    assert low < said["predicted"]["latency_ns"] < high
    assert said["predicted"]["coverage"] == 0.9
    assert said["lower_bound_ns"] <= said["value_ns"]
    for t in said["transfers"]:
        assert {t["from"], t["to"]} == {"big", "little"}
        assert t["bytes"] > 0 and t["time_ns"] > 5000


def test_no_cpu() -> None:
    target = slice_of("xeon-2s")
    for device in target["devices"].values():
        device["kind"] = "gpu"
    with pytest.raises(CuvilError, match="target: has no cpu device"):
        partition(graph(residual), target)
