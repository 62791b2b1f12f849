"""Rewrites of the graph before anything is placed: named rules, each with the test that lets it fire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuvil.ir.graph import Graph, Node, TensorType

Readers = dict[str, list[Node]]
"""The nodes that read each value, of `Graph.consumers`."""


@dataclass(frozen=True)
class Rule:
    """A rewrite of the graph around one node; returns the node after it that it does the work of from now
    on, None where it did not fire."""

    name: str
    apply: Callable[[Graph, Node, Readers], Node | None]


def simplify(graph: Graph, rules: tuple[Rule, ...] | None = None) -> dict[str, int]:
    """Apply all rules until none fires; returns how often each did."""
    counts: dict[str, int] = {}
    readers = graph.consumers()
    changed = True
    while changed:
        changed = False
        for rule in rules or RULES:
            gone: set[int] = set()
            for node in graph.nodes:
                absorbed = rule.apply(graph, node, readers)
                if absorbed is not None:
                    node.outputs = list(absorbed.outputs)
                    gone.add(id(absorbed))
            if gone:
                graph.nodes = [node for node in graph.nodes if id(node) not in gone]
                counts[rule.name] = counts.get(rule.name, 0) + len(gone)
                changed = True
    used = {n for node in graph.nodes for n in node.inputs} | set(graph.outputs)
    used |= {n for node in graph.nodes for g in node.subgraphs() for n in _names(g)}
    graph.constants = {n: a for n, a in graph.constants.items() if n in used}
    for name in graph.outputs:
        if name in graph.constants:
            _compute(graph, name)
    return counts


def _compute(graph: Graph, name: str) -> None:
    """Let a node give an output that is a constant, for what devices run is nodes (an Identity would
    be looked through when the graph is read again)."""
    array = graph.constants.pop(name)
    inner = _new_constant(graph, f"{name}.value", array)
    shape = _new_constant(graph, f"{name}.shape", np.array(array.shape, np.int64))
    graph.nodes.append(Node("Reshape", [inner, shape], [name], name=name))


def _names(graph: Graph) -> set[str]:
    found = {n for node in graph.nodes for n in node.inputs} | set(graph.outputs)
    for node in graph.nodes:
        for g in node.subgraphs():
            found |= _names(g)
    return found


def _only_reader(graph: Graph, name: str, readers: Readers) -> Node | None:
    """The node that alone reads `name`, if there is one and it is no output."""
    found = readers.get(name, [])
    return found[0] if len(found) == 1 and name not in graph.outputs else None


def _new_constant(graph: Graph, stem: str, array: np.ndarray) -> str:
    name, n = stem, 0
    while name in graph.constants or name in graph.types:
        n += 1
        name = f"{stem}_{n}"
    graph.constants[name] = array
    graph.types[name] = TensorType(str(array.dtype), tuple(array.shape))
    return name


def fold_batch_normalization(graph: Graph, conv: Node, readers: Readers) -> Node | None:
    """Convolution, then BatchNormalization: the scale moves into the weights, the shift into the bias."""
    if conv.op not in ("Conv", "ConvTranspose") or conv.domain or conv.inputs[1] not in graph.constants:
        return None
    bn = _only_reader(graph, conv.outputs[0], readers)
    if bn is None or bn.op != "BatchNormalization" or any(n not in graph.constants for n in bn.inputs[1:5]):
        return None
    if bn.attrs.get("training_mode", 0):
        return None
    if len(conv.inputs) > 2 and conv.inputs[2] and conv.inputs[2] not in graph.constants:
        return None
    if conv.op == "ConvTranspose" and conv.attrs.get("group", 1) != 1:
        return None
    scale, shift, mean, variance = (graph.constants[n].astype(np.float64) for n in bn.inputs[1:5])
    factor = scale / np.sqrt(variance + bn.attrs.get("epsilon", 1e-5))
    weights = graph.constants[conv.inputs[1]]
    axis = 0 if conv.op == "Conv" else 1
    shape = [-1 if k == axis else 1 for k in range(weights.ndim)]
    bias = (
        graph.constants[conv.inputs[2]].astype(np.float64) if len(conv.inputs) > 2 and conv.inputs[2] else 0.0
    )
    new_weights = (weights.astype(np.float64) * factor.reshape(shape)).astype(weights.dtype)
    new_bias = ((bias - mean) * factor + shift).astype(weights.dtype)
    conv.inputs[1:] = [
        _new_constant(graph, f"{conv.inputs[1]}.bn", new_weights),
        _new_constant(graph, f"{conv.outputs[0]}.bias", new_bias),
    ]
    return bn


def fold_scale(graph: Graph, conv: Node, readers: Readers) -> Node | None:
    """Convolution, then a per-channel constant added or multiplied: it moves into the weights."""
    if conv.op != "Conv" or conv.domain or conv.inputs[1] not in graph.constants:
        return None
    node = _only_reader(graph, conv.outputs[0], readers)
    if node is None or node.op not in ("Add", "Mul") or node.domain:
        return None
    other = next((n for n in node.inputs if n != conv.outputs[0]), "")
    weights = graph.constants[conv.inputs[1]]
    array = graph.constants.get(other)
    if array is None or array.dtype != weights.dtype or array.ndim > weights.ndim:
        return None
    full = array.reshape((1,) * (weights.ndim - array.ndim) + array.shape)
    if full.size not in (1, full.shape[1]) or full.shape[1] not in (1, weights.shape[0]):
        return None
    channel = np.broadcast_to(full.reshape(-1), (weights.shape[0],)).astype(np.float64)
    has_bias = len(conv.inputs) > 2 and conv.inputs[2]
    if has_bias and conv.inputs[2] not in graph.constants:
        return None
    bias = graph.constants[conv.inputs[2]].astype(np.float64) if has_bias else np.zeros(weights.shape[0])
    if node.op == "Mul":
        shape = [-1] + [1] * (weights.ndim - 1)
        scaled = (weights * channel.reshape(shape)).astype(weights.dtype)
        conv.inputs[1] = _new_constant(graph, f"{conv.inputs[1]}.scaled", scaled)
        bias = bias * channel
    else:
        bias = bias + channel
    conv.inputs[2:] = [_new_constant(graph, f"{conv.outputs[0]}.bias", bias.astype(weights.dtype))]
    return node


RULES = (
    Rule("fold-batch-normalization", fold_batch_normalization),
    Rule("fold-scale", fold_scale),
)


def channels_last(graph: Graph) -> None:
    """Give every input and output of rank 4 in NHWC order, by transposes at the edges."""
    for name in graph.inputs:
        inner = _to_nhwc(graph, name)
        if inner:
            to_nchw = Node("Transpose", [name], [inner], {"perm": [0, 3, 1, 2]}, f"{name}.to_nchw")
            graph.nodes.insert(0, to_nchw)
    for name in graph.outputs:
        inner = _to_nhwc(graph, name) if name not in graph.inputs else ""
        if inner:
            if name in graph.constants:
                graph.constants[inner] = graph.constants.pop(name)
            for node in graph.nodes:
                node.outputs = [inner if o == name else o for o in node.outputs]
            graph.nodes.append(Node("Transpose", [inner], [name], {"perm": [0, 2, 3, 1]}, f"{name}.to_nhwc"))


def _to_nhwc(graph: Graph, name: str) -> str:
    """Make `name` the NHWC form of a tensor and give what was called so another name, which is
    returned; "" where the tensor is not of rank 4."""
    kind = graph.types[name]
    if kind.shape is None or len(kind.shape) != 4:
        return ""
    n, c, h, w = kind.shape
    inner = f"{name}.nchw"
    graph.types[inner] = kind
    graph.types[name] = TensorType(kind.dtype, (n, h, w, c))
    _rename_reads(graph, name, inner)
    return inner


def _rename_reads(graph: Graph, old: str, new: str) -> None:
    """Read `new` wherever `old` is read, inside of subgraphs too."""
    for node in graph.nodes:
        node.inputs = [new if i == old else i for i in node.inputs]
        for inner in node.subgraphs():
            _rename_reads(inner, old, new)
            inner.outputs = [new if o == old else o for o in inner.outputs]
