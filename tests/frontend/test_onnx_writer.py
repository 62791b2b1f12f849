"""Graphs to ONNX files: valid for any tool, the same bytes every time, and read back as they were."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend_models import F32, model, one, read, run, same, save, value
from onnx import helper

from cuvil.errors import ModelError
from cuvil.frontend import onnx_writer
from cuvil.frontend.importer import import_model
from cuvil.frontend.onnx_reader import read_model
from cuvil.frontend.onnx_writer import to_bytes, to_proto, write_model
from cuvil.ir.graph import Graph, Node, TensorType

ROOT = Path(__file__).resolve().parents[2]


def branchy() -> onnx.ModelProto:
    """Symbolic sizes, subgraphs with constants, every kind of attribute, small types, metadata."""
    constant = helper.make_node("Constant", [], ["k"], value_floats=[2.0, 3.0])
    product = helper.make_node("Mul", ["x", "k"], ["a"])
    then = helper.make_graph([constant, product], "then", [], [value("a", F32, None)])
    other = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["b"], axis=-1)], "else", [], [value("b", F32, None)]
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], name="choice", then_branch=then, else_branch=other),
        helper.make_node("Einsum", ["i", "w"], ["e"], equation="ij,jk->ik"),
        helper.make_node("LeakyRelu", ["e"], ["l"], alpha=0.125),
        helper.make_node("Transpose", ["l"], ["y"], perm=[1, 0]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["z"], axis=0),
        helper.make_node("Gelu", ["z"], ["g"], domain="com.microsoft"),
    ]
    nodes[2].metadata_props.add(key="layer", value="7")
    constants = {
        "w": np.ones((2, 3), np.float32),
        "q": np.array([[1, -2], [3, 4]], ml_dtypes.int4),
        "s": np.array([0.5, 2], np.float32),
    }
    inputs = {"c": ("bool", []), "x": (F32, ["N", 2])}
    outputs = {"y": (F32, None), "g": (F32, [2, 2])}
    return model(nodes, inputs, outputs, constants, opsets=[helper.make_opsetid("com.microsoft", 1)])


def test_written_graph_reads_back_the_same(tmp_path: Path) -> None:
    graph = import_model(save(tmp_path, branchy()))
    write_model(graph, tmp_path / "graph.onnx")
    again = read_model(tmp_path / "graph.onnx")
    assert same(again, graph)
    assert [known.shape for known in map(again.types.get, again.outputs) if known] == [(3, "N"), (2, 2)]


def test_read_graph_writes_back_the_same(tmp_path: Path) -> None:
    graph = read(branchy())
    write_model(graph, tmp_path / "graph.onnx")
    assert same(read_model(tmp_path / "graph.onnx"), graph)


def test_written_graph_is_valid_and_says_what_it_is() -> None:
    proto = to_proto(read(branchy()))
    onnx.checker.check_model(proto)
    assert proto.producer_name == "cuvil"
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 21, "com.microsoft": 1}
    infos = {info.name: info for info in proto.graph.value_info}
    assert {"i", "e", "l", "z"} <= set(infos)
    assert infos["e"].type.tensor_type.shape.dim[0].dim_param == "N"
    relu = next(node for node in proto.graph.node if node.op_type == "LeakyRelu")
    assert [(entry.key, entry.value) for entry in relu.metadata_props] == [("layer", "7")]


def test_foreign_opset_is_imported_only_where_it_is_used() -> None:
    proto = to_proto(read(one("Relu", {"x": (F32, [2])})))
    assert [entry.domain for entry in proto.opset_import] == [""]


def test_written_graph_computes_the_same() -> None:
    feeds = {"c": np.array(True), "x": np.array([[1, 2], [3, 4]], np.float32)}
    for left, right in zip(run(branchy(), feeds), run(to_proto(read(branchy())), feeds)):
        np.testing.assert_array_equal(left, right)


def test_same_bytes_under_two_hash_seeds_and_folders(tmp_path: Path) -> None:
    script = (
        "import hashlib, sys; from cuvil.frontend.importer import import_model; "
        "from cuvil.frontend.onnx_writer import to_bytes; "
        "print(hashlib.sha256(to_bytes(import_model(sys.argv[1]))).hexdigest())"
    )
    digests = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "TZ": f"UTC{seed}"}
        done = subprocess.run(
            [sys.executable, "-c", script, str(save(folder, branchy()))],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        digests.add(done.stdout.strip())
    data = to_bytes(import_model(save(tmp_path, branchy())))
    assert digests == {hashlib.sha256(data).hexdigest()}


def test_order_of_attributes_does_not_reach_the_bytes() -> None:
    def graph(**attrs: Any) -> Graph:
        types = {"x": TensorType(F32, (4,)), "y": TensorType(F32, (4,))}
        return Graph("g", ["x"], ["y"], [Node("HardSigmoid", ["x"], ["y"], attrs)], {}, types, 21)

    assert to_bytes(graph(alpha=0.5, beta=0.25)) == to_bytes(graph(beta=0.25, alpha=0.5))


@pytest.mark.parametrize(
    ("op", "key", "expected"),
    [("Transpose", "perm", onnx.AttributeProto.INTS), ("Scan", "scan_input_axes", onnx.AttributeProto.INTS),
     ("RNN", "activations", onnx.AttributeProto.STRINGS),
     ("RNN", "activation_alpha", onnx.AttributeProto.FLOATS)],
)  # fmt: skip
def test_empty_lists_have_the_type_of_their_attribute(op: str, key: str, expected: int) -> None:
    proto = onnx_writer.node_to_proto(Node(op, ["x"], ["y"], {key: []}), 21)
    assert proto.attribute[0].type == expected


def test_numpy_numbers_and_odd_bytes_as_attributes() -> None:
    attrs = {"axis": np.int64(1), "alpha": np.float32(0.5), "sizes": [np.int64(3)], "raw": b"\xff"}
    proto = onnx_writer.node_to_proto(Node("Foo", [], [], attrs, domain="com.microsoft"), 21)
    assert {a.name: helper.get_attribute_value(a) for a in proto.attribute} == {
        "axis": 1, "alpha": 0.5, "sizes": [3], "raw": b"\xff"
    }  # fmt: skip


def test_weights_beyond_what_protobuf_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnx_writer, "MAX_MODEL_BYTES", 1000)
    graph = read(one("Add", {"x": (F32, [300])}, {"w": np.ones(300, np.float32)}))
    with pytest.raises(ModelError) as caught:
        write_model(graph, tmp_path / "graph.onnx")
    assert str(caught.value) == "test: the graph needs 1200 bytes, an ONNX file holds less than 1000"
    assert list(tmp_path.iterdir()) == []
    small = read(one("Relu", {"x": (F32, [2])}))
    small.nodes[0].metadata["long"] = "x" * 1000
    with pytest.raises(ModelError, match=r"^test: the graph needs 1\d\d\d bytes"):
        write_model(small, tmp_path / "graph.onnx")


def test_nothing_but_the_file_is_left_behind(tmp_path: Path) -> None:
    write_model(read(one("Relu", {"x": (F32, [2])})), tmp_path / "deep" / "graph.onnx")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["graph.onnx"]
