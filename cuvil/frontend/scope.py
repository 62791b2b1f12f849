"""Names across a graph and its subgraphs: looking values up, renaming them, making new ones.

A subgraph sees the values of the graphs around it.  The reader refuses models in which an inner
name hides an outer one, so a name means the same value wherever it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from cuvil.ir.graph import Dim, Graph, Node, Shape, TensorType


@dataclass(frozen=True)
class Scope:
    """A graph together with the graphs around it."""

    graph: Graph
    outer: Scope | None = None

    def constant(self, name: str) -> np.ndarray | None:
        """The constant called `name`, or None where there is no such constant."""
        scope: Scope | None = self
        while scope is not None and name:
            if name in scope.graph.constants:
                return scope.graph.constants[name]
            scope = scope.outer
        return None

    def type(self, name: str) -> TensorType | None:
        """What is known of the type of `name`."""
        scope: Scope | None = self
        while scope is not None and name:
            if name in scope.graph.types:
                return scope.graph.types[name]
            scope = scope.outer
        return None

    def shape(self, name: str) -> Shape | None:
        """What is known of the shape of `name`."""
        known = self.type(name)
        return known.shape if known else None

    def inner(self, graph: Graph) -> Scope:
        """The scope of a subgraph of this one."""
        return Scope(graph, self)


def walk(graph: Graph) -> Iterator[Graph]:
    """`graph` and all subgraphs below it, outermost first, those of a node by attribute name."""
    yield graph
    for node in graph.nodes:
        if any(node.subgraphs()):
            bodies = ((key, value) for key, value in node.attrs.items() if isinstance(value, Graph))
            for _, inner in sorted(bodies, key=itemgetter(0)):
                yield from walk(inner)


def definitions(graph: Graph) -> Iterator[str]:
    """The names that `graph` itself defines: inputs, constants, results of nodes."""
    yield from graph.inputs
    yield from graph.constants
    for node in graph.nodes:
        yield from (name for name in node.outputs if name)


class Namer:
    """Makes names that are not among the `used` ones."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)

    @classmethod
    def of_values(cls, graph: Graph) -> Namer:
        """A namer for new values anywhere in `graph`."""
        return cls(name for inner in walk(graph) for name in definitions(inner))

    @classmethod
    def of_dims(cls, graph: Graph) -> Namer:
        """A namer for new symbolic dimensions of `graph`."""
        types = (known for inner in walk(graph) for known in inner.types.values())
        return cls(d for known in types for d in known.shape or () if isinstance(d, str))

    def __call__(self, base: str) -> str:
        """`base`, or `base` with the first free number behind it."""
        name, number = base, 0
        while name in self._used:
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name


def substitute(graph: Graph, names: Mapping[str, str]) -> None:
    """Rename values in place, in subgraphs too; the type of a renamed value moves with it, unless
    its new name has one already."""
    if not names:
        return
    for inner in walk(graph):
        inner.inputs = [names.get(name, name) for name in inner.inputs]
        inner.outputs = [names.get(name, name) for name in inner.outputs]
        for node in inner.nodes:
            node.inputs = [names.get(name, name) for name in node.inputs]
            node.outputs = [names.get(name, name) for name in node.outputs]
        for old in [name for name in inner.types if name in names]:
            inner.types.setdefault(names[old], inner.types.pop(old))
        for old in [name for name in inner.constants if name in names]:
            inner.constants[names[old]] = inner.constants.pop(old)


def substitute_dims(graph: Graph, dims: Mapping[str, Dim]) -> None:
    """Replace symbolic dimensions in every type of `graph`, in place, in subgraphs too."""
    for inner in walk(graph) if dims else ():
        for name, known in inner.types.items():
            if known.shape is not None:
                shape = tuple(dims.get(d, d) if isinstance(d, str) else d for d in known.shape)
                inner.types[name] = TensorType(known.dtype, shape)


class Equalities:
    """What is learned of the symbolic dimensions of a graph: which are equal, which are numbers.

    Symbols of the graph's inputs never give way to others.
    """

    def __init__(self, graph: Graph) -> None:
        self._fixed = {d for name in graph.inputs for d in graph.types[name].shape or ()}
        self._equal: dict[str, Dim] = {}

    def unify(self, symbol: Dim, meaning: Dim) -> None:
        """Note that `symbol` is `meaning`; two sizes that cannot give way are left as they are."""
        symbol, meaning = self._resolve(symbol), self._resolve(meaning)
        if isinstance(symbol, int) or symbol in self._fixed:
            symbol, meaning = meaning, symbol
        if isinstance(symbol, str) and symbol not in self._fixed and symbol != meaning:
            self._equal[symbol] = meaning

    def apply(self, graph: Graph) -> bool:
        """Put what was learned into all types of `graph`; says whether that was anything."""
        substitute_dims(graph, {symbol: self._resolve(symbol) for symbol in self._equal})
        return bool(self._equal)

    def _resolve(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self._equal:
            dim = self._equal[dim]
        return dim


def constant_flag(scope: Scope, node: Node, index: int) -> bool | None:
    """The truth of the constant input `index` of `node`: False where it is omitted, None where it
    is not a constant."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return False
    value = scope.constant(name)
    return None if value is None else bool(value.reshape(-1)[:1].any())
