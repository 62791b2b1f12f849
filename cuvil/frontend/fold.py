"""Constant folding and dead code: what can be known at compile time is computed at compile time.

Values come from onnx's reference evaluator, one node at a time.  Quantized weights stay
quantized: DequantizeLinear of a constant is left for the kernels to fuse.
"""

from __future__ import annotations

import warnings

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from cuvil.frontend.onnx_writer import node_to_proto
from cuvil.frontend.scope import Equalities, Namer, Scope, constant_flag, definitions, substitute, walk
from cuvil.frontend.shape_values import Known, as_constant, follow, reshape_target
from cuvil.frontend.sizes import deduce
from cuvil.frontend.tensors import byte_size, type_of
from cuvil.ir.graph import Graph, Node, TensorType, captured
from cuvil.limits import MAX_FOLD_BYTES

NOT_FOLDED = frozenset((
    "DequantizeLinear",
    "Bernoulli", "Dropout", "Multinomial",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv", "LSTM", "GRU", "RNN",
))  # fmt: skip
"""Operators that are never evaluated: they must stay, are random, or are slow in the evaluator."""

BOUNDED_BY_INPUT = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression"))
"""Operators whose result has no inferred size, but a small one where the input is small."""


def fold_constants(graph: Graph) -> bool:
    """Evaluate what is constant in `graph` and its subgraphs, in place; says whether it changed.

    A node is evaluated where all its inputs are constants and its results, by their inferred
    types, have at most `MAX_FOLD_BYTES`.  Sizes of known shapes count as constants, a Reshape to
    computed sizes gets constant ones where they can be said, and an If on a constant is replaced
    by its branch.
    """
    folder = _Folder(graph)
    folder.fold(Scope(graph))
    return folder.equalities.apply(graph) or folder.changed


def remove_dead_code(graph: Graph) -> None:
    """Drop the nodes, constants and types that no output of `graph` depends on, in place."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if live.isdisjoint(name for name in node.outputs if name):
            continue
        for inner in node.subgraphs():
            remove_dead_code(inner)
        live.update(node.inputs)
        live.update(captured(node))
        kept.append(node)
    graph.nodes = kept[::-1]
    graph.constants = {name: array for name, array in graph.constants.items() if name in live}
    defined = set(definitions(graph))
    graph.types = {name: known for name, known in graph.types.items() if name in defined}


class _Folder:
    def __init__(self, root: Graph) -> None:
        self.fresh = Namer.of_values(root)
        self.equalities = Equalities(root)
        self.changed = False

    def fold(self, scope: Scope) -> None:
        graph = scope.graph
        known: Known = {}
        nodes: list[Node] = []
        queue = graph.nodes[::-1]
        while queue:
            node = queue.pop()
            taken = constant_flag(scope, node, 0) if node.op == "If" and not node.domain else None
            if taken is not None:
                queue += _branch(node, graph, self.fresh, taken)[::-1]
                self.changed = True
                continue
            for inner in node.subgraphs():
                self.fold(scope.inner(inner))
            results = _known_sizes(node, scope, known) or _evaluate(node, scope)
            if results:
                for name, array in results.items():
                    graph.constants[name] = array
                    graph.types[name] = type_of(array)
                self.changed = True
                continue
            self.deduce_sizes(node, scope, known)
            self.changed |= _fix_reshape(node, scope, known, self.fresh)
            nodes.append(node)
        graph.nodes = nodes

    def deduce_sizes(self, node: Node, scope: Scope, known: Known) -> None:
        """Note what the symbols that inference made up for a result's sizes are."""
        for old, new in zip(scope.shape(node.outputs[0]) or (), deduce(node, scope, known) or ()):
            if old != new:
                self.equalities.unify(old, new)


def _known_sizes(node: Node, scope: Scope, known: Known) -> dict[str, np.ndarray] | None:
    """The value of a node that computes with sizes, if it is a number; noted in `known` if not."""
    value = follow(node, scope, known)
    if value is None:
        return None
    array = as_constant(value)
    kind = scope.type(node.outputs[0])
    if array is None or kind is None or kind.dtype not in ("int64", "int32"):
        known[node.outputs[0]] = value
        return None
    return {node.outputs[0]: array.astype(kind.dtype)}


def _fix_reshape(node: Node, scope: Scope, known: Known, fresh: Namer) -> bool:
    """Give a Reshape whose sizes are followed, but not all numbers, constant sizes."""
    if node.op != "Reshape" or node.domain or node.attrs.get("allowzero") or node.inputs[1] not in known:
        return False
    sizes = reshape_target(known[node.inputs[1]], scope.shape(node.inputs[0]))
    if sizes is None:
        return False
    name = fresh(f"{node.outputs[0]}_shape")
    scope.graph.constants[name] = np.array(sizes, np.int64)
    scope.graph.types[name] = type_of(scope.graph.constants[name])
    node.inputs[1] = name
    return True


def _branch(node: Node, graph: Graph, fresh: Namer, taken: bool) -> list[Node]:
    """The nodes of the branch that an If with a constant condition takes; its constants and types
    move to `graph`, and Identity nodes give its results the If's names."""
    branch: Graph = node.attrs["then_branch" if taken else "else_branch"]
    inner = [name for graph in walk(branch) for name in definitions(graph)]
    substitute(branch, {name: fresh(name) for name in dict.fromkeys(inner)})
    graph.constants.update(branch.constants)
    graph.types.update(branch.types)
    ends = [
        Node("Identity", [source], [target]) for source, target in zip(branch.outputs, node.outputs) if target
    ]
    return [*branch.nodes, *ends]


def _evaluate(node: Node, scope: Scope) -> dict[str, np.ndarray] | None:
    """The results of a node with constant inputs, or None where it must not or cannot be run."""
    names = [name for name in node.inputs if name]
    if node.domain or node.op in NOT_FOLDED or not names or any(node.subgraphs()):
        return None
    inputs = {name: scope.constant(name) for name in names}
    types = {name: scope.graph.types.get(name) for name in node.outputs if name}
    if any(value is None for value in inputs.values()) or not types:
        return None
    bounded = node.op in BOUNDED_BY_INPUT
    if not all(_is_small(kind, bounded) for kind in types.values()):
        return None
    opset = scope.graph.opset
    proto = helper.make_model(
        helper.make_graph(
            [node_to_proto(node, opset)],
            "fold",
            [helper.make_empty_tensor_value_info(name) for name in inputs],
            [helper.make_empty_tensor_value_info(name) for name in types],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            arrays = [np.asarray(a) for a in ReferenceEvaluator(proto).run(None, inputs)]
        except Exception:  # the evaluator raises whatever its Python code does; the node then stays
            return None
    results = dict(zip(types, arrays))
    return results if all(_matches(array, types[name], bounded) for name, array in results.items()) else None


def _is_small(kind: TensorType | None, bounded: bool) -> bool:
    if kind is None or not kind.is_tensor or kind.shape is None:
        return False
    if bounded:
        return True
    sizes = [d for d in kind.shape if isinstance(d, int)]
    if len(sizes) < len(kind.shape):
        return False
    count = 1
    for size in sizes:
        count *= size
    return byte_size(kind.dtype, count) <= MAX_FOLD_BYTES


def _matches(array: np.ndarray, kind: TensorType | None, bounded: bool) -> bool:
    found = type_of(array)
    assert kind is not None
    return found.dtype == kind.dtype and (bounded or found.shape == kind.shape)
