"""Named rules on a graph: an index of who makes and reads what, and nodes put in the place of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.frontend.scope import Namer
from cuvil.ir.graph import Graph, Node, TensorType, captured

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Quantized:
    """A tensor in integers: the value's name, and its constant scale and zero point (int64), both of rank
    0 or of one entry per slice of `axis`."""

    name: str
    dtype: str
    scale: Array
    zero: Array
    axis: int


class Rewriter:
    """A graph being rewritten, with an index of who makes and who reads each value, which follows what
    `replace`, `remove` and `changing` do."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fresh = Namer.of_values(graph)
        self.index()

    def index(self) -> None:
        """Make the index anew."""
        self.producers = self.graph.producers()
        self.readers = self.graph.consumers()

    @contextmanager
    def changing(self, *nodes: Node) -> Iterator[None]:
        """Inputs and outputs of `nodes` may be changed in the block."""
        for node in nodes:
            self._forget(node)
        yield
        for node in nodes:
            self._note(node)

    def _note(self, node: Node) -> None:
        self.producers.update((name, node) for name in node.outputs if name)
        for name in node.reads():
            self.readers.setdefault(name, []).append(node)

    def _forget(self, node: Node) -> None:
        for name in node.outputs:
            if self.producers.get(name) is node:
                del self.producers[name]
        for name in node.reads():
            self.readers[name] = [n for n in self.readers.get(name, ()) if n is not node]

    def producer(self, name: str, op: str) -> Node | None:
        """The node that makes `name`, if it is an `op` of the standard."""
        node = self.producers.get(name)
        return node if node is not None and node.op == op and not node.domain else None

    def is_private(self, name: str) -> bool:
        """One node reads the value, and it is no output."""
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def array(self, node: Node, index: int) -> Array | None:
        """Input `index` of a node where it is a constant."""
        return self.graph.constants.get(node.inputs[index]) if index < len(node.inputs) else None

    def parameters(self, node: Node) -> tuple[Array, Array, str] | None:
        """Constant scale and zero point of a QuantizeLinear or DequantizeLinear, and its integer type;
        None where they are not constants, or come in blocks."""
        scale, zero = self.array(node, 1), self.array(node, 2)
        given = len(node.inputs) > 2 and node.inputs[2] != ""
        if scale is None or scale.dtype != np.float32 or node.attrs.get("block_size"):
            return None
        if given and zero is None:
            return None
        if zero is None:
            kind = self.graph.types.get(node.inputs[0] if node.op == "DequantizeLinear" else node.outputs[0])
            if kind is None:
                return None
            dtype, zero = kind.dtype, np.zeros(scale.shape, np.int64)
        else:
            dtype = str(zero.dtype)
        if scale.size == 1:
            scale, zero = scale.reshape(()), zero.reshape(())
        return scale, zero.astype(np.int64), dtype

    def dequantized(self, name: str) -> Quantized | None:
        """What DequantizeLinear makes `name` of."""
        node = self.producer(name, "DequantizeLinear")
        found = self.parameters(node) if node is not None else None
        if node is None or found is None:
            return None
        scale, zero, dtype = found
        return Quantized(node.inputs[0], dtype, scale, zero, node.attrs.get("axis", 1))

    def constant(self, stem: str, array: Array) -> str:
        name = self.fresh(stem)
        self.graph.constants[name] = array
        self.graph.types[name] = TensorType(str(array.dtype), array.shape)
        return name

    def remove(self, node: Node) -> None:
        """Take a node out that nothing reads any more."""
        self.graph.nodes = [n for n in self.graph.nodes if n is not node]
        self._forget(node)

    def replace(self, old: Node, build: Callable[[Sequence], None]) -> None:
        """Put the nodes that `build` appends where `old` stands."""
        new = Sequence(self, old)
        build(new)
        at = next(k for k, node in enumerate(self.graph.nodes) if node is old)
        self.graph.nodes[at : at + 1] = new.nodes
        self._forget(old)
        for node in new.nodes:
            self._note(node)


class Sequence:
    """Nodes that take the place of `old`, with its name and metadata."""

    def __init__(self, rewriter: Rewriter, old: Node) -> None:
        self.rewriter, self.old = rewriter, old
        self.nodes: list[Node] = []
        kind = rewriter.graph.types.get(old.outputs[0])
        self.shape = kind.shape if kind is not None else None

    def constant(self, what: str, array: Array) -> str:
        return self.rewriter.constant(f"{self.old.outputs[0]}.{what}", array)

    def add(
        self,
        op: str,
        inputs: list[str],
        dtype: str,
        attrs: dict[str, Any] | None = None,
        output: str = "",
        shape: tuple[int | str, ...] | None = None,
    ) -> str:
        """Append a node; its result has the shape of the old one's unless told otherwise."""
        name = output or self.rewriter.fresh(f"{self.old.outputs[0]}.{op}")
        metadata = dict(self.old.metadata)
        self.nodes.append(Node(op, inputs, [name], attrs or {}, self.old.name, metadata=metadata))
        self.rewriter.graph.types[name] = TensorType(dtype, self.shape if shape is None else shape)
        return name

    def scaled(self, total: str, scale: Array, bias: Array | str | None) -> None:
        """The end: int32 `total` times `scale`, plus a float bias, under the old result's name."""
        output = self.old.outputs[0]
        value = self.add("Cast", [total], "float32", {"to": 1})
        factor, end = self.constant("scale", scale), output if bias is None else ""
        value = self.add("Mul", [value, factor], "float32", output=end)
        if bias is not None:
            name = bias if isinstance(bias, str) else self.constant("bias", bias)
            self.add("Add", [value, name], "float32", output=output)


@dataclass(frozen=True)
class Rule:
    """A rewrite around one node; returns True where it fired."""

    name: str
    ops: tuple[str, ...]
    apply: Callable[[Rewriter, Node], bool]


def rewrite(graph: Graph, rules: tuple[Rule, ...]) -> dict[str, int]:
    """Apply the rules to `graph`, in place, until none fires; returns how often each did.

    Node objects are replaced by copies, for other graphs may hold the same ones.
    """
    graph.nodes = [
        replace(n, inputs=list(n.inputs), outputs=list(n.outputs), attrs=dict(n.attrs)) for n in graph.nodes
    ]
    r = Rewriter(graph)
    counts: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for rule in rules:
            for node in list(graph.nodes):
                if node.op in rule.ops and not node.domain and rule.apply(r, node):
                    counts[rule.name] = counts.get(rule.name, 0) + 1
                    changed = True
        prune(graph)
        r.index()
    return counts


def prune(graph: Graph) -> None:
    """Drop nodes and constants that no output depends on."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not live.isdisjoint(name for name in node.outputs if name):
            live.update(node.inputs)
            live.update(captured(node))
            kept.append(node)
    graph.nodes = kept[::-1]
    graph.constants = {name: array for name, array in graph.constants.items() if name in live}
