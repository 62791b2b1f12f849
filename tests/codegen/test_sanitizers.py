"""Generated code of small networks under gcc's sanitizers, on ordinary and on strange inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from codegen.sandbox import ADDRESS, THREAD, Array, Case, Program, isa, relative_error, schedule_of
from zoo import builders as b
from zoo.net import Net

import cuvil
from cuvil.codegen.tuned import amx, winograd

Source = Callable[[], onnx.ModelProto]


def odd_line() -> onnx.ModelProto:
    """A convolution of single channels over a line of 33, whose result another reads channel by channel:
    its lanes are places along the line, and do not fill the last vector.  What it reads is needed again,
    so its result lies at the end of the workspace."""
    net = Net("odd_line", 4)
    wide = net.conv(net.input("x", [1, 8, 11, 35]), 8, 16, 1)
    line = {"dilations": [5, 1]}
    x = net.op("Conv", wide, net.weight(16, 1, 3, 3, fan_in=9), net.bias(16), group=16, **line)
    x = net.conv(net.op("LeakyRelu", x, alpha=0.1), 16, 8, 1)
    again = net.op("Conv", wide, net.weight(8, 16, 3, 3, fan_in=144), **line)
    net.output(net.op("Add", x, again), "y", [1, 8, 1, 33])
    return net.model()


NETS: dict[str, tuple[Source, list[dict[str, int]]]] = {
    "unet": (partial(b.unet, image=16, width=8), [{"N": 1}, {"N": 2}]),
    "ds_cnn": (partial(b.ds_cnn, frames=21, width=24), [{"N": 3}]),
    "mlp": (partial(b.mlp, sizes=(20, 33, 5)), [{"N": 0}, {"N": 1}, {"N": 3}, {"N": 70}]),
    "lstm_bidirectional": (
        partial(b.lstm, size=9, hidden=20, bidirectional=True, sequence_lens=True),
        [{"N": 1, "T": 1}, {"N": 3, "T": 5}],
    ),
    "gru": (partial(b.gru, size=16, hidden=16), [{"N": 1, "T": 4}, {"N": 7, "T": 1}]),
    "odd_line": (odd_line, [{}]),
    "bert_encoder_layer": (
        partial(b.bert_encoder_layer, hidden=48, heads=3, ffn=72),
        [{"batch": 1, "sequence": 1}, {"batch": 2, "sequence": 7}, {"batch": 1, "sequence": 33}],
    ),
    "decoder_step": (
        partial(b.decoder_step, hidden=32, heads=2, ffn=40, vocabulary=64),
        [{"batch": 1, "past": 0}, {"batch": 2, "past": 3}, {"batch": 3, "past": 31}],
    ),
}
"""Small variants of the zoo's networks, and the symbolic sizes they run at, edges among them."""


def feeds_of(model: onnx.ModelProto, sizes: dict[str, int], seed: int = 0) -> dict[str, Array]:
    """Normal numbers for floats; small ones within the network's bounds for integers."""
    rng = np.random.default_rng([seed, 11])
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            low, high = (1, sizes["T"]) if value.name == "lens" else (0, 1)
            feeds[value.name] = rng.integers(low, high + 1, shape).astype(dtype)
    return feeds


def reference(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, feeds)
    return outputs


@dataclass
class Built:
    """The networks in one sanitized program."""

    program: Program
    models: dict[str, onnx.ModelProto]

    def cases(self, name: str) -> Iterator[tuple[int, Case]]:
        """The cases of a network with their numbers."""
        return ((n, case) for n, case in enumerate(self.program.cases) if case.name.split()[0] == name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """All networks for this machine, with address and undefined-behaviour sanitizers."""
    chosen = isa("host")
    models = {name: source() for name, (source, _) in NETS.items()}
    cases = []
    for name, (_, sizes) in NETS.items():
        made = schedule_of(models[name], chosen)
        cases += [Case(f"{name} {at}", made, feeds_of(models[name], at)) for at in sizes]
    return Built(Program(cases, tmp_path_factory.mktemp("sanitized"), chosen, ADDRESS), models)


@pytest.mark.parametrize("name", NETS)
def test_networks_are_clean(name: str, built: Built) -> None:
    for number, case in built.cases(name):
        got = built.program.run(number)
        if "N" not in case.sizes or case.sizes["N"]:
            for a, wanted in zip(got, reference(built.models[name], dict(case.feeds))):
                assert relative_error(a, wanted) <= 1e-5, case.name


@pytest.mark.parametrize("name", NETS)
def test_strange_numbers_are_survived(name: str, built: Built) -> None:
    """NaN, infinities, denormals and the largest numbers give some answer, without a fault."""
    rng = np.random.default_rng(3)
    strange = np.array([np.nan, np.inf, -np.inf, 1e-42, -1e-45, 3.4e38, -3.4e38, 0.0, -0.0, 1.0], np.float32)
    for number, case in built.cases(name):
        ordinary = case.feeds
        case.feeds = {
            k: rng.choice(strange, a.shape) if a.dtype == np.float32 else a for k, a in ordinary.items()
        }
        try:
            built.program.run(number)
        finally:
            case.feeds = ordinary


@pytest.mark.parametrize(
    "name", ["plain", "x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-amx"]
)
def test_every_instruction_set_agrees(name: str, tmp_path: Path) -> None:
    """The same networks in every width of vectors, and with no tuned kernel at all."""
    chosen = isa(name)
    nets = ["unet", "ds_cnn", "bert_encoder_layer", "lstm_bidirectional"]
    cases, models = [], []
    for net in nets:
        source, sizes = NETS[net]
        models.append(source())
        cases.append(Case(net, schedule_of(models[-1], chosen), feeds_of(models[-1], sizes[-1])))
    built = Program(cases, tmp_path, chosen, sanitize=())
    for number, (case, model) in enumerate(zip(cases, models)):
        for got, wanted in zip(built.run(number), reference(model, dict(case.feeds))):
            assert relative_error(got, wanted) <= 1e-5, case.name


def test_products_on_tiles_are_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with everything on AMX tiles that has a form for them: small networks would not pay."""
    monkeypatch.setattr(amx, "MIN_GAIN", 0.0)
    monkeypatch.setattr(winograd, "choose", lambda *layer: 0)
    chosen, cases, models = isa("x86-64-v4-amx"), [], []
    for net in ("unet", "ds_cnn", "mlp", "bert_encoder_layer"):
        source, sizes = NETS[net]
        model = source()
        made = schedule_of(model, chosen)
        models += [model] * len(sizes)
        cases += [Case(f"{net} {at}", made, feeds_of(model, at)) for at in sizes]
    built = Program(cases, tmp_path, chosen, ADDRESS)
    assert built.source.count(" amx_product") > 10
    for number, (case, model) in enumerate(zip(cases, models)):
        got = built.run(number)
        if "N" not in case.sizes or case.sizes["N"]:
            for a, wanted in zip(got, reference(model, dict(case.feeds))):
                assert relative_error(a, wanted) <= 1e-5, case.name


def wide(net: Net) -> str:
    """Layers with enough points and work for threads to share."""
    x = net.input("x", [1, 16, 40, 40])
    x = net.op("Relu", net.conv(x, 16, 48, 3))
    x = net.op("Softmax", net.conv(x, 48, 24, 3, groups=24), axis=1)
    return net.op("GlobalAveragePool", net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]))


def test_threads_race_for_nothing(tmp_path: Path) -> None:
    """The thread sanitizer watches three threads, and their answer is that of one to the last bit."""
    net = Net("wide", 1)
    net.output(wide(net), "y", [1, 24, 1, 1])
    model = net.model()
    chosen = isa("host")
    feeds = feeds_of(model, {})
    results = []
    for threads, sanitize in ((1, ()), (3, THREAD)):
        case = Case("wide", schedule_of(model, chosen), feeds)
        built = Program([case], tmp_path / str(threads), chosen, sanitize, threads)
        assert ("cv_parallel(" in built.source) == (threads > 1)
        results += [built.run(0) for _ in range(threads)]
    assert len({r[0].tobytes() for r in results}) == 1
    assert relative_error(results[0][0], reference(model, feeds)[0]) <= 1e-5


def test_int8_networks_are_clean(tmp_path: Path) -> None:
    """Quantized arithmetic on every instruction set, byte dot products among them, against the QDQ form."""
    model = b.ds_cnn(batch=2, frames=21, width=24)
    onnx.save(model, tmp_path / "net.onnx")
    rng = np.random.default_rng(5)
    samples = {"x": rng.standard_normal((16, 1, 21, 10)).astype(np.float32)}
    session = cuvil.compile(
        tmp_path / "net.onnx", output=tmp_path / "out", quantization="int8", calibration=samples
    )
    quantized = onnx.load(next((tmp_path / "out" / "quantize").glob("*.onnx")))
    assert "QuantizeLinear" in {n.op_type for n in quantized.graph.node}
    feeds = {"x": rng.standard_normal((2, 1, 21, 10)).astype(np.float32)}
    wanted = session.run(None, feeds)[0]
    oracle = reference(quantized, feeds)[0]
    assert relative_error(wanted, oracle) <= 0.03
    for name in ("plain", "x86-64", "x86-64-v4-vnni"):
        chosen = isa(name)
        case = Case(name, schedule_of(quantized, chosen), feeds)
        program = Program([case], tmp_path / name, chosen, ADDRESS if name != "x86-64" else ())
        assert relative_error(program.run(0)[0], wanted) <= 0.01, name
        assert ("dpbusd" in program.source) == (name == "x86-64-v4-vnni")
