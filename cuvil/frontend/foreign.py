"""Types of the results of operators outside ONNX's default domain, of which onnx knows little: those that
a trial lowering of the single node gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cuvil.errors import CuvilError
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.containers import Entry
from cuvil.ir.expr import Expr
from cuvil.ir.graph import Dim, Graph, Node, TensorType
from cuvil.ir.primitives import Program, Value
from cuvil.ops.registry import lower_node


def foreign_types(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray], opset: int
) -> dict[str, TensorType]:
    """The types of the results of `node`, as far as its inputs' types tell them.

    Args:
        types: of its inputs; a size that is no plain symbol of theirs becomes "", an unknown one.
        constants: the inputs that are known.
        opset: version of the default domain.

    Returns:
        Types by name; empty where an input's rank is unknown or the node cannot be lowered, for which
        lowering itself gives the reason later.
    """
    known = [types.get(name) for name in node.inputs if name and name not in constants]
    if any(kind is None or kind.shape is None for kind in known) or any(node.subgraphs()):
        return {}
    with E.aside():
        try:
            return _lowered(node, types, constants, opset)
        except CuvilError:
            return {}


def _lowered(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray], opset: int
) -> dict[str, TensorType]:
    builder = Builder(Program(node.name))
    sizes: dict[Expr, Dim] = {}

    def value(name: str) -> Value | None:
        if not name or name in constants:
            return builder.constant(constants[name], name) if name else None
        kind = types[name]
        shape = [
            E.const(d) if isinstance(d, int) else E.sym(d or f"{name} {n}")
            for n, d in enumerate(kind.shape or ())
        ]
        sizes.update(zip(shape, kind.shape or ()))
        if kind.dtype == "string":
            return builder.text_input(name, shape)
        return builder.input(name, kind.dtype, shape)

    def subgraph(inner: Graph, inputs: Sequence[Entry] = ()) -> list[Entry]:
        raise AssertionError(inner.name)

    made = lower_node(builder, node, [value(name) for name in node.inputs], opset, subgraph, {})
    found = {}
    for name, result in zip(node.outputs, made):
        if name and isinstance(result, Value):
            shape = result.shape[:-1] if result.text else result.shape
            dims = tuple(int(s.attr) if s.is_const else sizes.get(s, "") for s in shape)
            found[name] = TensorType("string" if result.text else result.dtype, dims)
    return found
