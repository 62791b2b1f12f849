"""Every network of the zoo, compiled for this machine and compared with onnxruntime.

Networks that are large at their own size run here at a smaller one; their full size is marked slow.
The largest error of each comparison is printed (``pytest -rP``) and kept as the property ``error``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from zoo import builders as b
from zoo import real
from zoo.entry import ModelEntry, Unavailable
from zoo.registry import MODELS

import cuvil
from cuvil.session import Session
from cuvil.target.schema import Target, load

Array = npt.NDArray[Any]

SMALLER: dict[str, ModelEntry] = {
    "resnet18": replace(b.MODELS["resnet18"], source=partial(b.resnet18, image=48, width=16, classes=10),
                        feeder=b._picture(48)),
    "mobilenet_v2": replace(b.MODELS["mobilenet_v2"], feeder=b._picture(40),
                            source=partial(b.mobilenet_v2, image=40, width=0.35, classes=10)),
    "squeezenet": replace(b.MODELS["squeezenet"], source=partial(b.squeezenet, image=63, classes=12),
                          feeder=b._picture(63)),
    "unet": replace(b.MODELS["unet"], source=partial(b.unet, image=24, width=8), feeder=b._picture(24)),
    "bert_mini": replace(b.MODELS["bert_mini"], source=partial(b.bert_mini, layers=2, vocabulary=512),
                         feeder=lambda rng, dims, seed: b._bert(rng, dims, seed) | {
                             "input_ids": rng.integers(0, 512, (dims["batch"], dims["sequence"]))}),
}  # fmt: skip
ENTRIES = {**MODELS, **SMALLER}

QUICK = {
    "silero_vad", "silero_vad_16k_sequence", "silero_vad_openvino_16k", "silero_vad_op18_ifless", "magika",
    "gtcrn", "wake_melspectrogram", "wake_jarvis", "wake_mycroft", *real.FOLDER_FILES,
}  # fmt: skip
"""The real networks that are small, or known for what is peculiar about them; the others are marked slow."""

SIZES: dict[str, tuple[int, int]] = {
    "N": (2, 5), "T": (1, 33), "batch": (2, 3), "sequence": (1, 37), "past": (0, 5),
    "sequence_length": (1, 5), "rate": (8000, 16000), "height": (96, 128), "width": (96, 224),
    "samples": (1600, 4000), "frames": (100, 64), "time": (60, 101),
}  # fmt: skip
"""Two further values of every symbolic dimension."""


def entries(names: Iterable[str]) -> list[Any]:
    """The names as parameters, those of large networks marked slow."""
    slow = real.MODELS.keys() - QUICK
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in sorted(names)]


@pytest.fixture(scope="module")
def target() -> Target:
    """This machine, compiled without much optimisation: the tests are of the code, not of the compiler."""
    host = load("host")
    return replace(host, toolchain=replace(host.toolchain, optimization="O1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def model_path(entry: ModelEntry, folder: Path) -> Path:
    try:
        return entry.path(folder)
    except Unavailable as reason:
        pytest.skip(str(reason))


def reference(path: Path) -> Callable[[Mapping[str, Array]], list[Array]]:
    """onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: [np.asarray(a) for a in session.run(None, dict(feeds))]


def largest_error(got: list[Array], wanted: list[Array]) -> float:
    """The largest difference, relative to the largest absolute value of its output."""
    assert [g.shape for g in got] == [w.shape for w in wanted]
    assert [g.dtype for g in got] == [w.dtype for w in wanted]
    worst = 0.0
    for g, w in zip(got, wanted):
        if w.size:
            difference = np.abs(g.astype(np.float64) - w).max()
            worst = max(
                worst, float(difference / max(np.abs(w).max(), 1e-30)) if difference == difference else np.inf
            )
    return worst


def compare(
    entry: ModelEntry,
    session: Session,
    oracle: Callable[[Mapping[str, Array]], list[Array]],
    record: Callable[[str, object], None],
    *feeds: Mapping[str, Array],
) -> None:
    names = {i.name for i in session.get_inputs()}
    errors = []
    for feed in feeds:
        got = session.run(None, {k: v for k, v in feed.items() if k in names})
        errors.append(largest_error(got, oracle(feed)))
    record("error", max(errors))
    print(
        f"{entry.name}: largest errors {', '.join(f'{e:.1e}' for e in errors)}, {entry.tolerance:.0e} allowed"
    )
    assert max(errors) <= entry.tolerance


def check(
    entry: ModelEntry, bound: bool, target: Target, folder: Path, record: Callable[[str, object], None]
) -> None:
    path = model_path(entry, folder)
    shapes = entry.shapes() if bound else entry.fixed
    session = cuvil.compile(path, target=target, shapes=shapes, values=entry.values)
    feeds = [entry.inputs(seed) for seed in (0, 1)]
    if not bound:
        for k in (0, 1):
            feeds.append(entry.inputs(1, **{d: SIZES[d][k] for d in entry.dims}))
    compare(entry, session, reference(path), record, *feeds)


@pytest.mark.parametrize("name", entries(ENTRIES))
def test_with_known_shapes(
    name: str, target: Target, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    check(ENTRIES[name], True, target, folder, record_property)


@pytest.mark.parametrize("name", entries(n for n, e in ENTRIES.items() if e.dims))
def test_with_open_dimensions(
    name: str, target: Target, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    check(ENTRIES[name], False, target, folder, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [True, False], ids=["known shapes", "open dimensions"])
@pytest.mark.parametrize("name", sorted(SMALLER))
def test_at_full_size(
    name: str, bound: bool, target: Target, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    check(MODELS[name], bound, target, tmp_path, record_property)


@pytest.mark.parametrize(
    "name",
    entries([
        "bert_encoder_layer", "decoder_step", "ds_cnn", "lstm_bidirectional", "unet",
        *real.MODELS.keys() - {"ddddocr_common_old", "efficientnet_lite0", "face_detection_back"},
    ]),
)  # fmt: skip
def test_tuned_and_plain_agree(name: str, target: Target, folder: Path) -> None:
    """With every tuned kernel switched off the answer is the same but for the order of sums."""
    entry = ENTRIES[name]
    path = model_path(entry, folder)
    tuned, plain = (
        cuvil.compile(path, target=target, tuned=on, shapes=entry.fixed, values=entry.values)
        for on in (True, False)
    )
    names = {i.name for i in tuned.get_inputs()}
    feed = {name: array for name, array in entry.inputs(1).items() if name in names}
    allowed = 1e-5 if name in b.MODELS else entry.tolerance
    assert largest_error(tuned.run(None, feed), plain.run(None, feed)) <= allowed


@pytest.mark.slow
def test_first_quantized_tensors_of_an_int8_transformer(target: Target, folder: Path) -> None:
    """They are those of onnxruntime without optimizations, but for sums that another order takes over the
    middle between two numbers; what follows amplifies such differences, so no one answer is right."""
    entry = ENTRIES["smart_turn"]
    model_path(entry, folder)
    model = entry.model()
    nodes = [n for n in model.graph.node if n.op_type == "QuantizeLinear"][:8]
    del model.graph.output[:]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(n.output[0], onnx.TensorProto.UINT8, None) for n in nodes
    )
    onnx.save(model, folder / "first.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    oracle = onnxruntime.InferenceSession(str(folder / "first.onnx"), options)
    feed = entry.inputs(1)
    session = cuvil.compile(folder / "first.onnx", target=target, shapes=entry.shapes())
    for got, wanted in zip(session.run(None, feed), oracle.run(None, feed)):
        difference = np.abs(got.astype(int) - wanted)
        assert difference.max() <= 1 and (difference > 0).mean() < 1e-3
