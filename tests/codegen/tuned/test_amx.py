"""Contractions of float32 on AMX tiles: forms, shapes, epilogues, accuracy, strange numbers, threads."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from codegen import sandbox
from codegen.sandbox import ADDRESS, ISAS, THREAD, Array, Case, Isa, Program, isa, schedule_of
from onnx.reference import ReferenceEvaluator
from zoo.net import Net, f32, i64

from cuvil.codegen.program import Part, render
from cuvil.codegen.tuned import amx, amxtile, winograd
from cuvil.ir.loops import Kernel, Micro, walk
from cuvil.ir.primitives import static
from cuvil.schedule import verify
from cuvil.schedule.plan import Schedule
from cuvil.toolchain.compilers import Compiler, find
from cuvil.toolchain.machine import Machine

AMX = "x86-64-v4-amx"

BOUND = 5e-6
"""Largest error over the standard deviation of a layer's results."""


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles also where they do not pay (tests are small) or Winograd's convolutions pay more."""
    monkeypatch.setattr(amx, "MIN_GAIN", 0.0)
    monkeypatch.setattr(winograd, "choose", lambda *layer: 0)


def product(
    rows: Sequence[int | str], k: int, columns: int, epilogue: str = "bias", seed: int = 7
) -> onnx.ModelProto:
    """A matrix product, the rest of its group, and nothing else."""
    net = Net("product", seed)
    x = net.input("x", [*rows, k])
    y = net.op("MatMul", x, net.weight(k, columns, fan_in=k, gain=1.0))
    if epilogue != "none":
        y = net.op("Add", y, net.bias(columns))
    if epilogue == "residual":
        y = net.op("Relu", net.op("Add", y, net.op("MatMul", x, net.weight(k, columns, fan_in=k))))
    elif epilogue == "gelu":
        y = net.op("Mul", y, net.op("Add", net.op("Erf", net.op("Mul", y, f32(0.7))), f32(1.0)))
    net.output(y, "y", [*rows, columns])
    return net.model()


def layer(
    inputs: int,
    outputs: int,
    size: Sequence[int],
    kernel: Sequence[int],
    epilogue: str = "bias",
    batch: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A convolution between two of one tap that change nothing: its inputs and results are in blocks."""
    net = Net("layer", 7)
    ones = (1,) * len(size)
    x = net.input("x", [batch, inputs, *size])
    a = net.op("Conv", x, np.eye(inputs, dtype=np.float32).reshape(inputs, inputs, *ones))
    fan_in = inputs * int(np.prod(kernel))
    w = net.weight(outputs, inputs, *kernel, fan_in=fan_in, gain=1.0)
    y = net.op("Conv", a, w, net.bias(outputs), **attributes)
    if epilogue == "residual":
        y = net.op("Relu", net.op("Add", y, a))
    elif epilogue == "clip":
        y = net.op("Clip", y, f32(-0.5), f32(1.0))
    elif epilogue == "swish":
        y = net.op("Mul", y, net.op("Sigmoid", y))
    elif epilogue == "scaled":
        y = net.op("Mul", y, net.weight(1, outputs, *ones, fan_in=1))
    elif epilogue == "two readers":
        y = net.op("Add", net.op("GlobalAveragePool", y), net.op("Sigmoid", y))
    elif epilogue == "padded":
        w = net.weight(24, outputs, 3, 3, fan_in=9 * outputs)
        y = net.op("Conv", net.op("Relu", y), w, pads=[1] * 4)
        outputs = 24
    if epilogue != "output":
        y = net.op("Conv", y, np.eye(outputs, dtype=np.float32).reshape(outputs, outputs, *ones))
    net.output(y, "y", [batch, outputs, *(f"s{i}" for i in range(len(size)))])
    model = onnx.shape_inference.infer_shapes(net.model(), strict_mode=True, data_prop=True)
    shape = model.graph.output[0].type.tensor_type.shape
    zeros = {"x": np.zeros([batch, inputs, *size], np.float32)}
    (result,) = ReferenceEvaluator(model).run(None, zeros)
    for d, n in zip(shape.dim, np.asarray(result).shape):
        d.dim_value = n
    return model


def feeds(model: onnx.ModelProto, **sizes: int) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    (value,) = model.graph.input
    shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
    return {"x": rng.standard_normal(shape).astype(np.float32)}


def reference(model: onnx.ModelProto, fed: dict[str, Array]) -> Array:
    """The output in float64: the same model with its numbers widened."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for t in wide.graph.initializer:
        if t.data_type == onnx.TensorProto.FLOAT:
            t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t).astype(np.float64), t.name))
    del wide.graph.value_info[:]
    for v in (*wide.graph.input, *wide.graph.output):
        v.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    (result,) = ReferenceEvaluator(wide).run(None, {n: a.astype(np.float64) for n, a in fed.items()})
    return np.asarray(result)


def error(got: Array, wanted: Array) -> float:
    return float(np.abs(got - wanted).max() / wanted.std())


def micros(kernel: Kernel) -> list[Any]:
    return [s.kernel for s in walk(kernel.body) if isinstance(s, Micro)]


def on_tiles(s: Schedule) -> list[Kernel]:
    """The kernels of a schedule that multiply tiles."""
    return [k for k in s.kernels if any(isinstance(m, amxtile.Product) for m in micros(k))]


def contractions(model: onnx.ModelProto) -> int:
    return sum(n.op_type in ("MatMul", "Gemm", "Conv") for n in model.graph.node)


def text(s: Schedule, threads: int = 1) -> str:
    return render([Part(s, "f")], "f", threads).source


def check(models: dict[str, onnx.ModelProto], folder: Path, sanitize: tuple[str, ...] = ()) -> Program:
    """All contractions on tiles (but for the first of a convolution, whose input is no blocks), and right."""
    chosen = isa(AMX)
    cases = [Case(name, schedule_of(model, chosen), feeds(model)) for name, model in models.items()]
    for case, model in zip(cases, models.values()):
        verify.schedule(case.schedule)
        others = any(n.op_type == "Conv" for n in model.graph.node)
        assert len(on_tiles(case.schedule)) == contractions(model) - others or case.name in NO_FORM, case.name
    program = Program(cases, folder, chosen, sanitize)
    assert "amx_product" in program.source and "tdpbf16ps" in program.source
    for number, (case, model) in enumerate(zip(cases, models.values())):
        (got,) = program.run(number)
        assert error(got, reference(model, dict(case.feeds))) < BOUND, case.name
    return program


PRODUCTS = [
    *((rows, k, columns) for rows in (24, 31, 33, 129) for k in (16, 48, 160) for columns in (16, 40)),
    *((65, 32, columns) for columns in (2, 17, 24, 32, 48, 100, 1000)),
    *((rows, 112, 48) for rows in (25, 32, 63, 64, 127, 128, 161, 300)),
    (300, 768, 100),
    (40, 3072, 48),
    (200, 3088, 24),
    (600, 400, 40),
]
"""Rows, k, columns."""


@pytest.mark.usefixtures("forced")
def test_products(tmp_path: Path) -> None:
    """Rows, k and columns that fill tiles and pairs of blocks and such that do not; long k in chunks."""
    check({str(shape): product(shape[:1], *shape[1:]) for shape in PRODUCTS}, tmp_path)


@pytest.mark.usefixtures("forced")
def test_products_of_several_axes_and_epilogues(tmp_path: Path) -> None:
    models = {kind: product([50], 64, 72, kind) for kind in ("none", "residual", "gelu")}
    models |= {str(rows): product(rows, 48, 40) for rows in ([2, 30], [3, 1, 24], [1, 5, 7], [2, 3, 70])}
    check(models, tmp_path, ADDRESS)


CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    # inputs, outputs, size, taps, attributes
    "1x1": (48, 40, (7, 9), (1, 1), {}),
    "1x1, stride 2": (32, 48, (17, 19), (1, 1), {"strides": [2, 2]}),
    "3x3": (32, 32, (7, 7), (3, 3), {"pads": [1] * 4}),
    "3x3, two images": (16, 24, (8, 7), (3, 3), {"pads": [1] * 4, "batch": 2}),
    "3x3, 20 channels": (20, 24, (17, 19), (3, 3), {"pads": [1] * 4}),
    "3x3, 24 channels": (24, 20, (17, 19), (3, 3), {}),
    "3x3, 40 channels": (40, 40, (7, 7), (3, 3), {"pads": [1] * 4}),
    "3x3, 100 channels": (100, 100, (9, 8), (3, 3), {"pads": [1] * 4}),
    "3x3, stride 2": (32, 40, (17, 19), (3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "3x3, stride 2, even": (20, 48, (16, 18), (3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    "3x3, stride 3": (16, 32, (20, 22), (3, 3), {"strides": [3, 3]}),
    "3x3, strides 2 and 1": (16, 32, (17, 9), (3, 3), {"strides": [2, 1], "pads": [1] * 4}),
    "3x3, strides 1 and 2": (16, 32, (9, 17), (3, 3), {"strides": [1, 2], "pads": [1] * 4}),
    "3x3, dilation 2": (24, 32, (17, 19), (3, 3), {"dilations": [2, 2], "pads": [2] * 4}),
    "3x3, dilation 2, stride 3": (16, 16, (25, 22), (3, 3), {"dilations": [2, 2], "strides": [3, 3]}),
    "3x3, dilations 1 and 3": (16, 16, (9, 20), (3, 3), {"dilations": [1, 3]}),
    "3x3, uneven padding": (40, 24, (9, 11), (3, 3), {"pads": [2, 0, 1, 3]}),
    "2x2": (32, 16, (8, 9), (2, 2), {}),
    "5x5": (24, 40, (11, 9), (5, 5), {"pads": [2] * 4}),
    "5x5, stride 2": (16, 24, (19, 17), (5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
    "7x7": (16, 32, (13, 12), (7, 7), {"pads": [3] * 4}),
    "7x7, stride 2": (48, 16, (21, 20), (7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "1x7": (24, 32, (8, 9), (1, 7), {"pads": [0, 3, 0, 3]}),
    "7x1": (24, 32, (9, 8), (7, 1), {"pads": [3, 0, 3, 0]}),
    "7x1, stride 2": (24, 32, (17, 16), (7, 1), {"pads": [3, 0, 3, 0], "strides": [2, 2]}),
    "1x3, stride 2": (24, 32, (9, 17), (1, 3), {"pads": [0, 1, 0, 1], "strides": [2, 2]}),
    "one column": (32, 32, (40, 1), (3, 1), {"pads": [1, 0, 1, 0]}),
    "one column left": (32, 32, (40, 3), (3, 3), {}),
    "one line": (32, 32, (3, 40), (3, 3), {"pads": [0, 1, 0, 1]}),
    "wide": (16, 16, (5, 90), (3, 3), {"pads": [1] * 4}),
    "line": (24, 40, (50,), (3,), {"pads": [1, 1]}),
    "line, stride 2": (40, 24, (101,), (5,), {"strides": [2], "pads": [2, 2]}),
    "line, dilation 4": (16, 16, (60,), (3,), {"dilations": [4]}),
}

NO_FORM = {"7x1", "one column left"}
"""Convolutions whose lines and places are one run of rows: right on tiles or on vectors."""


@pytest.mark.usefixtures("forced")
def test_convolutions(tmp_path: Path) -> None:
    """Windows, strides, dilations and paddings; channels that fill blocks and pairs of them or do not."""
    models = {}
    for name, (inputs, outputs, size, kernel, attributes) in CONVOLUTIONS.items():
        models[name] = layer(inputs, outputs, size, kernel, **attributes)
    check(models, tmp_path, ADDRESS)


@pytest.mark.usefixtures("forced")
def test_epilogues(tmp_path: Path) -> None:
    """The rest of the group on tiles of positions some of which are none of the output."""
    kinds = ("residual", "clip", "swish", "scaled", "two readers", "output", "padded")
    models = {kind: layer(40, 40, (9, 11), (3, 3), kind, pads=[1] * 4) for kind in kinds}
    check(models | {"1x1": layer(40, 40, (9, 11), (1, 1), "residual")}, tmp_path, ADDRESS)


def forms() -> dict[str, onnx.ModelProto]:
    """Operands that are not read or written as they lie: a slice of k, rows backwards, one row again and
    again, weights [columns, k], weights of each head, columns by rows."""

    def of(shape: Sequence[int], rows: int, kind: str, *inputs: Array) -> Net:
        net = Net("form", 3)
        x = net.op(kind, net.input("x", list(shape)), *inputs)
        net.output(net.op("MatMul", x, net.weight(48, 40, fan_in=48)), "y", [rows, 40])
        return net

    made = {
        "slice": of((40, 100), 40, "Slice", i64(3), i64(51), i64(1)),
        "backwards": of((81, 48), 41, "Slice", i64(80), i64(-1000), i64(0), i64(-2)),
        "again": of((1, 48), 40, "Expand", i64(40, 48)),
    }
    net = made["heads"] = Net("heads", 4)
    x = net.op("Reshape", net.input("x", [33, 48]), i64(33, 3, 16))
    y = net.op("MatMul", net.op("Transpose", x, perm=[1, 0, 2]), net.weight(3, 16, 40, fan_in=16))
    net.output(y, "y", [3, 33, 40])
    net = made["gemm"] = Net("gemm", 5)
    y = net.op("Gemm", net.input("x", [40, 48]), net.weight(50, 48, fan_in=48), net.bias(50), transB=1)
    net.output(net.op("Transpose", y, perm=[1, 0]), "y", [50, 40])
    return {name: net.model() for name, net in made.items()}


def transposed(channels: int, kernel: int, stride: int) -> onnx.ModelProto:
    """A transposed convolution: one convolution for each remainder."""
    net = Net("transposed", 3)
    x = net.op("Conv", net.input("x", [1, 8, 9, 8]), net.weight(32, 8, 1, 1, fan_in=8))
    w = net.weight(32, channels, kernel, kernel, fan_in=32)
    y = net.op("ConvTranspose", x, w, net.bias(channels), strides=[stride] * 2)
    net.output(net.op("Relu", y), "y", [1, channels, *((n - 1) * stride + kernel for n in (9, 8))])
    return net.model()


def channels_last(size: Sequence[int], kernel: Sequence[int], **attributes: Any) -> onnx.ModelProto:
    """A convolution of an image whose 64 channels lie side by side: `size` is its rows and columns."""
    net = Net("last", 6)
    x = net.op("Transpose", net.input("x", [1, *size, 64]), perm=[0, 3, 1, 2])
    y = net.op("Conv", x, net.weight(40, 64, *kernel, fan_in=64 * math.prod(kernel)), **attributes)
    strides = attributes.get("strides", [1, 1])
    positions = ((n - k) // s + 1 for n, k, s in zip(size, kernel, strides))
    net.output(net.op("Relu", y), "y", [1, 40, *positions])
    return net.model()


@pytest.mark.usefixtures("forced")
def test_channels_side_by_side(tmp_path: Path) -> None:
    """Each position is staged once, whatever the number of taps that read it."""
    models = {
        "line": channels_last((131, 1), (5, 1)),
        "window": channels_last((11, 9), (3, 3)),
        "strided": channels_last((13, 15), (3, 3), strides=[2, 2]),
    }
    cases = [Case(name, schedule_of(model, isa(AMX)), feeds(model)) for name, model in models.items()]
    program = Program(cases, tmp_path, isa(AMX), ADDRESS)
    for number, (case, model) in enumerate(zip(cases, models.values())):
        verify.schedule(case.schedule)
        assert len(on_tiles(case.schedule)) == 1
        assert error(program.run(number)[0], reference(model, feeds(model))) < BOUND, case.name
    (kernel,) = on_tiles(cases[0].schedule)
    (staged,) = (v for v in kernel.writes if v.name.endswith(".staged"))
    pairs, positions = 64 // amxtile.PAIR, 131 + 2 * amxtile.POSITIONS
    assert staged.shape[1].attr < 3 * pairs * positions


@pytest.mark.usefixtures("forced")
def test_other_forms(tmp_path: Path) -> None:
    check(forms(), tmp_path, ADDRESS)
    model = transposed(24, 2, 2)
    case = Case("transposed", schedule_of(model, isa(AMX)), feeds(model))
    assert len(on_tiles(case.schedule)) == 4
    (got,) = Program([case], tmp_path / "transposed", isa(AMX)).run(0)
    assert error(got, reference(model, feeds(model))) < BOUND


@pytest.mark.usefixtures("forced")
def test_rows_known_at_run_time(tmp_path: Path) -> None:
    """One function for few rows, on vectors, and for many, on tiles."""
    chosen = isa(AMX)
    for rows, sizes in (
        (["N"], [{"N": n} for n in (0, 1, 2, 23, 24, 25, 31, 33, 129, 300, 900)]),
        (["B", "N"], [{"B": b, "N": n} for b, n in ((1, 1), (2, 24), (3, 40), (40, 1), (1, 300), (0, 50))]),
    ):
        model = product(rows, 80, 72)
        s = schedule_of(model, chosen)
        assert len(on_tiles(s)) == 1
        program = Program([Case(str(at), s, feeds(model, **at)) for at in sizes], tmp_path / rows[-1], chosen)
        for number, case in enumerate(program.cases):
            (got,) = program.run(number)
            wanted = reference(model, dict(case.feeds))
            assert got.shape == wanted.shape and (not got.size or error(got, wanted) < BOUND), case.name


@pytest.mark.usefixtures("forced")
def test_a_long_left_operand_is_staged_in_parts(tmp_path: Path) -> None:
    """Where the second cache is small, k is staged in parts and the sums of all columns are kept."""
    chosen = isa(AMX)
    assert chosen.options is not None
    cases, models = [], [product([150], 3088, 100), layer(720, 40, (9, 9), (3, 3), pads=[1] * 4)]
    for model in models:
        small = replace(chosen, options={**chosen.options, "caches": {"l2": 256 << 10}})
        case = Case(model.graph.name, schedule_of(model, small), feeds(model))
        verify.schedule(case.schedule)
        stages = [sum(isinstance(m, amxtile.Stage) for m in micros(k)) for k in on_tiles(case.schedule)]
        assert max(stages) > 1
        cases.append(case)
    program = Program(cases, tmp_path, chosen)
    for number, model in enumerate(models):
        assert error(program.run(number)[0], reference(model, feeds(model))) < BOUND


def with_threads(chosen: Isa, threads: int) -> Isa:
    return replace(chosen, options={**(chosen.options or {}), "threads": threads})


@pytest.mark.usefixtures("forced")
def test_threads(tmp_path: Path) -> None:
    """Each thread has scratch memory of its own, whatever it computes: no races, the same bits."""
    models = [
        product([300], 256, 200),
        product([64], 256, 1000),  # shared by columns
        product(["N"], 256, 300),
        product(["few"], 1024, 1000),  # on vectors, their columns shared
        layer(64, 96, (28, 28), (3, 3), "padded", pads=[1] * 4),
        layer(96, 256, (7, 7), (3, 3), pads=[1] * 4),
        layer(640, 1000, (14, 14), (1, 1)),
    ]
    results = []
    for threads, sanitize in ((1, ()), (2, ()), (3, THREAD)):
        chosen = with_threads(isa(AMX), threads)
        cases = [Case(str(i), schedule_of(m, chosen), feeds(m, N=130, few=2)) for i, m in enumerate(models)]
        assert all(on_tiles(c.schedule) for c in cases)
        program = Program(cases, tmp_path / str(threads), chosen, sanitize, threads)
        assert ("cv_parallel(" in program.source) == (threads > 1)
        results.append([program.run(i)[0].tobytes() for i in range(len(models))])
    assert results[0] == results[1] == results[2]


@pytest.mark.usefixtures("forced")
def test_threads_keep_their_scratch_memory(tmp_path: Path) -> None:
    """A thread's part lies at the same place in every kernel, apart from that of another."""
    net = Net("layers", 7)
    x = net.input("x", [1, 64, 28, 28])
    for n, m in ((64, 96), (96, 320), (320, 64)):
        x = net.op("Relu", net.conv(x, n, m, 3))
    net.output(x, "y", [1, 64, 28, 28])
    s = schedule_of(net.model(), with_threads(isa(AMX), 2))
    scratch = [v for k in on_tiles(s) for v in k.writes if v.definition is None]
    assert len(scratch) > 3
    for what in ("staged", "tiles"):
        same = [v for v in scratch if v.name.endswith(what)]
        assert len({static(s.arena[v]) for v in same}) == 1
        assert len({static(s.size(v)) for v in same}) == 1
    verify.schedule(s)


@pytest.mark.parametrize("k", [64, 576, 2304, 4608])
def test_accuracy(k: int, tmp_path: Path) -> None:
    """Errors like those of multiply-adds of float32, which grow with the square root of k."""
    model = product([96], k, 128, "none")
    found = []
    for name in (AMX, "x86-64-v4-vnni"):
        case = Case(name, schedule_of(model, isa(name)), feeds(model))
        assert bool(on_tiles(case.schedule)) == (name == AMX)
        (got,) = Program([case], tmp_path / name, isa(name), ()).run(0)
        wanted = reference(model, feeds(model))
        found.append((error(got, wanted), float(np.sqrt(np.mean((got - wanted) ** 2)))))
    (largest, mean), vectors = found
    assert largest <= 2 * vectors[0] and mean <= 1.5 * vectors[1], found
    assert largest <= 1.5e-7 * k**0.5, found


def run_with(x: Array, w: Array, folder: Path) -> Array:
    net = Net("given", 0)
    net.output(net.op("MatMul", net.input("x", list(x.shape)), w), "y", [x.shape[0], w.shape[1]])
    case = Case("given", schedule_of(net.model(), isa(AMX)), {"x": x})
    assert on_tiles(case.schedule)
    (got,) = Program([case], folder, isa(AMX), ()).run(0)
    return got


TINY = 2.0**-126
"""The least normal number of float32: tiles take what is below as zero, and give no such result."""


@pytest.mark.usefixtures("forced")
def test_magnitudes(tmp_path: Path) -> None:
    """From 1e-20 to 1e20 in one row, times weights the product of which stays finite; and denormals: the
    error is that of sums of float32, and what falls below the normal numbers."""
    rng = np.random.default_rng(4)
    k, columns = 160, 48
    x = rng.standard_normal((64, k)) * 10 ** rng.uniform(-20, 20, (64, k))
    x[:16] *= 1e-10
    x[16:24] = rng.standard_normal((8, k)) * 1e-36
    x[24:32] = rng.standard_normal((8, k)) * 1e-41
    x[32:40, ::2] = rng.standard_normal((8, k // 2)) * 1e-43
    x[40:48] = rng.standard_normal((8, k)) * 1e37
    w = rng.standard_normal((k, columns)) * 10 ** rng.uniform(-15, 15, columns)
    w[:, :8] = rng.standard_normal((k, 8)) * 1e-39
    w[:, 8:16] = rng.standard_normal((k, 8)) * 1e-3
    x, w = x.astype(np.float32), w.astype(np.float32)
    got = run_with(x, w, tmp_path)
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    total = np.abs(wide_x) @ np.abs(wide_w)
    lost = 4 * TINY * (np.abs(wide_x).sum(1)[:, None] + np.abs(wide_w).sum(0) + k)
    bound = total * 2.0**-20 + lost
    inside = total < 3e38
    assert inside.mean() > 0.5
    difference = np.abs(np.where(inside, got, 0) - np.where(inside, wide_x @ wide_w, 0))
    assert (difference <= bound)[inside].all()


def test_infinities_and_nan_stay_in_their_rows(tmp_path: Path) -> None:
    """They make all sums of their row infinite or NaN, and change no bit of others."""
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((96, 96), (96, 64)))
    ordinary = run_with(x, w, tmp_path / "ordinary")
    strange = x.copy()
    strange[3, 5], strange[40, 95], strange[41, 0] = np.inf, -np.inf, np.nan
    strange[70, 17] = np.array(0x7F800001, np.uint32).view(np.float32)  # whose upper half is an infinity's
    got = run_with(strange, w, tmp_path / "strange")
    rows = [3, 40, 41, 70]
    assert not np.isfinite(got[rows]).any() and np.isnan(got[[41, 70]]).all()
    assert np.delete(got, rows, 0).tobytes() == np.delete(ordinary, rows, 0).tobytes()
    largest = np.full_like(x, np.finfo(np.float32).max)
    got = run_with(largest, np.eye(96, 64, dtype=np.float32), tmp_path / "largest")
    assert np.array_equal(got, largest[:, :64])


def test_what_tiles_compute_exactly(tmp_path: Path) -> None:
    """A product with the identity keeps all bits of the other operand: the parts lose none."""
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((128, 96)) * 10 ** rng.uniform(-20, 30, (128, 96))).astype(np.float32)
    eye = np.eye(96, dtype=np.float32)
    assert np.array_equal(run_with(x, eye, tmp_path / "left"), x)
    square = np.ascontiguousarray(x[:96])
    assert np.array_equal(run_with(eye, square, tmp_path / "right"), square)


@pytest.mark.usefixtures("forced")
def test_another_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """clang, with names of features as LLVM has them."""

    def zig(chosen: Isa, sanitize: Sequence[str] = ()) -> Compiler:
        return find("zig", Machine("native", chosen.cpu, chosen.features))

    monkeypatch.setattr(sandbox, "compiler", zig)
    models = {"product": product([65], 144, 100, "gelu"), "rows": product([2, 50], 64, 40)}
    models |= {kind: layer(40, 40, (9, 11), (3, 3), kind, pads=[1] * 4) for kind in ("residual", "padded")}
    check(models | {"stride": layer(20, 24, (17, 19), (3, 3), strides=[2, 2])}, tmp_path)


# --- what does not run it -------------------------------------------------------------------------------


def test_where_it_pays() -> None:
    """Products large enough; neither few rows, nor columns of a tile half idle, nor short k."""
    chosen = ISAS[AMX]
    pays = {shape: bool(on_tiles(schedule_of(product(shape[:1], *shape[1:]), chosen))) for shape in (
        (128, 768, 768), (128, 256, 1024), (196, 768, 3072), (1, 768, 768), (23, 768, 768), (4096, 16, 16),
    )}  # fmt: skip
    assert [shape for shape, found in pays.items() if found] == [*pays][:3]


def test_switches() -> None:
    """Not with strict accuracy, not for a CPU without tiles; in other numbers than float32 neither."""
    models = [product([128], 768, 768), product(["N"], 768, 768)]
    models.append(layer(128, 128, (28, 28), (3, 3), strides=[2, 2]))
    chosen = ISAS[AMX]
    assert chosen.options is not None
    for model in models:
        assert on_tiles(schedule_of(model, chosen))
        for change in ({"accuracy": "strict"}, {"amx": False}):
            s = schedule_of(model, replace(chosen, options={**chosen.options, **change}))
            assert not on_tiles(s) and "tdpbf16ps" not in text(s)


def test_the_c_text() -> None:
    """A function asks for the tiles before its kernels, and a kernel gives them up."""
    source = text(schedule_of(product([128], 256, 256), ISAS[AMX]))
    body = source[source.index("int f(") :]
    assert body.index("if (!cv_amx_allowed()) return 6;") < body.index("k0_Add_1(")
    kernel = source[source.index("void k0_Add_1(") : source.index("int f(")]
    calls = re.findall(r"amx_(stage|convert|product|release)", kernel)
    assert calls == ["stage", "convert", "product", "release"]


@pytest.mark.usefixtures("forced")
def test_other_contractions_are_left_alone() -> None:
    """Operands that are not constant, k in no whole blocks, groups, bytes."""
    net = Net("other", 8)
    x = net.input("x", [1, 48, 12, 12])
    rows = net.op("Reshape", x, np.array([144, 48], np.int64))
    y = net.op("MatMul", rows, net.op("Transpose", rows, perm=[1, 0]))
    z = net.op("MatMul", y, net.weight(144, 100, fan_in=144))
    z = net.op("MatMul", z, net.weight(100, 20, fan_in=100))
    net.output(z, "y", [144, 20])
    found = on_tiles(schedule_of(net.model(), ISAS[AMX]))
    assert len(found) == 1
