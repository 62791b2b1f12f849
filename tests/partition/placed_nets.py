"""Networks and boards for the tests that place graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from zoo.net import Net, i64

from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.ir.graph import Graph
from cuvil.rewrite import simplify
from cuvil.target.schema import Target, load

DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits" / "digits.onnx"

RK3588_HERE = """
extends: rk3588
triple: x86_64-linux-gnu
devices:
  big: {isa: x86-64-v3, cpu: null, cpus: null}
  little: {isa: x86-64-v2, cpu: null, cpus: null}
partition: {objective: throughput}
"""
"""Two unequal clusters and an NPU, as on an RK3588, that this machine can stand in for."""

XEON_HERE = """
extends: xeon-2s
devices:
  socket0: {isa: x86-64-v3, cpus: null}
  socket1: {isa: x86-64-v3, cpus: null}
partition: {objective: throughput}
"""
"""Two sockets with a memory each."""


def profile(folder: Path, text: str, name: str = "here") -> Target:
    """The target of a profile that is written to `folder`."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load(path)


def slice_of(name: str, **partition: Any) -> dict[str, Any]:
    """The ``partition`` slice of a target, with changes of what the partitioner works for."""
    found = copy.deepcopy(load(name).slice("partition"))
    found["partition"] |= partition
    return found


def model(build: Callable[[Net], None]) -> onnx.ModelProto:
    net = Net("net", 0)
    build(net)
    return net.model()


def graph(build: Callable[[Net], None]) -> Graph:
    """The graph as the import stage leaves it."""
    made = graph_from_proto(model(build))
    simplify.simplify(made)
    return made


def residual(net: Net) -> None:
    """A stem, two residual blocks (the second one strided, with a projection), classes."""
    x = net.op("Relu", net.conv(net.input("x", [1, 3, 24, 24]), 3, 16, 3))
    y = net.op("Relu", net.conv(x, 16, 16, 3))
    x = net.op("Relu", net.op("Add", net.conv(y, 16, 16, 3), x))
    y = net.op("Relu", net.conv(x, 16, 32, 3, stride=2))
    x = net.op("Relu", net.op("Add", net.conv(y, 32, 32, 3), net.conv(x, 16, 32, 1, stride=2)))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.gemm(x, 32, 10), "y", [1, 10])


def branches(net: Net) -> None:
    """Two equal branches of work, joined at the end."""
    x = net.input("x", [1, 16, 16, 16])
    left = net.op("Relu", net.conv(net.op("Relu", net.conv(x, 16, 64, 3)), 64, 16, 3))
    right = net.op("Relu", net.conv(net.op("Relu", net.conv(x, 16, 64, 3)), 64, 16, 3))
    net.output(net.op("Concat", left, right, axis=1), "y", [1, 32, 16, 16])


def reshaped(net: Net) -> None:
    """A reshape whose sizes are computed from the input's shape."""
    x = net.input("x", ["N", 8, 4])
    y = net.op("Relu", net.linear(x, 4, 16))
    rows = net.op("Mul", net.dim(x, 0), i64(8))
    y = net.reshape(y, rows, 16)
    net.output(net.linear(net.op("Tanh", y), 16, 3), "y", ["M", 3])
