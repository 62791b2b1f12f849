"""QDQ form: where QuantizeLinear and DequantizeLinear go, and putting them there.

A layer is a Conv, Gemm or MatMul with constant weights.  Its input, weights and bias are read
through DequantizeLinear; its output stays float, for what follows it (activation, residual sum) is
computed before the next layer's QuantizeLinear, in the same kernel.  Operators that only move or
select values (`PASSING`) run on 8-bit copies when a layer reads their result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.frontend.scope import Namer
from cuvil.ir.graph import Graph, Node, TensorType, captured
from cuvil.partition.segments import SEGMENT_KEY
from cuvil.quantize.scheme import Parameters, Weights

Array = npt.NDArray[Any]

PASSING = frozenset((
    "Concat", "DepthToSpace", "Expand", "Flatten", "Identity", "MaxPool", "Reshape", "SpaceToDepth",
    "Squeeze", "Transpose", "Unsqueeze",
))  # fmt: skip
"""Operators that give 8-bit results from 8-bit operands of the same scale and zero point."""

JOINING = frozenset(("Add", "Concat", "Mul", "Sub"))
"""Operators that only one of their operands' layers can be computed together with."""

VALUELESS = frozenset(("Shape", "Size"))
"""Operators that read no element."""


@dataclass(frozen=True)
class Layer:
    """A node to be computed in integers.

    Attributes:
        output: the name of its result, which is its key.
        data: the tensor it reads.
        weights: the constant it reads.
        axis: the weights' output channels.
        bias: the constant to be int32; empty where there is none, or where it stays float.
    """

    output: str
    op: str
    data: str
    weights: str
    axis: int
    bias: str = ""


@dataclass
class Plan:
    """What is quantized, and how.

    Attributes:
        layers, weights: by the layer's output.
        tensors: the parameters of every tensor with an 8-bit copy.
    """

    layers: dict[str, Layer] = field(default_factory=dict)
    weights: dict[str, Weights] = field(default_factory=dict)
    tensors: dict[str, Parameters] = field(default_factory=dict)


def key(node: Node) -> str:
    """The name of a node's first result, which identifies it in every copy of its graph."""
    return next((name for name in node.outputs if name), "")


def find_layers(graph: Graph, nodes: Collection[str]) -> tuple[dict[str, Layer], dict[str, str]]:
    """The layers among `nodes` (given by `key`), and why other nodes of the same kinds are none."""
    layers: dict[str, Layer] = {}
    refused: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("Conv", "Gemm", "MatMul", "ConvTranspose") and not node.domain and key(node) in nodes:
            found = _layer(graph, node)
            if isinstance(found, Layer):
                layers[found.output] = found
            else:
                refused[key(node)] = found
    return layers, refused


def _layer(graph: Graph, node: Node) -> Layer | str:
    if node.op == "ConvTranspose":
        return "ConvTranspose has no integer form in ONNX"
    data, name = node.inputs[:2]
    weights = graph.constants.get(name)
    if weights is None or data in graph.constants:
        return "one operand must be a constant and the other not"
    if weights.dtype != np.float32:
        return f"the weights have type {weights.dtype}, only float32 is quantized"
    if node.op != "Conv" and weights.ndim != 2:
        return f"the weights have {weights.ndim} axes, only 2 are quantized"
    transposed = node.op == "Gemm" and node.attrs.get("transB", 0)
    axis = 0 if node.op == "Conv" or transposed else 1
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias:
        shape = graph.constants[bias].shape if bias in graph.constants else ()
        plain = node.attrs.get("alpha", 1.0) == 1 and node.attrs.get("beta", 1.0) == 1
        if shape != (weights.shape[axis],) or not plain:
            bias = ""
    return Layer(node.outputs[0], node.op, data, name, axis, bias)


def shared_tensors(
    graph: Graph,
    layers: Mapping[str, Layer],
    nodes: Collection[str],
    may_join: Callable[[list[str]], bool] = lambda names: True,
) -> dict[str, str]:
    """The tensors that get 8-bit copies, each with the one whose parameters it shares.

    They are what `layers` read; before that, what operators of `PASSING` among `nodes` make them of;
    and of several layers that meet in one element-wise operator, the results of all but the first,
    for these are stored.

    Args:
        may_join: whether the given tensors may share their parameters, for Concat.
    """
    producers, readers = graph.producers(), graph.consumers()
    order = {name: k for k, name in enumerate(layers)}
    queue = [layer.data for layer in layers.values()]
    for node in graph.nodes:
        if node.op in JOINING and key(node) in nodes:
            own = [n for n in node.inputs if n in layers and len(readers[n]) == 1 and n not in graph.outputs]
            queue += sorted(set(own), key=order.__getitem__)[1:]
    parent: dict[str, str] = {}
    links: list[tuple[str, str]] = []
    while queue:
        name = queue.pop()
        if name in parent:
            continue
        parent[name] = name
        producer = producers.get(name)
        if producer is not None and key(producer) in nodes:
            sources = _passed(producer)
            if not any(n in graph.constants for n in sources) and may_join([*sources, name]):
                links += [(source, name) for source in sources]
                queue += sources

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for source, name in links:
        parent[root(source)] = root(name)
    return {name: root(name) for name in parent}


def _passed(node: Node) -> list[str]:
    """The operands whose values a node passes on; none where it computes."""
    if node.domain or node.op not in PASSING or any(node.outputs[1:]):
        return []
    return list(dict.fromkeys(node.inputs if node.op == "Concat" else node.inputs[:1]))


def insert(graph: Graph, plan: Plan, readers: Collection[str]) -> None:
    """Put `plan` into `graph`, in place: integer weights, and 8-bit copies that `readers` (nodes by
    `key`) read instead of the float tensors.

    New nodes stand before their first reader in its segment; the graph's own tensors keep their names.
    """
    _Inserter(graph, plan).run(readers)


class _Inserter:
    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.fresh = Namer.of_values(graph)
        self.nodes: list[Node] = []
        self.copies: dict[tuple[str, str], str] = {}
        self.constants: dict[tuple[str, bytes], str] = {}

    def run(self, readers: Collection[str]) -> None:
        graph = self.graph
        for node in graph.nodes:
            if key(node) in readers:
                node.inputs = [self.copy(n, node) if n in self.plan.tensors else n for n in node.inputs]
            layer = self.plan.layers.get(key(node))
            if layer is not None:
                self.layer(layer, node)
            self.nodes.append(node)
        graph.nodes = self.nodes
        used = {n for node in graph.nodes for n in (*node.inputs, *captured(node))} | set(graph.outputs)
        for name in [n for n in graph.constants if n not in used]:
            del graph.constants[name]
            graph.types.pop(name, None)

    def copy(self, name: str, reader: Node) -> str:
        """The tensor `name` through 8 bits, in the reader's segment."""
        place = name, reader.metadata.get(SEGMENT_KEY, "")
        if place not in self.copies:
            parameters = self.plan.tensors[name]
            scale = self.constant(f"{name}.scale", np.asarray(parameters.scale))
            zero = self.constant(f"{name}.zero", np.asarray(parameters.zero_point, np.uint8))
            small, full = (TensorType(t, self.graph.types[name].shape) for t in ("uint8", "float32"))
            q = self.node("QuantizeLinear", [name, scale, zero], f"{name}.q", small, reader)
            self.copies[place] = self.node("DequantizeLinear", [q, scale, zero], f"{name}.dq", full, reader)
        return self.copies[place]

    def layer(self, layer: Layer, node: Node) -> None:
        w, data = self.plan.weights[layer.output], self.plan.tensors[layer.data]
        node.inputs[1] = self.integers(layer.weights, w.values, w.scale, layer.axis, node)
        if w.bias is not None:
            scale = (data.scale * w.scale).astype(np.float32)
            node.inputs[2] = self.integers(layer.bias, w.bias, scale, 0, node)

    def integers(self, name: str, values: Array, scale: Array, axis: int, reader: Node) -> str:
        """A constant stored as integers with zero point 0, and the DequantizeLinear that reads it."""
        zero = np.zeros(scale.shape, values.dtype)
        parts = {"q": values, "scale": scale, "zero": zero}
        inputs = [self.constant(f"{name}.{what}", array) for what, array in parts.items()]
        kind, attrs = TensorType("float32", values.shape), {"axis": axis} if scale.ndim else {}
        return self.node("DequantizeLinear", inputs, f"{name}.dq", kind, reader, attrs)

    def constant(self, name: str, array: Array) -> str:
        """A constant, under a name of its own unless an equal one of that name is there."""
        found = (name, array.tobytes())
        if found not in self.constants:
            self.constants[found] = self.fresh(name)
            self.graph.constants[self.constants[found]] = array
            self.graph.types[self.constants[found]] = TensorType(str(array.dtype), array.shape)
        return self.constants[found]

    def node(
        self,
        op: str,
        inputs: list[str],
        output: str,
        kind: TensorType,
        reader: Node,
        attrs: dict[str, Any] | None = None,
    ) -> str:
        name = self.fresh(output)
        segment = {k: v for k, v in reader.metadata.items() if k == SEGMENT_KEY}
        self.nodes.append(Node(op, inputs, [name], attrs or {}, name, metadata=segment))
        self.graph.types[name] = kind
        return name


def copy_graph(graph: Graph, more_outputs: Iterable[str] = ()) -> Graph:
    """A graph whose nodes may be changed, with further outputs (inputs are left out)."""
    nodes = [replace(n, inputs=list(n.inputs), outputs=list(n.outputs)) for n in graph.nodes]
    outputs = list(dict.fromkeys([*graph.outputs, *(n for n in more_outputs if n not in graph.inputs)]))
    constants, types = dict(graph.constants), dict(graph.types)
    return Graph(graph.name, list(graph.inputs), outputs, nodes, constants, types, graph.opset)
