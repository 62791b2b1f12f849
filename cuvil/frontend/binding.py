"""The caller's sizes and values for a model's inputs, and names for the dimensions that have none."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from cuvil.errors import ModelError
from cuvil.frontend.bundles import Binding, flatten_inputs
from cuvil.frontend.infer import UNKNOWN
from cuvil.frontend.scope import Namer, substitute_dims
from cuvil.frontend.tensors import checked_elements, numpy_dtype
from cuvil.ir.graph import Dim, Graph, Shape, TensorType

Shapes = Mapping[str, Binding]
Values = Mapping[str, Any]
"""By input: a number, a truth value, a text, nested lists of one of them, or an array."""

_KINDS = (("bool", "b"), ("int", "iu"), ("uint", "iu"), ("string", "U"), ("", "iuf"))
"""Kinds of numpy types that values for an input may have, by how the name of the input's type begins."""


def bind_inputs(graph: Graph, shapes: Shapes, values: Values) -> None:
    """Give the inputs of `graph` the `shapes` asked for and every other unknown dimension a name; make
    those that have one of `values` constants.

    A size bound to a symbol replaces the symbol in every type of the graph; a dimension that is
    neither bound nor named by the model becomes ``<input>_d<axis>``.  Sequences and optionals become tensors.

    Raises:
        ModelError: `shapes` or `values` names no input, has another rank, contradicts a size the model
            fixes or itself, or leaves open a negative or too large size; a value is not of the input's type;
            an input that is a sequence or an optional is not bound.
    """
    for name in (*shapes, *values):
        if name not in graph.inputs:
            raise ModelError(
                f"the model has no input '{name}' to bind; its inputs are {', '.join(graph.inputs)}"
            )
        if name in shapes and name in values:
            raise ModelError("bound to a shape and to a value; the value alone says both", f"input '{name}'")
    for name in graph.inputs:
        if name not in graph.types:
            raise ModelError("the model declares no type", f"input '{name}'")
    fixed = {name: constant(name, value, graph.types[name]) for name, value in values.items()}
    tensors = flatten_inputs(graph, shapes, values)
    symbols: dict[str, Dim] = {}
    bound: dict[str, Shape] = {}
    for name in graph.inputs:
        known = graph.types[name]
        if name in tensors:
            bound[name] = _bind(name, known.shape, tuple(_dim(name, size) for size in tensors[name]), symbols)
        elif name in fixed:
            graph.constants[name] = fixed[name]
            bound[name] = _bind(name, known.shape, fixed[name].shape, symbols)
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
    graph.inputs = [name for name in graph.inputs if name not in values]


def constant(name: str, value: Any, declared: TensorType) -> np.ndarray:
    """The `value` of the input `name` as an array of its declared type.

    Raises:
        ModelError: it is no array, or not of the type: a fraction for a whole number, or one too large.
    """
    where, text = f"input '{name}'", " ".join(str(value).split())
    if len(text) > 40:
        text = f"{text[:40]}..."
    if not declared.is_tensor:
        raise ModelError(f"has type {declared.dtype}; only tensors are bound to values", where)
    kind = numpy_dtype(declared.dtype)
    try:
        given = np.asarray(value)
    except ValueError:
        raise ModelError(f"the value {text} is no array: its rows differ in length", where) from None
    allowed = next(kinds for prefix, kinds in _KINDS if declared.dtype.startswith(prefix))
    fits = given.dtype == kind or given.dtype.kind in allowed or not given.size
    array = given.astype(kind) if fits else given
    if fits and allowed == "iu" and given.size:  # a number that is too large has wrapped round
        fits = int(given.min()) == int(array.min()) and int(given.max()) == int(array.max())
    if not fits:
        raise ModelError(f"the value {text} is not of type {declared.dtype}", where)
    return array


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
