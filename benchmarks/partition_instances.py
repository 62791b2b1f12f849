"""The partitioner's solver on public instances: ``python -m benchmarks.partition_instances --help``.

The instances are those of "Efficient algorithms for device placement of DNN graph operators" (Tarnawski
et al., NeurIPS 2020): a network, accelerators of one kind with a memory each, and CPUs; the objective is
the largest total of compute and transfers on any device.  The folder is named by ``CUVIL_DATA``; by
default it is ``shared/data`` beside the repository.

Printed are the contiguous optimum (by dynamic programming over ideals), the best placement found, a
lower bound that leaves transfers out, and the figures known from elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuvil.partition import solver
from cuvil.partition.problem import Problem, Tensor, contract

KNOWN = {
    # contiguous optimum, best placement known from elsewhere (None: no better one than the former)
    "LayerGraphs/bert24_inference": (17.790, 17.778),
    "LayerGraphs/gnmt_inference": (32.911, 31.783),
    "LayerGraphs/resnet50_inference": (33.775, None),
    "LayerGraphs/inceptionv3_inference": (None, None),
    "OperatorGraphs/bert_l-3_inference": (27.919, 27.574),
    "OperatorGraphs/bert_l-6_inference": (29.580, None),
    "OperatorGraphs/bert_l-12_inference": (147.478, None),
    "OperatorGraphs/resnet50_inference": (124.349, None),
}


@dataclass(frozen=True)
class Instance:
    """An instance as it is to be solved.

    Attributes:
        problem: its nodes are groups of the file's nodes that must stay together.
        whole: the problem on the file's nodes.
        group: of each of the file's nodes.
    """

    name: str
    problem: Problem
    whole: Problem
    group: list[int]


def folder() -> Path:
    """Where the instances are looked for."""
    data = os.environ.get("CUVIL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(data) / "dnn-partitioning" / "throughput-inputs"


def read(path: Path) -> Instance:
    """Read an instance; accelerators come first among the devices.

    An accelerator bears the time to fetch a tensor from the CPUs' memory once, and to put one there once;
    the CPUs share their memory and bear nothing.
    """
    data = json.loads(path.read_text())
    accelerators, cpus = int(data["maxFPGAs"]), int(data["maxCPUs"])
    devices = accelerators + cpus
    nodes: list[dict[str, Any]] = data["nodes"]
    index = {node["id"]: k for k, node in enumerate(nodes)}
    cost, size = np.zeros((2, len(nodes), devices))
    colours: dict[int, list[int]] = {}
    for k, node in enumerate(nodes):
        cost[k, :accelerators] = node["fpgaLatency"] if node["supportedOnFpga"] else np.inf
        cost[k, accelerators:] = node["cpuLatency"]
        size[k, :accelerators] = node["size"]
        if "colorClass" in node:
            colours.setdefault(node["colorClass"], []).append(k)
    readers: dict[int, list[int]] = {}
    amount: dict[int, float] = {}
    for edge in data["edges"]:
        source = index[edge["sourceId"]]
        readers.setdefault(source, []).append(index[edge["destId"]])
        amount[source] = edge["cost"]
    outside = np.arange(devices) < accelerators
    tensors = [
        Tensor(s, tuple(dict.fromkeys(to)), amount[s] * outside, np.tile(amount[s] * outside, (devices, 1)))
        for s, to in readers.items()
    ]
    capacity = np.array([float(data["maxSizePerFPGA"])] * accelerators + [np.inf] * cpus)
    alike = (0,) * accelerators + (1,) * cpus
    whole = Problem(cost, size, tuple(tensors), tuple(range(devices)), capacity, alike)
    problem, group = contract(whole, list(colours.values()))
    return Instance(f"{path.parent.name}/{path.stem}", problem, whole, group)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of names; all instances where none is given")
    parser.add_argument("--ideals", type=int, default=solver.IDEALS, help="how many are looked at")
    parser.add_argument("--moves", type=int, default=30_000, help="of a run of the local search")
    parser.add_argument("--runs", type=int, default=9, help="of the local search")
    options = parser.parse_args(arguments)
    heads = ("instance", "nodes", "units", "contiguous", "known", "best", "known", "bound", "gap", "s")
    print("{:36}{:>6}{:>6}{:>13}{:>9}{:>9}{:>9}{:>9}{:>7}{:>7}".format(*heads))
    for path in sorted(folder().glob("*/*.json")):
        if options.names and not any(name in str(path) for name in options.names):
            continue
        instance = read(path)
        begin = time.perf_counter()
        found = solver.solve(instance.problem, "throughput", options.ideals, options.moves, options.runs)
        seconds = time.perf_counter() - begin
        optimum, best = KNOWN.get(instance.name, (None, None))
        mark = "" if found.complete else "*"
        print(
            f"{instance.name:36}{instance.whole.nodes:6}{instance.problem.nodes:6}"
            f"{found.contiguous:12.3f}{mark or ' '}{optimum or '-':>9}{found.value:9.3f}{best or '-':>9}"
            f"{found.lower_bound:9.3f}{100 * found.gap:6.1f}%{seconds:7.1f}",
            flush=True,
        )
    print("* a beam of the ideals, not all of them")


if __name__ == "__main__":
    main()
