"""Partitions, compiled and run: the orchestrated devices answer as one device does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from placed_nets import DIGITS, RK3588_HERE, XEON_HERE, model, profile, residual

import cuvil
from cuvil.session import Session


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("models") / "residual.onnx"
    onnx.save(model(residual), path)
    return {"residual": path, "digits": DIGITS}


@pytest.fixture(scope="module")
def alone(files: dict[str, Path]) -> dict[str, Session]:
    """The models on a single device."""
    return {name: cuvil.compile(path, target="x86_64-unknown-linux-gnu") for name, path in files.items()}


@pytest.mark.parametrize("name", ["residual", "digits"])
@pytest.mark.parametrize("text", [RK3588_HERE, XEON_HERE], ids=["rk3588", "xeon-2s"])
def test_devices_together_answer_as_one(
    files: dict[str, Path], alone: dict[str, Session], tmp_path: Path, name: str, text: str
) -> None:
    target = profile(tmp_path, text)
    session = cuvil.compile(files[name], target=target, output=tmp_path / "out")
    placed = json.loads((tmp_path / "out" / "partition" / "partition.json").read_text())
    busy = {s["device"] for s in placed["segments"] if s["nodes"]}
    assert len(busy) == 2
    for device in target.devices:
        stem = tmp_path / "out" / f"lib{name}_{device.name}"
        assert stem.with_suffix(".a").is_file() and stem.with_suffix(".so").is_file()
    rng = np.random.default_rng(1)
    shape = [3, 1, 28, 28] if name == "digits" else [1, 3, 24, 24]
    feeds = {session.get_inputs()[0].name: rng.standard_normal(shape).astype(np.float32)}
    (together,), (single,) = session.run(None, feeds), alone[name].run(None, feeds)
    assert np.abs(together - single).max() <= 1e-5 * np.abs(single).max()
