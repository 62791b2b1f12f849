"""Which device runs which node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cuvil.errors import CuvilError
from cuvil.ir.graph import Graph
from cuvil.partition.segments import Segment, segments


@dataclass(frozen=True)
class Partition:
    """The segments in order of execution, and what was left out and why."""

    segments: list[Segment]
    left_out: dict[str, str]

    def to_json(self, graph: Graph) -> dict[str, Any]:
        return {
            "inputs": graph.inputs,
            "outputs": graph.outputs,
            "segments": [
                {"device": s.device, "inputs": list(s.inputs), "outputs": list(s.outputs), "nodes": list(s.nodes)}
                for s in self.segments
            ],
            "left_out": self.left_out,
        }


def partition(graph: Graph, target: Mapping[str, Any]) -> Partition:
    """Place every node of `graph`."""
    cpus = [n for n, d in target["devices"].items() if d["kind"] == "cpu"]
    if not cpus:
        raise CuvilError("has no cpu device; a device of another kind has no back end yet", "target")
    left_out = {n: "no back end yet" for n in target["devices"] if n not in cpus}
    return Partition(segments(graph, [cpus[0]] * len(graph.nodes)), left_out)
