"""The rules of the house that a machine can check: floors, file sizes, what must not be in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "cuvil").rglob("*.py"))

FLOORS = {
    "errors": 0, "fsio": 0, "digest": 0, "limits": 0,
    "ir": 1, "target": 1,
    "ops": 2, "toolchain": 2,
    "schedule": 3, "codegen": 3,
    "frontend": 4, "rewrite": 4, "quantize": 4, "partition": 4, "cost": 4,
    "artefacts": 4, "stages": 5, "session": 5, "onnx_backend": 5,
    "cli": 6, "commands": 6, "scons": 6, "report": 6, "__main__": 6,
}  # fmt: skip
"""A module imports from its own floor and from those below it."""

MAX_LINES = 600

FORBIDDEN = {
    "an absolute path of some machine": r"(?<![\w.~-])/(?:root|work|home|mnt|opt|srv|tmp/[a-z])(?:/|\b)",
    "the host of a package registry": r"\b(?:py[p]i\.org|python[h]osted\.org|[r]egistry\.[n]pmjs)",
    "a merge conflict": r"^(?:<{7}|>{7}) ",
}
THIS_FILE = Path(__file__).resolve()


def part(path: Path) -> str:
    """The top module or package of `cuvil` that a file belongs to; "" for ``cuvil/__init__.py``."""
    name = path.relative_to(ROOT / "cuvil").parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


def imported_parts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and part of every import of `cuvil`, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "cuvil" and rest and not rest.startswith("__version__"):
                yield node.lineno, rest.split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downward(path: Path) -> None:
    mine = part(path)
    if not mine:  # the public interface, loaded on first use
        return
    for line, other in imported_parts(path):
        assert other in FLOORS, f"line {line}: {other} has no floor: give it one in this test"
        assert FLOORS[other] <= FLOORS[mine], f"line {line}: {mine} imports {other} of a higher floor"


def test_every_part_has_a_floor() -> None:
    assert {part(path) for path in SOURCES} - {""} == set(FLOORS)


def test_onnx_is_imported_in_few_places() -> None:
    """Models are read in `frontend` alone; operators and kernels know nothing of the file format.
    `onnx_backend` is a class of ONNX's own interface, so it cannot do without."""
    users = {
        part(path)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "onnx" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onnx")
    }
    assert users == {"frontend", "onnx_backend"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_size_of_files(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count("\n") > MAX_LINES:
        doc = ast.get_docstring(ast.parse(text)) or ""
        reason = "Longer than other files, because"
        assert reason in doc, f"over {MAX_LINES} lines: split it, or write '{reason} ...' on top"


def repository_files() -> list[Path]:
    """The files that git has or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = (name for name in listed.stdout.decode().split("\0") if name)
    return [path for name in names if (path := ROOT / name).is_file() and path != THIS_FILE]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_repository_is_free_of(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = []
    for path in repository_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8")
        found += [f"{path.relative_to(ROOT)}: {match[0]!r}" for match in pattern.finditer(text)]
    assert not found


def test_names_of_test_files_are_unique() -> None:
    """pytest imports test files by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
