"""Small networks for the tests of the cost model, and their schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from zoo.net import Net

from cuvil.codegen.tuned import claims
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.ir.graph import Graph
from cuvil.rewrite import simplify
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import Schedule, schedule
from cuvil.target.schema import Target, load

Build = Callable[[Net], None]


def board() -> Target:
    """A target whose figures do not depend on the machine that the tests run on."""
    return load("xeon-2s")


def graph(build: Build) -> Graph:
    """The graph of a network, simplified as the import stage does."""
    net = Net("net", 0)
    build(net)
    made = graph_from_proto(net.model())
    simplify.simplify(made)
    return made


def scheduled(build: Build, tuned: bool = False) -> Schedule:
    """The schedule of a network, from plain loops or with the tuned kernels of a Xeon."""
    options: dict[str, Any] = {**board().slice("codegen")["devices"]["socket0"]}
    return schedule(lower(graph(build)), claims.for_device(options) if tuned else None)


def matmul(m: int | str, k: int, n: int) -> Build:
    """[m, k] times constant [k, n]."""

    def build(net: Net) -> None:
        x = net.input("x", [m, k])
        net.output(net.op("MatMul", x, net.weight(k, n, fan_in=k)), "y", [m, n])

    return build


def conv(
    c_in: int, c_out: int, kernel: int, size: int, stride: int = 1, groups: int = 1, bias: bool = True
) -> Build:
    """A convolution with padding, and a ReLU."""

    def build(net: Net) -> None:
        out = (size + stride - 1) // stride
        x = net.input("x", [1, c_in, size, size])
        y = net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups, bias=bias)
        net.output(net.op("Relu", y), "y", [1, c_out, out, out])

    return build


def layer_norm(rows: int, columns: int, affine: bool) -> Build:
    """Layer normalization, with scale and bias or with the neutral ones."""

    def build(net: Net) -> None:
        x = net.input("x", [rows, columns])
        if affine:
            y = net.layer_norm(x, columns)
        else:
            neutral = np.ones(columns, np.float32)
            y = net.op("LayerNormalization", x, neutral, axis=-1)
        net.output(y, "y", [rows, columns])

    return build


def unary(kind: str, *shape: int | str, **attributes: Any) -> Build:
    """One element-wise or row-wise operator."""

    def build(net: Net) -> None:
        net.output(net.op(kind, net.input("x", list(shape)), **attributes), "y", list(shape))

    return build


def residual(width: int = 16, size: int = 16, blocks: int = 2) -> Build:
    """Convolutions with residual sums, as in a ResNet; classes at the end."""

    def build(net: Net) -> None:
        x = net.op("Relu", net.conv(net.input("x", [1, 3, size, size]), 3, width, 3))
        for _ in range(blocks):
            y = net.op("Relu", net.conv(x, width, width, 3))
            x = net.op("Relu", net.op("Add", net.conv(y, width, width, 3), x))
        x = net.op("Flatten", net.op("GlobalAveragePool", x))
        net.output(net.gemm(x, width, 10), "y", [1, 10])

    return build
