"""What it costs that a tensor made on one device is read on another.

The board's topology gives the way and its bandwidth (`cuvil.cost.pcie.transfer`): through the memory
that two clusters share, between the memories of two sockets, over PCIe.  On top comes the time to hand
over: the caller moves from the CPUs of one device to those of the other.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cuvil.cost import pcie
from cuvil.cost.nests import DEFAULT_SIZE
from cuvil.ir.expr import numpy_dtype
from cuvil.ir.graph import Graph
from cuvil.target.board import Device, Memory, Pcie
from cuvil.target.isa import Triple
from cuvil.target.schema import Target
from cuvil.target.topology import Topology

HANDOVER = 5e-6
"""Seconds to change the CPUs that a thread runs on, and to warm up there (assumed)."""


@dataclass(frozen=True)
class Transfer:
    """One tensor for all its readers on one device.

    Attributes:
        time: expected, s.
        late: the quantile asked for, s.
        pcie_bytes: bytes that cross PCIe links, each link counted.
    """

    tensor: str
    source: str
    sink: str
    bytes: int
    time: float
    late: float
    pcie_bytes: float

    def to_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "from": self.source,
            "to": self.sink,
            "bytes": self.bytes,
            "time_ns": round(self.time * 1e9),
            "quantile_ns": round(self.late * 1e9),
            "pcie_bytes": round(self.pcie_bytes),
        }


def transfer(topology: Topology, tensor: str, source: str, sink: str, size: int, quantile: float) -> Transfer:
    """The transfer of a tensor of `size` bytes from one device to another."""
    usual, late = (pcie.transfer(topology, source, sink, size, quantile=q) for q in (0.5, quantile))
    return Transfer(tensor, source, sink, size, usual.time + HANDOVER, late.time + HANDOVER, usual.pcie_bytes)


def tensor_bytes(graph: Graph, name: str, bindings: Mapping[str, int]) -> int:
    """Size of a tensor; sizes that are not known count as 1."""
    kind = graph.types.get(name)
    if kind is None or kind.shape is None or kind.dtype == "string" or not kind.is_tensor:
        return 0
    sizes = [n if isinstance(n, int) else bindings.get(n, DEFAULT_SIZE) for n in kind.shape]
    return math.prod(sizes) * numpy_dtype(kind.dtype).itemsize


def topology(target: Mapping[str, Any]) -> Topology:
    """The topology of the board that a ``partition`` slice describes."""
    arch = next((d["arch"] for d in target["devices"].values() if "arch" in d), "x86_64")
    board = Target(
        triple=Triple(arch, "linux", "gnu"),
        devices=tuple(_restored(Device, d) for d in target["devices"].values()),
        memories=tuple(_restored(Memory, m) for m in target["memories"].values()),
        pcie=_restored(Pcie, target["pcie"]),
    )
    return Topology(board)


def _restored(kind: Any, plain: Any) -> Any:
    """The record of type `kind` that ``Target.to_dict`` made `plain` of."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {f.name for f in dataclasses.fields(kind)}
        return kind(**{k: _restored(hints[k], v) for k, v in plain.items() if k in known})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return tuple(_restored(args[0], item) for item in plain)
    if origin is dict:
        return {key: _restored(args[1], item) for key, item in plain.items()}
    return plain
