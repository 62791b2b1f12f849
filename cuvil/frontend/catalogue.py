"""What the front end, the lowerings and the generated code take together: every operator with its versions,
its element types and what is to be known of it.

Versions and types are those of the standard, as the installed onnx has it, less what the compiler lacks.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import FunctionProto, TensorProto, defs

import cuvil.ops  # noqa: F401  (fills the registry)
from cuvil.codegen.c import C_TYPES
from cuvil.codegen.cnumeric import SMALL
from cuvil.frontend.opset import CANONICAL_OPSET
from cuvil.frontend.schema import STILL_READ
from cuvil.frontend.tensors import STRING, dtype_name
from cuvil.ops.left_out import LEFT_OUT
from cuvil.ops.registry import ON_STRINGS, OPERATORS

Key = tuple[str, str]
"""Domain and name of an operator; "" is the default domain."""

READ = {"Constant": "becomes a constant of the graph"}
"""Operators of the default domain that the reader takes away."""

RENAMED = {"Scatter": "ScatterElements", "Upsample": "Resize"}
"""Operators that the standard has replaced, and what `opset.upgrade` makes of them."""

DEFINITIONS: dict[Key, tuple[str, ...]] = {
    ("", "Bernoulli"): ("Greater", "RandomUniformLike"),
    ("", "LinearAttention"): ("MatMul", "Scan"),
    ("ai.onnx.preview", "FlexAttention"): ("MatMul", "Softmax"),
}
"""Operators defined by a function that depends on attributes and types, with what it needs besides the
plainest operators."""

LIMITS: dict[tuple[str, int], str] = {
    ("LpPool", 2): "p must be a whole number and kernel_shape be given",
    ("GlobalLpPool", 2): "p must be a whole number",
    ("BatchNormalization", 9): "no training with spatial = 0",
    ("Scan", 9): "no sequence_lens",
    ("Resize", 11): "nearest must not enlarge along one axis and shrink along another",
    ("Resize", 13): "tf_half_pixel_for_nn only with nearest_mode floor or round_prefer_floor",
    ("BatchNormalization", 14): "saved_mean and saved_var must not be read",
    ("GroupNormalization", 21): "the number of channels must be known",
}
"""Forms before a version that `opset_rules` refuses, by operator and version."""


_FLOAT8 = frozenset(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"))

NARROWER: dict[Key, frozenset[str]] = {
    ("", "IsInf"): _FLOAT8,
    ("", "IsNaN"): _FLOAT8,
    ("", "SplitToSequence"): frozenset(("bfloat16",)),
}
"""Element types that an operator's lowering does not take, although the standard and generated code do; the
standard has no sequence of bfloat16 for SplitToSequence to make."""


@dataclass(frozen=True)
class Entry:
    """One operator that is supported.

    Attributes:
        versions: of its domain, those that changed it and are accepted; empty where onnx has no schema.
        types: of each type parameter, the element types and kinds that are accepted, in the standard's order.
        notes: what it computes, and the forms that are refused.
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    types: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]


def standard() -> dict[str, str | int]:
    """The version of the installed onnx, its newest opset, and the one that older models are brought to."""
    return {
        "onnx": onnx.__version__,
        "opset": int(defs.onnx_opset_version()),
        "canonical": CANONICAL_OPSET,
    }


def element_types() -> tuple[str, ...]:
    """The element types of generated code, in the order of their numbers in the standard."""
    names = (dtype_name(code) for code in sorted(TensorProto.DataType.values()) if code)
    return tuple(
        name for name in names if name in C_TYPES or name in SMALL or (name == STRING and ON_STRINGS)
    )


def supported() -> list[Entry]:
    """Every operator that a model may have, by domain and name."""
    keys = {*OPERATORS, *(key for key in _schemas() if _is_supported(key))}
    return [_entry(key) for key in sorted(keys)]


def missing() -> list[Key]:
    """The standard's operators that are neither supported nor left out on purpose."""
    return sorted(key for key in _schemas() if key not in LEFT_OUT and not _is_supported(key))


def schema(domain: str, name: str) -> defs.OpSchema | None:
    """The newest version of an operator, None where onnx has none."""
    return next(iter(_schemas().get((domain, name), ())), None)


@functools.cache
def _schemas() -> dict[Key, list[defs.OpSchema]]:
    """Every version of every operator, the newest first."""
    found: dict[Key, list[defs.OpSchema]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    for versions in found.values():
        versions.sort(key=lambda schema: -schema.since_version)
    return found


def _is_supported(key: Key, within: Collection[Key] = ()) -> bool:
    """Whether `key` is lowered, read, or becomes what is; `within` are the definitions it stands in."""
    domain, name = key
    if key in OPERATORS or (not domain and name in READ):
        return True
    if not domain and name in RENAMED:
        return _is_supported(("", RENAMED[name]))
    needs = DEFINITIONS[key] if key in DEFINITIONS else _definition(key)
    return bool(needs) and all(
        ("", op) not in within and _is_supported(("", op), (*within, key)) for op in needs
    )


def _definition(key: Key) -> list[str]:
    """The operators of the function that defines `key`, empty where there is none."""
    newest = schema(*key)
    if newest is None or not newest.has_function:
        return []
    version = max(newest.function_opset_versions)
    proto = FunctionProto.FromString(newest.get_function_with_opset_version(version))
    return list(_operators(proto.node))


def _operators(nodes: Iterable[Any]) -> Iterable[str]:
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g.node)


def _entry(key: Key) -> Entry:
    domain, name = key
    accepted = [s for s in _schemas().get(key, ()) if not s.deprecated or (not domain and name in STILL_READ)]
    versions = tuple(s.since_version for s in reversed(accepted))
    types = types_of(accepted[0]) if accepted else {}
    if key in OPERATORS:
        notes = [_first_paragraph(OPERATORS[key].doc)]
    elif not domain and name in READ:
        notes = [READ[name]]
    elif not domain and name in RENAMED:
        notes = [f"becomes {RENAMED[name]}"]
    else:
        notes = ["expanded to its definition in the standard"]
    if not domain:
        notes += [f"before opset {v}: {text}" for (op, v), text in LIMITS.items() if op == name]
    return Entry(domain, name, versions, types, tuple(note for note in notes if note))


def _first_paragraph(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split()).removesuffix(".")


def types_of(schema: defs.OpSchema) -> dict[str, tuple[str, ...]]:
    """The types of each parameter that the standard allows and the compiler has."""
    key = schema.domain, schema.name
    known = set(element_types()) - NARROWER.get(key, frozenset())
    if key not in ON_STRINGS:
        known.discard(STRING)
    kinds = {"seq(": ("sequences", "SequenceAt"), "optional(": ("optionals", "OptionalGetElement")}
    found = {}
    for constraint in schema.type_constraints:
        types: dict[str, None] = {}
        for text in constraint.allowed_type_strs:
            if text.startswith("tensor("):
                name = dtype_name(TensorProto.DataType.Value(text[len("tensor(") : -1].upper()))
                if name in known:
                    types[name] = None
            for prefix, (kind, needs) in kinds.items():
                if text.startswith(prefix) and _is_supported(("", needs)):
                    types[kind] = None
        if types:
            found[constraint.type_param_str] = tuple(types)
    return found
