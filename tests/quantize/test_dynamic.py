"""int8 without calibration data: ranges found at run time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import cuvil

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize(("model", "name"), [("digits", "image"), ("vowels", "cepstrum")])
def test_answers_as_onnxruntime_on_the_same_graph(model: str, name: str, tmp_path: Path) -> None:
    session = cuvil.compile(MODELS / model / f"{model}.onnx", quantization="int8", output=tmp_path)
    data = np.load(MODELS / model / "test.npz")
    oracle = onnxruntime.InferenceSession(
        str(tmp_path / "quantize" / "cpu0.onnx"), providers=["CPUExecutionProvider"]
    )
    right = 0
    for sample, label in zip(data[name][:100], data["label"][:100]):
        feed = {name: sample[None]}
        ours, theirs = session.run(None, feed)[0], oracle.run(None, feed)[0]
        # a value on the edge between two steps may fall on either side of it
        np.testing.assert_allclose(ours, theirs, atol=0.01 * np.abs(theirs).max())
        right += int(ours.argmax() == label)
    assert right >= 97


def test_computes_in_integers(tmp_path: Path) -> None:
    cuvil.compile(MODELS / "digits" / "digits.onnx", quantization="int8", output=tmp_path)
    code = (tmp_path / "codegen" / "digits_cpu0.c").read_text()
    assert "const int8_t *restrict w, int32_t *restrict acc" in code
