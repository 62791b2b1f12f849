from __future__ import annotations

import math

import pytest

from cuvil.cost import pcie
from cuvil.target import schema
from cuvil.target.topology import Topology, pcie_raw_bandwidth

TABLE = [
    # generation, lanes, GB/s with MPS 256: raw, write, read, read in 64-byte completions
    (3, 4, "3.94", "3.32", "3.37", "2.77"),
    (3, 8, "7.88", "6.62", "6.71", "5.51"),
    (3, 16, "15.75", "12.99", "13.18", "10.83"),
    (4, 16, "31.51", "25.99", "26.37", "21.66"),
    (5, 16, "63.02", "51.98", "52.73", "43.31"),
]


@pytest.fixture(scope="module")
def xeon() -> Topology:
    return Topology(schema.load("xeon-2s"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"gen{row[0]} x{row[1]}")
def test_packet_efficiency(row: tuple[int, int, str, str, str, str]) -> None:
    generation, lanes, *expected = row
    rates = (
        pcie_raw_bandwidth(generation, lanes),
        pcie.write_bandwidth(generation, lanes, 256),
        pcie.read_bandwidth(generation, lanes, 256),
        pcie.read_bandwidth(generation, lanes, 256, chunk=64),
    )
    assert [f"{rate / 1e9:.2f}" for rate in rates] == expected


def test_ack_limits_of_the_specification() -> None:
    sizes = (128, 256, 512, 1024, 2048, 4096)
    assert [pcie.ack_limit(1, 1, mps) for mps in sizes] == [237, 416, 559, 1071, 2095, 4143]
    assert [pcie.ack_limit(2, 8, mps) for mps in sizes] == [118, 158, 137, 201, 329, 585]
    assert [pcie.ack_limit(3, 16, mps) for mps in sizes] == [144, 168, 182, 246, 374, 630]


def test_streams_agree_with_public_measurements() -> None:
    """Large transfers: gen3 x16 12.3-13.2 GB/s, gen4 x16 25.6-26.2; never fitted to."""
    assert 12.3 <= pcie.write_bandwidth(3, 16, 256) / 1e9 <= 13.2
    assert 25.6 <= pcie.write_bandwidth(4, 16, 256) / 1e9 <= 26.2


def test_partial_packets_cost_whole_headers() -> None:
    tlp = pcie.tlp_bandwidth(4, 16, 256)
    assert pcie.write_bandwidth(4, 16, 256, 64) == pytest.approx(tlp * 64 / 88)
    assert pcie.write_bandwidth(4, 16, 256, 257) == pytest.approx(tlp * 257 / 305)
    assert pcie.read_bandwidth(4, 16, 256, 512, 600) == pytest.approx(tlp * 600 / 660)


def test_small_reads_are_held_back_by_their_requests() -> None:
    tlp = pcie.tlp_bandwidth(3, 8, 128)
    assert pcie.read_bandwidth(3, 8, 128, 128, 2) == pytest.approx(tlp * 2 / 24)


@pytest.mark.parametrize(("quantile", "alpha"), [(0.5, 0.0), (0.964, 1.80), (0.989, 2.29), (0.95, 1.645)])
def test_alpha(quantile: float, alpha: float) -> None:
    assert pcie.alpha(quantile) == pytest.approx(alpha, abs=2e-3)


def test_transfer_time() -> None:
    cost = {"setup": 2e-6, "round_trip": 1e-6, "jitter": 0.5e-6}
    median = pcie.transfer_time(26e6, 26e9, **cost)
    assert median == pytest.approx(1e-3 + 3e-6)
    assert pcie.transfer_time(26e6, 26e9, quantile=0.964, **cost) - median == pytest.approx(0.9e-6, rel=1e-3)
    assert pcie.effective_bandwidth(26e6, 26e9, **cost) == pytest.approx(26e6 / (1e-3 + 3e-6))
    assert pcie.effective_bandwidth(64, 26e9, **cost) < 1e-3 * 26e9  # latency, not bandwidth


def test_tag_limit() -> None:
    assert pcie.tag_limit(32, 512, 1e-6) == pytest.approx(16.384e9)
    assert pcie.tag_limit(32, 512, 0) == math.inf


def test_transfer_between_slots(xeon: Topology) -> None:
    found = pcie.transfer(xeon, "slot0", "slot1", 1e6)
    assert found.path.nodes == ("slot0", "switch0", "slot1")
    assert found.bandwidth == pcie.write_bandwidth(4, 16, 256)
    assert found.time == pytest.approx(2e-6 + 2 * 500e-9 + 1e6 / found.bandwidth)
    assert found.pcie_bytes == 2e6


def test_a_narrow_link_decides(xeon: Topology) -> None:
    found = pcie.transfer(xeon, "slot0", "nvme0", 1e6, read=True)
    assert found.bandwidth == pcie.read_bandwidth(4, 4, 256)
    assert found.pcie_bytes == 3e6


def test_reads_over_a_long_way_run_out_of_tags(xeon: Topology) -> None:
    way = pcie.transfer(xeon, "node1", "slot0", 1e9, read=True)
    assert way.bandwidth == pcie.read_bandwidth(4, 16, 256)  # 256 tags are plenty
    few = schema.load("xeon-2s")
    links = tuple(schema.Link(**{**vars(link), "tags": 32}) for link in few.pcie.links)
    narrow = Topology(
        schema.Target(**{**vars(few), "pcie": schema.Pcie(**{**vars(few.pcie), "links": links})})
    )
    found = pcie.transfer(narrow, "node1", "slot0", 1e9, read=True)
    assert found.bandwidth == pytest.approx(32 * 512 / (2 * found.path.latency))
    assert found.bandwidth < way.bandwidth


def test_contention_on_the_shared_link(xeon: Topology) -> None:
    alone = pcie.transfer(xeon, "slot0", "node0", 1e8)
    shared = pcie.transfer(xeon, "slot0", "node0", 1e8, beside=[("slot1", "node0")])
    opposite = pcie.transfer(xeon, "slot0", "node0", 1e8, beside=[("node0", "slot1")])
    assert shared.bandwidth == pytest.approx(alone.bandwidth / 2)
    assert opposite.bandwidth == alone.bandwidth


def test_no_pcie_on_the_way(xeon: Topology) -> None:
    found = pcie.transfer(xeon, "node0", "node1", 67.2e6, quantile=0.99)
    assert found.time == pytest.approx(1e-3 + 107e-9)
    assert found.pcie_bytes == 0
