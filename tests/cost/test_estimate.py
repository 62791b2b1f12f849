from __future__ import annotations

import json
from pathlib import Path

import pytest
from cost_nets import board, conv, graph, matmul, residual

from cuvil.cost.estimate import Cost, crossing, estimate
from cuvil.errors import CuvilError
from cuvil.ir.graph import Graph
from cuvil.partition.segments import Segment, segments
from cuvil.target.schema import Target, load

CARD = """
description: a host and a card with a CPU of its own, joined by PCIe alone
triple: x86_64-linux-gnu
devices:
  host: {kind: cpu, isa: x86-64-v3, frequency: 3 GHz, memory: near}
  card: {kind: cpu, isa: x86-64-v3, frequency: 3 GHz, memory: far}
memories:
  near: {size: 4 GiB, bandwidth: 50 GB/s, latency: 90 ns}
  far: {size: 4 GiB, bandwidth: 50 GB/s, latency: 90 ns}
pcie:
  root_ports: {root: {memory: near}}
  endpoints: {slot: {device: card}}
  links:
    - {upstream: root, downstream: slot, generation: 4, lanes: 16}
"""


@pytest.fixture(scope="module")
def net() -> Graph:
    return graph(residual())


@pytest.fixture
def card(tmp_path: Path) -> Target:
    path = tmp_path / "card.yaml"
    path.write_text(CARD)
    return load(path)


def halves(net: Graph, first: str, second: str) -> list[Segment]:
    """The first half of the nodes on one device, the rest on another."""
    cut = len(net.nodes) // 2
    return segments(net, [first] * cut + [second] * (len(net.nodes) - cut))


def test_totals_are_those_of_the_kernels(net: Graph) -> None:
    cost = estimate(net, board())
    assert cost.latency == pytest.approx(sum(k.latency for k in cost.kernels))
    macs = 16 * 16 * 16 * (27 + 4 * 16 * 9) + 160
    pooled = 16 * 16 * 16
    assert cost.flops == pytest.approx(2 * macs + pooled, rel=1e-3)
    assert cost.interval[0] < cost.latency < cost.interval[1]
    assert {k.device for k in cost.kernels} == {"socket0"}
    assert cost.family == "network"


def test_json_has_what_the_command_line_promises(net: Graph) -> None:
    said = json.loads(json.dumps(estimate(net, board()).to_json()))
    assert {"latency_ns", "interval_ns", "coverage", "kernels", "transfers"} <= set(said)
    low, high = said["interval_ns"]
    assert 0 < low < said["latency_ns"] < high
    assert said["coverage"] == 0.9
    for kernel in said["kernels"]:
        promised = {"name", "device", "flops", "dram_bytes", "pcie_bytes", "latency_ns", "interval_ns"}
        assert promised <= set(kernel)
        assert kernel["interval_ns"][0] <= kernel["latency_ns"] <= kernel["interval_ns"][1]
    assert sum(k["latency_ns"] for k in said["kernels"]) == pytest.approx(said["latency_ns"], abs=20)


def test_the_graph_is_left_as_it_is(net: Graph) -> None:
    before = [(n.op, n.name, list(n.inputs)) for n in net.nodes]
    estimate(net, board())
    assert [(n.op, n.name, list(n.inputs)) for n in net.nodes] == before


def test_a_target_and_its_slice_give_the_same(net: Graph) -> None:
    assert estimate(net, board()).to_json() == estimate(net, board().slice("partition")).to_json()


def test_sizes_scale() -> None:
    net = graph(matmul("N", 64, 128))
    costs = {n: estimate(net, board(), {"N": n}) for n in (1, 64, 1024)}
    assert costs[64].flops == 64 * costs[1].flops
    assert costs[1].latency < costs[64].latency < costs[1024].latency
    assert 10 < costs[1024].latency / costs[64].latency < 20
    assert estimate(net, board()).flops == costs[1].flops
    assert costs[64].to_json()["bindings"] == {"N": 64}


def test_tuned_kernels_are_predicted_faster() -> None:
    net = graph(conv(32, 64, 3, 28))
    assert estimate(net, board()).latency < estimate(net, board(), tuned=False).latency


def test_two_sockets(net: Graph) -> None:
    """A tensor is moved once for each destination, and its time adds to the latency."""
    parts = halves(net, "socket0", "socket1")
    cost = estimate(net, board(), segments=parts)
    assert {k.device for k in cost.kernels} == {"socket0", "socket1"}
    (moved,) = cost.transfers
    assert (moved.source, moved.sink, moved.bytes) == ("socket0", "socket1", 16 * 16 * 16 * 4)
    assert moved.time == pytest.approx(5e-6 + (85 + 107 + 85) * 1e-9 + moved.bytes / 67.2e9)
    assert cost.latency == pytest.approx(sum(k.latency for k in cost.kernels) + moved.time)
    assert moved.pcie_bytes == 0


def test_pcie_bytes_belong_to_the_kernel_that_needs_them(net: Graph, card: Target) -> None:
    cost = estimate(net, card, segments=halves(net, "host", "card"))
    (moved,) = cost.transfers
    assert moved.pcie_bytes == moved.bytes == 16 * 16 * 16 * 4
    assert moved.late > moved.time, "jitter on the link"
    fetching = [k for k in cost.kernels if k.pcie_bytes]
    assert [k.pcie_bytes for k in fetching] == [moved.pcie_bytes]
    assert fetching[0].device == "card"
    assert fetching[0] == next(k for k in cost.kernels if k.device == "card")
    assert cost.interval[1] - cost.latency > moved.late - moved.time


def test_everything_on_one_device_moves_nothing(net: Graph) -> None:
    whole = segments(net, ["socket1"] * len(net.nodes))
    assert crossing(net, board().slice("partition"), whole, {}) == []
    one, other = estimate(net, board(), segments=whole), estimate(net, board())
    assert one.latency == pytest.approx(other.latency)


def test_no_cpu() -> None:
    target = board().slice("partition")
    target["devices"] = {"npu": {**target["devices"]["socket0"], "kind": "npu"}}
    with pytest.raises(CuvilError, match="target: has no cpu device"):
        estimate(graph(matmul(1, 2, 3)), target)


def test_an_empty_cost() -> None:
    empty = Cost(0.0, (0.0, 0.0), ())
    assert empty.to_json()["kernels"] == []
    assert empty.flops == empty.dram_bytes == 0
