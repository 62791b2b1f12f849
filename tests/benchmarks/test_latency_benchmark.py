"""The latency benchmark measures in the order and with the arithmetic that it claims."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import latency
from benchmarks.runners import RUNNERS, Prepared, Runner


class FakeTime:
    """A clock that moves only when a candidate runs or something sleeps, and keeps a record."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def candidate(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds
            self.log.append(name)

        return run

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.log.append("pause")


def test_blocks_alternate_and_both_runtimes_begin_in_turn() -> None:
    time = FakeTime()
    candidates = {"a": time.candidate("a", 1e-3), "b": time.candidate("b", 3e-3)}
    seconds = latency.measure(candidates, 2, lambda: time.now, time.sleep)
    np.testing.assert_allclose(seconds["a"], np.full((2, 6), 1e-3))
    np.testing.assert_allclose(seconds["b"], np.full((2, 6), 3e-3))
    block = {name: ["pause"] + [name] * 8 for name in "ab"}
    assert time.log[4:] == block["a"] + block["b"] + block["b"] + block["a"]


@pytest.mark.parametrize(("seconds", "loops"), [(1e-3, 1), (0.2e-3, 1), (0.15e-3, 2), (1e-6, 200)])
def test_short_runs_are_looped_until_a_sample_is_long_enough(seconds: float, loops: int) -> None:
    time = FakeTime()
    count = latency.inner_loops(time.candidate("a", seconds), lambda: time.now)
    assert count == pytest.approx(loops, abs=1 if loops > 2 else 0)


def test_errors_are_relative_to_the_largest_value_of_their_own_output() -> None:
    reference = [np.array([1.0, -4.0]), np.array([100.0])]
    assert latency.errors([np.array([1.5, -4.0]), np.array([101.0])], reference) == (1.0, 0.125)


def test_errors_of_values_that_are_not_finite() -> None:
    reference = [np.array([np.nan, np.inf, 2.0])]
    assert latency.errors([np.array([np.nan, np.inf, 2.0])], reference) == (0.0, 0.0)
    assert latency.errors([np.array([1.0, np.inf, 2.0])], reference) == (math.inf, math.inf)
    assert latency.errors([np.array([np.nan, 5.0, 2.0])], reference) == (math.inf, math.inf)


def test_errors_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="output shapes"):
        latency.errors([np.zeros((2, 1))], [np.zeros(2)])


def test_geometric_mean_is_per_threads_and_rival() -> None:
    rows = [
        {"threads": 1, "ratio": {"x": {"median": 2.0}}},
        {"threads": 1, "ratio": {"x": {"median": 0.5}}},
        {"threads": 2, "ratio": {"x": {"median": 3.0}}},
        {"threads": 1, "failed": "why"},
    ]
    one, two = latency.geometric_means(rows)
    assert one == {"threads": 1, "rival": "x", "ratio": pytest.approx(1.0), "models": 2}
    assert two == {"threads": 2, "rival": "x", "ratio": pytest.approx(3.0), "models": 1}


def test_onnxruntime_against_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "r.json"
    arguments = ["--subject", "onnxruntime", "--models", "mlp", "--repeats", "1", "--output", str(output)]
    assert latency.main(arguments) == 0
    report = json.loads(output.read_text())
    (row,) = report["results"]
    assert row["errors"]["onnxruntime again"] == {"absolute": 0.0, "relative": 0.0}
    assert row["ms"]["onnxruntime"]["samples"] == 6
    assert report["versions"].keys() >= {"python", "numpy", "onnx", "onnxruntime"}
    assert "| mlp | 1 |" in capsys.readouterr().out


class Broken(Runner):
    """Refuses `mlp` and answers `gru` wrongly."""

    name = "broken"
    version = "0"

    def prepare(
        self, model: Path, threads: int, feeds: dict[str, np.ndarray], values: Any = None
    ) -> Prepared:
        if model.stem == "mlp":
            raise RuntimeError("cannot | do this")
        wrong = [a * 1.01 for a in RUNNERS["onnxruntime"](self.settings).prepare(model, threads, feeds).run()]
        return Prepared(lambda: wrong, lambda repeats: np.full(repeats, 0.002))


def test_failures_and_errors_above_tolerance_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(RUNNERS, "broken", Broken)
    arguments = ["--subject", "broken", "--repeats", "1", "--output", str(tmp_path / "r.json"), "--models"]
    assert latency.main([*arguments, "mlp"]) == 1
    assert "| mlp | 1 | RuntimeError: cannot / do this |" in capsys.readouterr().out
    assert latency.main([*arguments, "gru"]) == 1
    assert "1.0e-02 **above tolerance** |" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "r.json").read_text())["results"]
    assert row["bare_ms"]["median"] == pytest.approx(2.0)


def test_unavailable_models_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUVIL_MODELS", str(tmp_path))
    assert latency.main(["--subject", "onnxruntime", "--models", "crepe_tiny", "--repeats", "1"]) == 0
    assert "skipped: no crepe_tiny.onnx" in capsys.readouterr().out


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        latency.main(["--models", "nothing"])
    assert "no model 'nothing'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        latency.main(["--rivals", "nobody"])
    assert "no runtime 'nobody'" in capsys.readouterr().err
