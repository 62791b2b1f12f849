"""Sequences and optionals against onnxruntime, and what of them must be known at compile time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import native
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from single import node

from cuvil.errors import ModelError, UnsupportedError

Feeds = dict[str, Any]
Case = tuple[onnx.ModelProto, Feeds]

RAGGED = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) + 10 * n for n in (2, 1, 3)]
EQUAL = [np.arange(6, dtype=np.float32).reshape(2, 3) * k for k in (1, -2, 3)]


def value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        dtype = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, dtype, None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Feeds,
    outputs: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A model; `outputs` says for each whether it is a ``tensor`` or a ``seq`` of float32, or an ``int``."""
    made = {
        "tensor": lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, None),
        "int": lambda n: helper.make_tensor_value_info(n, TensorProto.INT64, None),
        "seq": lambda n: helper.make_tensor_sequence_value_info(n, TensorProto.FLOAT, None),
    }
    graph = helper.make_graph(
        list(nodes),
        "g",
        [value_info(name, value) for name, value in feeds.items()],
        [made[kind](name) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def reference(m: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """onnxruntime's outputs, sequences item by item."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = (o.name for o in m.graph.output)
    return list(native.flat(dict(zip(names, session.run(None, feeds)))).values())


def at(position: int, items: Sequence[np.ndarray], known: bool) -> Case:
    """An item, at a position from the model or from the run."""
    place = {"p": np.array(position)}
    feeds: Feeds = {"s": list(items)} | ({} if known else place)
    return model([node("SequenceAt", "s p")], feeds, {"y": "tensor"}, place if known else None), feeds


def changed(op: str, position: int | None, known: bool) -> Case:
    """A sequence with an item more or less."""
    place = {} if position is None else {"p": np.array([position] if known else position)}
    feeds: Feeds = {"s": list(RAGGED), "x": np.float32([[7, 8]])} | ({} if known else place)
    inputs = " ".join(["s", *(["x"] if op == "SequenceInsert" else []), *place])
    return model([node(op, inputs)], feeds, {"y": "seq"}, place if known else None), feeds


def split(sizes: Any, known: bool = True, **attributes: int) -> Case:
    given = {} if sizes is None else {"k": np.array(sizes)}
    feeds: Feeds = {"x": np.arange(35, dtype=np.float32).reshape(5, 7)} | ({} if known else given)
    pieces = node("SplitToSequence", " ".join(["x", *given]), "y", **attributes)
    nodes = [pieces, node("SequenceLength", "y", "n")]
    return model(nodes, feeds, {"y": "seq", "n": "int"}, given if known else None), feeds


def concat(items: Sequence[np.ndarray], **attributes: int) -> Case:
    feeds: Feeds = {"s": list(items)}
    return model([node("ConcatFromSequence", "s", **attributes)], feeds, {"y": "tensor"}), feeds


def mapped() -> Case:
    """A body with a value from around it, an input that is no sequence, and results of both ranks."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "ab"]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("c", "d")]
    body = [node("Add", "a b", "e"), node("Mul", "e w", "c"), node("ReduceSum", "a", "d", keepdims=0)]
    feeds: Feeds = {"s": list(RAGGED), "x": np.float32([1, 2])}
    graph = helper.make_graph(body, "body", inputs, outputs)
    m = model(
        [node("SequenceMap", "s x", "y z", body=graph)], feeds, {"y": "seq", "z": "seq"}, {"w": np.float32(3)}
    )
    return m, feeds


def chosen(flag: bool) -> Case:
    """An If whose branches give sequences of two items with other shapes."""

    def branch(name: str, order: str) -> onnx.GraphProto:
        made = helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([node("SequenceConstruct", order, name)], name, [], [made])

    feeds: Feeds = {"c": np.array(flag), "a": RAGGED[0], "b": RAGGED[1]}
    both = {"then_branch": branch("t", "a b"), "else_branch": branch("e", "b a")}
    return model([node("If", "c", **both)], feeds, {"y": "seq"}), feeds


def loop(steps: int) -> Case:
    """A Loop that appends a growing piece of a tensor, and yields a tensor besides."""
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_sequence_value_info("old", TensorProto.FLOAT, None),
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_sequence_value_info("new", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("first", TensorProto.FLOAT, None),
    ]
    body = [
        node("Identity", "go", "on"),
        node("Add", "i one", "end"),
        node("Slice", "x zero end zero", "piece"),
        node("SequenceInsert", "old piece", "new"),
        node("ReduceMax", "piece", "first", keepdims=0),
    ]
    feeds: Feeds = {"x": np.float32([3, 1, 4, 1, 5])}
    nodes = [
        node("SequenceEmpty", "", "empty"),
        node("Loop", "n yes empty", "y z", body=helper.make_graph(body, "body", inputs, outputs)),
    ]
    constants = {"n": np.array(steps), "yes": np.array(True), "one": np.array([1]), "zero": np.array([0])}
    return model(nodes, feeds, {"y": "seq", "z": "tensor"}, constants), feeds


def tensor_loop(known: bool) -> Case:
    """A Loop of tensors whose body takes an item of an outer sequence at each step, and makes sequences."""
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("sum", TensorProto.FLOAT, [2, 3]),
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("new", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("row", TensorProto.FLOAT, None),
    ]
    body = [
        node("Identity", "go", "on"),
        node("SequenceAt", "s i", "item"),
        node("SequenceConstruct", "sum item", "pair"),
        node("ConcatFromSequence", "pair", "both", axis=0, new_axis=1),
        node("ReduceSum", "both zero", "new", keepdims=0),
        node("SplitToSequence", "new", "rows", axis=0),
        node("SequenceAt", "rows last", "row", name="last"),
    ]
    steps = {"n": np.array(2)}
    feeds: Feeds = {"s": list(EQUAL), "x": EQUAL[0] + 1} | ({} if known else steps)
    constants = {"zero": np.array([0]), "last": np.array(-1), "yes": np.array(True)}
    constants |= steps if known else {}
    graph = helper.make_graph(body, "body", inputs, outputs)
    nodes = [node("Loop", "n yes x", "y z", body=graph)]
    return model(nodes, feeds, {"y": "tensor", "z": "tensor"}, constants), feeds


def chosen_optional(flag: bool) -> Case:
    """An If whose branches both give an optional that is present."""

    def branch(name: str, held: str) -> onnx.GraphProto:
        kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        made = helper.make_value_info(name, kind)
        return helper.make_graph([node("Optional", held, name)], name, [], [made])

    feeds: Feeds = {"c": np.array(flag), "a": RAGGED[0], "b": RAGGED[1]}
    both = {"then_branch": branch("t", "a"), "else_branch": branch("e", "b")}
    nodes = [node("If", "c", "o", **both), node("OptionalGetElement", "o")]
    return model(nodes, feeds, {"y": "tensor"}), feeds


def optional() -> Case:
    """An optional that is made, asked for and opened."""
    feeds: Feeds = {"x": np.float32([1, 2])}
    nodes = [
        node("Optional", "x", "o"),
        node("OptionalHasElement", "o", "h"),
        node("OptionalGetElement", "o", "v"),
        node("Cast", "h", "f", to=TensorProto.FLOAT),
        node("Add", "v f", "y"),
    ]
    return model(nodes, feeds, {"y": "tensor"}), feeds


CASES: dict[str, Case] = {
    "at 1": at(1, RAGGED, True),
    "at -1": at(-1, RAGGED, True),
    **{f"at {p} at run time": at(p, RAGGED, False) for p in (0, 2, -2)},
    "at equal": at(1, EQUAL, False),
    **{f"insert {p} {k}": changed("SequenceInsert", p, k) for p in (0, 2, -1, 3) for k in (True, False)},
    **{f"erase {p} {k}": changed("SequenceErase", p, k) for p in (0, 2, -2) for k in (True, False)},
    "insert": changed("SequenceInsert", None, True),
    "erase": changed("SequenceErase", None, True),
    "split": split(None, axis=1),
    "split, no axis": split(None, axis=-2, keepdims=0),
    "split by 2": split(2, axis=0),
    "split by sizes": split([3, 0, 4], axis=1, keepdims=0),
    "split by sizes of the run": split([3, 4], known=False, axis=1),
    "concat": concat(RAGGED, axis=0),
    "concat, new axis": concat(EQUAL, axis=-1, new_axis=1),
    "map": mapped(),
    "if true": chosen(True),
    "if false": chosen(False),
    "loop": loop(3),
    "loop without steps": loop(0),
    "loop of tensors": tensor_loop(True),
    "loop of tensors, steps of the run": tensor_loop(False),
    "optional": optional(),
    "optional, if true": chosen_optional(True),
    "optional, if false": chosen_optional(False),
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Any]]:
    return native.outputs(CASES)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str, results: dict[str, list[Any]]) -> None:
    for got, want in zip(results[name], reference(*CASES[name]), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_strings_are_items_too() -> None:
    feeds: Feeds = {"s": [np.array(["a", "bc"], object), np.array(["déf"], object)]}
    nodes = [node("SequenceAt", "s p", "x"), node("SequenceInsert", "s x", "t"),
             node("ConcatFromSequence", "t", "y", axis=0)]  # fmt: skip
    m = model(nodes, feeds, {"y": "tensor"}, {"p": np.array(1)})
    m.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    (y,) = native.outputs({"strings": (m, feeds)})["strings"]
    assert y.tolist() == ["a", "bc", "déf", "déf"]


@pytest.mark.parametrize("position", [3, -4])
def test_a_position_of_the_run_outside_of_the_sequence_is_an_error(position: int) -> None:
    m, feeds = at(position, RAGGED, False)
    s = native.prepare(m, feeds=feeds)
    task = native.call("far", s, native.build({"far": s})["far"], native.flat(feeds))
    assert native.run([task])["far"] == "returned error code 5"


REFUSED = {
    "position 3 is outside of [-3, 2]": at(3, RAGGED, True),
    "items of several ranks, or of strings, need a position that is known at compile time": at(
        0, [np.float32([1]), np.float32(2)], False
    ),
    "item 1 has size 1 at axis 0, item 0 has 2": concat(RAGGED, axis=1),
    "the items differ in rank": concat([np.float32([1]), np.float32([[1]])], axis=0),
    "the sizes in split do not add up to 7, the size of axis 1": split([3, 3], axis=1),
    "input 'split' depends on the data; it must be known at compile time": split(2, known=False),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused(message: str) -> None:
    m, feeds = REFUSED[message]
    with pytest.raises((ModelError, UnsupportedError)) as caught:
        native.prepare(m, feeds=feeds)
    assert message in str(caught.value)


def test_branches_with_other_numbers_of_items_need_a_known_condition() -> None:
    m, feeds = chosen(True)
    m.graph.node[0].attribute[0].g.node[0].input.append("a")
    message = r"sequences of 2 and 3 items; the condition must then be known at compile time"
    with pytest.raises(UnsupportedError, match=message):
        native.prepare(m, feeds=feeds)


def test_a_loop_with_a_sequence_needs_a_known_number_of_steps() -> None:
    m, feeds = loop(2)
    kept = [t for t in m.graph.initializer if t.name != "n"]
    del m.graph.initializer[:]
    m.graph.initializer.extend(kept)
    m.graph.input.append(value_info("n", np.array(2)))
    message = r"a state is a sequence or an optional; the number of steps must then be known at compile time"
    with pytest.raises(UnsupportedError, match=message):
        native.prepare(m, feeds=feeds)
