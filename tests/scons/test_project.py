"""``cuvil.yaml``: what is read, and the exact error for what is wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cuvil.errors import CuvilError
from cuvil.scons.project import Model, configured, read
from cuvil.target import schema

VALID = """\
target: rk3588
model: b
quantization: int8
targets: [boards]
models:
  a: {path: m/a.onnx}
  b:
    path: ../b.onnx
    shapes: {x: [N, 3, 224, 224], s: [[2, 3], [N]], e: [], o: null}
    values: {rate: 16000, sizes: [[1, 2]], fast: true}
    io_format: nhwc
    quantization: none
    calibration: c.npz
    test: t.npz
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cuvil.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_become_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    project = read(write(tmp_path / "sub", VALID))
    assert project.models[1] == Model(
        name="b",
        path="b.onnx",
        shapes={"x": ("N", 3, 224, 224), "s": ((2, 3), ("N",)), "e": (), "o": None},
        values={"rate": 16000, "sizes": [[1, 2]], "fast": True},
        io_format="nhwc",
        quantization="none",
        calibration=os.path.join("sub", "c.npz"),
        test=os.path.join("sub", "t.npz"),
    )
    assert project.models[0] == Model(name="a", path=os.path.join("sub", "m", "a.onnx"))
    assert (project.target, project.quantization) == ("rk3588", "int8")
    assert project.profile_folders()[0] == Path("sub", "boards")


def test_find_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = read(write(tmp_path, VALID))
    assert project.find_model("").name == "b"
    assert replace(project, model="").find_model("").name == "a"
    assert project.find_model("a").path == os.path.join("m", "a.onnx")
    (tmp_path / "m").mkdir()
    for name in ("a.onnx", "7 dwarfs.onnx"):
        (tmp_path / "m" / name).write_bytes(b"")
    assert project.find_model(str(tmp_path / "m" / "a.onnx")).name == "a"
    assert project.find_model("m/7 dwarfs.onnx") == Model(name="model_7_dwarfs", path="m/7 dwarfs.onnx")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "cuvil.yaml:1: the file is empty"),
        ("target: host\n", "cuvil.yaml:1: at least one model is needed"),
        (
            "modles: {}\n",
            "cuvil.yaml:1: modles: unknown key; did you mean 'models'? allowed: target, model, quantization, "
            "targets, models",
        ),
        (
            "models:\n  a: {path: a.onnx, shape: {}}\n",
            "cuvil.yaml:2: models.a.shape: unknown key; did you mean 'shapes'? allowed: path, shapes, "
            "values, io_format, quantization, calibration, test",
        ),
        ("models:\n  a: {}\n", "cuvil.yaml:2: models.a: the key 'path' is missing"),
        (
            "models:\n  a: {path: a}\n  a: {path: b}\n",
            "cuvil.yaml:3: models.a: duplicate key, first given in line 2",
        ),
        (
            "models:\n  A: {path: a}\n",
            "cuvil.yaml:2: models.A: the key must be a name (lower-case letters, digits and _, a letter "
            "first, at most 32)",
        ),
        (
            "models:\n  a: {path: a}\nmodel: b\n",
            "cuvil.yaml:3: model: unknown model 'b'; allowed: a",
        ),
        (
            "quantization: int4\nmodels:\n  a: {path: a}\n",
            "cuvil.yaml:1: quantization: text 'int4' is not allowed here; did you mean 'int8'? "
            "allowed: none, int8, profile",
        ),
        (
            "models:\n  a: {path: a, shapes: {x: [1.5]}}\n",
            "cuvil.yaml:2: models.a.shapes.x[0]: expected a whole number, found the number 1.5",
        ),
        (
            "models:\n  a: {path: a, shapes: {x: [-1]}}\n",
            "cuvil.yaml:2: models.a.shapes.x[0]: expected a whole number from 0 to 2147483648, found -1",
        ),
        (
            "models:\n  a: {path: a, shapes: {x: [[1], 2]}}\n",
            "cuvil.yaml:2: models.a.shapes.x[1]: expected a list, found the number 2",
        ),
        (
            "models:\n  a: {path: a, values: {rate: [{}]}}\n",
            "cuvil.yaml:2: models.a.values.rate[0]: expected a number or a list of numbers, found a mapping",
        ),
    ],
)
def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CuvilError) as caught:
        read(write(tmp_path, text))
    assert str(caught.value) == error


def test_configured_target() -> None:
    target = schema.load("rk3588")
    assert configured(target, "profile", None) == target
    plain = configured(target, "none", 2)
    assert [plain.mode(d.name) for d in plain.devices] == ["none"] * 3
    assert [d.threads for d in plain.devices] == [2, 2, 1]
    strict = configured(target, "profile", None, "strict")
    assert {d.accuracy for d in strict.devices} == {"strict"}
    assert {d.accuracy for d in target.devices} == {"default"}
    with pytest.raises(CuvilError, match=r"^threads=5: device 'big' has 4 cores$"):
        configured(target, "none", 5)


def test_the_projects_own_file_names_files_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    project = read(root / "cuvil.yaml")
    for model in project.models:
        assert all(os.path.isfile(path) for path in (model.path, model.calibration, model.test))
    assert project.find_model("").name == "digits"
