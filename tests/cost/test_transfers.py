from __future__ import annotations

import pytest
from cost_nets import board, graph, matmul

from cuvil.cost import transfers
from cuvil.cost.transfers import HANDOVER
from cuvil.target.schema import load
from cuvil.target.topology import Topology


def test_the_topology_of_a_slice_is_that_of_the_target() -> None:
    for name in ("xeon-2s", "rk3588", "jetson-nano"):
        target = load(name)
        whole, rebuilt = Topology(target), transfers.topology(target.slice("partition"))
        assert dict(whole.graph.nodes(data=True)) == dict(rebuilt.graph.nodes(data=True))
        assert sorted(whole.graph.edges(data=True), key=str) == sorted(
            rebuilt.graph.edges(data=True), key=str
        )


def test_clusters_that_share_a_memory() -> None:
    rk3588 = transfers.topology(load("rk3588").slice("partition"))
    moved = transfers.transfer(rk3588, "t", "big", "little", 34100, 0.95)
    assert moved.time == pytest.approx(HANDOVER + 2 * 140e-9 + 1e-6)
    assert moved.late == moved.time, "no jitter without PCIe"
    assert moved.to_json() == {
        "tensor": "t", "from": "big", "to": "little", "bytes": 34100, "time_ns": 6280, "quantile_ns": 6280,
        "pcie_bytes": 0,
    }  # fmt: skip


def test_sockets_are_slower_to_reach_than_the_own_memory() -> None:
    xeon = transfers.topology(board().slice("partition"))
    there = transfers.transfer(xeon, "t", "socket0", "socket1", 1 << 20, 0.5)
    back = transfers.transfer(xeon, "t", "socket1", "socket0", 1 << 20, 0.5)
    assert there.time == pytest.approx(back.time)
    assert there.time > HANDOVER + (1 << 20) / 67.2e9


def test_sizes_of_tensors() -> None:
    net = graph(matmul("N", 6, 5))
    assert transfers.tensor_bytes(net, "x", {}) == 6 * 4
    assert transfers.tensor_bytes(net, "y", {"N": 7}) == 7 * 5 * 4
    assert transfers.tensor_bytes(net, "nothing", {}) == 0
