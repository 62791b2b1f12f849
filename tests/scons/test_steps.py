"""The steps of a build without SCons: files, signatures, the stage command."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvil import artefacts, digest, stages
from cuvil.errors import CuvilError
from cuvil.scons import signatures, stage_command
from cuvil.scons.external_data import data_files
from cuvil.scons.project import Model, configured
from cuvil.scons.steps import steps
from cuvil.target import schema


def test_steps_of_a_board_with_three_devices() -> None:
    target = configured(schema.load("rk3588"), "none", None)
    out = artefacts.layout(Path("out"), "net", target)
    listed = steps(out, target, Model(name="net", path="m.onnx", calibration="c.npz", shapes={"x": (1, "T")}))
    assert [s.title for s in listed] == [
        "IMPORT   net [rk3588]",
        "PARTITION net [rk3588]",
        "QUANTIZE net [rk3588]",
        *(f"CODEGEN  net [rk3588/{d}]" for d in ("big", "little", "npu")),
        "INTERFACE net [rk3588]",
        *(f"CC       net [rk3588/{d}]" for d in ("big", "little", "npu")),
        "CC       net [rk3588]",
    ]
    outputs = [path for s in listed for path in s.outputs]
    assert len(outputs) == len(set(outputs)) == 1 + 4 + 4 + 3 * 4 + 3 + 3 * 4 + 3
    made: set[Path] = {Path("m.onnx")}
    for s in listed:  # every input is a source or was made before
        assert made.issuperset(s.inputs)
        made.update(s.outputs)
        assert not any("out" in option or "m.onnx" in option for option in s.settings)
    assert not any(s.apart for s in listed)


def test_calibration_data_are_read_in_int8_only() -> None:
    model = Model(name="net", path="m.onnx", calibration="c.npz")
    found = {}
    for mode in ("none", "int8"):
        target = configured(schema.load("raspberry-pi-4"), mode, None)
        out = artefacts.layout(Path("out"), "net", target)
        found[mode] = next(s for s in steps(out, target, model) if s.stage == "quantize")
    assert found["none"].inputs == (Path("out/partition/cpu0.onnx"),)
    assert found["int8"].inputs == (Path("out/graph.onnx"), Path("out/partition/cpu0.onnx"), Path("c.npz"))
    assert found["int8"].apart and found["int8"].paths[-2:] == ("--calibration", "c.npz")


def test_what_a_stage_uses_is_found_in_its_code() -> None:
    """Every module that a stage's function names is a root: here by another way, the bodies' text."""
    source = Path(stages.__file__).read_text(encoding="utf-8")
    bodies = {n.name: ast.unparse(n) for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    for stage, functions in signatures.STAGE_FUNCTIONS.items():
        text = "".join(bodies[name] for name in functions)
        for word, module in (
            ("read_model(", "cuvil.frontend.onnx_reader"),
            ("write_model(", "cuvil.frontend.onnx_writer"),
            ("evaluator(", "cuvil.session"),
            ("device_code(", "cuvil.codegen.program"),
            ("device_code(", "cuvil.schedule.plan"),
            ("abi.", "cuvil.codegen.abi"),
            ("compiler(", "cuvil.toolchain.profile"),
        ):
            assert word not in text or module in signatures.roots(stage), (stage, module)
    assert set(signatures.STAGE_FUNCTIONS) == set(stage_command.STAGES)


def test_digests_are_kept_until_the_package_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = tmp_path / "memo.json"
    first = signatures.of_stages(memo)
    monkeypatch.setattr(signatures, "of_stage", lambda stage: f"new {stage}")
    assert signatures.of_stages(memo) == first
    memo.write_text("{", encoding="utf-8")
    assert signatures.of_stages(memo)["cc"] == "new cc"
    assert signatures.of_stages(None)["cc"] == "new cc"
    monkeypatch.setattr(digest, "of_file", lambda path: "edited")
    monkeypatch.setattr(signatures, "of_stage", lambda stage: f"newer {stage}")
    assert signatures.of_stages(memo)["cc"] == "newer cc"


def test_external_data_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    names = ["a.data", "sub/b.data", "missing.data", "../outside.data", str(tmp_path / "absolute.data")]
    names.append("n" * 150 + ".data")
    tensors = []
    for index, name in enumerate(names):
        tensor = TensorProto(name=f"t{index}", data_type=TensorProto.FLOAT, dims=[1])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        tensor.external_data.add(key="offset", value="0")
        tensors.append(tensor)
        if "missing" not in name:
            (tmp_path / name).write_bytes(bytes(4))
    inside = numpy_helper.from_array(np.zeros(1, np.float32), "location")
    graph = helper.make_graph([], "location", [], [], [*tensors, inside])
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.ModelProto(graph=graph, ir_version=8).SerializeToString())
    expected = [tmp_path / "a.data", tmp_path / names[-1], tmp_path / "sub" / "b.data"]
    assert data_files(path) == expected
    path.write_bytes(b"")
    assert data_files(path) == []
    path.write_bytes(b"\x0a\x08location\x12")
    assert data_files(path) == []
    assert data_files(tmp_path / "none.onnx") == []


class TestStageCommand:
    """``cuvil stage``."""

    FOLDER = ("--folder", "out", "--name", "net", "--devices", "cpu0")

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (("import", *FOLDER), "--model: is needed to import"),
            (
                ("partition", *FOLDER, "--slice", "{"),
                "--slice: is not JSON: Expecting property name enclosed in "
                "double quotes: line 1 column 2 (char 1)",
            ),
            (("partition", *FOLDER, "--slice", "[]"), "--slice: is no JSON object"),
            (("codegen", *FOLDER), "--device '': is no device; allowed: cpu0"),
            (
                ("cc", *FOLDER, "--device", "cpu1"),
                "--device 'cpu1': is no device; did you mean 'cpu0'? allowed: cpu0",
            ),
        ],
    )
    def test_errors(self, arguments: tuple[str, ...], error: str) -> None:
        with pytest.raises(CuvilError) as caught:
            stage_command.run(arguments)
        assert str(caught.value) == error

    def test_import(self, tmp_path: Path) -> None:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [value("x", TensorProto.FLOAT, ["N", 3])],
            [value("y", TensorProto.FLOAT, ["N", 3])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / "m.onnx")
        folder = ("--folder", str(tmp_path / "out"), "--name", "net", "--devices", "cpu0")
        shapes = ("--shapes", json.dumps({"x": [4, 3]}))
        assert stage_command.main(("import", *folder, "--model", str(tmp_path / "m.onnx"), *shapes)) == 0
        imported = onnx.load(tmp_path / "out" / "graph.onnx").graph.input[0].type.tensor_type.shape
        assert [d.dim_value for d in imported.dim] == [4, 3]

    def test_import_with_a_value(self, tmp_path: Path) -> None:
        value = helper.make_tensor_value_info
        inputs = [value("x", TensorProto.FLOAT, ["N", 3]), value("s", TensorProto.FLOAT, [])]
        nodes = [helper.make_node("Mul", ["x", "s"], ["y"])]
        graph = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, ["N", 3])])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / "m.onnx")
        target = configured(schema.load("raspberry-pi-4"), "none", None)
        out = artefacts.layout(tmp_path / "out", "net", target)
        project = Model(name="net", path=str(tmp_path / "m.onnx"), values={"s": 2.5})
        step = steps(out, target, project)[0]
        assert step.settings[-4:-2] == ("--values", '{"s": 2.5}')
        assert stage_command.main(step.arguments) == 0
        imported = onnx.load(tmp_path / "out" / "graph.onnx").graph
        assert [i.name for i in imported.input] == ["x"]
        assert [float(numpy_helper.to_array(t)) for t in imported.initializer] == [2.5]
