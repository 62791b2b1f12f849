"""The trained models are what their READMEs say: valid, of the documented shapes, and as accurate."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

MODELS = Path(__file__).resolve().parents[2] / "models"
INTERFACES = {
    "digits": ("image", [1, 28, 28], "logits", 10),
    "vowels": ("cepstrum", [1, 29, 12], "probability", 9),
}
each_model = pytest.mark.parametrize("name", INTERFACES)


def load_arrays(name: str, file: str) -> dict[str, np.ndarray]:
    with np.load(MODELS / name / file) as arrays:
        return dict(arrays)


def load_model(name: str) -> onnx.ModelProto:
    return onnx.load(MODELS / name / f"{name}.onnx")


def declared_shape(value: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


@each_model
def test_model_is_valid_with_the_documented_interface(name: str) -> None:
    model = load_model(name)
    onnx.checker.check_model(model, full_check=True)
    input_name, sample_shape, output_name, classes = INTERFACES[name]
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert [(v.name, declared_shape(v)) for v in model.graph.input] == [(input_name, ["N", *sample_shape])]
    assert [(v.name, declared_shape(v)) for v in model.graph.output] == [(output_name, ["N", classes])]
    assert {t.data_type for t in model.graph.initializer} == {onnx.TensorProto.FLOAT}
    assert not model.metadata_props and not model.doc_string


@each_model
def test_sets_have_the_documented_arrays(name: str) -> None:
    input_name, sample_shape, _, classes = INTERFACES[name]
    test, calibration = load_arrays(name, "test.npz"), load_arrays(name, "calibration.npz")
    assert set(test) == {input_name, "label"} and set(calibration) == {input_name}
    for arrays in (test, calibration):
        assert arrays[input_name].dtype == np.float32
        assert list(arrays[input_name].shape[1:]) == sample_shape
    assert test["label"].dtype == np.int64 and test["label"].shape == test[input_name].shape[:1]
    assert set(test["label"].tolist()) == set(range(classes))


@each_model
def test_no_sample_is_repeated_within_or_between_the_sets(name: str) -> None:
    input_name = INTERFACES[name][0]
    sets = [load_arrays(name, file)[input_name] for file in ("test.npz", "calibration.npz")]
    samples = [sample.tobytes() for arrays in sets for sample in arrays]
    assert len(set(samples)) == len(samples)


@each_model
def test_onnxruntime_reaches_the_accuracy_in_the_readme(name: str) -> None:
    arrays = load_arrays(name, "test.npz")
    labels = arrays.pop("label")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(MODELS / name / f"{name}.onnx", options)
    right = int((session.run(None, arrays)[0].argmax(axis=1) == labels).sum())
    readme = (MODELS / name / "README.md").read_text(encoding="utf-8")
    documented = re.search(r"test accuracy \(onnxruntime\) \| (\S+) \((\d+) of (\d+)\)", readme)
    assert documented is not None
    assert (right, len(labels)) == (int(documented[2]), int(documented[3]))
    assert float(documented[1]) == pytest.approx(right / len(labels), abs=5e-5)


def test_vowels_leaves_batch_norms_to_fold_and_digits_does_not() -> None:
    counts = {
        name: sum(node.op_type == "BatchNormalization" for node in load_model(name).graph.node)
        for name in INTERFACES
    }
    assert counts == {"digits": 0, "vowels": 9}
