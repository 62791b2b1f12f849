"""ONNX files to Graphs: everything about a file that can be wrong is found here, before any pass.

Order of work: bytes (`wire`), protobuf, versions and local functions, the structure of each graph
(names, order, scopes), tensors, the caller's shapes, operators and their attributes against the
ONNX schemas, aliases, and shape inference.
"""

from __future__ import annotations

import graphlib
import heapq
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, defs, inliner

import cuvil.ops  # noqa: F401  (fills the registry)
from cuvil import fsio
from cuvil.errors import CuvilError, ModelError, UnsupportedError
from cuvil.frontend.aliases import remove_aliases
from cuvil.frontend.binding import Shapes, Values, bind_inputs
from cuvil.frontend.infer import UNKNOWN, infer_types, is_generated
from cuvil.frontend.onnx_writer import BUNDLES, PRODUCER
from cuvil.frontend.schema import check_schemas, is_standard
from cuvil.frontend.tensors import decode, decode_sparse, type_from_proto
from cuvil.frontend.wire import scan
from cuvil.ir.graph import Bundle, Graph, Node, TensorType, captured
from cuvil.limits import MAX_MODEL_BYTES, MAX_NODES, MAX_SUBGRAPH_DEPTH
from cuvil.ops.microsoft import DOMAIN as MICROSOFT
from cuvil.ops.registry import OPERATORS

DOMAINS = frozenset(domain for domain, _ in OPERATORS)
"""The operator domains that are let through, those of the registry; ``ai.onnx`` is the other name of ""."""

PREVIEW = "ai.onnx.preview"
"""The domain of operators that the standard is trying out; each has a function that defines it."""

STATED: dict[str, dict[str, Any]] = {"STFT": {"onesided": 1}}
"""Defaults of attributes that onnx's shape inference has wrong: they are written out."""

NO_NAMES = ("?", "None", "-1", -1)
"""What exporters write where a dimension has no name; two of them are not the same size."""

_CONSTANT_FORMS = {
    "value": (AttributeProto.TENSOR, None),
    "sparse_value": (AttributeProto.SPARSE_TENSOR, None),
    "value_float": (AttributeProto.FLOAT, "float32"),
    "value_floats": (AttributeProto.FLOATS, "float32"),
    "value_int": (AttributeProto.INT, "int64"),
    "value_ints": (AttributeProto.INTS, "int64"),
    "value_string": (AttributeProto.STRING, "object"),
    "value_strings": (AttributeProto.STRINGS, "object"),
}


def read_model(
    path: str | os.PathLike[str], shapes: Shapes | None = None, values: Values | None = None
) -> Graph:
    """Read an ONNX file as a graph at the model's own opset, checked and with inferred types.

    Args:
        path: the ``.onnx`` file; external data is read from its folder.
        shapes: sizes (or names) of the dimensions of inputs, by input name.  A size given for a
            symbolic dimension holds wherever the model uses the symbol.
        values: of inputs that become constants, by name: numbers, nested lists of them, or arrays.

    Returns:
        A graph in topological order.  Constant nodes and initializers are `Graph.constants`,
        local functions are inlined, Identity and inference Dropout are renamed away, and
        unnamed unknown dimensions have names of their own (``x_d0``).

    Raises:
        ModelError: the file is no valid model, `shapes` or `values` do not fit it.
        UnsupportedError: the model uses an unknown operator domain or kind of value.
    """
    where = os.fspath(path)
    try:
        data = fsio.read_bytes(path, "the model", MAX_MODEL_BYTES)
    except CuvilError as error:
        raise ModelError(error.message, error.where) from error
    scan(data, where)
    try:
        model = ModelProto.FromString(data)
    except DecodeError:
        raise ModelError("the file is damaged or not an ONNX model", where) from None
    return graph_from_proto(model, Path(path).parent, shapes, values)


def graph_from_proto(
    model: ModelProto,
    folder: Path | None = None,
    shapes: Shapes | None = None,
    values: Values | None = None,
) -> Graph:
    """`read_model` for a model in memory; `folder` holds its external data, None allows none."""
    opset = _opset(model)
    model = _inline_previews(_inline_functions(model))
    graph = _Reader(opset, folder, model.producer_name == PRODUCER).graph(model.graph, frozenset(), 0)
    if not graph.outputs and model.producer_name != PRODUCER:  # a device may have no part
        raise ModelError("the model has no outputs", f"graph '{graph.name}'")
    if model.producer_name == PRODUCER:
        _read_bundles(graph, model.graph)
    bind_inputs(graph, shapes or {}, values or {})
    check_schemas(graph)
    remove_aliases(graph)
    infer_types(graph)
    return graph


def _read_bundles(graph: Graph, proto: GraphProto) -> None:
    """What Cuvil wrote of inputs and outputs that were no tensors.

    Raises:
        ModelError: it is damaged.
    """
    for entry in proto.metadata_props:
        if entry.key not in BUNDLES:
            continue
        try:
            bundles = [Bundle(**fields) for fields in json.loads(entry.value)]
            bundles = [replace(b, items=None if b.items is None else tuple(b.items)) for b in bundles]
        except (TypeError, ValueError) as error:
            raise ModelError(f"metadata '{entry.key}' is damaged", f"graph '{graph.name}'") from error
        setattr(graph, BUNDLES[entry.key], tuple(bundles))


def _opset(model: ModelProto) -> int:
    """The version of the default domain that the model asks for."""
    newest = defs.onnx_opset_version()
    versions = {entry.version for entry in model.opset_import if _domain(entry.domain) == ""}
    if not versions and all(_domain(node.domain) for node in _all_nodes(model.graph.node)):
        return int(newest)
    if not versions:
        raise ModelError(
            f"the model imports no version of the default operator domain, it must be one of 1 to {newest}"
        )
    if len(versions) > 1:
        raise ModelError(f"the model imports opsets {sorted(versions)} of the default domain at once")
    version = int(versions.pop())
    if not 1 <= version <= newest:
        raise ModelError(f"opset {version} is not supported, it must be one of 1 to {newest}")
    return version


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _inline_functions(model: ModelProto) -> ModelProto:
    """Replace calls of the model's local functions by their bodies."""
    if not model.functions:
        return model
    sizes: dict[tuple[str, str, str], int] = {}
    bodies = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {key: [c for c in map(_callee, _all_nodes(f.node)) if c in bodies] for key, f in bodies.items()}
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        names = " -> ".join(key[1] for key in error.args[1])
        raise ModelError(f"local functions call each other in a circle: {names}") from None
    for key in order:
        nodes = _all_nodes(bodies[key].node)
        sizes[key] = sum(sizes.get(_callee(node), 1) for node in nodes)
    total = sum(sizes.get(_callee(node), 1) for node in _all_nodes(model.graph.node))
    if total > MAX_NODES:
        raise ModelError(f"the model has more than {MAX_NODES} nodes once its local functions are expanded")
    inlined = inliner.inline_local_functions(model)
    for node in _all_nodes(inlined.graph.node):
        if _callee(node) in bodies:
            raise UnsupportedError(
                f"local function '{node.op_type}' asks for another opset than the model", _where(node)
            )
    return inlined


def _inline_previews(model: ModelProto) -> ModelProto:
    """Replace operators of `PREVIEW` by the functions that define them, with the graphs among their
    attributes; those that have no function stay."""
    found = [node for node in _all_nodes(model.graph.node) if node.domain == PREVIEW]
    if not found:
        return model
    schemas = {s.name: s for s in defs.get_all_schemas() if s.domain == PREVIEW}
    for node in found:
        if node.op_type in schemas:
            _check_preview(node, schemas[node.op_type])
    names = [(PREVIEW, name) for name in schemas]
    try:
        return inliner.inline_selected_functions(model, names, inline_schema_functions=True)
    except (RuntimeError, ValueError) as error:
        gist = " ".join(str(error).split())
        raise ModelError(f"operators of '{PREVIEW}' cannot be expanded: {gist}") from None


def _check_preview(node: NodeProto, schema: defs.OpSchema) -> None:
    """What expansion would drop without a word: attributes and inputs that the operator does not have."""
    for attribute in node.attribute:
        allowed = schema.attributes.get(attribute.name)
        kind = AttributeProto.AttributeType.Name(attribute.type)
        if allowed is None or allowed.type.name != kind:
            raise ModelError(f"attribute '{attribute.name}' of type {kind} is not allowed", _where(node))
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise ModelError(f"{len(node.input)} inputs are not allowed", _where(node))


def _callee(node: NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _all_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    found = list(nodes)
    for node in tuple(found):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found.extend(_all_nodes(attribute.g.node))
    return found


def _where(node: NodeProto) -> str:
    return Node(node.op_type, list(node.input), list(node.output), name=node.name).where


class _Reader:
    """Converts graphs, checking names, scopes and order on the way.

    Sizes that the model declares for inner values and outputs are taken over; names of sizes only
    from a file that Cuvil wrote: exporters give one name to different sizes.
    """

    def __init__(self, opset: int, folder: Path | None, trust_names: bool) -> None:
        self.opset = opset
        self.folder = folder
        self.trust_names = trust_names

    def graph(self, proto: GraphProto, outer: frozenset[str], depth: int) -> Graph:
        """One graph; `outer` holds the names visible around it."""
        where = f"graph '{proto.name}'"
        if depth > MAX_SUBGRAPH_DEPTH:
            raise ModelError(f"subgraphs nest more than {MAX_SUBGRAPH_DEPTH} deep", where)
        if not all(isinstance(text, str) and _is_printable(text) for text in _texts(proto)):
            raise ModelError("a name has control characters or is not UTF-8", f"graph {proto.name!r}")
        constants = {t.name: decode(t, self.folder, f"initializer '{t.name}'") for t in proto.initializer}
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            constants[name] = decode_sparse(sparse, self.folder, f"sparse initializer '{name}'")
        if len(constants) != len(proto.initializer) + len(proto.sparse_initializer):
            given = [t.name for t in proto.initializer] + [s.values.name for s in proto.sparse_initializer]
            raise ModelError(f"initializer '{_first_twice(given)}' is given twice", where)
        inputs = [value.name for value in proto.input if value.name not in constants]
        if "" in inputs or "" in constants:
            raise ModelError("an input or initializer has no name", where)
        twice = _first_twice(inputs) or _first_twice([value.name for value in proto.output])
        if twice is not None:
            raise ModelError(f"input or output '{twice}' is listed twice", where)
        declared = {v.name: self._declared(v) for v in (*proto.value_info, *proto.output)}
        declared |= {v.name: _input_type(v) if depth == 0 else self._declared(v) for v in proto.input}
        defined = self._defined(proto, [*inputs, *constants], outer, where)
        visible = outer | defined
        nodes = []
        for node in proto.node:
            if node.op_type == "Constant" and not _domain(node.domain):
                constants[node.output[0]] = self._constant(node)
            else:
                nodes.append(self._node(node, visible, depth))
        nodes = self._sorted(nodes, {*outer, *inputs, *constants})
        outputs = [value.name for value in proto.output]
        for name in outputs:
            if name not in defined and (depth == 0 or name not in outer):
                raise ModelError(f"output '{name}' is not produced by any node", where)
        own = defined - constants.keys()
        types = {name: known for name, known in declared.items() if known and name in own}
        return Graph(proto.name, inputs, outputs, nodes, constants, types, self.opset)

    def _declared(self, value: onnx.ValueInfoProto) -> TensorType | None:
        """The declared type of an inner value or an output; what says nothing becomes `UNKNOWN`."""
        known = type_from_proto(value.type, f"value '{value.name}'")
        if known is None or known.shape is None:
            return known
        dims = (
            UNKNOWN if (d < 0 if isinstance(d, int) else not self.trust_names) else d for d in known.shape
        )
        return TensorType(known.dtype, tuple(dims))

    def _defined(
        self, proto: GraphProto, names: list[str], outer: frozenset[str], where: str
    ) -> frozenset[str]:
        """The names the graph defines: every one once, and none that is visible already."""
        seen = set(names)
        hidden = seen & outer
        if hidden:
            raise ModelError(f"'{min(hidden)}' is already the name of a value outside this subgraph", where)
        for node in proto.node:
            for name in node.output:
                if name and (name in seen or name in outer):
                    raise ModelError(f"output '{name}' is already the name of another value", _where(node))
                seen.add(name)
        return frozenset(seen - {""})

    def _node(self, proto: NodeProto, visible: frozenset[str], depth: int) -> Node:
        where = _where(proto)
        domain = _domain(proto.domain)
        if not domain and not is_standard(proto.op_type) and (MICROSOFT, proto.op_type) in OPERATORS:
            domain = MICROSOFT  # onnxruntime's optimizer writes some of its own into ONNX's domain
        if not proto.op_type:
            raise ModelError("the node has no operator", where)
        if domain not in DOMAINS:
            allowed = ", ".join(f"'{known or 'ai.onnx'}'" for known in sorted(DOMAINS))
            raise UnsupportedError(f"operator domain '{domain}' is not supported, only {allowed} are", where)
        for name in proto.input:
            if name and name not in visible:
                raise ModelError(f"input '{name}' is not produced by any node, input or initializer", where)
        attrs = {}
        for attribute in sorted(proto.attribute, key=lambda a: a.name):
            if attribute.name in attrs:
                raise ModelError(f"attribute '{attribute.name}' is given twice", where)
            attrs[attribute.name] = self._attribute(attribute, visible, depth, where)
        attrs = {**STATED.get(proto.op_type, {}), **attrs} if not domain else attrs
        pairs = ((entry.key, entry.value) for entry in proto.metadata_props)
        metadata = {key: text for key, text in pairs if isinstance(key, str) and isinstance(text, str)}
        return Node(proto.op_type, list(proto.input), list(proto.output), attrs, proto.name, domain, metadata)

    def _attribute(self, proto: AttributeProto, visible: frozenset[str], depth: int, where: str) -> Any:
        where = f"{where} attribute '{proto.name}'"
        kind = proto.type
        if kind == AttributeProto.FLOAT:
            return float(proto.f)
        if kind == AttributeProto.INT:
            return int(proto.i)
        if kind == AttributeProto.STRING:
            return _text(proto.s)
        if kind == AttributeProto.TENSOR:
            return decode(proto.t, self.folder, where)
        if kind == AttributeProto.SPARSE_TENSOR:
            return decode_sparse(proto.sparse_tensor, self.folder, where)
        if kind == AttributeProto.GRAPH:
            return self.graph(proto.g, visible, depth + 1)
        if kind == AttributeProto.FLOATS:
            return [float(value) for value in proto.floats]
        if kind == AttributeProto.INTS:
            return [int(value) for value in proto.ints]
        if kind == AttributeProto.STRINGS:
            return [_text(value) for value in proto.strings]
        if kind == AttributeProto.TYPE_PROTO:
            return type_from_proto(proto.tp, where)
        if kind == AttributeProto.UNDEFINED:
            raise ModelError("the attribute has no type or refers to one outside a function", where)
        raise UnsupportedError(
            f"attributes of type {AttributeProto.AttributeType.Name(kind)} are not supported", where
        )

    def _constant(self, proto: NodeProto) -> Any:
        """The value of a Constant node, in any of its forms."""
        where = _where(proto)
        if len(proto.attribute) != 1 or len(proto.output) != 1 or not proto.output[0]:
            raise ModelError("a constant has one output and exactly one value", where)
        attribute = proto.attribute[0]
        kind, dtype = _CONSTANT_FORMS.get(attribute.name, (None, None))
        if kind is None or attribute.type != kind:
            raise ModelError(f"attribute '{attribute.name}' is no value of a constant", where)
        value = self._attribute(attribute, frozenset(), 0, where)
        return value if dtype is None else np.array(value, dtype)

    def _sorted(self, nodes: list[Node], ready: set[str]) -> list[Node]:
        """`nodes` in topological order; as they are where they already are in one.

        Raises:
            ModelError: the nodes form a cycle.
        """
        reads = [[name for name in (*node.inputs, *captured(node)) if name] for node in nodes]
        known = set(ready)
        for node, names in zip(nodes, reads):
            if not known.issuperset(names):
                break
            known.update(node.outputs)
        else:
            return nodes
        maker = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
        graph = {i: {maker[name] for name in names if name in maker} for i, names in enumerate(reads)}
        sorter = graphlib.TopologicalSorter(graph)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            circle = [nodes[i] for i in error.args[1]]
            path = " <- ".join(f"'{node.name or node.outputs[0]}'" for node in circle[:8])
            raise ModelError(f"the nodes form a cycle: {path}", circle[0].where) from None
        order: list[int] = []
        heap: list[int] = []
        while sorter.is_active():
            for i in sorter.get_ready():
                heapq.heappush(heap, i)
            first = heapq.heappop(heap)
            order.append(first)
            sorter.done(first)
        return [nodes[i] for i in order]


def _input_type(value: onnx.ValueInfoProto) -> TensorType | None:
    """The declared type of a graph input; other negative sizes stay, for `bind_inputs` to refuse."""
    known = type_from_proto(value.type, f"input '{value.name}'")
    if known is None or known.shape is None:
        return known
    dims = (UNKNOWN if d in NO_NAMES or is_generated(d) else d for d in known.shape)
    return TensorType(known.dtype, tuple(dims))


def _is_printable(text: str) -> bool:
    return text.isprintable() or all(ord(character) >= 32 for character in text)


def _texts(graph: GraphProto) -> Iterator[str]:
    """Every name in a graph, those inside its subgraphs excepted; protobuf gives one that is not
    UTF-8 as bytes."""
    yield graph.name
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _first_twice(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
