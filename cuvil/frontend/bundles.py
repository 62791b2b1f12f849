"""Sequences and optionals at a model's interface become tensors: the graph has these as inputs and outputs.

A sequence `s` becomes ``s[0]``, ``s[1]``, ...; an optional that is present becomes what it holds, and one
that is absent disappears.  Nodes at both ends of the graph make and take apart what the model has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Union

import numpy as np
import onnx

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.scope import Namer, substitute
from cuvil.frontend.tensors import dtype_code, type_of
from cuvil.ir.containers import OptionalValue, SequenceValue, element_type
from cuvil.ir.graph import Bundle, Dim, Graph, Node, TensorType
from cuvil.ir.primitives import Value, static
from cuvil.schedule import lower

Binding = Union[Sequence[Dim], Sequence[Sequence[Dim]], None]
"""What an input is bound to: the shape of a tensor; the shapes of a sequence's items; for an optional that of
what it holds, or None where it is absent."""


def open_inputs(model: onnx.ModelProto) -> list[str]:
    """The inputs that cannot be compiled unbound: sequences, optionals, and tensors of unknown rank."""
    given = {tensor.name for tensor in model.graph.initializer}
    return [
        v.name
        for v in model.graph.input
        if v.name not in given
        and not (v.type.HasField("tensor_type") and v.type.tensor_type.HasField("shape"))
    ]


def binding_of(value: Any) -> Binding:
    """What an input is bound to that takes `value`: an array, a list of arrays, or None."""
    if isinstance(value, (list, tuple)):
        return [np.shape(item) for item in value]
    return None if value is None else np.shape(value)


def flatten_inputs(
    graph: Graph, shapes: Mapping[str, Binding], values: Collection[str]
) -> dict[str, Sequence[Dim]]:
    """Give `graph` tensors in the place of its inputs that are sequences or optionals, in place.

    Args:
        shapes: what inputs are bound to.
        values: inputs that become constants.

    Returns:
        The shapes of inputs that are tensors now.

    Raises:
        ModelError: such an input is not bound, or a tensor to what is no shape.
    """
    maker = _Inputs(graph)
    before: list[Node] = []
    bundles: list[Bundle] = []
    tensors: dict[str, Sequence[Dim]] = {}
    inputs: list[str] = []
    for name in graph.inputs:
        kind = graph.types.get(name)
        if kind is None or kind.is_tensor:
            inputs.append(name)
            if name in shapes:
                tensors[name] = _shape(name, shapes[name])
            continue
        if name not in shapes:
            raise _unbound(name, kind)
        items, nodes = maker.taken_apart(name, kind, shapes[name])
        at = sum(n not in values for n in inputs)
        bundles.append(Bundle(name, kind.dtype, None if items is None else tuple(items), at))
        inputs += items or ()
        tensors |= items or {}
        before += nodes
    graph.inputs = inputs
    graph.nodes = [*before, *graph.nodes]
    if bundles:
        graph.input_bundles = tuple(bundles)
    return tensors


def flatten_outputs(graph: Graph) -> bool:
    """Give `graph` tensors in the place of its outputs that are sequences or optionals, in place; says
    whether there were any.

    Raises:
        CuvilError: the graph cannot be lowered, which says how many items there are.
    """
    if all(n not in graph.types or graph.types[n].is_tensor for n in graph.outputs):
        return False
    maker = _Outputs(graph)
    bundles: list[Bundle] = []
    outputs: list[str] = []
    for name, entry in lower.outputs(graph).items():
        if isinstance(entry, Value):
            outputs.append(name)
            continue
        kind = graph.types[name]
        content = entry.content if isinstance(entry, OptionalValue) else entry
        items = None if content is None else maker.items(name, kind, content)
        bundles.append(Bundle(name, kind.dtype, items, len(outputs)))
        outputs += items or ()
    graph.outputs = outputs
    graph.output_bundles = tuple(bundles)
    return True


class _Inputs:
    """Makes the inputs of `graph`."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.fresh = graph, Namer.of_values(graph)

    def taken_apart(
        self, name: str, kind: TensorType, binding: Binding
    ) -> tuple[dict[str, Sequence[Dim]] | None, list[Node]]:
        """The tensors of the input `name` with their shapes, and the nodes that make it of them."""
        inner = kind.inner
        if kind.dtype.startswith("seq("):
            return self._sequence(name, name, inner, binding)
        if binding is None:
            return None, [Node("Optional", [], [name], {"type": inner}, name)]
        if not inner.is_tensor:
            held = self.fresh(f"{name}_value")
            items, nodes = self._sequence(name, held, inner.inner, binding)
            return items, [*nodes, Node("Optional", [held], [name], {}, name)]
        optional = self.fresh(f"{name}_optional")
        substitute(self.graph, {name: optional})
        self.graph.types[name] = inner
        return {name: _shape(name, binding)}, [Node("Optional", [name], [optional], {}, optional)]

    def _sequence(
        self, name: str, made: str, inner: TensorType, binding: Binding
    ) -> tuple[dict[str, Sequence[Dim]], list[Node]]:
        """The items of `name`, and the node that makes the sequence `made` of them."""
        if not inner.is_tensor:
            raise UnsupportedError(f"sequences of {inner.dtype} are not supported", f"input '{name}'")
        shapes = [_shape(name, item) for item in _items(name, binding)]
        items = {self.fresh(f"{name}[{k}]"): shape for k, shape in enumerate(shapes)}
        for item in items:
            self.graph.types[item] = TensorType(inner.dtype, None)
        if not items:
            return items, [Node("SequenceEmpty", [], [made], {"dtype": dtype_code(inner.dtype)}, made)]
        return items, [Node("SequenceConstruct", list(items), [made], {}, made)]


class _Outputs:
    """Makes the outputs of `graph`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fresh, self.fresh_dim = Namer.of_values(graph), Namer.of_dims(graph)

    def items(self, name: str, kind: TensorType, content: Value | SequenceValue) -> tuple[str, ...]:
        """The tensors of the output `name`, made by new nodes."""
        graph = self.graph
        if isinstance(content, Value):
            optional = self.fresh(f"{name}_optional")
            substitute(graph, {name: optional})
            graph.nodes.append(Node("OptionalGetElement", [optional], [name], {}, name))
            graph.types[name] = self._type(name, content)
            return (name,)
        if kind.dtype.startswith("optional("):
            held = self.fresh(f"{name}_value")
            graph.nodes.append(Node("OptionalGetElement", [name], [held], {}, held))
            graph.types[held] = kind.inner
            name, shown = held, name
        else:
            shown = name
        made = []
        for k, value in enumerate(content.items):
            item, position = self.fresh(f"{shown}[{k}]"), self.fresh(f"{shown}_{k}")
            graph.constants[position] = np.array(k, np.int64)
            graph.types[position] = type_of(graph.constants[position])
            graph.nodes.append(Node("SequenceAt", [name, position], [item], {}, item))
            graph.types[item] = self._type(item, value)
            made.append(item)
        return tuple(made)

    def _type(self, name: str, value: Value) -> TensorType:
        dims: list[Dim] = []
        for axis, size in enumerate(value.shape[:-1] if value.text else value.shape):
            known = static(size)
            if known is not None:
                dims.append(known)
            else:
                plain = size.op == "sym" and not size.args
                dims.append(size.attr if plain else self.fresh_dim(f"{name}_d{axis}"))
        return TensorType(element_type(value), tuple(dims))


def _shape(name: str, binding: Binding) -> Sequence[Dim]:
    """A binding that must be one shape."""
    where = f"input '{name}'"
    if binding is None:
        raise ModelError("only an optional can be absent", where)
    shape: list[Dim] = []
    for dim in binding:
        if isinstance(dim, Sequence) and not isinstance(dim, str):
            raise ModelError("is a tensor, which is bound to one shape, not to a list of shapes", where)
        shape.append(dim)
    return shape


def _items(name: str, binding: Binding) -> list[Sequence[Dim]]:
    """A binding that must be the shapes of items."""
    where = f"input '{name}'"
    if binding is None:
        raise ModelError("only an optional can be absent", where)
    items: list[Sequence[Dim]] = []
    for item in binding:
        if not isinstance(item, Sequence) or isinstance(item, str):
            raise ModelError("is a sequence, which is bound to a list of shapes, one for each item", where)
        items.append(item)
    return items


def _unbound(name: str, kind: TensorType) -> ModelError:
    """How to bind an input that is no tensor."""
    of_items = "seq(" in kind.dtype
    example = "[[2, 3], [4, 3]]" if of_items else "[2, 3]"
    plain = f"{name}={example}" if of_items else f"{name}=2,3"
    what = "the shape of each item" if of_items else "the shape"
    absent = f"; {name}: null where it is absent" if kind.dtype.startswith("optional(") else ""
    return ModelError(
        f"is {kind.dtype}: bind {what}, with shapes {{{name}: {example}}} or"
        f" --shape '{plain.replace(' ', '')}'{absent}",
        f"input '{name}'",
    )
