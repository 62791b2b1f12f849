"""The large networks of the zoo: small variants of them; the full size is marked slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import cuvil
from cuvil.target.schema import load
from zoo import detection, large, mobile, transformers, vision
from zoo.entry import Feeds, ModelEntry, Unavailable
from zoo.feeders import pictures
from zoo.trained import TrainedNet, read_safetensors

SMALL: dict[str, ModelEntry] = {
    name: replace(large.MODELS[name], source=source, feeder=feeder)
    for name, source, feeder in [
        ("resnet50", partial(vision.resnet50, image=48, width=8, classes=10), pictures(48)),
        ("vgg11_bn", partial(vision.vgg11_bn, image=32, width=8, dense=24, classes=10), pictures(32)),
        ("densenet121", partial(vision.densenet121, image=40, growth=8, blocks=(3, 2)), pictures(40)),
        ("mobilenet_v1", partial(mobile.mobilenet_v1, image=40, width=0.25, classes=10), pictures(40)),
        ("mobilenet_v3_large", partial(mobile.mobilenet_v3_large, image=40, width=0.25, classes=10),
         pictures(40)),
        ("efficientnet_lite0_relu6", partial(mobile.efficientnet_lite0, image=40, width=0.25, classes=10),
         pictures(40)),
        ("yolo", partial(detection.yolo, image=64, width=8, classes=5), pictures(64)),
        ("vit_small", partial(transformers.vit_small, image=48, hidden=48, heads=3, layers=2, classes=10),
         pictures(48)),
        ("gpt2_step",
         partial(transformers.gpt2_step, hidden=48, heads=3, layers=2, vocabulary=64, positions=129),
         large.gpt2_feeder(2, 3, 16, 64)),
    ]
}  # fmt: skip
SIZES = {"N": 2, "batch": 2, "past": 5}


def reference(path: Path, feeds: Feeds) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, feeds)]


def path_of(entry: ModelEntry, folder: Path) -> Path:
    try:
        return entry.path(folder)
    except Unavailable as reason:
        pytest.skip(str(reason))


def check(
    entry: ModelEntry, dims: Mapping[str, int], folder: Path, *, bound: bool, optimization: str
) -> None:
    """Outputs are sane, differ between inputs, and are those of onnxruntime."""
    path = path_of(entry, folder)
    onnx.checker.check_model(path, full_check=True)
    host = load("host")
    target = replace(host, toolchain=replace(host.toolchain, optimization=optimization))
    session = cuvil.compile(path, target=target, shapes=entry.shapes(**dims) if bound else {})
    answers = []
    for seed in (0, 1):
        feeds = entry.inputs(seed, **dims)
        wanted = reference(path, feeds)
        for ours, theirs in zip(session.run(None, feeds), wanted, strict=True):
            assert np.isfinite(theirs).all() and 1e-3 < theirs.std() < 100
            assert np.abs(ours - theirs).max() <= entry.tolerance * np.abs(theirs).max()
        answers.append(wanted[0])
    assert np.abs(answers[0] - answers[1]).max() > 1e-3 * np.abs(answers[0]).max()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "efficientnet_lite0_relu6" else n for n in SMALL],
)
def test_small_variants_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    check(SMALL[name], {}, tmp_path, bound=True, optimization="O1")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_variants_agree_at_open_sizes(name: str, tmp_path: Path) -> None:
    dims = {dim: SIZES[dim] for dim in SMALL[name].dims}
    check(SMALL[name], dims, tmp_path, bound=False, optimization="O1")


@pytest.mark.slow
@pytest.mark.parametrize("name", large.MODELS)
def test_full_size_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    check(large.MODELS[name], {}, tmp_path, bound=True, optimization="O3")


@pytest.mark.parametrize("name", ["minilm", "mobilenet_v3_large", "yolo"])
def test_models_are_the_same_each_time(name: str) -> None:
    entry = large.MODELS[name]
    one, two = (entry.model().SerializeToString(deterministic=True) for _ in range(2))
    assert one == two
    first, again, other = entry.inputs(1), entry.inputs(1), entry.inputs(2)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # What is trained, as torchvision, Keras (mobilenet_v1), timm and ultralytics (yolov8n) count it.
        ("resnet50", 25_557_032),
        ("densenet121", 7_978_856),
        ("mobilenet_v1", 4_231_976),
        ("mobilenet_v3_large", 5_483_032),
        ("efficientnet_lite0_relu6", 4_652_008),
        ("yolo", 3_157_200),
    ],
)
def test_parameter_counts_are_those_of_the_known_networks(name: str, count: int) -> None:
    graph = large.MODELS[name].model().graph
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in graph.initializer}
    layers = [n for n in graph.node if n.op_type in ("Conv", "Gemm", "BatchNormalization")]
    assert sum(sizes.get(value, 0) for node in layers for value in node.input[1:3]) == count


def test_a_vit_has_the_parameters_of_the_known_one() -> None:
    graph = large.MODELS["vit_small"].model().graph
    floats = [t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    assert sum(int(np.prod(tensor.dims)) for tensor in floats) == 22_050_664


def test_safetensors_are_read(tmp_path: Path) -> None:
    header = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},'
        b'"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}'
    )
    values = np.array([1.5, -2.0], "<f4")
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8) + values.tobytes())
    tensors = read_safetensors(tmp_path / "w")
    assert list(tensors) == ["a"]
    np.testing.assert_array_equal(tensors["a"], [[1.5], [-2.0]])


def test_trained_weights_are_taken_in_order_and_their_shapes_checked() -> None:
    weights = [np.full(shape, k, np.float32) for k, shape in enumerate([(2, 3), (3,), (3,), (4,)])]
    net = TrainedNet("net", iter(weights))
    net.linear(net.input("x", [1, 2]), 2, 3)
    assert net.scale(3)[0] == 2
    with pytest.raises(ValueError, match=r"net: the next weights are \[4\], not \[5\]"):
        net.bias(5)
