from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from cuvil.target import schema
from cuvil.target.topology import Topology, fair_share, pcie_raw_bandwidth


@pytest.fixture(scope="module")
def xeon() -> Topology:
    return Topology(schema.load("xeon-2s"))


@pytest.fixture(scope="module")
def workstation() -> Topology:
    """A GPU with its own memory behind a switch."""
    return Topology(schema.load(Path(__file__).parent / "base.yaml", []))


def test_numa_weights(xeon: Topology) -> None:
    weights = xeon.numa_weights()
    assert weights["node0", "node0"] == 1.0
    assert round(weights["node0", "node1"], 2) == round(weights["node1", "node0"], 2) == 2.26


def test_numa_weights_leave_out_memories_behind_pcie(workstation: Topology) -> None:
    assert set(workstation.numa_weights()) == {
        ("node0", "node0"),
        ("node0", "node1"),
        ("node1", "node0"),
        ("node1", "node1"),
        ("vram", "vram"),
    }


def test_a_remote_load_has_the_remote_latency(xeon: Topology) -> None:
    assert xeon.path("socket0", "node0").latency == 85e-9
    remote = xeon.path("socket0", "node1")
    assert (remote.nodes, remote.bottleneck) == (("socket0", "node0", "node1"), ("node0", "node1"))
    assert remote.latency == pytest.approx(192e-9)
    assert remote.bandwidth == 67.2e9


def test_peer_to_peer_stays_below_the_switch(xeon: Topology) -> None:
    path = xeon.path("slot0", "slot1")
    assert path.nodes == ("slot0", "switch0", "slot1")
    assert path.bandwidth == pcie_raw_bandwidth(4, 16)
    assert path.latency == 500e-9


def test_bottleneck_across_sockets(xeon: Topology) -> None:
    path = xeon.path("slot0", "nvme0")
    assert path.nodes == ("slot0", "switch0", "root0", "node0", "node1", "root1", "nvme0")
    assert path.bottleneck == ("root1", "nvme0")
    assert path.bandwidth == pcie_raw_bandwidth(4, 4)


def test_a_device_with_its_own_memory(workstation: Topology) -> None:
    assert workstation.path("cpu0", "vram").nodes == (
        "cpu0",
        "node0",
        "root0",
        "switch0",
        "slot0",
        "gpu0",
        "vram",
    )
    assert workstation.graph.nodes["gpu0"]["kind"] == "device"
    assert workstation.graph.edges["slot0", "gpu0"]["bandwidth"] == math.inf


def test_path_to_itself(xeon: Topology) -> None:
    path = xeon.path("node0", "node0")
    assert (path.nodes, path.edges, path.bandwidth, path.latency) == (("node0",), (), math.inf, 0)
    with pytest.raises(KeyError):
        xeon.path("node0", "gpu9")


def test_raw_bandwidth() -> None:
    assert pcie_raw_bandwidth(1, 1) == 250e6
    assert pcie_raw_bandwidth(2, 4) == 2e9
    assert round(pcie_raw_bandwidth(3, 16) / 1e9, 2) == 15.75


def test_fair_share_by_hand() -> None:
    # Bertsekas and Gallager's kind of example: the long flow is held back by the narrow edge only
    assert fair_share(["ab", "a", "b", "b"], {"a": 10.0, "b": 3.0}) == [1.0, 9.0, 1.0, 1.0]
    assert fair_share([["a"], []], {"a": 5.0}) == [5.0, math.inf]
    assert fair_share(["a"], {"a": math.inf}) == [math.inf]
    assert fair_share(["ab", "a"], {"a": math.inf, "b": 4.0}) == [4.0, math.inf]


def test_fair_share_is_max_min() -> None:
    """Every flow passes a full edge on which no other flow is faster."""
    rng = random.Random(3)
    for _ in range(50):
        capacities = {edge: rng.uniform(1, 10) for edge in "abcdef"}
        flows = [rng.sample("abcdef", rng.randint(1, 4)) for _ in range(7)]
        rates = fair_share(flows, capacities)
        load = {edge: sum(rate for flow, rate in zip(flows, rates) if edge in flow) for edge in capacities}
        assert all(load[edge] <= capacities[edge] * (1 + 1e-9) for edge in capacities)
        for flow, rate in zip(flows, rates):
            full = [edge for edge in flow if load[edge] >= capacities[edge] * (1 - 1e-6)]
            assert any(
                all(other <= rate * (1 + 1e-9) for f, other in zip(flows, rates) if e in f) for e in full
            )


def test_opposite_directions_do_not_share(xeon: Topology) -> None:
    capacities = xeon.capacities()
    there, back = xeon.path("slot0", "node0").edges, xeon.path("node0", "slot0").edges
    assert fair_share([there, back], capacities) == [pcie_raw_bandwidth(4, 16)] * 2
    both = fair_share([there, xeon.path("slot1", "node0").edges], capacities)
    assert both == [pcie_raw_bandwidth(4, 16) / 2] * 2
