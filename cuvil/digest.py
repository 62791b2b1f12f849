"""Digests of what a stage depends on: data, files, and Cuvil's own modules.

A build node that runs a stage depends on the digest of every `cuvil` module the stage can
reach by imports, so that an edited compiler never serves what the old one made.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).resolve().parent


def of_bytes(*chunks: bytes) -> str:
    """SHA-256 of the concatenation of length-prefixed `chunks`, as hex."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(len(chunk).to_bytes(8, "little"))
        state.update(chunk)
    return state.hexdigest()


def of_json(value: Any) -> str:
    """Digest of a JSON-like value, independent of the order of mappings."""
    return of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's contents, as hex."""
    with open(path, "rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else hashlib.sha256(file.read()).hexdigest()
        )


def module_path(module: str) -> Path | None:
    """The source file of a `cuvil` module, or None where no such module exists."""
    relative = Path(*module.split(".")[1:])
    for candidate in (PACKAGE_ROOT / relative / "__init__.py", PACKAGE_ROOT / f"{relative}.py"):
        if candidate.is_file() and relative.parts:
            return candidate
    return PACKAGE_ROOT / "__init__.py" if module == "cuvil" else None


@functools.cache
def direct_imports(module: str) -> frozenset[str]:
    """The `cuvil` modules that `module` imports, at any depth of its code."""
    path = module_path(module)
    if path is None:
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found.update(n for n in names if n.startswith("cuvil.") and module_path(n) is not None)
    return frozenset(found)


def modules_used(*roots: str) -> list[str]:
    """Every `cuvil` module reachable by imports from `roots`, sorted.

    A package is followed through its ``__init__`` and, where that loads a family of modules by
    name (`cuvil.ops`), through all modules of the package.
    """
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        module = stack.pop()
        if module in seen or module_path(module) is None:
            continue
        seen.add(module)
        stack.extend(direct_imports(module))
        path = module_path(module)
        if path is not None and path.name == "__init__.py" and "pkgutil" in path.read_text(encoding="utf-8"):
            stack.extend(
                f"{module}.{p.stem}" for p in sorted(path.parent.glob("*.py")) if p.stem != "__init__"
            )
    return sorted(seen - {"cuvil"})


def of_modules(*roots: str) -> str:
    """Digest of the sources reachable from `roots` and the versions of numpy and onnx."""
    parts: dict[str, str] = {}
    for module in modules_used(*roots):
        path = module_path(module)
        assert path is not None
        parts[module] = of_file(path)
    for package in ("numpy", "onnx"):
        parts[package] = importlib.metadata.version(package)
    return of_json(parts)
