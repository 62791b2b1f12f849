"""What a user types and reads: variables, commands, help and errors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from scons_tree import Tree

HELP = """\
scons [NAME=VALUE ...] [COMMAND ...]

Models
  tiny   models/tiny.onnx (default)
  other  models/other.onnx

Targets
  board  the board of the tests (default)
  host   this machine, probed

Variables (also set in custom.py)
  target=        board to build for: a name from the list above, a path to a YAML file, or a triple
  model=         model to build: a name from the list above, or a path to an .onnx file
  quantization=  arithmetic: none, int8, or profile for what the board profile says
  threads=       threads that the library uses on each CPU
  build_dir=     folder of all outputs
  cache_dir=     folder of a cache that builds and checkouts share
  verbose=       1 shows whole command lines, and tracebacks of internal errors

Commands
  all        build every model
  verify     build, run, and compare with onnxruntime: error, accuracy, sizes, latency
  bench      build and measure the latency, beside onnxruntime's
  size       build and print what the library takes
  test       run the project's tests
  compiledb  write compile_commands.json for editors
"""


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (
            "tagret=board",
            "unknown variable 'tagret'; did you mean 'target'? allowed: target, model, quantization, "
            "threads, build_dir, cache_dir, verbose",
        ),
        (
            "target=bord",
            "unknown target 'bord'; did you mean 'board'? allowed: board, host, a path to a YAML file, "
            "or a triple such as aarch64-linux-gnu",
        ),
        ("target=no/such.yaml", "no/such.yaml: cannot read profile: No such file or directory"),
        (
            "model=tin",
            "unknown model 'tin'; did you mean 'tiny'? allowed: tiny, other, or a path to an .onnx file",
        ),
        ("model=no/such.onnx", "model 'no/such.onnx': no such file"),
        ("quantization=int4", "quantization=int4: did you mean 'int8'? allowed: none, int8, profile"),
        ("threads=0", "threads=0: a whole number from 1 to 4096 is allowed"),
        ("verbose=yes", "verbose=yes: allowed: 0, 1"),
        (
            "verfy",
            "unknown command 'verfy'; did you mean 'verify'? allowed: all, verify, bench, size, test, "
            "compiledb, or a file in build",
        ),
    ],
)
def test_errors(fresh: Tree, argument: str, error: str) -> None:
    done = fresh.scons(argument, status=2)
    assert done.stderr == f"cuvil: error: {error}\n"
    assert done.stdout == ""


def test_help_lists_what_can_be_built(fresh: Tree) -> None:
    found = fresh.scons("-h").stdout
    assert found.startswith(HELP)
    assert "  scons -c all " in found
    assert not (fresh.folder / "build").exists()


def test_custom_py_sets_variables_and_the_command_line_wins(fresh: Tree) -> None:
    custom = fresh.folder / "custom.py"
    custom.write_text("import os\n_private = 1\nmodel = 'other'\nthreads = 1\n", encoding="utf-8")
    assert "IMPORT   other [board]" in fresh.scons("-n").stdout
    assert "IMPORT   tiny [board]" in fresh.scons("-n", "model=tiny").stdout
    custom.write_text("modle = 'other'\n", encoding="utf-8")
    assert "unknown variable 'modle'; did you mean 'model'?" in fresh.scons("-n", status=2).stderr
    custom.write_text("model = \n", encoding="utf-8")
    assert fresh.scons("-n", status=2).stderr.startswith("cuvil: error: custom.py: SyntaxError: ")


def test_command_lines_are_short_and_verbose_ones_can_be_run_by_hand(fresh: Tree) -> None:
    dry = fresh.scons("-n").stdout.splitlines()
    assert dry == [
        "IMPORT   tiny [board]",
        "PARTITION tiny [board]",
        "QUANTIZE tiny [board]",
        "CODEGEN  tiny [board/cpu0]",
        "INTERFACE tiny [board]",
        "CC       tiny [board/cpu0]",
        "CC       tiny [board]",
    ]
    assert not (fresh.folder / "build").exists()
    lines = fresh.scons("verbose=1").stdout.splitlines()
    commands = [line for line in lines if not line.startswith(("#", " "))]
    compilations = [line for line in lines if line.startswith("# cd ")]
    assert len(commands) == 7
    assert len(compilations) == 2 and all(" -c tiny" in line for line in compilations)
    before = fresh.artefacts()
    fresh.scons("-c")
    assert not fresh.out.exists()
    environment = {**os.environ, "PYTHONPATH": str(fresh.package.parent)}
    for line in commands[:2]:
        subprocess.run(shlex.split(line), cwd=fresh.folder, env=environment, check=True)
    after = fresh.artefacts()
    assert len(after) == 3
    assert after == {name: before[name] for name in after}


def test_clean_removes_the_models_folder_and_nothing_else(built: Tree) -> None:
    (built.out / "notes.txt").write_text("left by something else", encoding="utf-8")
    other = built.out.parent / "other" / "kept"
    other.parent.mkdir()
    other.write_text("", encoding="utf-8")
    done = built.scons("-c", env={"PATH": "/nonexistent"})
    assert "Removed build/board/tiny/libtiny.a" in done.stdout.splitlines()
    assert not built.out.exists()
    assert other.exists()
    assert built.scons("-c", "all").stdout.splitlines()[-1] == "Removed directory build/board/other"


def test_a_model_and_a_target_by_path(fresh: Tree) -> None:
    elsewhere = fresh.folder / "boards"
    elsewhere.mkdir()
    fresh.board.rename(elsewhere / "mine.yaml")
    (elsewhere / "Some Net.onnx").write_bytes(fresh.model.read_bytes())
    done = fresh.scons("-n", "target=boards/mine.yaml", "model=boards/Some Net.onnx")
    assert done.stdout.splitlines()[0] == "IMPORT   Some_Net [mine]"
    known = fresh.scons("-n", "target=boards/mine.yaml", "model=models/other.onnx")
    assert known.stdout.splitlines()[0] == "IMPORT   other [mine]"


def test_verify_size_and_compile_commands(built: Tree) -> None:
    done = built.scons("verify", "size", "compiledb")
    facts = dict(line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line.strip())
    assert facts["model"].strip() == "tiny [board]"  # of size, the last one
    report = done.stdout.splitlines()
    assert any(line.startswith("largest error") and line.endswith("; 6 samples") for line in report)
    assert any(line.startswith("library") and "build/board/tiny/libtiny.so" in line for line in report)
    entries = json.loads((built.folder / "compile_commands.json").read_text(encoding="utf-8"))
    assert [e["file"] for e in entries] == ["tiny_cpu0.c", "tiny.c"]
    assert all(Path(e["directory"], e["file"]).is_file() for e in entries)
    subprocess.run(entries[0]["arguments"], cwd=entries[0]["directory"], check=True)


def test_verify_fails_for_a_wrong_library(built: Tree) -> None:
    built.add_package()
    built.edit("cuvil/report/verify.py", "TOLERANCE = 1e-3", "TOLERANCE = -1.0")
    done = built.scons("verify", status=2)
    assert "; WRONG, -1.0e+00 of it is allowed; 6 samples" in done.stdout
    built.edit("cuvil.yaml", "test: models/data.npz", "test: models/no.npz")
    missing = "cuvil: error: model tiny: test: no such file 'models/no.npz'\n"
    assert built.scons("verify", status=2).stderr == missing


def test_all_builds_every_model(built: Tree) -> None:
    lines = built.scons("all").stdout.splitlines()
    assert "CC       other [board]" in lines
    assert not any("tiny" in line for line in lines)
