"""The document on operators: what is supported, what is left out and why, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]

GROUPS: dict[str, tuple[str, ...]] = {
    "floats": ("float16", "bfloat16", "float32", "float64"),
    "integers": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "signed": ("int8", "int16", "int32", "int64"),
    "unsigned": ("uint8", "uint16", "uint32", "uint64"),
    "float8": ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "4-bit": ("float4_e2m1fn", "int4", "uint4"),
    "2-bit": ("int2", "uint2"),
}
"""Element types that are named together where an operator takes them all."""

_HEAD = """\
# Operators

Made by `cuvil operators > docs/operators.md`, for onnx {onnx} (opset {opset}).

*Versions* are the opsets that changed an operator, each in the form it then had; a model may declare any
opset in between. Older forms are brought to opset {canonical}. *Types* are the element types that the
standard allows and generated code has, by type parameter where they differ; complex numbers are never among
them.

{groups}
"""


def markdown(result: Result) -> str:
    """`commands.operators`."""
    groups = table(("name", "types"), ((group, ", ".join(types)) for group, types in GROUPS.items()))
    facts = {key: result[key] for key in ("onnx", "opset", "canonical")}
    parts = [_HEAD.format(groups=groups, **facts).rstrip()]
    for domain in dict.fromkeys(entry["domain"] for entry in result["operators"]):
        parts += _domain(domain, [entry for entry in result["operators"] if entry["domain"] == domain])
    rows = [(f"`{name(entry)}`", entry["reason"]) for entry in result["left_out"]]
    parts += ["## Left out", table(("operator", "reason"), rows)]
    if result["missing"]:
        parts += ["## Not yet", ", ".join(f"`{name(entry)}`" for entry in result["missing"])]
    return "\n\n".join(parts)


def name(entry: Result) -> str:
    """An operator's name with its domain, unless that is the default one."""
    return f"{entry['domain']}.{entry['name']}" if entry["domain"] else str(entry["name"])


def _domain(domain: str, entries: Sequence[Result]) -> list[str]:
    title = f"## {domain or 'ai.onnx'}: {len(entries)} operators"
    if not any(entry["versions"] for entry in entries):  # onnx has no schemas of the domain
        return [title, table(("operator", "notes"), ((f"`{e['name']}`", _notes(e)) for e in entries))]
    rows = ((f"`{e['name']}`", _versions(e), _types(e["types"]), _notes(e)) for e in entries)
    return [title, table(("operator", "versions", "types", "notes"), rows)]


def _versions(entry: Result) -> str:
    return ", ".join(map(str, entry["versions"]))


def _notes(entry: Result) -> str:
    return "; ".join(entry["notes"])


def _types(types: Mapping[str, Sequence[str]]) -> str:
    if len(set(map(tuple, types.values()))) == 1:
        return _grouped(next(iter(types.values())))
    return "; ".join(f"{parameter}: {_grouped(names)}" for parameter, names in types.items())


def _grouped(names: Sequence[str]) -> str:
    """The names, with those of a whole group as the group."""
    left, found = dict.fromkeys(names), []
    for group, members in GROUPS.items():
        if all(member in left for member in members):
            found.append(group)
            for member in members:
                del left[member]
    return ", ".join([*found, *left])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *cells))
