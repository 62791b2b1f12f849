"""The programs in examples/, run as their first lines say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuvil import cli
from cuvil.toolchain import compilers
from cuvil.toolchain.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models" / "digits"


def compile_digits(output: Path) -> None:
    assert (
        cli.main(
            ["compile", "--model", str(DIGITS / "digits.onnx"), "--target", "host", "--output", str(output)]
        )
        == 0
    )


def test_ctypes(tmp_path: Path) -> None:
    compile_digits(tmp_path / "libinfer.so")
    command = [
        sys.executable,
        ROOT / "examples" / "ctypes_infer.py",
        tmp_path / "libinfer.so",
        DIGITS / "test.npz",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(printed) == 10
    right = sum(line.split()[1].rstrip(":") == line.split()[-1] for line in printed)
    assert right >= 9


@pytest.mark.parametrize("compiler", ["zig", "gcc"])
def test_c(tmp_path: Path, compiler: str) -> None:
    if compiler == "gcc" and not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    compile_digits(tmp_path / "libinfer.a")
    cc = compilers.find(compiler, Machine("native", "baseline"))
    cc.compile(ROOT / "examples" / "c" / "main.c", tmp_path / "main.o", include_dirs=[tmp_path])
    cc.link_executable([tmp_path / "main.o", tmp_path / "libinfer.a"], tmp_path / "classify", libs=["m"])
    done = subprocess.run([tmp_path / "classify"], capture_output=True, text=True, check=True)
    assert done.stdout == "digit 1\n"
