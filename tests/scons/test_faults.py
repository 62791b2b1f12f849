"""Faults and interruptions: the right result or a clear error, never a stale or half one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from scons_tree import Tree

from cuvil import fsio


def test_same_bytes_in_two_folders_with_other_hash_seeds_and_jobs(make_tree: Callable[[str], Tree]) -> None:
    first, second = make_tree("first"), make_tree("a/longer name")
    first.scons("-j1", env={"PYTHONHASHSEED": "1", "TZ": "UTC"})
    second.scons("-j2", env={"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo"})
    artefacts = first.artefacts()
    assert len(artefacts) == 19
    assert second.artefacts() == artefacts
    for name, data in artefacts.items():
        assert os.fsencode(first.folder) not in data, name
        assert os.fsencode(first.package.parent) not in data, name


def test_a_failing_stage_is_one_line_and_leaves_no_output(built: Tree) -> None:
    built.model.write_bytes(built.model.read_bytes()[:-20])
    done = built.scons(status=2)
    assert done.stderr.splitlines() == [
        "cuvil: error: models/tiny.onnx: the file is truncated, damaged or not an ONNX model",
        "scons: *** [build/board/tiny/graph.onnx] Error 1",
    ]
    assert not (built.out / "graph.onnx").exists()
    assert (built.out / "libtiny.a").exists()  # of the last good build


def test_a_failing_compiler_leaves_no_library(built: Tree) -> None:
    built.edit(built.board, "toolchain: {", "toolchain: {flags: [-fno-such-flag], ")
    done = built.scons(status=2)
    first, second = done.stderr.splitlines()
    assert first.startswith("cuvil: error: ") and "could not compile tiny_cpu0.c" in first
    assert second.startswith("scons: *** [build/board/tiny/obj/tiny_cpu0.o]")
    assert not (built.out / "obj" / "tiny_cpu0.o").exists()
    assert not (built.out / "libtiny_cpu0.a").exists()


def test_a_compiler_that_is_not_there_is_named_before_anything_runs(built: Tree) -> None:
    built.edit(built.board, "compiler: gcc" if shutil.which("gcc") else "compiler: zig", "compiler: clang")
    done = built.scons(status=2, env={"PATH": "/nonexistent"})
    assert done.stderr == (
        "cuvil: error: compiler 'clang' is not on PATH; install it (Debian: clang) or use 'zig'\n"
    )
    assert done.stdout == ""


@pytest.mark.parametrize("file", ["cpu0.onnx", "tiny_cpu0.c"])
def test_a_kill_in_the_middle_of_a_stage(built: Tree, file: str) -> None:
    """`file` is the one that is half written when the process dies."""
    built.add_package()
    before = built.artefacts()
    built.edit(
        "cuvil/fsio.py",
        "            file.write(data)\n",
        f"            if path.name == {file!r} and os.environ.get('KILL'):\n"
        "                file.write(data[: len(data) // 2])\n"
        "                file.flush()\n"
        f"                os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "            file.write(data)\n",
    )
    killed = built.scons(env={"KILL": "1"}, status=None)
    assert killed.returncode == -signal.SIGKILL
    assert not any(path.name == file for path in built.out.rglob("*") if path.parent.name == "partition")
    built.scons()
    after = {name: data for name, data in built.artefacts().items() if not name.endswith(".tmp")}
    assert after == before


def test_a_second_build_in_the_folder_is_refused(built: Tree) -> None:
    with fsio.build_lock(built.out.parent):
        done = built.scons(status=2)
    assert done.stderr == "cuvil: error: build/board: another build is running in this folder\n"


def test_a_read_only_source_tree_builds_elsewhere(fresh: Tree, tmp_path: Path) -> None:
    def contents() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in sorted(fresh.folder.rglob("*"))}

    before = contents()
    out = tmp_path / "out"
    fresh.scons(f"build_dir={out}", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert contents() == before
    assert (out / "board" / "tiny" / "libtiny.so").is_file()
    again = fresh.scons(f"build_dir={out}", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert again.stdout == f"scons: `{out}/board/tiny/libtiny.a' is up to date.\n"
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = fresh.scons(f"build_dir={tmp_path}/file", status=2)
    assert done.stderr == (
        f"cuvil: error: {tmp_path}/file/board: cannot be written: Not a directory; build_dir= names another\n"
    )


class TestCache:
    """``cache_dir=``."""

    def test_another_checkout_takes_all_from_the_cache(
        self, make_tree: Callable[[str], Tree], tmp_path: Path
    ) -> None:
        cache = f"cache_dir={tmp_path / 'cache'}"
        first, second = make_tree("first"), make_tree("second")
        assert len(first.stages(cache)) == 7
        assert second.stages(cache) == []
        assert second.artefacts() == first.artefacts()
        assert second.stages(cache) == []

    def test_damaged_empty_and_unsigned_entries_are_made_anew(
        self, make_tree: Callable[[str], Tree], tmp_path: Path
    ) -> None:
        folder = tmp_path / "cache"
        first, second = make_tree("first"), make_tree("second")
        first.scons(f"cache_dir={folder}")
        entries = {p: p.read_bytes() for p in folder.rglob("*") if len(p.name) == 32}
        assert len(entries) == 19
        library = next(p for p, data in entries.items() if data == first.artefacts()["libtiny.so"])
        graph = next(p for p, data in entries.items() if data == first.artefacts()["graph.onnx"])
        header = next(p for p, data in entries.items() if data == first.artefacts()["codegen/tiny.h"])
        library.write_bytes(entries[library][:-1] + b"?")
        graph.write_bytes(b"")
        Path(f"{header}.sha256").unlink()
        done = second.scons(f"cache_dir={folder}")
        assert done.stderr.splitlines() == [
            f"cuvil: warning: the cache entry of build/board/tiny/{name} is damaged and is made anew"
            for name in ("graph.onnx", "codegen/tiny.h", "libtiny.so")
        ]
        told = [line for line in done.stdout.splitlines() if not line.startswith(("Retrieved", "  ..."))]
        ran = [line.split()[0] for line in told]
        assert ran == ["IMPORT", "INTERFACE", "CC"]
        assert second.artefacts() == first.artefacts()
        assert {p: p.read_bytes() for p in entries} == entries  # mended

    def test_a_cache_that_cannot_be_written_warns_and_builds(self, fresh: Tree, tmp_path: Path) -> None:
        folder = tmp_path / "cache"
        folder.mkdir()
        for number in range(256):  # where the entries' folders would be made
            (folder / f"{number:02X}").write_text("", encoding="ascii")
        done = fresh.scons(f"cache_dir={folder}")
        warnings = done.stderr.splitlines()
        assert len(warnings) == 19
        assert warnings[0] == (
            "cuvil: warning: build/board/tiny/graph.onnx cannot be kept in the cache: File exists"
        )
        assert len(fresh.artefacts()) == 19
