"""The accuracy benchmark's table, samples and verdict."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import accuracy


def test_samples_come_one_by_one_with_their_batch_axis() -> None:
    reader = accuracy.OneByOne({"x": np.arange(6).reshape(2, 3), "n": np.array([7, 8])})
    first = reader.get_next()
    assert first is not None and first["x"].tolist() == [[0, 1, 2]] and first["n"].tolist() == [7]
    assert reader.get_next() is not None and reader.get_next() is None


@pytest.mark.parametrize(("int8", "verdict"), [(0.985, 0), (0.97, 1)])
def test_table_file_and_verdict(
    int8: float,
    verdict: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = dict(zip(accuracy.COLUMNS, (0.99, 0.99, int8, 0.5)))
    methods = []

    def compare(name: str, target: accuracy.Target) -> accuracy.Row:
        methods.append(target.quantization.calibration.method)
        return {"model": name, "samples": 1000, **figures}

    monkeypatch.setattr(accuracy, "compare", compare)
    output = tmp_path / "accuracy.json"
    arguments = ["--models", "digits", "--target", "raspberry-pi-4", "--method", "mse"]
    assert accuracy.main([*arguments, "--output", str(output)]) == verdict
    assert methods == ["mse"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model | samples | onnxruntime f32 | cuvil f32 | cuvil int8 | onnxruntime int8 |"
    assert lines[2] == f"| digits | 1000 | 0.9900 | 0.9900 | {int8:.4f} | 0.5000 |"
    assert json.loads(output.read_text())["results"][0]["cuvil int8"] == int8
