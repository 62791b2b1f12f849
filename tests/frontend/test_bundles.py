"""Sequences and optionals at a model's interface: the flat graph, its file, what is not bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from cuvil.errors import ModelError
from cuvil.frontend.bundles import open_inputs
from cuvil.frontend.importer import import_model
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.onnx_writer import to_bytes, write_model
from cuvil.ir.graph import Bundle, TensorType

ELEMENT = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
SEQUENCE = helper.make_sequence_type_proto(ELEMENT)
KINDS = {
    "t": helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3]),
    "s": helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [])),
    "o": helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])),
    "q": helper.make_optional_type_proto(SEQUENCE),
}
"""Inputs; the shape that the sequence declares is not that of its items, as in ONNX's own tests."""


def model() -> onnx.ModelProto:
    """Each input passed on, next to a tensor that is computed."""
    nodes = [
        *(helper.make_node("Identity", [name], [name.upper()]) for name in "soq"),
        helper.make_node("Relu", ["t"], ["T"]),
    ]
    types = KINDS | {name.upper(): kind for name, kind in KINDS.items()}
    inputs = [helper.make_value_info(name, types[name]) for name in "tsoq"]
    outputs = [helper.make_value_info(name, types[name]) for name in "SOTQ"]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


PRESENT: dict[str, Any] = {"s": [[2, 3], ["n", 3]], "o": [4], "q": [[1]]}


def imported(tmp_path: Path, shapes: dict[str, Any]) -> Any:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    return import_model(path, shapes)


def test_a_model_becomes_flat(tmp_path: Path) -> None:
    graph = imported(tmp_path, PRESENT)
    assert graph.inputs == ["t", "s[0]", "s[1]", "o", "q[0]"]
    assert graph.outputs == ["S[0]", "S[1]", "O", "T", "Q[0]"]
    assert graph.input_bundles == (
        Bundle("s", "seq(float32)", ("s[0]", "s[1]"), 1),
        Bundle("o", "optional(float32)", ("o",), 3),
        Bundle("q", "optional(seq(float32))", ("q[0]",), 4),
    )
    assert [(b.name, b.items, b.at) for b in graph.output_bundles] == [
        ("S", ("S[0]", "S[1]"), 0), ("O", ("O",), 2), ("Q", ("Q[0]",), 4),
    ]  # fmt: skip
    shapes = {name: graph.types[name].shape for name in (*graph.inputs, *graph.outputs)}
    assert shapes["s[0]"] == shapes["S[0]"] == (2, 3)
    assert shapes["s[1]"] == shapes["S[1]"] == shapes["t"] == (4, 3)  # o has bound n
    assert graph.types["O"] == TensorType("float32", (4,))


def test_what_is_absent_is_no_argument(tmp_path: Path) -> None:
    graph = imported(tmp_path, {"s": [], "o": None, "q": None})
    assert (graph.inputs, graph.outputs) == (["t"], ["T"])
    assert [(b.name, b.items, b.at) for b in graph.input_bundles] == [
        ("s", (), 1), ("o", None, 1), ("q", None, 1),
    ]  # fmt: skip
    assert [(b.name, b.items, b.at) for b in graph.output_bundles] == [
        ("S", (), 0), ("O", None, 0), ("Q", None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("shapes", [PRESENT, {"s": [], "o": None, "q": None}], ids=["present", "absent"])
def test_the_file_imports_as_itself(tmp_path: Path, shapes: dict[str, Any]) -> None:
    graph = imported(tmp_path, shapes)
    write_model(graph, tmp_path / "graph.onnx")
    again = import_model(tmp_path / "graph.onnx")
    assert to_bytes(again) == (tmp_path / "graph.onnx").read_bytes()
    assert again.input_bundles == graph.input_bundles and again.output_bundles == graph.output_bundles


def test_items_of_different_sizes_have_different_symbols() -> None:
    """onnx's inference gives one name to the sizes of all items."""
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"]),
        helper.make_node("SequenceAt", ["s", "zero"], ["x"]),
        helper.make_node("SequenceAt", ["s", "one"], ["y"]),
        helper.make_node("Concat", ["x", "y"], ["z"], axis=0),
    ]
    inputs = [helper.make_tensor_value_info(name, 1, [n, 2]) for name, n in (("a", 3), ("b", 5))]
    constants = [helper.make_tensor(name, 7, [], [k]) for k, name in enumerate(("zero", "one"))]
    outputs = [onnx.ValueInfoProto(name=name) for name in "xyz"]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    read = graph_from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    first, second = (read.types[name].shape or () for name in "xy")
    assert first[0] != second[0] and first[1] == second[1] == 2


def test_which_inputs_are_open() -> None:
    proto = model()
    proto.graph.input.append(helper.make_value_info("u", ELEMENT))
    assert open_inputs(proto) == ["s", "o", "q", "u"]


HOW = {
    "s": "is seq(float32): bind the shape of each item, with shapes {s: [[2, 3], [4, 3]]} or"
    " --shape 's=[[2,3],[4,3]]'",
    "o": "is optional(float32): bind the shape, with shapes {o: [2, 3]} or --shape 'o=2,3';"
    " o: null where it is absent",
    "q": "is optional(seq(float32)): bind the shape of each item, with shapes {q: [[2, 3], [4, 3]]} or"
    " --shape 'q=[[2,3],[4,3]]'; q: null where it is absent",
}


@pytest.mark.parametrize("name", HOW)
def test_the_error_of_what_is_not_bound_says_how(name: str) -> None:
    shapes = {other: shape for other, shape in PRESENT.items() if other != name}
    with pytest.raises(ModelError, match=f"^{re.escape(f'input {name!r}: {HOW[name]}')}$"):
        graph_from_proto(model(), shapes=shapes)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"s": None}, "input 's': only an optional can be absent"),
        ({"s": [2, 3]}, "input 's': is a sequence, which is bound to a list of shapes, one for each item"),
        ({"t": [[2, 3]]}, "input 't': is a tensor, which is bound to one shape, not to a list of shapes"),
        ({"t": None}, "input 't': only an optional can be absent"),
        ({"o": [[4]]}, "input 'o': is a tensor, which is bound to one shape, not to a list of shapes"),
        ({"o": [4, 4]}, "input 'o': bound to 2 dimensions, the model declares 1"),
        ({"s": [[-1]]}, "input 's[0]': -1 is not a dimension, only sizes from 0 and names are"),
    ],
)
def test_bindings_that_do_not_fit(shapes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        graph_from_proto(model(), shapes=PRESENT | shapes)


def test_a_sequence_is_not_bound_to_values() -> None:
    message = r"^input 's': has type seq\(float32\); only tensors are bound to values$"
    with pytest.raises(ModelError, match=message):
        graph_from_proto(model(), shapes={"o": [4], "q": None}, values={"s": [[1.0]]})
