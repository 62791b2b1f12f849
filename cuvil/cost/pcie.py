"""What a transfer over PCIe costs: protocol overhead, latency, pipelining and contention.

The form is ``T_q(N) = t_setup + t_roundtrip + N / B_link + alpha_q * sigma``: the usual effective
bandwidth ``N / (t_roundtrip + t_setup + alpha * sigma)`` with the serialisation term it lacks.
``alpha_q`` is the Gaussian quantile asked for, and
``B_link = min(B_tlp of every link, tags * MRRS / t_roundtrip, fair share of every shared edge)``.
The packet model is that of Neugebauer et al., "Understanding PCIe performance for end host
networking" (SIGCOMM 2018), with 64-bit addresses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from cuvil.target.schema import Link
from cuvil.target.topology import Edge, Path, Topology, fair_share, pcie_raw_bandwidth

WRITE_HEADER = 24
"""Bytes beside the payload of a memory write TLP: framing 2, sequence 2, header 16, LCRC 4."""

REQUEST = 24
"""Bytes of a memory read request."""

COMPLETION_HEADER = 20
"""Bytes beside the payload of a completion: framing 2, sequence 2, header 12, LCRC 4."""

_DLLP = 8
_SKIP = 4 / 1538
_TLP_OVERHEAD = 28
_INTERNAL_DELAY = {1: 19, 2: 70, 3: 115, 4: 115, 5: 115}
_ACK_FACTORS = {
    128: {1: 1.4, 2: 1.4, 4: 1.4, 8: 2.5, 16: 3.0},
    256: {1: 1.4, 2: 1.4, 4: 1.4, 8: 2.5, 16: 3.0},
}
_ACK_FACTORS_LARGE = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 2.0}


def ack_limit(generation: int, lanes: int, mps: int) -> int:
    """Symbol times between two acknowledgements, and between two flow-control updates.

    PCI Express Base Specification, tables "Ack transmission latency limit" and "UpdateFC
    transmission latency guidelines":
    ``(MPS + 28) * AckFactor / lanes + InternalDelay``, the delay 19, 70 or 115 symbol times.
    """
    factor = _ACK_FACTORS.get(mps, _ACK_FACTORS_LARGE)[lanes]
    return int((mps + _TLP_OVERHEAD) * factor / lanes) + _INTERNAL_DELAY[generation]


def tlp_bandwidth(generation: int, lanes: int, mps: int) -> float:
    """B/s left for transaction-layer packets: ``raw * (1 - 8 / AckLimit - 8 / FC - skip)``."""
    overhead = 2 * _DLLP / ack_limit(generation, lanes, mps) + _SKIP
    return pcie_raw_bandwidth(generation, lanes) * (1 - overhead)


def write_bandwidth(generation: int, lanes: int, mps: int, size: int | None = None) -> float:
    """B/s of payload of writes of `size` bytes, ``B_tlp * N / (N + 24 ceil(N / MPS))``; None is a stream."""
    size = size or mps
    return tlp_bandwidth(generation, lanes, mps) * size / (size + WRITE_HEADER * math.ceil(size / mps))


def read_bandwidth(
    generation: int, lanes: int, mps: int, mrrs: int = 512, size: int | None = None, chunk: int | None = None
) -> float:
    """B/s of payload of reads of `size` bytes; None is a stream.

    ``B_tlp * N / (N + 20 * ceil(N / chunk))``, with completions of `chunk` bytes: the MPS, or the
    read completion boundary (64) on chip sets that split so.  Requests, 24 bytes for each MRRS,
    travel in the other direction and cap the rate at ``B_tlp * MRRS / 24``.
    """
    chunk = chunk or mps
    size = size or max(chunk, mrrs)
    tlp = tlp_bandwidth(generation, lanes, mps)
    data = tlp * size / (size + COMPLETION_HEADER * math.ceil(size / chunk))
    return min(data, tlp * size / (REQUEST * math.ceil(size / mrrs)))


def tag_limit(tags: int, mrrs: int, round_trip: float) -> float:
    """B/s that `tags` outstanding reads of `mrrs` bytes sustain over `round_trip` seconds (Little's law)."""
    return tags * mrrs / round_trip if round_trip > 0 else math.inf


def alpha(quantile: float) -> float:
    """Standard deviations above the mean of a Gaussian `quantile`: 0.5 -> 0, 0.964 -> 1.80, 0.989 -> 2.29."""
    return NormalDist().inv_cdf(quantile)


def transfer_time(
    size: float,
    bandwidth: float,
    *,
    setup: float = 0.0,
    round_trip: float = 0.0,
    jitter: float = 0.0,
    quantile: float = 0.5,
) -> float:
    """``T_q(N) = t_setup + t_roundtrip + N / B_link + alpha_q * sigma``, in s.

    Args:
        size: N, bytes.
        bandwidth: B_link, B/s.
        jitter: sigma, the standard deviation of the time.
        quantile: q, so that a share q of the transfers takes no longer.
    """
    return setup + round_trip + size / bandwidth + alpha(quantile) * jitter


def effective_bandwidth(
    size: float,
    bandwidth: float,
    *,
    setup: float = 0.0,
    round_trip: float = 0.0,
    jitter: float = 0.0,
    quantile: float = 0.5,
) -> float:
    """``B_eff = N / T_q(N)``, in B/s; the arguments are those of `transfer_time`."""
    return size / transfer_time(
        size, bandwidth, setup=setup, round_trip=round_trip, jitter=jitter, quantile=quantile
    )


@dataclass(frozen=True)
class Transfer:
    """A prediction.

    Attributes:
        path: the way through the board.
        bandwidth: B_link, B/s.
        time: T_q, s.
        pcie_bytes: bytes that cross PCIe links, each link counted; 0 for a way that meets none.
    """

    path: Path
    bandwidth: float
    time: float
    pcie_bytes: float


def transfer(
    topology: Topology,
    source: str,
    sink: str,
    size: float,
    *,
    quantile: float = 0.5,
    read: bool = False,
    beside: Sequence[tuple[str, str]] = (),
) -> Transfer:
    """Predict the transfer of `size` bytes from `source` to `sink`, names of devices, memories or endpoints.

    Args:
        quantile: of the predicted time.
        read: the sink fetches the data with reads; otherwise the source writes.
        beside: transfers (source, sink) that run at the same time and share the edges fairly.

    Returns:
        The prediction; a way without a PCIe link has neither set-up nor jitter.

    Raises:
        KeyError: an unknown name.
    """
    path = topology.path(source, sink)
    flows = [path.edges, *(topology.path(*other).edges for other in beside)]
    links = [link for edge in path.edges if (link := topology.graph.edges[edge].get("link"))]
    round_trip = 2 * path.latency
    bandwidth = fair_share(flows, _capacities(topology, read))[0]
    if not links:
        return Transfer(path, bandwidth, path.latency + size / bandwidth, 0.0)
    if read:
        bandwidth = min(bandwidth, *(tag_limit(link.tags, link.mrrs, round_trip) for link in links))
    pcie = topology.target.pcie
    time = transfer_time(
        size, bandwidth, setup=pcie.setup, round_trip=round_trip, jitter=pcie.jitter, quantile=quantile
    )
    return Transfer(path, bandwidth, time, size * len(links))


def _capacities(topology: Topology, read: bool) -> dict[Edge, float]:
    """B/s of payload of every edge, PCIe links with their packets' overhead."""
    capacities = topology.capacities()
    for edge in capacities:
        link: Link | None = topology.graph.edges[edge].get("link")
        if link and read:
            capacities[edge] = read_bandwidth(link.generation, link.lanes, link.mps, link.mrrs)
        elif link:
            capacities[edge] = write_bandwidth(link.generation, link.lanes, link.mps)
    return capacities
