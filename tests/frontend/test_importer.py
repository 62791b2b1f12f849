"""The import stage as a whole: real networks, onnx's own test models, importing twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_models import F32, model, run, same, save
from onnx import helper, numpy_helper

from cuvil.errors import ModelError
from cuvil.frontend.importer import import_model
from cuvil.frontend.onnx_writer import to_bytes, to_proto, write_model

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(os.environ.get("CUVIL_MODELS", ROOT.parent / "shared" / "data" / "models"))
NETWORKS = sorted(MODELS.glob("*.onnx"))
ONNX_TESTS = Path(onnx.__file__).parent / "backend" / "test" / "data"


def feeds_for(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    constants = {tensor.name for tensor in proto.graph.initializer}
    return {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for value in proto.graph.input
        if value.name not in constants
    }


@pytest.mark.parametrize("path", NETWORKS or [None], ids=lambda path: path.stem if path else "none")
def test_real_network_computes_the_same(path: Path | None, tmp_path: Path) -> None:
    """graph.onnx gives the outputs of the original, is valid, and imports as itself."""
    if path is None:
        pytest.skip(f"no models in {MODELS}; set CUVIL_MODELS to their folder")
    graph = import_model(path)
    written = tmp_path / "graph.onnx"
    write_model(graph, written)
    onnx.checker.check_model(str(written), full_check=True)
    original = onnx.load(path)
    feeds = feeds_for(original)
    for left, right in zip(run(original, feeds), run(onnx.load(written), feeds)):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    again = import_model(written)
    assert same(again, graph) and to_bytes(again) == written.read_bytes()
    assert all(known.shape is not None for known in graph.types.values())


@pytest.mark.parametrize(
    ("kind", "least"), [("simple", 15), ("pytorch-converted", 80), ("pytorch-operator", 35)]
)
def test_onnxs_own_models_give_the_recorded_outputs(kind: str, least: int, tmp_path: Path) -> None:
    """Old opsets, functions, control flow: what the imported model computes is what onnx recorded."""
    tried = 0
    for folder in sorted((ONNX_TESTS / kind).iterdir()):
        if any(word in folder.name for word in ("gradient", "strnorm")):
            continue  # another domain; needs a locale
        graph = import_model(folder / "model.onnx")
        constants = {tensor.name for tensor in onnx.load(folder / "model.onnx").graph.initializer}
        names = [v.name for v in onnx.load(folder / "model.onnx").graph.input]
        inputs = recorded(folder, "input")
        feeds = {name: array for name, array in zip(names, inputs) if name not in constants}
        for left, right in zip(run(to_proto(graph), feeds), recorded(folder, "output")):
            np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5, err_msg=folder.name)
        written = tmp_path / "graph.onnx"
        write_model(graph, written)
        assert same(import_model(written), graph), folder.name
        tried += 1
    assert tried >= least


def recorded(folder: Path, what: str) -> list[np.ndarray]:
    files = sorted((folder / "test_data_set_0").glob(f"{what}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in files]


def attention(batch: Any) -> onnx.ModelProto:
    """An exported attention head: split, transpose and merge to computed sizes."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i0"], ["n"], axis=0),
        node("Gather", ["s", "i1"], ["l"], axis=0),
        node("Unsqueeze", ["n", "a0"], ["n1"]),
        node("Unsqueeze", ["l", "a0"], ["l1"]),
        node("Concat", ["n1", "l1", "heads"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["h"]),
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["t", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "t"], ["c"]),
        node("Transpose", ["c"], ["back"], perm=[0, 2, 1, 3]),
        node("Concat", ["n1", "l1", "width"], ["merge"], axis=0),
        node("Reshape", ["back", "merge"], ["m"]),
        node("Add", ["m", "x"], ["y"]),
    ]
    constants = {
        "i0": np.int64(0), "i1": np.int64(1), "a0": np.array([0]), "heads": np.array([2, 4]),
        "width": np.array([8]),
    }  # fmt: skip
    return model(nodes, {"x": (F32, [batch, "L", 8])}, ["y"], constants, opset=14)


def test_shape_arithmetic_of_attention_disappears(tmp_path: Path) -> None:
    graph = import_model(save(tmp_path, attention("N")))
    assert not {"Shape", "Gather", "Concat", "Unsqueeze"} & {node.op for node in graph.nodes}
    assert graph.types["scores"].shape == ("N", 2, "L", "L")
    assert graph.types["y"].shape == ("N", "L", 8)
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(
        run(to_proto(graph), {"x": x})[0], run(attention("N"), {"x": x})[0], rtol=1e-5, atol=1e-6
    )


def test_importing_twice_changes_nothing_and_binding_later_is_binding_first(tmp_path: Path) -> None:
    path = save(tmp_path, attention("N"))
    first = import_model(path)
    write_model(first, tmp_path / "graph.onnx")
    assert same(import_model(tmp_path / "graph.onnx"), first)
    late = import_model(tmp_path / "graph.onnx", {"x": [3, 5, 8]})
    assert late.types["scores"].shape == (3, 2, 5, 5)
    assert late.types["y"] == import_model(path, {"x": [3, 5, 8]}).types["y"]


def test_random_bytes_never_raise_anything_but_model_errors(tmp_path: Path) -> None:
    """Three hundred damaged copies of a model: each imports or is refused in one line."""
    rng = np.random.default_rng(0)
    good = attention("N").SerializeToString()
    path = tmp_path / "m.onnx"
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            import_model(path)
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100
