"""What is built again after which edit: never too little, and no more than needed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
from scons_tree import Tree, tiny_model


def test_a_second_run_does_nothing_in_a_copy_of_the_folder(built: Tree) -> None:
    before = built.artefacts()
    assert built.scons().stdout == "scons: `build/board/tiny/libtiny.a' is up to date.\n"
    assert built.artefacts() == before


def test_a_comment_in_the_profile_rebuilds_nothing(built: Tree) -> None:
    built.edit(built.board, "# A comment.", "# Another comment.\n")
    assert built.stages() == []


def test_quantization_rebuilds_from_quantize_on(built: Tree) -> None:
    before = built.artefacts()
    built.edit(built.board, "mode: none", "mode: none\n  calibration: {percentile: 99.9}")
    assert built.stages() == ["QUANTIZE"]  # the mode is none, so its output is what it was
    assert built.artefacts() == before
    built.edit(built.board, "mode: none", "mode: int8")
    ran = built.stages()
    assert ran[0] == "QUANTIZE"
    assert "IMPORT" not in ran and "PARTITION" not in ran


def test_the_partition_alone_is_made_anew_for_what_it_alone_reads(built: Tree) -> None:
    built.edit(built.board, "quantization:", "partition: {quantile: 0.5}\nquantization:")
    assert built.stages()[0] == "PARTITION"


def test_an_edited_module_reruns_the_stages_that_use_it(built: Tree) -> None:
    built.add_package()
    with open(built.folder / "cuvil/toolchain/symbols.py", "a", encoding="utf-8") as file:
        file.write("# an edit of a module that no stage uses\n")
    assert built.stages() == []  # the same sources in another place
    before = built.artefacts()
    with open(built.folder / "cuvil/toolchain/machine.py", "a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert built.stages().count("CC") == 2
    with open(built.folder / "cuvil/partition/segments.py", "a", encoding="utf-8") as file:
        file.write("# an edit\n")
    ran = built.stages()
    assert "PARTITION" in ran and "CC" not in ran  # its output is what it was
    assert built.artefacts() == before
    built.edit("cuvil/codegen/program.py", "do not edit. */", "do not edit! */")
    assert "CODEGEN" in built.stages()
    assert b"do not edit! */" in built.artefacts()["codegen/tiny_cpu0.c"]


def test_another_model_rebuilds_nothing(built: Tree) -> None:
    onnx.save(tiny_model(5), built.folder / "models" / "other.onnx")
    assert built.stages() == []


def test_a_changed_model_with_an_old_time_stamp_is_noticed_and_reverted(built: Tree) -> None:
    original, before = built.model.read_bytes(), built.artefacts()
    onnx.save(tiny_model(7), built.model)
    os.utime(built.model, (978307200, 978307200))
    assert built.model.stat().st_size == len(original)
    assert built.stages() == ["IMPORT", "PARTITION", "QUANTIZE", "CODEGEN", "CC", "CC"]
    assert built.artefacts()["codegen/tiny_cpu0.bin"] != before["codegen/tiny_cpu0.bin"]
    built.model.write_bytes(original)
    os.utime(built.model, (978307200, 978307200))
    built.scons()
    assert built.artefacts() == before


def test_external_data_is_a_dependency(built: Tree) -> None:
    weights = np.arange(108, dtype=np.float32)
    model = tiny_model(0)
    onnx.save(model, built.model, save_as_external_data=True, location="tiny.data", size_threshold=0)
    data = built.folder / "models" / "tiny.data"
    assert data.stat().st_size == weights.nbytes
    built.scons()
    data.write_bytes(weights.tobytes())
    assert built.stages()[0] == "IMPORT"
    assert weights[4:8].tobytes() in (built.out / "graph.onnx").read_bytes()


def test_threads_and_arithmetic_of_the_command_line_count(built: Tree) -> None:
    assert built.stages("quantization=none", "threads=1") == []
    assert built.stages("quantization=int8", "-n")[0] == "QUANTIZE"


def test_an_output_edited_by_hand_is_made_anew(built: Tree) -> None:
    before = built.artefacts()
    with open(built.out / "codegen" / "tiny.h", "a", encoding="utf-8") as file:
        file.write("/* by hand */\n")
    (built.out / "libtiny.so").write_bytes(b"")
    done = built.scons()
    assert done.stderr.splitlines() == [
        "cuvil: warning: build/board/tiny/codegen/tiny.h is not what was built and is made anew",
        "cuvil: warning: build/board/tiny/libtiny.so is not what was built and is made anew",
    ]
    assert built.artefacts() == before


def test_a_lost_output_comes_back(built: Tree) -> None:
    before = built.artefacts()
    shutil.rmtree(built.out / "partition")
    assert built.stages() == ["PARTITION"]
    assert built.artefacts() == before


def test_a_damaged_record_of_the_build_gives_the_right_result(built: Tree) -> None:
    before = built.artefacts()
    record = Path(built.folder, "build", "board", ".sconsign.dblite")
    record.write_bytes(record.read_bytes()[:500])
    built.model.write_bytes(built.model.read_bytes())
    built.scons()
    assert built.artefacts() == before
