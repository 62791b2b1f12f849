"""Types and shapes of every value, from onnx's shape inference and what the model declares.

onnx infers with data propagation and names what it cannot know (``unk__0``).  Its result is
compared with the declarations, which are trusted only where inference knows nothing, and what is
still unknown then gets a name of its own, so that equal unknown sizes keep equal names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import shape_inference

from cuvil.errors import ModelError
from cuvil.frontend.onnx_writer import to_proto
from cuvil.frontend.scope import Namer, definitions, substitute_dims, walk
from cuvil.frontend.tensors import checked_elements, type_from_proto, type_of
from cuvil.ir.graph import Dim, Graph, Shape, TensorType

SMALL_CONSTANT = 1024
"""Elements up to which a constant is shown to shape inference; shapes, axes and pads are shorter."""

UNKNOWN = ""
"""A dimension of which nothing is known yet."""

_PASSES = 3
_GENERATED = re.compile(r"unk__\d+")


def is_generated(dim: Dim) -> bool:
    """Whether `dim` is a name that onnx's shape inference made up."""
    return isinstance(dim, str) and _GENERATED.fullmatch(dim) is not None


def infer_types(graph: Graph) -> None:
    """Complete `graph.types` in place, in subgraphs too.

    `graph.types` is what the model declares: inputs must be there; other values may be, with
    `UNKNOWN` dimensions.  Afterwards no dimension is `UNKNOWN`.

    In a subgraph inference wins over a declaration that contradicts it: the body may be a branch
    that is never taken at these sizes.

    Raises:
        ModelError: a declaration contradicts what inference finds, or a value exceeds
            `MAX_TENSOR_ELEMENTS` or `MAX_RANK`.
    """
    declared = [inner.types for inner in walk(graph)]
    for inner in walk(graph):
        inferable = {name for node in inner.nodes if not node.domain for name in node.outputs}
        inner.types = {name: known for name, known in inner.types.items() if name not in inferable}
    for _ in range(_PASSES):
        equal: dict[str, Dim] = {}
        learned = False
        for inner, inferred, stated in zip(walk(graph), _run(graph), declared):
            inner.types = {}
            for name in definitions(inner):
                if name in inner.constants:
                    inner.types[name] = type_of(inner.constants[name])
                    continue
                try:
                    merged, more = _merge(name, inferred.get(name), stated.get(name), equal)
                except ModelError:
                    if inner is graph:
                        raise
                    merged, more = inferred[name], False
                learned |= more
                if merged is not None:
                    inner.types[name] = merged
        substitute_dims(graph, equal)
        if not learned:
            break
        substitute_dims(graph, dict.fromkeys(_generated(graph), UNKNOWN))
    _name_unknowns(graph)
    for inner in walk(graph):
        for name, known in inner.types.items():
            sizes = [d for d in known.shape or () if isinstance(d, int)]
            checked_elements([*sizes, *[1] * (len(known.shape or ()) - len(sizes))], f"value '{name}'")


def check_strictly(graph: Graph) -> None:
    """Run onnx's checker and its strict shape and type inference over a finished graph.

    Raises:
        ModelError: either finds a fault; its first line, with the node it names.
    """
    proto = to_proto(graph, _is_small)
    try:
        onnx.checker.check_model(proto)
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        raise ModelError(_one_line(str(error))) from None


def _one_line(text: str) -> str:
    """onnx's message of several lines as one sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("==>", "Bad node spec"))]
    return "; ".join(lines[:2]) or "the model is not valid"


def _is_small(array: np.ndarray) -> bool:
    return array.size <= SMALL_CONSTANT


def _run(graph: Graph) -> list[dict[str, TensorType]]:
    """onnx's shape inference: types by name for `graph` and each subgraph, in the order of `walk`."""
    proto = to_proto(graph, _is_small)
    found = shape_inference.infer_shapes(proto, data_prop=True).graph
    return [_types(inner) for inner in _walk_proto(found)]


def _types(graph: onnx.GraphProto) -> dict[str, TensorType]:
    types = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        known = type_from_proto(value.type, f"value '{value.name}'")
        if known is not None:
            types[value.name] = known
    return types


def _walk_proto(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _walk_proto(attribute.g)


def _merge(
    name: str, inferred: TensorType | None, stated: TensorType | None, equal: dict[str, Dim]
) -> tuple[TensorType | None, bool]:
    """What inference and the declaration say together, and whether the declaration added to it."""
    if inferred is None or stated is None:
        return inferred or stated, stated is not None
    where = f"value '{name}'"
    if inferred.dtype != stated.dtype:
        raise ModelError(f"declared as {stated.dtype}, but its producer makes {inferred.dtype}", where)
    if inferred.shape is None or stated.shape is None:
        return (stated, True) if inferred.shape is None and stated.shape is not None else (inferred, False)
    if len(inferred.shape) != len(stated.shape):
        raise _contradiction(where, inferred.shape, stated.shape)
    learned = False
    dims: list[Dim] = []
    for found, said in zip(inferred.shape, stated.shape):
        if isinstance(found, int) and isinstance(said, int) and found != said:
            raise _contradiction(where, inferred.shape, stated.shape)
        unknown = found == UNKNOWN or is_generated(found)
        if unknown and said != UNKNOWN and not is_generated(said):
            learned = True
            if found != UNKNOWN and isinstance(found, str):
                known = equal.setdefault(found, said)
                if isinstance(known, str) and isinstance(said, int):
                    equal[found] = said
                elif isinstance(known, int) and isinstance(said, int) and known != said:
                    raise _contradiction(
                        where, tuple(equal.get(str(d), d) for d in inferred.shape), stated.shape
                    )
            found = said
        dims.append(found)
    return TensorType(inferred.dtype, tuple(dims)), learned


def _contradiction(where: str, inferred: Shape, stated: Shape) -> ModelError:
    return ModelError(f"declared shape {_text(stated)} contradicts the real one, {_text(inferred)}", where)


def _text(shape: Shape) -> str:
    return "[" + ", ".join("?" if d == UNKNOWN else str(d) for d in shape) + "]"


def _generated(graph: Graph) -> set[str]:
    """The dimension names in `graph` that onnx made up."""
    dims = (d for inner in walk(graph) for known in inner.types.values() for d in known.shape or ())
    return {d for d in dims if isinstance(d, str) and is_generated(d)}


def _name_unknowns(graph: Graph) -> None:
    """Name each unknown dimension after the value and axis where it first appears."""
    fresh = Namer.of_dims(graph)
    names: dict[str, Dim] = {}
    for inner in walk(graph):
        for name in definitions(inner):
            known = inner.types.get(name)
            if known is None or known.shape is None:
                continue
            dims = list(known.shape)
            for axis, dim in enumerate(dims):
                if dim == UNKNOWN:
                    dims[axis] = fresh(f"{name}_d{axis}")
                elif isinstance(dim, str) and is_generated(dim) and dim not in names:
                    names[dim] = fresh(f"{name}_d{axis}")
            inner.types[name] = TensorType(known.dtype, tuple(dims))
    substitute_dims(graph, names)
