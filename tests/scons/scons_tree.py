"""A small project in a temporary folder, built by scons as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

REPOSITORY = Path(__file__).resolve().parents[2]

PROJECT = """\
target: board
models:
  tiny:
    path: models/tiny.onnx
    calibration: models/data.npz
    test: models/data.npz
  other: {path: models/other.onnx}
"""

BOARD = """\
# A comment.
extends: host
description: the board of the tests
toolchain: {compiler: COMPILER}
quantization:
  mode: none
"""

STAGES = ("IMPORT", "PARTITION", "QUANTIZE", "CODEGEN", "INTERFACE", "CC")


def tiny_model(seed: int) -> ModelProto:
    """A convolution and a Relu, [1, 3, 8, 8] -> [1, 4, 8, 8]."""
    weights = np.random.default_rng(seed).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Tree:
    """A project folder.

    Args:
        folder: where it lies.
        package: the folder of the `cuvil` that it uses.
    """

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder = folder
        self.package = package
        self.model = folder / "models" / "tiny.onnx"
        self.board = folder / "targets" / "board.yaml"
        self.out = folder / "build" / "board" / "tiny"

    def scons(
        self, *arguments: str, env: Mapping[str, str] | None = None, status: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run ``scons -Q`` with `arguments`; its exit status must be `status` unless that is None."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("SCONSFLAGS", "PYTHONHASHSEED")}
        done = subprocess.run(
            [sys.executable, "-m", "SCons", "-Q", *arguments],
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": str(self.package.parent), **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done

    def stages(self, *arguments: str, env: Mapping[str, str] | None = None) -> list[str]:
        """The stages that ``scons`` with `arguments` ran, in order."""
        lines = self.scons(*arguments, env=env).stdout.splitlines()
        return [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in STAGES]

    def artefacts(self) -> dict[str, bytes]:
        """All files of the model's build folder."""
        return {
            str(p.relative_to(self.out)): p.read_bytes() for p in sorted(self.out.rglob("*")) if p.is_file()
        }

    def edit(self, path: str | Path, old: str, new: str) -> None:
        """Replace text in a file of the tree."""
        file = self.folder / path
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def add_package(self) -> None:
        """Give the tree a copy of Cuvil of its own, which it then uses."""
        shutil.copytree(self.package, self.folder / "cuvil")

    def copy(self, folder: Path) -> Tree:
        """The same project, with all that has been built, in another folder."""
        shutil.copytree(self.folder, folder)
        return Tree(folder, self.package)


def fresh_tree(folder: Path, package: Path) -> Tree:
    (folder / "models").mkdir(parents=True)
    (folder / "targets").mkdir()
    for name in ("SConstruct", "site_scons"):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    tree = Tree(folder, package)
    (folder / "cuvil.yaml").write_text(PROJECT, encoding="utf-8")
    compiler = "gcc" if shutil.which("gcc") else "zig"  # named, so that no run has to try which one works
    tree.board.write_text(BOARD.replace("COMPILER", compiler), encoding="utf-8")
    save(tiny_model(0), tree.model)
    save(tiny_model(1), folder / "models" / "other.onnx")
    samples = np.random.default_rng(2).standard_normal((6, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "models" / "data.npz", x=samples)
    return tree
