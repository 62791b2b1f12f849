"""int8 without calibration data: activations get their scale from their own range at run time.

Weights are quantized as with calibration.  Each layer's input goes through DynamicQuantizeLinear,
the layer becomes ConvInteger or MatMulInteger, and its sums are scaled back to float: standard
ONNX, as accurate as 8 bits can be on any input, but each layer reads its input twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cuvil.frontend.scope import Namer
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.quantize import qdq, scheme
from cuvil.quantize.qdq import Layer


def quantize(placed: Mapping[str, Graph], target: Mapping[str, Any]) -> dict[str, Any]:
    """Put the graphs of all devices whose mode is ``int8`` into integer form, in place.

    Args:
        placed: each device's graph.
        target: the ``quantize`` slice of a target.

    Returns:
        The report: ``layers`` in integers, ``float`` (why the others were left in float).
    """
    per_channel = bool(target["calibration"]["per_channel"])
    report: dict[str, Any] = {"calibration": {"method": "dynamic", "samples": 0}, "tensors": {}}
    report |= {"layers": {}, "outputs": {}, "float": {}}
    for device, part in placed.items():
        if target["modes"].get(device) != "int8":
            continue
        mine = {qdq.key(node) for node in part.nodes}
        layers, refused = qdq.find_layers(part, mine)
        report["float"] |= refused
        for name in _Rewriter(part, per_channel).run(layers, report["float"]):
            report["layers"][name] = {"op": layers[name].op}
    return report


class _Rewriter:
    def __init__(self, graph: Graph, per_channel: bool) -> None:
        self.graph, self.per_channel = graph, per_channel
        self.name = Namer.of_values(graph)
        self.dynamic: dict[tuple[str, str], tuple[str, str, str]] = {}

    def run(self, layers: Mapping[str, Layer], refused: dict[str, str]) -> list[str]:
        """Rewrite the layers that have an integer form; returns their names."""
        done, nodes = [], []
        for node in self.graph.nodes:
            layer = layers.get(qdq.key(node))
            made = self._integer(node, layer) if layer is not None else None
            if layer is not None and made is None:
                refused[layer.output] = "its attributes have no integer form"
            elif made is not None:
                done.append(qdq.key(node))
            nodes += [node] if made is None else made
        self.graph.nodes = nodes
        used = {n for node in nodes for n in node.inputs} | set(self.graph.outputs)
        self.graph.constants = {n: a for n, a in self.graph.constants.items() if n in used}
        return done

    def _integer(self, node: Node, layer: Layer) -> list[Node] | None:
        """The nodes that compute a layer in integers, or None where it has no such form."""
        graph = self.graph
        kind = graph.types.get(layer.output)
        plain = node.attrs.get("alpha", 1.0) == 1 and node.attrs.get("beta", 1.0) == 1
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if kind is None or kind.shape is None or not plain or node.attrs.get("transA", 0):
            return None
        if node.op == "Conv" and bias and bias not in graph.constants:
            return None
        w = scheme.weights(graph.constants[layer.weights], layer.axis, None, np.float32(1), self.per_channel)
        if not scheme.fits(w, layer.axis):
            return None
        values = w.values.T if node.op == "Gemm" and node.attrs.get("transB", 0) else w.values
        conv = node.op == "Conv"
        tail = (1,) * (w.values.ndim - 2) if conv else ()
        spread = np.broadcast_to(w.scale, (w.values.shape[layer.axis],)).reshape(-1, *tail)
        made, (x, x_scale, x_zero) = self._quantized(layer.data, node)
        weights = self._constant(f"{layer.weights}.int8", np.ascontiguousarray(values))
        scales = self._constant(f"{layer.weights}.scale", np.ascontiguousarray(spread))
        sums = self._value(f"{layer.output}.sums", "int32", kind.shape)
        real = self._value(f"{layer.output}.real", "float32", kind.shape)
        scale = self._value(f"{layer.output}.scale", "float32", spread.shape)
        last = self._value(f"{layer.output}.scaled", "float32", kind.shape) if bias else layer.output
        op = "ConvInteger" if conv else "MatMulInteger"
        attrs = dict(node.attrs) if conv else {}
        made += [
            self._node(node, op, [x, weights, x_zero], [sums], attrs),
            self._node(node, "Cast", [sums], [real], {"to": 1}),
            self._node(node, "Mul", [x_scale, scales], [scale]),
            self._node(node, "Mul", [real, scale], [last]),
        ]
        if bias:
            added = (
                self._constant(f"{bias}.shaped", graph.constants[bias].reshape(-1, *tail)) if conv else bias
            )
            made.append(self._node(node, "Add", [last, added], [layer.output]))
        return made

    def _quantized(self, name: str, like: Node) -> tuple[list[Node], tuple[str, str, str]]:
        """The 8-bit copy of a tensor with its scale and zero point, one for all its readers in a
        segment."""
        at = (name, str(like.metadata))
        if at in self.dynamic:
            return [], self.dynamic[at]
        kind = self.graph.types[name]
        shape = kind.shape if kind.shape is not None else ()
        parts = (
            self._value(f"{name}.q", "uint8", shape),
            self._value(f"{name}.scale", "float32", ()),
            self._value(f"{name}.zero", "uint8", ()),
        )
        self.dynamic[at] = parts
        return [self._node(like, "DynamicQuantizeLinear", [name], list(parts))], parts

    def _node(
        self, like: Node, op: str, inputs: list[str], outputs: list[str], attrs: dict[str, Any] | None = None
    ) -> Node:
        return Node(op, inputs, outputs, attrs or {}, f"{outputs[0]}.{op}", "", dict(like.metadata))

    def _value(self, stem: str, dtype: str, shape: tuple[int | str, ...]) -> str:
        name = self.name(stem)
        self.graph.types[name] = TensorType(dtype, tuple(shape))
        return name

    def _constant(self, stem: str, array: np.ndarray) -> str:
        name = self._value(stem, str(array.dtype), array.shape)
        self.graph.constants[name] = array
        return name
