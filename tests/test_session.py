"""Sessions: onnxruntime's interface, its errors, and graphs of odd forms from end to end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from zoo import builders as b
from zoo.net import Net, i64

import cuvil
from cuvil.errors import CuvilError
from cuvil.session import Session
from cuvil.target.schema import Target, load

Shape = Sequence[int | str]


def host() -> Target:
    target = load("host")
    return replace(target, toolchain=replace(target.toolchain, optimization="O0"))


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape | None],
    constants: Mapping[str, Any] | None = None,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, dtype, s) for n, s in inputs.items()],
        [
            onnx.ValueInfoProto(name=n) if s is None else helper.make_tensor_value_info(n, dtype, s)
            for n, s in outputs.items()
        ],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> Session:
    onnx.save(model, folder / "model.onnx")
    return cuvil.compile(folder / "model.onnx", target=host(), **options)


def agrees(model: onnx.ModelProto, session: Session, *feeds: Mapping[str, np.ndarray]) -> None:
    """The same outputs as onnxruntime's, in name, type, shape and value."""
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == [o.name for o in oracle.get_outputs()]
    assert [i.name for i in session.get_inputs()] == [i.name for i in oracle.get_inputs()]
    for feed in feeds:
        for got, wanted in zip(session.run(None, feed), oracle.run(None, dict(feed))):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return compiled(b.mlp(sizes=(6, 8, 3)), tmp_path_factory.mktemp("mlp"))


# --- the interface ----------------------------------------------------------------------------------


def test_arguments_are_described_as_onnxruntime_does(mlp: Session) -> None:
    (x,), (y,) = mlp.get_inputs(), mlp.get_outputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["N", 6])
    assert (y.name, y.type, y.shape) == ("probabilities", "tensor(float)", ["N", 3])


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (TensorProto.DOUBLE, "tensor(double)"),
        (TensorProto.INT64, "tensor(int64)"),
        (TensorProto.INT8, "tensor(int8)"),
        (TensorProto.BOOL, "tensor(bool)"),
    ],
)
def test_types_of_arguments(dtype: int, text: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    model = model_of(nodes, {"x": [2]}, {"y": [4]}, dtype=dtype)
    session = compiled(model, tmp_path)
    assert session.get_inputs()[0].type == text == session.get_outputs()[0].type
    fed = np.array([0, 1], helper.tensor_dtype_to_np_dtype(dtype))
    agrees(model, session, {"x": fed})


def containers() -> onnx.ModelProto:
    """A sequence, an optional tensor and an optional sequence, passed on next to a tensor."""
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    kinds = {
        "t": helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]),
        "s": helper.make_sequence_type_proto(element),
        "o": helper.make_optional_type_proto(element),
        "q": helper.make_optional_type_proto(helper.make_sequence_type_proto(element)),
    }
    nodes = [helper.make_node("Neg" if n == "t" else "Identity", [n], [f"{n}_"]) for n in kinds]
    inputs = [helper.make_value_info(n, kind) for n, kind in kinds.items()]
    outputs = [helper.make_value_info(f"{n}_", kinds[n]) for n in "sotq"]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_sequences_are_lists_and_absent_optionals_none_as_in_onnxruntime(tmp_path: Path) -> None:
    model = containers()
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    t, a, b = (np.arange(n, dtype=np.float32) for n in (4, 2, 3))
    session = compiled(model, tmp_path, shapes={"s": [[2], ["n"]], "o": [3], "q": [[2]]})
    ours = [*session.get_inputs(), *session.get_outputs()]
    theirs = [*oracle.get_inputs(), *oracle.get_outputs()]
    assert [(x.name, x.type) for x in ours] == [(x.name, x.type) for x in theirs]
    feeds = {"t": t, "s": [a, t], "o": b, "q": [a]}
    for got, want in zip(session.run(None, feeds), oracle.run(None, feeds), strict=True):
        assert type(got) is type(want)
        for x, y in zip(*([v] if isinstance(v, np.ndarray) else v for v in (got, want)), strict=True):
            np.testing.assert_array_equal(x, y)
    (q, s) = session.run(["q_", "s_"], feeds)
    assert ([v.tolist() for v in q], [v.size for v in s]) == ([a.tolist()], [2, 4])
    with pytest.raises(CuvilError, match=r"^input 's': has 1 items, 2 are expected$"):
        session.run(None, feeds | {"s": [a]})
    with pytest.raises(CuvilError, match=r"^input 's': is a sequence: a list of arrays is expected$"):
        session.run(None, feeds | {"s": a})
    with pytest.raises(CuvilError, match=r"^input 'o': the library is compiled for one that is present$"):
        session.run(None, feeds | {"o": None})

    session = compiled(model, tmp_path, shapes={"s": [], "o": None, "q": None})
    none = session.run(None, {"t": t, "s": [], "o": None})
    assert none[0] == [] and none[1] is none[3] is None
    np.testing.assert_array_equal(none[2], -t)
    with pytest.raises(CuvilError, match=r"^input 'q': the library is compiled for one that is absent$"):
        session.run(None, {"t": t, "q": [a]})


def test_chosen_outputs_in_the_order_asked_for(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["c"])]
    session = compiled(model_of(nodes, {"x": [2]}, {"a": [2], "c": [2]}), tmp_path)
    fed = {"x": np.array([-1, 2], np.float32)}
    assert [v.tolist() for v in session.run(["c", "a"], fed)] == [[1, -2], [0, 2]]
    assert [v.tolist() for v in session.run(["c"], fed)] == [[1, -2]]
    with pytest.raises(CuvilError, match="'q': is no output; the outputs are a, c"):
        session.run(["q"], fed)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "input 'x': is missing from the feed"),
        ({"z": np.zeros(1)}, "'z': is no input; the inputs are x"),
        ({"x": np.zeros((2, 6))}, "input 'x': has type float64, float32 is expected"),
        ({"x": np.zeros((2, 7), np.float32)}, r"input 'x': has shape \[2, 7\], \['N', 6\] is expected"),
        ({"x": np.zeros(6, np.float32)}, r"input 'x': has shape \[6\], \['N', 6\] is expected"),
    ],
)
def test_wrong_feeds(mlp: Session, feed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(CuvilError, match=message):
        mlp.run(None, feed)


def test_one_symbol_has_one_size(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    session = compiled(model_of(nodes, {"x": ["N"], "y": ["N"]}, {"z": ["N"]}), tmp_path)
    with pytest.raises(CuvilError, match=r"input 'y': has shape \[3\], \['N'\] is expected"):
        session.run(None, {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)})


def test_lists_and_strided_arrays_may_be_fed(mlp: Session) -> None:
    base = np.arange(24, dtype=np.float32).reshape(6, 4) / 10
    wanted = mlp.run(None, {"x": base.T.copy()})[0]
    np.testing.assert_array_equal(mlp.run(None, {"x": base.T})[0], wanted)
    np.testing.assert_array_equal(mlp.run(None, {"x": np.repeat(base.T, 2, axis=0)[::2]})[0], wanted)


def test_the_short_way_keeps_all_checks(mlp: Session) -> None:
    """After a call with good inputs, which later calls of the same form go without their checks for."""
    good = np.arange(24, dtype=np.float32).reshape(4, 6) / 10
    wanted = mlp.run(None, {"x": good})[0]
    np.testing.assert_array_equal(mlp.run(None, {"x": np.asfortranarray(good)})[0], wanted)
    frozen = good.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(mlp.run(None, {"x": frozen})[0], wanted)
    for feed, message in (
        ({"x": good.astype(">f4")}, "has type >f4, float32 is expected"),
        ({"x": good.astype(np.float64)}, "has type float64, float32 is expected"),
        ({"x": good.view(np.int32)}, "has type int32, float32 is expected"),
        ({"x": good.T}, r"has shape \[6, 4\]"),
        ({"x": good, "z": good}, "'z': is no input"),
        ({"z": good}, "'z': is no input"),
        ({"x": None}, "has type object"),
    ):
        with pytest.raises(CuvilError, match=message):
            mlp.run(None, feed)


def test_what_only_looks_like_an_array_is_converted(mlp: Session) -> None:
    """Its address says nothing about where its data are."""

    class Proxy:
        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        @property
        def __class__(self) -> type:  # type: ignore[override]
            return np.ndarray

        def __getattr__(self, name: str) -> object:
            return getattr(self._array, name)

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return self._array

    class Own(np.ndarray):
        pass

    good = np.arange(24, dtype=np.float32).reshape(4, 6) / 10
    wanted = mlp.run(None, {"x": good})[0]
    for same in (Proxy(good), good.view(Own), np.ma.array(good)):
        np.testing.assert_array_equal(mlp.run(None, {"x": same})[0], wanted)


def test_without_the_layout_of_array_objects(mlp: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a Python does not place an array's pointer to its data as CPython does."""
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    wanted = mlp.run(None, {"x": x})[0]
    monkeypatch.setattr(mlp, "_most_forms", 0)
    monkeypatch.setattr(mlp, "_forms", {})
    np.testing.assert_array_equal(mlp.run(None, {"x": x})[0], wanted)
    assert not mlp._forms


def test_results_are_the_callers(mlp: Session) -> None:
    """A later run does not change what an earlier one returned."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((n, 6)).astype(np.float32) for n in (3, 5))
    kept = mlp.run(None, {"x": first})[0]
    copy = kept.copy()
    mlp.run(None, {"x": second})
    np.testing.assert_array_equal(kept, copy)


def test_threads_may_share_a_session(mlp: Session) -> None:
    feeds = [np.random.default_rng(n).standard_normal((n + 1, 6)).astype(np.float32) for n in range(4)]
    wanted = [mlp.run(None, {"x": f})[0] for f in feeds]
    wrong = []

    def repeat(n: int) -> None:
        for _ in range(100):
            if not np.array_equal(mlp.run(None, {"x": feeds[n]})[0], wanted[n]):
                wrong.append(n)

    threads = [threading.Thread(target=repeat, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_sessions_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Two models whose files have the same name, one compiled over the other's folder."""
    first = compiled(
        model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": [1]}, {"y": [1]}), tmp_path, output=tmp_path
    )
    second = compiled(
        model_of([helper.make_node("Abs", ["x"], ["y"])], {"x": [1]}, {"y": [1]}), tmp_path, output=tmp_path
    )
    fed = {"x": np.array([-3], np.float32)}
    assert (first.run(None, fed)[0][0], second.run(None, fed)[0][0]) == (3, 3)
    third = compiled(model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": [1]}, {"y": [1]}), tmp_path)
    fourth = compiled(model_of([helper.make_node("Exp", ["x"], ["y"])], {"x": [1]}, {"y": [1]}), tmp_path)
    assert third.run(None, fed)[0][0] == 3 and fourth.run(None, fed)[0][0] == pytest.approx(
        np.exp(-3), rel=1e-6
    )


def test_temporary_folder_lives_as_long_as_the_session(tmp_path: Path) -> None:
    session = compiled(model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": [1]}, {"y": [1]}), tmp_path)
    gc.collect()
    assert session.run(None, {"x": np.array([2], np.float32)})[0][0] == -2


def test_bound_shapes(tmp_path: Path) -> None:
    session = compiled(b.mlp(sizes=(6, 8, 3)), tmp_path, shapes={"x": [4, 6]})
    assert session.get_inputs()[0].shape == [4, 6]
    assert session.run(None, {"x": np.zeros((4, 6), np.float32)})[0].shape == (4, 3)
    with pytest.raises(CuvilError, match=r"has shape \[5, 6\], \[4, 6\] is expected"):
        session.run(None, {"x": np.zeros((5, 6), np.float32)})


def test_bound_values(tmp_path: Path) -> None:
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    session = compiled(model_of([node], {"x": ["N"], "w": [1]}, {"y": ["N"]}), tmp_path, values={"w": [2.5]})
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert session.run(None, {"x": np.array([2, 4], np.float32)})[0].tolist() == [5, 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "at least 1 thread"),
        ({"quantization": "int3"}, "'int3': is no quantization mode"),
        ({"io_format": "hwcn"}, "'hwcn': is no I/O format"),
        ({"accuracy": "loose"}, "'loose': is no accuracy; default and strict are"),
        ({"shapes": {"q": [1]}}, "q"),
        ({"values": {"q": 1}}, "the model has no input 'q' to bind"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CuvilError, match=message):
        compiled(b.mlp(sizes=(6, 8, 3)), tmp_path, **options)


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(CuvilError, match=r"nothing\.onnx"):
        cuvil.compile(tmp_path / "nothing.onnx")


# --- graphs of odd forms ----------------------------------------------------------------------------------

RELU = helper.make_node("Relu", ["x"], ["y"])
FED = np.array([-1, 2, 3], np.float32)


def test_constant_output(tmp_path: Path) -> None:
    model = model_of([RELU], {"x": [3]}, {"y": [3], "c": [2]}, {"c": np.array([1, 2], np.float32)})
    agrees(model, compiled(model, tmp_path), {"x": FED})


def test_model_without_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["c", "c"], ["y"])]
    model = model_of(nodes, {}, {"y": [2]}, {"c": np.array([1, 2], np.float32)})
    agrees(model, compiled(model, tmp_path), {})


def test_input_that_is_an_output(tmp_path: Path) -> None:
    model = model_of([RELU], {"x": ["N"]}, {"y": ["N"], "x": ["N"]})
    session = compiled(model, tmp_path)
    got = session.run(None, {"x": FED})
    assert [o.name for o in session.get_outputs()] == ["y", "x"]
    assert [a.tolist() for a in got] == [[0, 2, 3], [-1, 2, 3]]


def test_input_that_nothing_reads(tmp_path: Path) -> None:
    model = model_of([RELU], {"x": [3], "w": ["M", 2]}, {"y": [3]})
    session = compiled(model, tmp_path)
    assert [i.name for i in session.get_inputs()] == ["x", "w"]
    assert session.run(None, {"x": FED, "w": np.zeros((5, 2), np.float32)})[0].tolist() == [0, 2, 3]


def test_one_value_under_two_names(tmp_path: Path) -> None:
    nodes = [RELU, helper.make_node("Identity", ["y"], ["z"]), helper.make_node("Cast", ["y"], ["w"], to=1)]
    model = model_of(nodes, {"x": [3]}, {"y": [3], "z": [3], "w": [3]})
    agrees(model, compiled(model, tmp_path), {"x": FED})


@pytest.mark.parametrize("op", ["Identity", "Cast", "Sum", "Reshape", "Concat", "Dropout"])
def test_nodes_that_do_nothing(op: str, tmp_path: Path) -> None:
    """A node that hands its input on, called like it."""
    attributes = {"Cast": {"to": 1}, "Concat": {"axis": 0}}.get(op, {})
    inputs = ["x", "shape"] if op == "Reshape" else ["x"]
    nodes = [
        helper.make_node(op, inputs, ["y"], name="x", **attributes),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    constants = {"shape": np.array([3], np.int64)} if op == "Reshape" else {}
    model = model_of(nodes, {"x": [3]}, {"z": [3], "y": [3]}, constants)
    agrees(model, compiled(model, tmp_path), {"x": FED})


@pytest.mark.parametrize("shape", [[], [0], [0, 5], [3, 0, 2], [1, 1]], ids=str)
def test_empty_and_scalar_tensors(shape: list[int], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0),
        helper.make_node("Shape", ["y"], ["n"]),
        helper.make_node("Cast", ["n"], ["m"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": shape}, {"y": shape, "s": [], "m": [len(shape)]})
    agrees(model, compiled(model, tmp_path), {"x": np.full(shape, 0.5, np.float32)})


def test_sizes_down_to_zero(tmp_path: Path) -> None:
    net = Net("zero", 1)
    x = net.input("x", ["N", "S", 8])
    y = net.op("Softmax", net.layer_norm(net.linear(x, 8, 8), 8), axis=1)
    net.output(net.op("MatMul", y, net.op("Transpose", y, perm=[0, 2, 1])), "y", ["N", "S", "S"])
    session = compiled(net.model(), tmp_path)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((n, s, 8)).astype(np.float32)} for n, s in ((1, 1), (2, 3), (1, 40))]
    agrees(net.model(), session, *feeds)
    for n, s in ((0, 3), (3, 0), (0, 0)):
        assert session.run(None, {"x": np.zeros((n, s, 8), np.float32)})[0].shape == (n, s, s)


def test_window_larger_than_the_image_it_meets(tmp_path: Path) -> None:
    """A size for which the model has no meaning is an error."""
    net = Net("window", 1)
    x = net.input("x", [1, 2, "H", 8])
    w = net.weight(4, 2, 5, 5, fan_in=50)
    net.output(net.op("Conv", x, w, kernel_shape=[5, 5]), "y", [1, 4, "O", 4])
    session = compiled(net.model(), tmp_path)
    agrees(
        net.model(),
        session,
        {"x": np.ones((1, 2, 9, 8), np.float32)},
        {"x": np.ones((1, 2, 5, 8), np.float32)},
    )
    with pytest.raises(CuvilError, match=r"output 'y': would have shape \[1, 4, -1, 4\] for "):
        session.run(None, {"x": np.ones((1, 2, 3, 8), np.float32)})


def test_channels_last(tmp_path: Path) -> None:
    net = Net("nhwc", 1)
    x = net.input("x", [1, 3, 6, 5])
    net.output(net.op("Relu", net.conv(x, 3, 4, 3)), "y", [1, 4, 6, 5])
    model = net.model()
    plain, last = compiled(model, tmp_path), compiled(model, tmp_path, io_format="nhwc")
    fed = np.random.default_rng(0).standard_normal((1, 3, 6, 5)).astype(np.float32)
    assert [a.shape for a in (*last.get_inputs(), *last.get_outputs())] == [[1, 6, 5, 3], [1, 6, 5, 4]]
    wanted = plain.run(None, {"x": fed})[0].transpose(0, 2, 3, 1)
    got = last.run(None, {"x": np.ascontiguousarray(fed.transpose(0, 2, 3, 1))})[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_channels_last_of_what_is_not_computed(tmp_path: Path) -> None:
    """Inputs and constants of rank 4 that are outputs."""
    constant = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    shape = [1, 2, 3, 4]
    model = model_of(nodes, {"x": shape}, {"y": shape, "x": shape, "c": shape}, {"c": constant})
    session = compiled(model, tmp_path, io_format="nhwc")
    fed = np.random.default_rng(0).standard_normal((1, 3, 4, 2)).astype(np.float32)
    y, x, c = session.run(None, {"x": fed})
    np.testing.assert_array_equal(y, -fed)
    np.testing.assert_array_equal(x, fed)
    np.testing.assert_array_equal(c, constant.transpose(0, 2, 3, 1))


def test_dimensions_computed_from_shapes(tmp_path: Path) -> None:
    """Shape -> Gather -> Unsqueeze -> Concat with a number -> Reshape."""
    net = Net("shapes", 1)
    x = net.input("x", ["N", 4, 3])
    net.output(net.reshape(x, net.dim(x, 0), 12), "y", ["N", 12])
    session = compiled(net.model(), tmp_path)
    agrees(net.model(), session, {"x": np.arange(24, dtype=np.float32).reshape(2, 4, 3)})
    assert session.workspace_bytes(N=5) == 0


def test_large_gather_of_run_time_indices(tmp_path: Path) -> None:
    """Indices out of range are brought into range rather than read from anywhere."""
    net = Net("gather", 1)
    i = net.input("i", ["K"], TensorProto.INT64)
    net.output(net.op("Gather", np.arange(40, dtype=np.float32).reshape(10, 4), i, axis=0), "y", ["K", 4])
    session = compiled(net.model(), tmp_path)
    agrees(net.model(), session, {"i": i64(0, 9, -1, -10, 3)})
    session.run(
        None, {"i": i64(1 << 40, -(1 << 40), 10, -11, np.iinfo(np.int64).max, np.iinfo(np.int64).min)}
    )


def test_compiles_in_several_threads_do_not_mix(tmp_path: Path) -> None:
    models = [b.mlp(sizes=(6, 8, 3)), b.bert_encoder_layer(hidden=16, heads=2, ffn=24)]
    for n, model in enumerate(models):
        onnx.save(model, tmp_path / f"net{n}.onnx")

    def source(n: int, name: str) -> str:
        cuvil.compile(tmp_path / f"net{n}.onnx", target=host(), output=tmp_path / name)
        return next((tmp_path / name / "codegen").glob("net*_*.c")).read_text()

    wanted = [source(n, f"alone{n}") for n in range(2)]
    found: dict[tuple[int, int], str] = {}

    def repeat(n: int) -> None:
        for k in range(3):
            found[n, k] = source(n, f"thread{n}_{k}")

    threads = [threading.Thread(target=repeat, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {(n, k): wanted[n] for n in range(2) for k in range(3)}
