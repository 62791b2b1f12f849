"""What a stage depends on besides its files: Cuvil's own modules, and the versions of what they compute with.

The modules are those that the stage's functions in `cuvil.stages` name, and all that these import, so a new
import there is a new dependency of the build without being listed anywhere.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
from pathlib import Path

from cuvil import digest, fsio

STAGE_FUNCTIONS = {
    "import": ("run_import",),
    "partition": ("run_partition",),
    "quantize": ("run_quantize",),
    "codegen": ("run_codegen",),
    "interface": ("run_interface",),
    "cc": ("run_cc_level", "run_cc_device", "run_cc_model"),
}

_OWN = ("cuvil.stages", "cuvil.scons.stage_command")
"""Modules that take part in every stage by themselves, but not with all that they import."""


def roots(stage: str) -> tuple[str, ...]:
    """The modules that the functions of `stage` name, directly or through functions of `cuvil.stages`."""
    imports, functions = _stages_module()
    modules: set[str] = set()
    seen: set[str] = set()
    waiting = list(STAGE_FUNCTIONS[stage])
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        nodes = list(ast.walk(functions[name]))
        parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                modules.update(_imported(node).values())
            elif isinstance(node, ast.Name) and node.id not in parameters:
                waiting += [node.id] if node.id in functions else []
                modules |= {imports[node.id]} if node.id in imports else set()
    return tuple(sorted(modules))


def of_stage(stage: str) -> str:
    """Digest of all code that `stage` runs and of the versions of numpy and onnx."""
    return digest.of_json([digest.of_modules(*roots(stage)), [digest.of_file(_path(m)) for m in _OWN]])


def of_stages(memo: Path | None) -> dict[str, str]:
    """`of_stage` for every stage.

    Following imports takes a few tenths of a second, so the result is kept in the file `memo` (unless None),
    with the digest of the contents of the whole package, on which alone (and on the two versions) it depends.
    """
    root = digest.PACKAGE_ROOT
    files = {str(path.relative_to(root)): digest.of_file(path) for path in root.rglob("*.py")}
    key = digest.of_json([files, *(importlib.metadata.version(name) for name in ("numpy", "onnx"))])
    try:
        known = json.loads(memo.read_text(encoding="utf-8")) if memo else {}
        if known["package"] == key and known["stages"].keys() == STAGE_FUNCTIONS.keys():
            return dict(known["stages"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    found = {stage: of_stage(stage) for stage in STAGE_FUNCTIONS}
    if memo:
        fsio.write_json(memo, {"package": key, "stages": found})
    return found


@functools.cache
def _stages_module() -> tuple[dict[str, str], dict[str, ast.AST]]:
    """Of `cuvil.stages`: name -> module for what it imports of Cuvil, and name -> code of what it defines."""
    tree = ast.parse(_path("cuvil.stages").read_text(encoding="utf-8"))
    imports: dict[str, str] = {}
    functions: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            imports |= _imported(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            functions[node.name] = node
    return imports, functions


def _imported(node: ast.ImportFrom) -> dict[str, str]:
    """Name -> module for each name that an import statement brings from Cuvil."""
    module = node.module or ""
    if module.split(".")[0] != "cuvil":
        return {}
    return {
        alias.asname or alias.name: full if digest.module_path(full := f"{module}.{alias.name}") else module
        for alias in node.names
    }


def _path(module: str) -> Path:
    path = digest.module_path(module)
    assert path is not None, module
    return path
