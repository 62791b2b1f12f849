"""The quantize stage: what it leaves in float and reports, and the trained models end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import cuvil
from cuvil.errors import CuvilError
from cuvil.frontend.onnx_reader import read_model
from cuvil.frontend.onnx_writer import to_proto
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.ir.primitives import definition_loads
from cuvil.quantize.evaluate import accuracy
from cuvil.quantize.qdq import copy_graph
from cuvil.quantize.quantizer import quantize
from cuvil.rewrite import integer
from cuvil.schedule.fuse import fuse, is_contraction
from cuvil.schedule.lower import lower
from cuvil.session import Session

MODELS = Path(__file__).resolve().parents[2] / "models"


def target(mode: str = "int8", method: str = "minmax") -> dict[str, Any]:
    return {
        "modes": {"cpu0": mode},
        "calibration": {"method": method, "percentile": 99.9, "per_channel": True},
    }


def reference(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """onnxruntime in the place of compiled code."""
    session = onnxruntime.InferenceSession(
        to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds))))


def two_products(first: np.ndarray) -> Graph:
    """x [N, 8] -> MatMul by `first` -> Relu -> MatMul."""
    rng = np.random.default_rng(0)
    nodes = [
        Node("MatMul", ["x", "w1"], ["a"], {}, "one"),
        Node("Relu", ["a"], ["r"], {}, "relu"),
        Node("MatMul", ["r", "w2"], ["y"], {}, "two"),
    ]
    types = {n: TensorType("float32", ("N", 8)) for n in ("x", "a", "r", "y")}
    constants = {"w1": first, "w2": rng.normal(0, 1, (8, 8)).astype(np.float32)}
    return Graph("net", ["x"], ["y"], nodes, constants, types, 21)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """200 samples whose first column is 10000 times as large as the others."""
    x = np.random.default_rng(1).normal(0, 1, (200, 8)).astype(np.float32)
    x[:, 0] *= 1e4
    np.savez(tmp_path / "data.npz", x=x)
    return tmp_path / "data.npz"


def test_layer_that_eight_bits_would_ruin_stays_float(data: Path) -> None:
    weights = np.random.default_rng(2).normal(0, 1, (8, 8)).astype(np.float32)
    weights[0] = 0  # what is large does not matter, and what matters rounds to 0
    graph = two_products(weights)
    placed = {"cpu0": copy_graph(graph)}
    report = quantize(graph, placed, target(), data, reference)
    assert list(report["layers"]) == ["y"] and list(report["float"]) == ["a"]
    assert report["float"]["a"].startswith("relative error 1 in int8, at most 0.1")
    reads = {n.outputs[0]: n.inputs for n in placed["cpu0"].nodes}
    assert reads["a"] == ["x", "w1"] and reads["y"] == ["r.dq", "w2.dq"]
    assert set(report["tensors"]) == {"r"} and report["outputs"]["y"] < 0.02


def test_report_is_complete_and_plain(data: Path) -> None:
    graph = two_products(np.eye(8, dtype=np.float32))
    lines: list[str] = []
    report = quantize(graph, {"cpu0": copy_graph(graph)}, target(method="mse"), data, reference, lines.append)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["calibration"] == {"method": "mse", "samples": 200}
    layer = report["layers"]["a"]
    assert (layer["node"], layer["op"]) == ("one", "MatMul")
    np.testing.assert_allclose(layer["weight_scales"], [1 / 127] * 8, rtol=1e-6)
    assert 0 < layer["error_alone"] < 0.1 and layer["error"] == pytest.approx(layer["error_alone"], rel=1e-3)
    x = report["tensors"]["x"]
    assert set(x) == {"scale", "zero_point", "low", "high"}
    np.testing.assert_allclose((x["high"] - x["low"]) / 255, x["scale"], rtol=1e-6)
    assert lines == ["quantize: ranges for 2 layers from 200 samples", "quantize: errors of 2 layers"]


def test_devices_without_a_mode_are_untouched(data: Path) -> None:
    graph = two_products(np.eye(8, dtype=np.float32))
    half = Graph("net", ["r"], ["y"], graph.nodes[2:], {"w2": graph.constants["w2"]}, graph.types, 21)
    placed = {"cpu0": copy_graph(half), "cpu1": copy_graph(graph)}
    modes = {"modes": {"cpu0": "int8", "cpu1": "none"}}
    report = quantize(graph, placed, target() | modes, data, reference)
    assert list(report["layers"]) == ["y"] and placed["cpu1"].nodes == graph.nodes
    assert [n.op for n in placed["cpu0"].nodes].count("QuantizeLinear") == 1


def test_graph_without_layers_needs_no_data(tmp_path: Path) -> None:
    types = {n: TensorType("float32", ("N", 8)) for n in ("x", "y")}
    graph = Graph("net", ["x"], ["y"], [Node("Relu", ["x"], ["y"])], {}, types, 21)
    report = quantize(graph, {"cpu0": copy_graph(graph)}, target(), tmp_path / "none", reference)
    assert report == {"tensors": {}, "layers": {}, "outputs": {}, "float": {}}


def test_data_of_another_model_is_refused() -> None:
    data = MODELS / "vowels" / "calibration.npz"
    with pytest.raises(CuvilError, match=r"calibration\.npz: 'cepstrum': is no input; the inputs are image$"):
        cuvil.compile(MODELS / "digits" / "digits.onnx", quantization="int8", calibration=data)


@dataclass(frozen=True)
class Compiled:
    """A trained model in int8."""

    session: Session
    folder: Path
    test: dict[str, np.ndarray]
    accuracy: float


@pytest.fixture(scope="module", params=["digits", "vowels"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    source, folder = MODELS / request.param, tmp_path_factory.mktemp(request.param)
    model = source / f"{request.param}.onnx"
    session = cuvil.compile(model, quantization="int8", calibration=source / "calibration.npz", output=folder)
    with np.load(source / "test.npz") as arrays:
        test = dict(arrays)
    float_session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return Compiled(session, folder, test, accuracy(lambda feeds: float_session.run(None, feeds), test))


def quantized_file(compiled: Compiled) -> Path:
    (path,) = (compiled.folder / "quantize").glob("*.onnx")
    return path


def test_trained_model_keeps_its_accuracy(compiled: Compiled) -> None:
    found = accuracy(lambda feeds: compiled.session.run(None, feeds), compiled.test)
    assert found >= compiled.accuracy - 0.01


def test_qdq_file_runs_in_onnxruntime_with_the_same_answers(compiled: Compiled) -> None:
    path = quantized_file(compiled)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {n: a[:64] for n, a in compiled.test.items() if n != "label"}
    (want,), (got,) = session.run(None, feeds), compiled.session.run(None, feeds)
    assert np.abs(got - want).max() < 0.01 * np.abs(want).max()


def test_every_product_of_a_trained_model_is_of_bytes(compiled: Compiled) -> None:
    graph = read_model(quantized_file(compiled))
    layers = sum(n.op in ("Conv", "Gemm", "MatMul") for n in graph.nodes)
    integer.rewrite(graph)
    program = lower(graph)
    fuse(program)
    kinds = [[e.attr.dtype for e in definition_loads(v)] for v in program.values if is_contraction(v)]
    assert kinds == [["uint8", "int8"]] * layers
    report = json.loads((compiled.folder / "quantize" / "quantization.json").read_text())
    assert len(report["layers"]) == layers and not report["float"]
