"""Convolutional forms on blocked layouts: claimed by tuned kernels, and right on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from codegen.sandbox import ADDRESS, Array, Case, Program, isa, relative_error, schedule_of
from zoo.net import Net, i64

from cuvil.schedule.plan import Schedule
from cuvil.toolchain.compilers import Options

GROUPED = [
    (16, 16, 4, 3),  # (inputs and outputs of a group, groups, taps along an axis)
    (24, 24, 3, 3),
    (4, 4, 16, 3),
    (12, 20, 4, 1),
    (36, 9, 3, 1),
]


def grouped(inputs: int, outputs: int, groups: int, k: int) -> onnx.ModelProto:
    """A convolution to blocked channels, a grouped one, and one that reads its result."""
    net = Net("grouped", 1)
    x = net.input("x", [1, 8, 9, 10])
    y = net.op("Relu", net.op("Conv", x, net.weight(inputs * groups, 8, 3, 3, fan_in=72)))
    w = net.weight(outputs * groups, inputs, k, k, fan_in=inputs * k * k)
    y = net.op("Relu", net.op("Conv", y, w, net.bias(outputs * groups), group=groups, pads=[k // 2] * 4))
    y = net.op("Conv", y, net.weight(10, outputs * groups, 1, 1, fan_in=outputs * groups))
    net.output(y, "y", [1, 10, 7, 8])
    return net.model()


def slices(first: int, second: int) -> onnx.ModelProto:
    """Convolutions of two slices of channels, joined again and read as a whole and by parts."""
    net = Net("slices", 2)
    x = net.input("x", [1, 8, 8, 8])
    y = net.op("Conv", x, net.weight(first + second, 8, 3, 3, fan_in=72), pads=[1] * 4)
    a, b = net.ops("Split", [y, i64(first, second)], 2, axis=1)
    a = net.op("Relu", net.op("Conv", a, net.weight(first, first, 1, 1, fan_in=first)))
    b = net.op("Conv", b, net.weight(second, 1, 3, 3, fan_in=9), group=second, pads=[1] * 4)
    c = net.op("Conv", b, net.weight(12, second, 1, 1, fan_in=second))
    y = net.op("Sigmoid", net.op("Concat", a, b, c, axis=1))
    whole = first + second + 12
    y = net.op("Conv", y, net.weight(whole, 1, 3, 3, fan_in=9), group=whole, pads=[1] * 4, strides=[2, 2])
    y = net.op("Mul", y, net.op("Sigmoid", net.op("GlobalAveragePool", y)))
    y = net.op("Conv", y, net.weight(10, whole, 1, 1, fan_in=whole))
    net.output(y, "y", [1, 10, 4, 4])
    return net.model()


def transposed(channels: int, kernel: int, stride: int, pad: int) -> onnx.ModelProto:
    """A transposed convolution between two others, as in a U-Net."""
    net = Net("transposed", 3)
    x = net.input("x", [1, 8, 6, 7])
    y = net.op("Conv", x, net.weight(16, 8, 1, 1, fan_in=8))
    w = net.weight(16, channels, kernel, kernel, fan_in=16 * 4)
    y = net.op("ConvTranspose", y, w, net.bias(channels), strides=[stride] * 2, pads=[pad] * 4)
    y = net.op("Conv", net.op("Relu", y), net.weight(9, channels, 3, 3, fan_in=9 * channels), pads=[1] * 4)
    h, w_ = ((n - 1) * stride + kernel - 2 * pad for n in (6, 7))
    net.output(y, "y", [1, 9, h, w_])
    return net.model()


def pooled(channels: int, kind: str) -> onnx.ModelProto:
    """Pooling whose windows hang over the border of a blocked value."""
    net = Net("pooled", 4)
    x = net.input("x", [1, 8, 9, 12])
    y = net.op("Relu", net.op("Conv", x, net.weight(channels, 8, 1, 1, fan_in=8)))
    y = net.op(kind, y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    net.output(net.op("Conv", y, net.weight(8, channels, 1, 1, fan_in=channels)), "y", [1, 8, 5, 6])
    return net.model()


MODELS = {
    **{f"grouped {g}": grouped(*g) for g in GROUPED},
    **{f"slices {n}": slices(*n) for n in ((12, 20), (20, 10))},
    **{f"transposed {t}": transposed(*t) for t in ((16, 2, 2, 0), (20, 3, 2, 1))},
    **{f"pooled {n} {k}": pooled(n, k) for n, k in ((16, "AveragePool"), (18, "MaxPool"))},
}


def feeds(model: onnx.ModelProto) -> dict[str, Array]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(5).standard_normal(shape).astype(np.float32)}


def scheduled(name: str, chosen: str = "x86-64-v3") -> Schedule:
    return schedule_of(MODELS[name], isa(chosen))


@pytest.mark.parametrize(
    ("chosen", "sanitize"), [("x86-64", ()), ("x86-64-v3", ADDRESS), ("x86-64-v4-vnni", ())]
)
def test_results(chosen: str, sanitize: tuple[str, ...], tmp_path: Path) -> None:
    check(list(MODELS), chosen, sanitize, Options(opt_level="1", sanitize=sanitize), tmp_path)


def test_pooling_survives_the_optimizer(tmp_path: Path) -> None:
    """gcc 12 at -O3 for AVX-512 adds taps beyond the border where a test guards each tap."""
    check([n for n in MODELS if n.startswith("pooled")], "x86-64-v4", (), Options(), tmp_path)


def check(names: list[str], chosen: str, sanitize: tuple[str, ...], options: Options, folder: Path) -> None:
    cases = [Case(name, scheduled(name, chosen), feeds(MODELS[name])) for name in names]
    program = Program(cases, folder, isa(chosen), sanitize, options=options)
    for number, name in enumerate(names):
        model = MODELS[name]
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (wanted,) = session.run(None, feeds(model))
        (got,) = program.run(number)
        assert relative_error(got, wanted) < 1e-5, name


@pytest.mark.parametrize("groups", GROUPED)
def test_grouped_convolutions_are_claimed(groups: tuple[int, int, int, int]) -> None:
    tags = [k.tag for k in scheduled(f"grouped {groups}").kernels]
    assert [t for t in tags if t != "border"] == ["conv", "conv", "gemm"]


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("slices")])
def test_slices_and_joins_stay_in_blocks(name: str) -> None:
    s = scheduled(name)
    inside = {s.storage.root(v) for k in s.kernels for v in k.writes if v.rank == 4 and v.shape[1].attr >= 8}
    outputs = set(s.program.outputs)
    row_major = [v.name for v in inside - outputs if s.storage.layout(v).block == 1 and v.shape[2].attr > 1]
    assert all("Conv_0" in name for name in row_major), row_major  # but for the border of the input


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("transposed")])
def test_transposed_convolution_writes_its_phases_in_place(name: str) -> None:
    s = scheduled(name)
    stride = int(name.split(",")[2])
    phases = [
        k for k in s.kernels if any(o.startswith("ConvTranspose") for o in k.origin) and k.tag != "border"
    ]
    assert len([k for k in phases if k.tag == "conv"]) == stride**2
    roots = {s.storage.root(v) for k in phases if k.tag == "conv" for v in k.writes}
    assert len(roots) == 1
