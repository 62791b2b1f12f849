"""Verification and measurement of built libraries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from zoo.net import Net, f32

import cuvil
from cuvil import artefacts, stages
from cuvil.errors import CuvilError
from cuvil.report import samples, verify
from cuvil.report.foreign import ForeignRunner
from cuvil.report.samples import Samples, batches
from cuvil.report.verify import Subject, Verification
from cuvil.target import schema

pytest.importorskip("onnxruntime")


def classifier(path: Path) -> Path:
    """Convolution and mean: x [N, 3, H, 6] -> logits [N, 4] and features [N, 4, H, 6]."""
    weights = np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["features"], pads=[1, 1, 1, 1]),
            helper.make_node("ReduceMean", ["features"], ["logits"], axes=[2, 3], keepdims=0),
        ],
        "classifier",
        [value("x", TensorProto.FLOAT, ["N", 3, "H", 6])],
        [
            value("logits", TensorProto.FLOAT, ["N", 4]),
            value("features", TensorProto.FLOAT, ["N", 4, "H", 6]),
        ],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def reference_classes(model: Path, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(["logits"], {"x": x})[0].argmax(axis=1)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("verify") / "net.onnx")


@pytest.fixture(scope="module")
def data(model: Path) -> Path:
    """Seven samples; the class that is given for the first is wrong."""
    x = np.random.default_rng(4).standard_normal((7, 3, 5, 6)).astype(np.float32)
    labels = reference_classes(model, x)
    labels[0] = (labels[0] + 1) % 4
    np.savez(model.parent / "data.npz", x=x, label=labels)
    return model.parent / "data.npz"


def build(model: Path, name: str, io_format: str = "nchw", **options: object) -> Subject:
    folder = model.parent / name
    session = cuvil.compile(model, output=folder, io_format=io_format, **options)  # type: ignore[arg-type]
    assert session.target is not None
    return Subject(artefacts.layout(folder, "net", session.target), session.target, model, None, io_format)


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Of x [N, 3]: where it is positive, twice what it is there, and x in the shape that is an input."""
    net = Net("sized", 1)
    x = net.input("x", ["N", 3])
    chosen = net.op("Greater", x, f32(0))
    net.output(net.op("NonZero", chosen), "where", [2, "K"], TensorProto.INT64)
    net.output(net.op("Compress", net.op("Add", x, x), net.reshape(chosen, -1)), "values", ["K"])
    net.output(net.op("Reshape", x, net.input("to", [2], TensorProto.INT64)), "turned", ["A", "B"])
    path = tmp_path_factory.mktemp("sized") / "net.onnx"
    onnx.save(net.model(), path)
    return build(path, "out")


@pytest.fixture(scope="module")
def open_sizes(model: Path) -> Subject:
    return build(model, "open")


class TestVerify:
    """`verify.verify`."""

    def test_figures(self, open_sizes: Subject, data: Path) -> None:
        found = verify.verify(replace(open_sizes, data=data))
        assert (found.model, found.target, found.quantization) == ("net", "host", "f32")
        assert found.samples == 7
        assert found.error is not None and found.relative_error is not None
        assert 0 <= found.error < 1e-5 and found.relative_error < 1e-5
        assert (found.accuracy_f32, found.accuracy, found.agreement) == (6 / 7, 6 / 7, 1.0)
        assert found.library_bytes == open_sizes.out.libraries[1].stat().st_size
        assert found.measured_ns is not None and found.measured_ns > 0
        assert (found.good, found.notes) == (True, ())
        session = cuvil.Session(open_sizes.out.libraries[1], open_sizes.out.interface["json"])  # type: ignore[operator]
        assert found.arena_bytes == session.workspace_bytes(N=1, H=5)
        assert json.loads(json.dumps(found.to_json()))["accuracy"] == 6 / 7

    def test_random_inputs_are_mentioned(self, open_sizes: Subject) -> None:
        found = verify.verify(open_sizes)
        assert found.notes == ("no data are given, the inputs are random",)
        assert (found.samples, found.accuracy, found.agreement, found.good) == (1, None, 1.0, True)

    def test_channels_last(self, model: Path, data: Path) -> None:
        subject = build(model, "last", "nhwc", shapes={"x": [1, 3, 5, 6]})
        found = verify.verify(replace(subject, data=data))
        assert found.error is not None and found.error < 1e-5
        assert (found.samples, found.accuracy, found.good) == (7, 6 / 7, True)
        assert verify.verify(replace(subject, data=data, io_format="nhwc")).good

    def test_a_wrong_answer_is_bad(self, open_sizes: Subject, data: Path, tmp_path: Path) -> None:
        other = onnx.load(open_sizes.model)
        weights = numpy_helper.to_array(other.graph.initializer[0]) * np.float32(1.01)
        other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
        onnx.save(other, tmp_path / "other.onnx")
        found = verify.verify(replace(open_sizes, data=data, model=tmp_path / "other.onnx"))
        assert found.relative_error == pytest.approx(0.01 / 1.01, rel=0.01)
        assert not found.good
        assert "WRONG, 1.0e-03 of it is allowed; 7 samples" in found.text()

    def test_a_reference_that_fails_is_a_note(self, open_sizes: Subject, tmp_path: Path) -> None:
        (tmp_path / "empty.onnx").write_bytes(b"")
        found = verify.verify(replace(open_sizes, model=tmp_path / "empty.onnx"))
        assert found.error is None and found.good
        assert found.notes[-1].startswith("not compared, onnxruntime fails: ")

    def test_no_onnxruntime(self, open_sizes: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        found = verify.verify(open_sizes)
        assert found.notes[-1] == "not compared: onnxruntime is not installed"
        assert (found.samples, found.error, found.good) == (1, None, True)

    def test_a_machine_that_cannot_be_run_here(
        self, open_sizes: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = schema.load("riscv64-linux-gnu")
        monkeypatch.setattr("shutil.which", lambda name: None)
        found = verify.verify(replace(open_sizes, target=target))
        assert found.notes[-1] == "not run: riscv64-linux-gnu: qemu-user (qemu-riscv64) is not installed"
        assert (found.samples, found.error, found.measured_ns, found.good) == (0, None, None, True)

    def test_prediction_of_the_partition(self, open_sizes: Subject, tmp_path: Path) -> None:
        out = replace(open_sizes.out, folder=tmp_path / "copy")
        out.partition.parent.mkdir(parents=True)
        placed = json.loads(open_sizes.out.partition.read_text(encoding="utf-8"))
        placed["predicted"] = {"latency_ns": 1500.0, "interval_ns": [1000.0, 2500.0]}
        out.partition.write_text(json.dumps(placed), encoding="utf-8")
        for source, copy in (
            (open_sizes.out.libraries[1], out.libraries[1]),
            (open_sizes.out.interface["json"], out.interface["json"]),
        ):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
        found = verify.verify(replace(open_sizes, out=out))
        assert (found.predicted_ns, found.interval_ns) == (1500.0, (1000.0, 2500.0))
        assert "predicted latency  1.5 us, 1 us to 2.5 us\n" in found.text()


class TestForeignRunner:
    """A library run in a program of its own."""

    def test_same_answers_as_in_this_process(self, open_sizes: Subject, data: Path) -> None:
        runner = ForeignRunner(open_sizes.out, open_sizes.target)
        assert not runner.emulated
        x = np.load(data)["x"]
        outputs, seconds = runner.run([{"x": x[:2]}, {"x": x[2:7]}])
        session = cuvil.Session(open_sizes.out.libraries[1], open_sizes.out.interface["json"])  # type: ignore[operator]
        for ours, feed in zip(outputs, (x[:2], x[2:7])):
            for mine, other in zip(ours, session.run(None, {"x": feed})):
                np.testing.assert_array_equal(mine, other)
        assert len(seconds) == 2 and all(s > 0 for s in seconds)

    def test_verify_a_target_that_is_not_called_host(self, open_sizes: Subject, data: Path) -> None:
        found = verify.verify(replace(open_sizes, data=data, target=replace(open_sizes.target, name="mine")))
        assert (found.samples, found.accuracy, found.good, found.notes) == (7, 6 / 7, True, ())

    def test_sizes_that_the_data_decide(self, sized: Subject) -> None:
        rows = [[1, -2, 3]], [[-1, -2, -3]], [[4, 5, 6], [0, 0, 7]]
        feeds = [{"x": np.array(x, np.float32), "to": np.array([3, len(x)], np.int64)} for x in rows]
        outputs, _ = ForeignRunner(sized.out, sized.target).run(feeds)
        assert [values.size for _, values, _ in outputs] == [2, 0, 4]
        for (where, values, turned), feed in zip(outputs, feeds):
            x = feed["x"]
            np.testing.assert_array_equal(where, np.argwhere(x > 0).T)
            np.testing.assert_array_equal(values, 2 * x[x > 0])
            np.testing.assert_array_equal(turned, x.reshape(feed["to"]))
        session = cuvil.Session(sized.out.libraries[1], sized.out.interface["json"])  # type: ignore[operator]
        for ours, theirs in zip(outputs[0], session.run(None, feeds[0])):
            np.testing.assert_array_equal(ours, theirs)

    def test_an_error_of_the_library_is_reported(self, sized: Subject) -> None:
        feed = {"x": np.zeros((1, 3), np.float32), "to": np.array([2, 2], np.int64)}
        with pytest.raises(CuvilError, match=r"^net: the library returned error 5$"):
            ForeignRunner(sized.out, sized.target).run([feed])

    @pytest.mark.slow  # zig builds the C library of the target at the first link, up to a minute
    def test_under_qemu(self, model: Path, data: Path, tmp_path: Path) -> None:
        target = schema.load("raspberry-pi-4")
        out = artefacts.layout(tmp_path, "net", target)
        stages.run_all(model, out, target)
        found = verify.verify(Subject(out, target, model, data))
        assert found.notes == ("run under qemu: the latency cannot be measured here",)
        assert (found.samples, found.accuracy, found.good, found.measured_ns) == (7, 6 / 7, True, None)


class TestBench:
    """`verify.bench`, `verify.measure`, `verify.sizes`."""

    def test_bench(self, open_sizes: Subject, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verify, "BENCH_S", 0.02)
        found = verify.bench(replace(open_sizes, data=data))
        assert found.p10_ns <= found.median_ns <= found.p90_ns
        assert found.reference_ns is not None and found.ratio == found.reference_ns / found.median_ns
        assert found.threads == 1
        with pytest.raises(CuvilError, match=r"^mine: is another machine"):
            verify.bench(replace(open_sizes, target=replace(open_sizes.target, name="mine")))

    def test_candidates_take_turns(self) -> None:
        calls: list[str] = []

        def candidate(name: str) -> Callable[[], float]:
            def call() -> float:
                calls.append(name)
                return float(len(calls))

            return call

        taken = verify.measure({"a": candidate("a"), "b": candidate("b")}, 0.0, 0.0)
        assert calls == ["a"] * 3 + ["b"] * 3
        assert taken == {"a": [3.0], "b": [6.0]}

    def test_sizes(self, open_sizes: Subject) -> None:
        found = verify.sizes(open_sizes)
        assert found.weights_bytes >= 4 * 3 * 9 * 4
        assert found.constant_bytes >= found.weights_bytes
        assert found.code_bytes > 0 and found.arena_bytes is None and found.prepared_bytes == 0
        assert found.text().splitlines()[-1] == "arena      depends on open sizes"
        assert ", the arena of infer() among them\n" in found.text()
        prepared = replace(found, prepared_bytes=2048).text()
        assert ", the arena of infer() and 2 KiB of prepared weights among them\n" in prepared


def test_text_of_a_verification() -> None:
    found = Verification(
        model="net",
        target="host",
        quantization="int8",
        library="build/libnet.so",
        library_bytes=2048,
        arena_bytes=512,
        samples=10,
        error=0.5,
        relative_error=0.25,
        accuracy_f32=0.9,
        accuracy=0.8,
        agreement=0.7,
        predicted_ns=None,
        interval_ns=None,
        measured_ns=1234.0,
        good=True,
        notes=("first", "second"),
    )
    assert found.text() == (
        "model             net [host], int8\n"
        "library           build/libnet.so  2 KiB\n"
        "arena             512 B\n"
        "largest error     5.0e-01, 2.5e-01 of the largest value; 10 samples\n"
        "accuracy          0.8000, 0.9000 by onnxruntime in f32\n"
        "measured latency  1.23 us\n"
        "note              first\n"
        "note              second"
    )


def test_errors_of_special_values() -> None:
    one, nan, inf = np.array([1.0, -4.0]), np.array([math.nan, 2.0]), np.array([math.inf, 2.0])
    assert verify.errors([[one]], [[one]]) == (0.0, 0.0)
    assert verify.errors([[one + 0.5]], [[one]]) == (0.5, 0.125)
    assert verify.errors([[nan, inf]], [[nan, inf]]) == (0.0, 0.0)
    assert verify.errors([[nan]], [[one]]) == (math.inf, math.inf)
    assert verify.errors([[one]], [[inf]]) == (math.inf, math.inf)
    assert verify.errors([[one[:1]]], [[one]]) == (math.inf, math.inf)
    assert verify.errors([[one], [one + 1]], [[one], [one * 0]])[0] == 3.0
    assert verify.errors([[np.array([200], np.uint8)]], [[np.array([250], np.uint8)]]) == (50.0, 0.2)


def test_classes_need_a_classification() -> None:
    scores = np.array([[0.1, 0.9], [0.8, 0.2]])
    found = verify.classes([[scores], [scores[:1]]])
    assert found is not None and found.tolist() == [1, 0, 1]
    assert verify.classes([[scores[:, :1]]]) is None
    assert verify.classes([[scores[0]]]) is None
    assert verify.classes([]) is None


class TestSamples:
    """`cuvil.report.samples`."""

    def shapes(self, found: list[dict[str, np.ndarray]]) -> list[tuple[int, ...]]:
        return [batch["x"].shape for batch in found]

    def test_batches(self) -> None:
        data = Samples({"x": np.arange(14).reshape(7, 2)})
        fixed, free = [{"name": "x", "shape": [3, 2]}], [{"name": "x", "shape": ["N", 2]}]
        whole = [{"name": "x", "shape": [2]}]
        assert self.shapes(batches(data, fixed)) == [(3, 2), (3, 2)]
        assert self.shapes(batches(data, fixed, 1)) == [(3, 2)]
        assert self.shapes(batches(data, free, largest=4)) == [(4, 2), (3, 2)]
        assert self.shapes(batches(data, free, 5, largest=4)) == [(4, 2), (1, 2)]
        assert self.shapes(batches(data, free)) == [(7, 2)]
        assert batches(data, whole)[6]["x"].tolist() == [12, 13]
        assert batches(Samples({}), []) == [{}]
        with pytest.raises(CuvilError, match=r"^the model takes batches of 9 samples, there are 7$"):
            batches(data, [{"name": "x", "shape": [9, 2]}])

    def test_random_inputs(self) -> None:
        inputs = [
            {"name": "a", "shape": ["N", 3], "dtype": "float32"},
            {"name": "i", "shape": [2], "dtype": "int64"},
        ]
        found = samples.random(inputs)
        assert found.arrays["a"].shape == (1, 3) and found.arrays["a"].dtype == np.float32
        assert found.arrays["a"].any()
        assert found.arrays["i"].tolist() == [0, 0] and found.arrays["i"].dtype == np.int64

    def test_errors(self, tmp_path: Path) -> None:
        inputs = [{"name": "x", "shape": [1]}, {"name": "y", "shape": [1]}]
        path = tmp_path / "data.npz"
        np.savez(path, x=np.zeros(2))
        with pytest.raises(CuvilError, match=r"data\.npz: has no array 'y', only x$"):
            samples.read(path, inputs)
        np.savez(path, x=np.zeros(2), y=np.zeros(3))
        with pytest.raises(CuvilError, match=r"must agree and be more than 0: 'x' 2, 'y' 3$"):
            samples.read(path, inputs)
        np.savez(path, x=np.zeros(1), y=np.array([{}]))
        with pytest.raises(CuvilError, match=r"data\.npz: cannot be read as \.npz: "):
            samples.read(path, inputs)
        for damaged in (
            b"",
            b"PK\x03\x04",
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False}",
        ):
            path.write_bytes(damaged)
            with pytest.raises(CuvilError, match=r"data\.npz: cannot be read as \.npz: "):
                samples.read(path, inputs)
        with pytest.raises(CuvilError, match=r"cannot be read as \.npz: .*No such file"):
            samples.read(tmp_path / "none.npz", inputs)
