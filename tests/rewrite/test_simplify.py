"""Rewrites before anything is placed: each fires where it may, not elsewhere, and the answers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from zoo.net import Net, i64

from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.onnx_writer import write_model
from cuvil.ir.graph import Graph
from cuvil.rewrite import simplify

Array = np.ndarray


def graph_of(model: onnx.ModelProto) -> Graph:
    graph = graph_from_proto(model)
    canonicalize(graph)
    return graph


def run(model: Path | bytes, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(
        str(model) if isinstance(model, Path) else model, providers=["CPUExecutionProvider"]
    )
    outputs: list[Array] = session.run(None, feeds)
    return outputs


def simplified(net: Net, feeds: dict[str, Array], folder: Path) -> tuple[dict[str, int], Graph]:
    """How often each rule fired, and the graph; the answers are those from before."""
    model = net.model()
    wanted = run(model.SerializeToString(), feeds)
    graph = graph_of(model)
    counts = simplify.simplify(graph)
    write_model(graph, folder / "simplified.onnx")
    for got, want in zip(run(folder / "simplified.onnx", feeds), wanted):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return counts, graph


def image(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_batch_norm_folds_into_convolution(bias: bool, groups: int, tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 6])
    net.output(net.batch_norm(net.conv(x, 4, 8, 3, groups=groups, bias=bias), 8), "y", [1, 8, 5, 6])
    counts, graph = simplified(net, image(1, 4, 5, 6), tmp_path)
    assert counts == {"fold-batch-normalization": 1}
    assert [n.op for n in graph.nodes] == ["Conv"] and graph.nodes[0].outputs == ["y"]
    assert len(graph.constants) == 2  # nothing is left behind


def test_batch_norm_folds_into_transposed_convolution(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 5])
    y = net.op("ConvTranspose", x, net.weight(4, 6, 2, 2, fan_in=4), net.bias(6), strides=[2, 2])
    net.output(net.batch_norm(y, 6), "y", [1, 6, 10, 10])
    assert simplified(net, image(1, 4, 5, 5), tmp_path)[0] == {"fold-batch-normalization": 1}


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (8, 1, 1), (1,), ()], ids=str)
@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_channel_constants_fold(op: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 6])
    constant = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    net.output(net.op(op, constant, net.conv(x, 4, 8, 3)), "y", [1, 8, 5, 6])
    counts, graph = simplified(net, image(1, 4, 5, 6), tmp_path)
    assert counts == {"fold-scale": 1} and [n.op for n in graph.nodes] == ["Conv"]


@pytest.mark.parametrize(
    "shape", [(8,), (5, 8), (8, 8, 8), (1, 8, 1, 8), (1, 1, 8, 1), (2, 1, 1, 1)], ids=str
)
def test_other_constants_do_not_fold(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Constants along rows, columns or images; 8 channels of 8 x 8 make the mistake easy."""
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5 if shape == (5, 8) else 8, 8])
    constant = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    y = net.op("Mul", net.conv(x, 4, 8, 3), constant)
    net.output(y, "y", [2 if shape[0] == 2 and len(shape) == 4 else 1, 8, 5 if shape == (5, 8) else 8, 8])
    assert simplified(net, image(1, 4, 5 if shape == (5, 8) else 8, 8), tmp_path)[0] == {}


def test_constant_that_adds_channels_does_not_fold(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 5])
    y = net.op("Add", net.conv(x, 4, 1, 3), np.arange(3, dtype=np.float32).reshape(3, 1, 1))
    net.output(y, "y", [1, 3, 5, 5])
    assert simplified(net, image(1, 4, 5, 5), tmp_path)[0] == {}


def test_convolution_that_others_read_does_not_fold(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 5])
    y = net.conv(x, 4, 4, 3)
    net.output(net.op("Add", net.batch_norm(y, 4), y), "z", [1, 4, 5, 5])
    assert simplified(net, image(1, 4, 5, 5), tmp_path)[0] == {}


def test_convolution_that_is_an_output_does_not_fold(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 5])
    y = net.conv(x, 4, 4, 3)
    net.output(net.batch_norm(y, 4), "z", [1, 4, 5, 5])
    net.output(y, "y", [1, 4, 5, 5])
    assert simplified(net, image(1, 4, 5, 5), tmp_path)[0] == {}


def test_shared_weights_keep_their_other_use(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 5])
    w = net.const(net.weight(4, 4, 3, 3, fan_in=36))
    one = net.batch_norm(net.op("Conv", x, w, pads=[1, 1, 1, 1]), 4)
    two = net.op("Conv", x, w, pads=[1, 1, 1, 1])
    net.output(net.op("Sub", one, two), "y", [1, 4, 5, 5])
    assert simplified(net, image(1, 4, 5, 5), tmp_path)[0] == {"fold-batch-normalization": 1}


def test_chains_fold_one_after_the_other(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 5, 5])
    y = net.op("Add", net.conv(x, 4, 4, 3, bias=False), net.bias(4).reshape(4, 1, 1))
    y = net.batch_norm(net.op("Mul", y, np.float32(3.0)), 4)
    net.output(y, "y", [1, 4, 5, 5])
    counts, graph = simplified(net, image(1, 4, 5, 5), tmp_path)
    assert counts == {"fold-scale": 2, "fold-batch-normalization": 1} and len(graph.nodes) == 1


def test_constant_outputs_get_a_node(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [2])
    net.output(net.op("Neg", x), "y", [2])
    model = net.model()
    value = np.arange(6, dtype=np.int64).reshape(2, 3)
    model.graph.initializer.append(numpy_helper.from_array(value, "c"))
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.INT64, [2, 3]))
    graph = graph_of(model)
    simplify.simplify(graph)
    assert "c" not in graph.constants and graph.outputs == ["y", "c"]
    write_model(graph, tmp_path / "m.onnx")
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", image(2))[1], value)


def test_channels_last_moves_the_edges_only(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", ["N", 3, 4, 5])
    t = net.input("t", [2, 2])
    y = net.op("Relu", net.conv(x, 3, 2, 3))
    net.output(y, "y", ["N", 2, 4, 5])
    net.output(net.op("Add", net.op("ReduceMean", "y", axes=[0, 1, 2, 3], keepdims=0), t), "z", [2, 2])
    model = net.model()
    graph = graph_of(model)
    simplify.channels_last(graph)
    assert [graph.types[n].shape for n in ("x", "t", "y", "z")] == [
        ("N", 4, 5, 3),
        (2, 2),
        ("N", 4, 5, 2),
        (2, 2),
    ]
    write_model(graph, tmp_path / "m.onnx")
    feeds = {**image(2, 3, 4, 5), "t": np.ones((2, 2), np.float32)}
    wanted = run(model.SerializeToString(), feeds)
    moved = {**feeds, "x": np.ascontiguousarray(feeds["x"].transpose(0, 2, 3, 1))}
    got = run(tmp_path / "m.onnx", moved)
    np.testing.assert_allclose(got[0].transpose(0, 3, 1, 2), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-6)


def test_channels_last_where_an_output_is_read_inside_a_branch(tmp_path: Path) -> None:
    """A subgraph sees the image under the name that it has there."""
    net = Net("n", 1)
    x = net.input("x", [1, 2, 3, 4])
    c = net.input("c", [], TensorProto.BOOL)
    branches = []
    for op in ("Neg", "Relu"):
        node = helper.make_node(op, [x], [f"{op}_out"])
        value = helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, [1, 2, 3, 4])
        branches.append(helper.make_graph([node], op, [], [value]))
    y = net.op("If", c, then_branch=branches[0], else_branch=branches[1])
    net.output(net.op("Slice", y, i64(0), i64(2), i64(3)), "y", [1, 2, 3, 2])
    model = net.model()
    graph = graph_of(model)
    simplify.channels_last(graph)
    write_model(graph, tmp_path / "m.onnx")
    feeds = {**image(1, 2, 3, 4), "c": np.array(True)}
    wanted = run(model.SerializeToString(), feeds)[0]
    got = run(tmp_path / "m.onnx", {**feeds, "x": np.ascontiguousarray(feeds["x"].transpose(0, 2, 3, 1))})[0]
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2), wanted)


def test_batch_norm_that_trains_stays(tmp_path: Path) -> None:
    net = Net("n", 1)
    x = net.input("x", [2, 4, 5, 6])
    y = net.batch_norm(net.conv(x, 4, 8, 3), 8)
    net.output(y, "y", [2, 8, 5, 6])
    model = net.model()
    (bn,) = (n for n in model.graph.node if n.op_type == "BatchNormalization")
    bn.attribute.append(helper.make_attribute("training_mode", 1))
    bn.output.extend(["m", "v"])
    assert not simplify.simplify(graph_of(model))
