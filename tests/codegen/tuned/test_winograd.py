"""Winograd convolutions: exact matrices, accuracy, every shape and epilogue, and the switch for them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import ADDRESS, THREAD, Array, Case, Isa, Program, isa, schedule_of
from onnx.reference import ReferenceEvaluator
from zoo.net import Net, f32

from cuvil.codegen.tuned import transforms, winograd
from cuvil.ir.loops import For, Micro, walk
from cuvil.ir.primitives import static
from cuvil.schedule import verify
from cuvil.schedule.plan import Schedule

ISAS = ["x86-64", "x86-64-v3", "x86-64-v4-vnni"]

BOUND = 2e-5
"""Largest error over the standard deviation of a layer's results."""

SHAPES = [
    (16, 16, 8, 8, 1),  # (inputs, outputs, height, width, padding)
    (16, 16, 9, 7, 0),
    (33, 50, 6, 21, 1),
    (144, 40, 7, 7, 1),
    (40, 96, 4, 5, 0),
]

EPILOGUES = ["bias", "residual", "clip", "two readers", "output", "scaled", "several images"]


def layer(
    inputs: int, outputs: int, height: int, width: int, pad: int, epilogue: str = "bias"
) -> onnx.ModelProto:
    """A 3x3 convolution between two of 1x1 that change nothing: its inputs and results are in blocks."""
    net = Net("layer", 7)
    images: int | str = "N" if epilogue == "several images" else 1
    x = net.input("x", [images, inputs, height, width])
    a = net.op("Conv", x, np.eye(inputs, dtype=np.float32)[:, :, None, None])
    w = net.weight(outputs, inputs, 3, 3, fan_in=9 * inputs, gain=1.0)
    y = net.op("Conv", a, w, net.bias(outputs), pads=[pad] * 4)
    size = [images, outputs, height + 2 * pad - 2, width + 2 * pad - 2]
    if epilogue == "residual":
        y = net.op("Relu", net.op("Add", y, a))
    elif epilogue == "clip":
        y = net.op("Clip", y, f32(-0.5), f32(1.0))
    elif epilogue == "two readers":
        y = net.op("Add", net.op("GlobalAveragePool", y), net.op("Sigmoid", y))
    elif epilogue == "scaled":
        y = net.op("Mul", y, net.weight(1, outputs, 1, 1, fan_in=1))
    if epilogue == "output":
        net.output(y, "y", size)
    else:
        net.output(net.op("Conv", y, np.eye(outputs, dtype=np.float32)[:, :, None, None]), "y", size)
    return net.model()


def feeds(model: onnx.ModelProto) -> dict[str, Array]:
    shape = [d.dim_value or 3 for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(5).standard_normal(shape).astype(np.float32)}


def reference(model: onnx.ModelProto) -> Array:
    """The output in float64: the same model with its numbers widened."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for t in wide.graph.initializer:
        if t.data_type == onnx.TensorProto.FLOAT:
            t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t).astype(np.float64), t.name))
    for v in (*wide.graph.input, *wide.graph.output):
        v.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    (result,) = ReferenceEvaluator(wide).run(None, {"x": feeds(model)["x"].astype(np.float64)})
    return np.asarray(result)


def error(got: Array, wanted: Array) -> float:
    return float(np.abs(got - wanted).max() / wanted.std())


def forced(monkeypatch: pytest.MonkeyPatch, m: int) -> None:
    monkeypatch.setattr(winograd, "choose", lambda *layer: m)


def tiles_of(s: Schedule) -> set[int]:
    """The m of all Winograd convolutions of a schedule."""
    micros = (x.kernel for k in s.kernels for x in walk(k.body) if isinstance(x, Micro))
    return {k.m for k in micros if isinstance(k, transforms.OutputTransform)}


@pytest.mark.parametrize("m", [2, 4])
def test_matrices_are_exact(m: int) -> None:
    """The transforms as fractions give a convolution exactly, and their numbers are exact in float32."""
    a, g, b = transforms.matrices(m)
    assert all(np.array_equal(x, x.astype(np.float32)) for x in (a, b))
    points = [Fraction(0), *(Fraction(s * p) for p in transforms.POINTS[m] for s in (1, -1))]
    exact = [[p**k / np.prod([p - q for q in points if q != p]) for k in range(3)] for p in points]
    assert np.allclose(g[:-1], np.array(exact, float), rtol=1e-15, atol=0)
    taps, data = (
        [Fraction(3), Fraction(-1, 7), Fraction(5, 3)],
        [Fraction(k * k - 3, k + 2) for k in range(m + 2)],
    )
    product = [
        sum(h * t for h, t in zip(row, taps)) * sum(Fraction(c) * d for c, d in zip(line, data))
        for row, line in zip([*exact, [0, 0, 1]], b)
    ]
    results = [sum(Fraction(c) * p for c, p in zip(row, product)) for row in a]
    assert results == [sum(t * data[i + k] for k, t in enumerate(taps)) for i in range(m)]


@pytest.mark.parametrize("chosen", ISAS)
def test_results(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd sizes, both paddings, partial blocks of channels, all epilogues; nothing out of bounds."""
    models = [(layer(*shape), m) for shape in SHAPES for m in (2, 4)]
    models += [(layer(24, 24, 7, 9, 1, epilogue), 4) for epilogue in EPILOGUES]
    cases = []
    for number, (model, m) in enumerate(models):
        forced(monkeypatch, m)
        case = Case(str(number), schedule_of(model, isa(chosen)), feeds(model))
        verify.schedule(case.schedule)
        assert tiles_of(case.schedule) == {m}
        cases.append(case)
    program = Program(cases, tmp_path, isa(chosen), ADDRESS if chosen == ISAS[0] else ())
    for number, (model, _) in enumerate(models):
        assert error(program.run(number)[0], reference(model)) < BOUND, number


@pytest.mark.parametrize(
    ("shape", "m"), [((64, 64, 28, 28, 1), 4), ((256, 256, 14, 14, 1), 2), ((512, 32, 24, 24, 1), 4)]
)
def test_accuracy_of_what_is_chosen(shape: tuple[int, int, int, int, int], m: int, tmp_path: Path) -> None:
    """Many channels: sums are cut into pieces."""
    model, chosen = layer(*shape), isa("x86-64-v3")
    case = Case("layer", schedule_of(model, chosen), feeds(model))
    assert tiles_of(case.schedule) == {m}
    assert error(Program([case], tmp_path, chosen, ()).run(0)[0], reference(model)) < BOUND


def test_choice() -> None:
    """Where it pays, with 12 operations in the time of a byte of weights."""
    layers = [(64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7), (16, 16, 96), (8, 8, 96)]
    assert [winograd.choose(k, n, side, side, 12.0) for k, n, side in layers] == [4, 4, 2, 0, 4, 0]
    assert winograd.choose(512, 512, 7, 7, 0.5) == 4


def test_switches() -> None:
    model = layer(32, 32, 24, 24, 1)
    host = isa("host")
    assert host.options is not None and tiles_of(schedule_of(model, host))
    for change in ({"accuracy": "strict"}, {"vector_bits": 32}):
        assert not tiles_of(schedule_of(model, replace(host, options={**host.options, **change})))


def test_other_convolutions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides, dilations, groups and other windows."""
    forced(monkeypatch, 4)
    for kernel, attributes in (
        (3, {"strides": [2, 2]}),
        (3, {"strides": [1, 2]}),
        (3, {"dilations": [2, 2], "pads": [2] * 4}),
        (3, {"group": 2}),
        (5, {}),
    ):
        net = Net("other", 8)
        x = net.input("x", [1, 32, 12, 12])
        a = net.op("Conv", x, np.eye(32, dtype=np.float32)[:, :, None, None])
        w = net.weight(32, 32 // attributes.get("group", 1), kernel, kernel, fan_in=32)
        y = net.op("Relu", net.op("Conv", a, w, **attributes))
        net.output(net.op("GlobalAveragePool", y), "y", [1, 32, 1, 1])
        assert not tiles_of(schedule_of(net.model(), isa("host")))


def test_threads(tmp_path: Path) -> None:
    """Each thread has scratch memory of its own, whatever it computes: no races, the same bits."""
    models = [layer(32, 32, 33, 30, 1), layer(64, 96, 14, 14, 1)]
    results = []
    for threads, sanitize in ((1, ()), (3, THREAD)):
        host = isa("host")
        chosen = Isa({**(host.options or {}), "threads": threads})
        cases = [Case(str(i), schedule_of(m, chosen), feeds(m)) for i, m in enumerate(models)]
        assert all(tiles_of(c.schedule) for c in cases)
        program = Program(cases, tmp_path / str(threads), chosen, sanitize, threads)
        results.append([program.run(i)[0].tobytes() for i in range(2)])
    assert results[0] == results[1]


def test_too_few_slots_are_not_shared(tmp_path: Path) -> None:
    """A kernel scheduled for one thread stays in the calling one."""
    model = layer(32, 32, 33, 30, 1)
    case = Case("layer", schedule_of(model, isa("host")), feeds(model))
    program = Program([case], tmp_path, isa("host"), (), threads=2)
    alone = [k.name for k in case.schedule.kernels if k.slot is not None]
    assert alone and not any(f"cv_parallel({name}_" in program.source for name in alone)
    assert error(program.run(0)[0], reference(model)) < BOUND


def test_a_small_footprint_keeps_the_weights_of_the_model() -> None:
    model = layer(64, 64, 28, 28, 1)
    host = isa("host")
    small = Isa({**(host.options or {}), "footprint": "small"})
    sizes = [len(schedule_of(model, chosen).weights) for chosen in (host, small)]
    own = sum(onnx.numpy_helper.to_array(w).nbytes for w in model.graph.initializer)
    assert sizes[1] <= 1.1 * own < sizes[0] / 2


def test_tiles_that_a_block_lacks_are_zeros() -> None:
    """Blocks of 2 of 5 rows of tiles: the last one also fills what it lacks of the scratch memory that its
    products read, where what lies there from other kernels may be denormal, and slow to multiply."""
    s = schedule_of(layer(32, 64, 20, 20, 1), Isa({**(isa("x86-64-v4").options or {}), "threads": 2}))
    loops = [x for k in s.kernels for x in walk(k.body) if isinstance(x, For)]
    filled = [
        (loop, x)
        for loop in loops
        for x in loop.body
        if isinstance(x, Micro) and isinstance(x.kernel, transforms.InputTransform)
    ]
    assert filled
    assert [(static(loop.stop), static(x.arguments[0])) for loop, x in filled] == [(2, 5)]
