"""Types and shapes of every value, from onnx's shape inference and what the model declares.

onnx infers with data propagation and names what it cannot know (``unk__0``).  Its result is
compared with the declarations, which are trusted only where inference knows nothing; then it runs
again with them, until nothing new is learned.  What is still unknown gets a name of its own, after
the value and axis where it first appears, so that equal unknown sizes keep equal names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import shape_inference

from cuvil.errors import ModelError
from cuvil.frontend.foreign import foreign_types
from cuvil.frontend.onnx_writer import to_proto
from cuvil.frontend.scope import Equalities, Namer, definitions, substitute_dims, walk
from cuvil.frontend.tensors import checked_elements, type_from_proto, type_of
from cuvil.ir.graph import Dim, Graph, Shape, TensorType

SMALL_CONSTANT = 1024
"""Elements up to which a constant is shown to shape inference; shapes, axes and pads are shorter."""

UNKNOWN = ""
"""A dimension of which nothing is known yet."""

LIKE_INPUT = frozenset(("GroupNormalization", "MeanVarianceNormalization"))
"""Operators whose result has the type of their first input and that onnx cannot infer."""

_PASSES = 8
"""Most passes of onnx's inference; one more for each node that it does not know, which may stand before
what it does know."""

_GENERATED = re.compile(r"unk__\d+")


def is_generated(dim: Dim) -> bool:
    """Whether `dim` is a name that onnx's shape inference made up."""
    return isinstance(dim, str) and _GENERATED.fullmatch(dim) is not None


def infer_types(graph: Graph) -> None:
    """Complete `graph.types` in place, in subgraphs too.

    `graph.types` is what the model declares: inputs must be there; other values may be, with
    `UNKNOWN` dimensions.  Afterwards no dimension is `UNKNOWN`.  A symbol that the model declares
    for a size gives way to what inference finds for that size, everywhere; symbols of inputs stay.

    Inference wins over a declaration that contradicts it in a subgraph, since the body may be a branch
    that is never taken at these sizes, and in the rank of an output, which exporters let users write.

    Raises:
        ModelError: a declaration contradicts what inference finds, or a value exceeds
            `MAX_TENSOR_ELEMENTS` or `MAX_RANK`.
    """
    stated = [inner.types for inner in walk(graph)]
    for inner in walk(graph):
        inferable = {name for node in inner.nodes if not node.domain for name in node.outputs}
        inner.types = {name: known for name, known in inner.types.items() if name not in inferable}
    foreign = sum(bool(node.domain) for inner in walk(graph) for node in inner.nodes)
    for number in range(_PASSES + foreign):
        merger = _Merger(graph)
        for inner, found, said in zip(walk(graph), _run(graph), stated):
            inner.types = merger.merge_all(inner, found, said, strict=inner is graph)
        merger.equalities.apply(graph)
        merged = [inner.types for inner in walk(graph)]
        if number and merged == stated:
            break
        stated = merged
        for inner in walk(graph):
            fixed = graph.inputs if inner is graph else ()
            inner.types = {
                name: known if name in fixed else _informative(name, known)
                for name, known in inner.types.items()
            }
    for inner, types in zip(walk(graph), stated):
        inner.types = types
    _name_unknowns(graph)
    for inner in walk(graph):
        for name, known in inner.types.items():
            sizes = [d for d in known.shape or () if isinstance(d, int)]
            checked_elements([*sizes, *[1] * (len(known.shape or ()) - len(sizes))], f"value '{name}'")


def _is_vague(known: TensorType | None) -> bool:
    """Whether the rank or a size is unknown."""
    return known is None or known.shape is None or any(d == UNKNOWN or is_generated(d) for d in known.shape)


def _informative(name: str, known: TensorType) -> TensorType:
    """`known` without the dimensions that are only named after the value itself."""
    if known.shape is None:
        return known
    dims = (UNKNOWN if d == f"{name}_d{axis}" or is_generated(d) else d for axis, d in enumerate(known.shape))
    return TensorType(known.dtype, tuple(dims))


class _Merger:
    """Brings together what inference found and what was stated before, over all values."""

    def __init__(self, graph: Graph) -> None:
        self.equalities = Equalities(graph)

    def merge_all(
        self, graph: Graph, found: dict[str, TensorType], said: dict[str, TensorType], strict: bool
    ) -> dict[str, TensorType]:
        """The types of the values that `graph` defines, subgraphs excepted."""
        like = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op in LIKE_INPUT}
        foreign = {name: node for node in graph.nodes if node.domain for name in node.outputs}
        types: dict[str, TensorType] = {}
        tried: dict[str, TensorType] = {}
        for name in definitions(graph):
            inferred = found.get(name)
            if name in like and (inferred is None or inferred.shape is None):
                inferred = types.get(like[name], inferred)
            if name in foreign and _is_vague(inferred):
                if name not in tried:
                    tried.update(foreign_types(foreign[name], types, graph.constants, graph.opset))
                inferred = tried.get(name, inferred)
            known = self.merge(graph, name, inferred, said.get(name), strict)
            if known is not None:
                types[name] = known
        return types

    def merge(
        self, graph: Graph, name: str, found: TensorType | None, said: TensorType | None, strict: bool
    ) -> TensorType | None:
        """The type of one value.

        Raises:
            ModelError: `strict` is set and the two contradict each other.
        """
        if name in graph.constants:
            return type_of(graph.constants[name])
        if found is None or said is None:
            return found or said
        where = f"value '{name}'"
        if found.dtype != said.dtype and strict:
            raise ModelError(f"declared as {said.dtype}, but its producer makes {found.dtype}", where)
        if found.shape is None or said.shape is None or found.dtype != said.dtype:
            return said if found.shape is None and found.dtype == said.dtype else found
        ranks = len(found.shape) == len(said.shape)
        if not ranks or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(found.shape, said.shape)
        ):
            if strict and (ranks or name not in graph.outputs):
                raise ModelError(
                    f"declared shape {_text(said.shape)} contradicts the real one, {_text(found.shape)}",
                    where,
                )
            return found
        return TensorType(found.dtype, tuple(self._dim(a, b) for a, b in zip(found.shape, said.shape)))

    def _dim(self, found: Dim, said: Dim) -> Dim:
        if said == UNKNOWN or is_generated(said) or found == said:
            return found
        if found == UNKNOWN:
            return said
        if is_generated(found):
            self.equalities.unify(found, said)
            return said
        if isinstance(said, str):
            self.equalities.unify(said, found)
        return found


def check_strictly(graph: Graph) -> None:
    """Run onnx's checker and its strict shape and type inference over a finished graph.

    Faults that inference reports from inside a body (a branch that is never taken, the expansion
    of a function operator) do not count.

    Raises:
        ModelError: either finds a fault; names the node.
    """
    proto = to_proto(graph, _is_small)
    for number, node in enumerate(proto.graph.node):
        node.name = str(number)
    try:
        if all(
            known is not None and known.shape is not None for known in map(graph.types.get, graph.outputs)
        ):
            onnx.checker.check_model(proto)
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except onnx.checker.ValidationError as error:
        message, _, context = str(error).partition("\n\n")
        found = re.search(r"Bad node spec for node. Name: (\d+) ", context)
        raise ModelError(
            " ".join(message.split()), graph.nodes[int(found[1])].where if found else ""
        ) from None
    except ValueError as error:
        raise ModelError(" ".join(str(error).split()), f"graph '{graph.name}'") from None
    except shape_inference.InferenceError as error:
        for number, message in re.findall(r"\(op_type:\w+, node name: (\d+)\): (.*)", str(error)):
            if "(op_type:" not in message:
                raise ModelError(
                    message.removeprefix("[ShapeInferenceError] "), graph.nodes[int(number)].where
                ) from None


def _is_small(array: np.ndarray) -> bool:
    return array.size <= SMALL_CONSTANT


def _run(graph: Graph) -> list[dict[str, TensorType]]:
    """onnx's shape inference: types by name for `graph` and each subgraph, in the order of `walk`."""
    proto = to_proto(graph, _is_small)
    try:
        found = shape_inference.infer_shapes(proto, data_prop=True).graph
    except (ValueError, RuntimeError, IndexError) as error:
        raise ModelError(
            f"shape inference fails: {' '.join(str(error).split())}", f"graph '{graph.name}'"
        ) from None
    graphs = list(_walk_proto(found))
    shared = {n for inner in graphs for value in _values(inner) for n in _item_sizes(value.type)}
    return [_types(inner, shared) for inner in graphs]


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.value_info, *graph.output)


def _item_sizes(kind: onnx.TypeProto) -> Iterator[str]:
    """The names that inference made up for sizes of a sequence's items.  They are passed on to every item
    that is taken out, but items may differ."""
    if kind.HasField("optional_type"):
        yield from _item_sizes(kind.optional_type.elem_type)
    elif kind.HasField("sequence_type"):
        sizes = kind.sequence_type.elem_type.tensor_type.shape.dim
        yield from (d.dim_param for d in sizes if is_generated(d.dim_param))


def _types(graph: onnx.GraphProto, shared: set[str]) -> dict[str, TensorType]:
    """Types by name; sizes named as one of `shared` are unknown.  So are negative sizes, which inference
    gives to what cannot be: `checks` names the node at fault, and a branch that is never taken has none."""
    types = {}
    for value in _values(graph):
        known = type_from_proto(value.type, f"value '{value.name}'")
        if known is not None and known.shape is not None:
            dims = (UNKNOWN if d in shared or (isinstance(d, int) and d < 0) else d for d in known.shape)
            known = TensorType(known.dtype, tuple(dims))
        if known is not None:
            types[value.name] = known
    return types


def _walk_proto(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _walk_proto(attribute.g)


def _text(shape: Shape) -> str:
    return "[" + ", ".join("?" if d == UNKNOWN else str(d) for d in shape) + "]"


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
