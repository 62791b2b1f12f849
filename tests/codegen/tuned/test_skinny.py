"""Products of few rows: batches of a run-time size, recurrences, and operands that lie either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from codegen.sandbox import ADDRESS, Array, Case, Program, isa, relative_error, schedule_of
from zoo.net import Net

from cuvil.ir import expr as E
from cuvil.ir.loops import Micro, walk


def layer(columns: int) -> onnx.ModelProto:
    """A product with constants for a batch of a run-time size."""
    net = Net("layer", 1)
    x = net.input("x", ["n", 24])
    y = net.op("Relu", net.op("MatMul", x, net.weight(24, columns, fan_in=24)))
    net.output(net.op("Add", y, net.bias(columns)), "y", ["n", columns])
    return net.model()


def recurrent(kind: str, hidden: int) -> onnx.ModelProto:
    """A recurrent layer over a run-time number of steps and sequences."""
    net = Net(kind, 2)
    gates = {"LSTM": 4, "GRU": 3}[kind]
    x = net.input("x", ["t", "n", 6])
    w, r = (net.weight(1, gates * hidden, k, fan_in=k) for k in (6, hidden))
    b = net.bias(2 * gates * hidden).reshape(1, -1)
    y, *_ = net.ops(kind, [x, w, r, b], 2, hidden_size=hidden)
    net.output(y, "y", ["t", 1, "n", hidden])
    return net.model()


def dynamic(transposed: bool) -> onnx.ModelProto:
    """A product of two inputs, the second one transposed or not."""
    net = Net("dynamic", 3)
    a, b = net.input("a", [2, "m", 21]), net.input("b", [2, "n", 21] if transposed else [2, 21, "n"])
    y = net.op("MatMul", a, net.op("Transpose", b, perm=[0, 2, 1]) if transposed else b)
    net.output(y, "y", [2, "m", "n"])
    return net.model()


MODELS: dict[str, tuple[onnx.ModelProto, list[dict[str, int]]]] = {
    **{f"layer {n}": (layer(n), [{"n": 1}, {"n": 2}, {"n": 17}]) for n in (96, 128, 500)},
    "LSTM": (recurrent("LSTM", 40), [{"t": 3, "n": 1}, {"t": 2, "n": 4}]),
    "LSTM, weights turned": (recurrent("LSTM", 48), [{"t": 3, "n": 1}, {"t": 2, "n": 4}, {"t": 1, "n": 1}]),
    "GRU, weights turned": (recurrent("GRU", 56), [{"t": 4, "n": 2}, {"t": 3, "n": 17}]),
    "GRU": (recurrent("GRU", 32), [{"t": 3, "n": 1}, {"t": 1, "n": 2}]),
    "dynamic": (dynamic(False), [{"m": 5, "n": 50}, {"m": 1, "n": 3}]),
    "dynamic, transposed": (dynamic(True), [{"m": 5, "n": 50}, {"m": 20, "n": 1}]),
}


def feeds(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    found = {}
    for v in model.graph.input:
        dims = v.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        found[v.name] = rng.standard_normal(shape).astype(np.float32)
    return found


@pytest.mark.parametrize("chosen", ["x86-64 in a library for several", "x86-64-v3", "x86-64-v4"])
def test_equal_to_onnxruntime(chosen: str, tmp_path: Path) -> None:
    cases, wanted = [], []
    for name, (model, all_sizes) in MODELS.items():
        schedule = schedule_of(model, isa(chosen))
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for sizes in all_sizes:
            cases.append(Case(f"{name} {sizes}", schedule, feeds(model, sizes)))
            wanted.append(session.run(None, feeds(model, sizes))[0])
    program = Program(cases, tmp_path, isa(chosen), ADDRESS)
    for number, (case, expected) in enumerate(zip(cases, wanted)):
        assert relative_error(program.run(number)[0], expected) < 1e-5, case.name


def test_one_row_is_multiplied_by_several_panels() -> None:
    s = schedule_of(MODELS["layer 128"][0], isa("x86-64-v4"))
    tiles = [x.kernel for k in s.kernels for x in walk(k.body) if isinstance(x, Micro)]
    assert {t.lanes for t in tiles if len(t.rows) == 1} == {128}


@pytest.mark.parametrize(("name", "turned"), [("LSTM", False), ("LSTM, weights turned", True)])
def test_weights_that_outgrow_the_first_cache_are_read_to_and_fro(name: str, turned: bool) -> None:
    s = schedule_of(MODELS[name][0], isa("x86-64-v4"))
    steps = [k for k in s.kernels if any(v.scan is not None for v in k.values)]
    tiles = [x.kernel for k in steps for x in walk(k.body) if isinstance(x, Micro)]
    assert {t.backward for t in tiles if len(t.rows) == 1} == ({False, True} if turned else {False})


def test_a_transposed_operand_is_turned_in_registers() -> None:
    s = schedule_of(MODELS["dynamic, transposed"][0], isa("x86-64-v4"))
    names = [x.kernel.name for k in s.kernels for x in walk(k.body) if isinstance(x, Micro)]
    assert any(n.startswith("transpose_16x") for n in names)


def test_directions_run_side_by_side(tmp_path: Path) -> None:
    net = Net("both", 4)
    x = net.input("x", ["t", "n", 6])
    w, r = (net.weight(2, 4 * 24, k, fan_in=k) for k in (6, 24))
    y, *_ = net.ops("LSTM", [x, w, r], 2, hidden_size=24, direction="bidirectional")
    net.output(y, "y", ["t", 2, "n", 24])
    model, sizes = net.model(), {"t": 5, "n": 2}
    s = schedule_of(model, isa("x86-64-v3"))
    assert [E.evaluate(E.product(v.args[0] for v in k.parallel), sizes) for k in s.kernels].count(2) == 1
    case = Case("both", s, feeds(model, sizes))
    one, two = (
        Program([case], tmp_path / str(threads), isa("x86-64-v3"), (), threads).run(0)[0]
        for threads in (1, 2)
    )
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, case.feeds)
    assert np.array_equal(one, two)
    assert relative_error(one, wanted) < 1e-5
