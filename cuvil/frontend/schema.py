"""Nodes against the operator schemas of ONNX: is there such an operator, with such arguments?"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import defs

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.scope import walk
from cuvil.frontend.tensors import dtype_name
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.limits import MAX_RANK

STILL_READ = frozenset(("GroupNormalization",))
"""Operators that ONNX deprecates in some opset in which `opset.upgrade` still understands them."""


_MAX_SIZE = (1 << 31) - 1

BOUNDS: dict[str, tuple[int, int]] = {
    **{key: (-MAX_RANK, MAX_RANK) for key in (
        "axis", "axes", "batch_axis", "time_axis", "perm", "scan_input_axes", "scan_output_axes",
    )},
    **{key: (0, MAX_RANK) for key in ("batch_dims",)},
    **{key: (0, _MAX_SIZE) for key in ("block_size", "output_padding")},
    **{key: (1, _MAX_SIZE) for key in (
        "blocksize", "dilations", "group", "hidden_size", "kernel_shape", "kv_num_heads", "num_groups",
        "num_heads", "num_outputs", "num_scan_inputs", "offset_group", "output_height", "output_width",
        "pooled_shape", "q_num_heads", "sample_size", "size", "strides",
    )},
}  # fmt: skip
"""What integer attributes may hold, by name: the same in every operator that has one of that name.
onnx's shape inference divides by some and indexes with others before it looks at them."""

ELEMENT_TYPES = frozenset(
    ("to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision")
)
"""Attributes that hold an element type; 0 stands for the default, except in Cast's `to`."""


_TERM = r"[A-Za-z ]*(\.\.\.)?[A-Za-z ]*"
_EINSUM = re.compile(f"{_TERM}(,{_TERM})*(->{_TERM})?")
"""An Einsum equation; onnx's shape inference does not return from some others."""


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


_FITS: dict[str, Callable[[Any], bool]] = {
    "FLOAT": lambda value: isinstance(value, float),
    "INT": lambda value: isinstance(value, int),
    "STRING": lambda value: isinstance(value, (str, bytes)),
    "TENSOR": lambda value: isinstance(value, np.ndarray),
    "SPARSE_TENSOR": lambda value: isinstance(value, np.ndarray),
    "GRAPH": lambda value: isinstance(value, Graph),
    "FLOATS": _is_list_of(float),
    "INTS": _is_list_of(int),
    "STRINGS": lambda value: (
        isinstance(value, list) and all(isinstance(item, (str, bytes)) for item in value)
    ),
    "TYPE_PROTO": lambda value: isinstance(value, TensorType),
}


def check_schemas(graph: Graph) -> None:
    """Check every node, in subgraphs too, against its schema: those of the default domain at the graph's
    opset, those of another that onnx knows at the newest version that has their attributes.

    Raises:
        UnsupportedError: there is no such operator at that opset, or no longer.
        ModelError: too few or too many inputs or outputs, a missing, unknown or mistyped attribute.
    """
    for inner in walk(graph):
        for node in inner.nodes:
            schema = _foreign_schema(node) if node.domain else _schema(node, graph.opset)
            if schema is not None:
                _check_node(node, schema)


def domain_versions(graph: Graph) -> dict[str, int]:
    """The opset to declare for each domain besides the default one that `graph` uses: the newest in which
    all its nodes are what they are (a graph does not keep the version its model declared), or 1."""
    nodes: dict[str, list[Node]] = {}
    for inner in walk(graph):
        for node in inner.nodes:
            if node.domain:
                nodes.setdefault(node.domain, []).append(node)
    versions = {}
    for domain, own in sorted(nodes.items()):
        newest = max((s.since_version for node in own for s in _history(domain, node.op)), default=1)
        fits = (v for v in range(newest, 1, -1) if all(_fits(node, v) for node in own))
        versions[domain] = next(fits, 1)
    return versions


def _fits(node: Node, version: int) -> bool:
    """Whether version `version` of the node's domain, which is not the default one, has such a node."""
    schema = next((s for s in _history(node.domain, node.op) if s.since_version <= version), None)
    return schema is not None and not schema.deprecated and node.attrs.keys() <= schema.attributes.keys()


def _foreign_schema(node: Node) -> defs.OpSchema | None:
    """The newest schema of a node outside the default domain that has its attributes, else the newest one;
    None where onnx has none."""
    living = [s for s in _history(node.domain, node.op) if not s.deprecated]
    fitting = [s for s in living if node.attrs.keys() <= s.attributes.keys()]
    return next(iter(fitting + living), None)


@functools.cache
def _history(domain: str, op: str) -> list[defs.OpSchema]:
    """Every version of an operator, the newest first."""
    found = [s for s in defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, op)]
    return sorted(found, key=lambda s: -s.since_version)


@functools.cache
def _operators() -> dict[str, int]:
    """The operators of the default domain and the opset in which each appeared."""
    first: dict[str, int] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            first[schema.name] = min(first.get(schema.name, schema.since_version), schema.since_version)
    return first


def is_standard(op: str) -> bool:
    """Whether some opset of the default domain has an operator `op`."""
    return op in _operators()


def _schema(node: Node, opset: int) -> defs.OpSchema:
    known = _operators()
    if node.op not in known:
        near = difflib.get_close_matches(node.op, known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UnsupportedError(f"ONNX has no operator '{node.op}'{hint}", node.where)
    if known[node.op] > opset:
        raise ModelError(f"the operator needs opset {known[node.op]}, the model declares {opset}", node.where)
    schema = defs.get_schema(node.op, opset)
    if schema.deprecated and node.op not in STILL_READ:
        raise UnsupportedError(
            f"the operator is deprecated since opset {schema.since_version}, the model declares {opset}",
            node.where,
        )
    return schema


def _check_node(node: Node, schema: defs.OpSchema) -> None:
    for what, names, formal, least, most in (
        ("input", node.inputs, schema.inputs, schema.min_input, schema.max_input),
        ("output", node.outputs, schema.outputs, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            allowed = (
                str(least)
                if least == most
                else f"{least} to {most}"
                if most < 1 << 20
                else f"{least} or more"
            )
            raise ModelError(f"{len(names)} {what}s, {allowed} are allowed", node.where)
        for position, name in enumerate(names):
            parameter = formal[min(position, len(formal) - 1)]
            if not name and parameter.option == defs.OpSchema.FormalParameterOption.Single:
                raise ModelError(f"{what} {position} ({parameter.name}) must not be omitted", node.where)
    for name, value in node.attrs.items():
        if name not in schema.attributes:
            allowed = ", ".join(sorted(schema.attributes)) or "none"
            raise ModelError(f"unknown attribute '{name}'; allowed are {allowed}", node.where)
        kind = schema.attributes[name].type.name
        if kind in _FITS and not _FITS[kind](value):
            raise ModelError(f"attribute '{name}' must be of type {kind}", node.where)
        _check_value(node, name, value)
    if node.op == "Split" and node.attrs.get("num_outputs", len(node.outputs)) != len(node.outputs):
        raise ModelError(
            f"num_outputs is {node.attrs['num_outputs']} for {len(node.outputs)} outputs", node.where
        )
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in node.attrs:
            raise ModelError(f"attribute '{name}' is missing", node.where)


def _check_value(node: Node, name: str, value: Any) -> None:
    if name in BOUNDS:
        low, high = BOUNDS[name]
        for number in value if isinstance(value, list) else [value]:
            if not low <= number <= high:
                raise ModelError(f"{name} has {number}, only {low} to {high} is allowed", node.where)
    elif name == "equation" and not (isinstance(value, str) and _EINSUM.fullmatch(value)):
        raise ModelError(f"equation {value!r} is not of the form 'ij,jk->ik'", node.where)
    elif name in ELEMENT_TYPES and isinstance(value, int) and (value or name == "to"):
        dtype_name(value, node.where)
