"""The caller's sizes for a model's inputs, and names for the dimensions that have none."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from cuvil.errors import ModelError
from cuvil.frontend.infer import UNKNOWN
from cuvil.frontend.scope import Namer, substitute_dims
from cuvil.frontend.tensors import checked_elements
from cuvil.ir.graph import Dim, Graph, Shape, TensorType


def bind_inputs(graph: Graph, shapes: Mapping[str, Sequence[Dim]]) -> None:
    """Give the inputs of `graph` the `shapes` asked for and every other unknown dimension a name.

    A size bound to a symbol replaces the symbol in every type of the graph; a dimension that is
    neither bound nor named by the model becomes ``<input>_d<axis>``.

    Raises:
        ModelError: `shapes` names no input, has another rank, contradicts a size the model fixes
            or itself, or leaves open a negative or too large size.
    """
    for name in shapes:
        if name not in graph.inputs:
            raise ModelError(
                f"the model has no input '{name}' to bind; its inputs are {', '.join(graph.inputs)}"
            )
    symbols: dict[str, Dim] = {}
    bound: dict[str, Shape] = {}
    for name in graph.inputs:
        known = graph.types.get(name)
        if known is None:
            raise ModelError("the model declares no type", f"input '{name}'")
        if name in shapes:
            bound[name] = _bind(name, known.shape, tuple(_dim(name, size) for size in shapes[name]), symbols)
        elif known.shape is not None:
            bound[name] = known.shape
    for name, shape in bound.items():
        graph.types[name] = TensorType(graph.types[name].dtype, shape)
    substitute_dims(graph, symbols)
    fresh = Namer.of_dims(graph)
    for name in bound:
        dims = list(graph.types[name].shape or ())
        _check(name, dims)
        for axis, dim in enumerate(dims):
            if dim == UNKNOWN:
                dims[axis] = fresh(f"{name}_d{axis}")
        graph.types[name] = TensorType(graph.types[name].dtype, tuple(dims))


def _bind(name: str, declared: Shape | None, wanted: Shape, symbols: dict[str, Dim]) -> Shape:
    """The shape of one input; what it says of the model's symbols goes to `symbols`."""
    where = f"input '{name}'"
    if declared is None:
        return wanted
    if len(declared) != len(wanted):
        raise ModelError(f"bound to {len(wanted)} dimensions, the model declares {len(declared)}", where)
    for axis, (said, size) in enumerate(zip(declared, wanted)):
        if isinstance(said, int):
            if said >= 0 and said != size:
                raise ModelError(f"dimension {axis} is bound to {size}, the model fixes it at {said}", where)
        elif said != UNKNOWN and symbols.setdefault(said, size) != size:
            raise ModelError(f"dimension '{said}' is bound to {symbols[said]} and to {size}", where)
    return wanted


def _dim(name: str, size: object) -> Dim:
    if isinstance(size, str) and size:
        return size
    if isinstance(size, SupportsIndex) and not isinstance(size, bool) and operator.index(size) >= 0:
        return operator.index(size)
    raise ModelError(f"{size!r} is not a dimension, only sizes from 0 and names are", f"input '{name}'")


def _check(name: str, dims: Sequence[Dim]) -> None:
    where = f"input '{name}'"
    sizes = [d for d in dims if isinstance(d, int)]
    try:
        checked_elements(sizes, where)
    except ModelError as error:
        raise ModelError(
            f"{error.message}; bind the shape of the input to one that is possible", where
        ) from None
