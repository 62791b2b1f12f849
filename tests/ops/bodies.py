"""Bodies of loops and branches for tests of control flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from single import Array, node

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

Kind = tuple[str, int, Sequence[int | str] | None]


def graph(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Kind], outputs: Sequence[Kind], **constants: Array
) -> onnx.GraphProto:
    """A body; its nodes get unique names."""
    for n, made in enumerate(nodes):
        made.name = f"inner{n}_{made.output[0]}"
    doubles = [k for k, kind in enumerate(outputs) if kind[0] in [o[0] for o in (*inputs, *outputs[:k])]]
    names = {k: f"{outputs[k][0]}_{k}" for k in doubles}  # a graph names each of its ends once
    nodes = [*nodes, *(node("Identity", outputs[k][0], name, name=name) for k, name in names.items())]
    outputs = [(names.get(k, name), *kind) for k, (name, *kind) in enumerate(outputs)]
    kinds = [[helper.make_tensor_value_info(*kind) for kind in side] for side in (inputs, outputs)]
    stored = [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()]
    return helper.make_graph(list(nodes), "body", *kinds, stored)


def loop(
    nodes: Sequence[onnx.NodeProto],
    states: Sequence[Kind],
    results: Sequence[Kind],
    inputs: str,
    outputs: str,
    **constants: Array,
) -> onnx.NodeProto:
    """A Loop; `results` are the condition, the states and what is collected."""
    first: list[Kind] = [("i", INT, []), ("going", BOOL, [])]
    return node("Loop", inputs, outputs, body=graph(nodes, [*first, *states], results, **constants))


GOES_ON: Kind = ("going_on", BOOL, [])


def onward(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A body's nodes with the condition passed on."""
    return [node("Identity", "going", "going_on"), *nodes]


def while_less(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A body's nodes that go on while the sum of state `s`'s successor `t` is below `limit`."""
    return [*nodes, node("ReduceSum", "t", "total", keepdims=0), node("Less", "total limit", "going_on")]


S: Kind = ("s", FLOAT, [2])
T: Kind = ("t", FLOAT, [2])
TRIPS = [{"n": np.array(n)} for n in (0, 1, 2, 7)]
START = {"x": np.float32([0.5, 0.25])}
TRUE = np.array(True)


def recurrence(*nodes: onnx.NodeProto, **constants: Array) -> onnx.NodeProto:
    """A Loop over n steps with a state [2] that collects `o`."""
    return loop(onward(*nodes), [S], [GOES_ON, T, ("o", FLOAT, None)], "n c x", "y z", **constants)
