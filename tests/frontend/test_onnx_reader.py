"""The structure of models: names, order, scopes, versions, functions (rows 6, 7 and 9)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from frontend_models import F32, model, one, read, value
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.ir.graph import TensorType

X = {"x": (F32, [2, 3])}
NEWEST = onnx.defs.onnx_opset_version()


def node(op: str, inputs: str, outputs: str, name: str = "", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=name, **attrs)


def refusal(proto: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        graph_from_proto(proto)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Order and names


def test_unsorted_nodes_are_sorted_and_otherwise_keep_their_order() -> None:
    nodes = [node("Add", "a b", "y"), node("Relu", "x", "a"), node("Neg", "x", "b"), node("Abs", "y", "z")]
    assert [n.op for n in read(model(nodes, X, ["z"])).nodes] == ["Relu", "Neg", "Add", "Abs"]


def test_cycle() -> None:
    nodes = [node("Add", "x b", "a", "first"), node("Relu", "a", "b", "second")]
    expected = "node 'first' (Add): the nodes form a cycle: 'first' <- 'second' <- 'first'"
    assert refusal(model(nodes, X, ["b"])) == expected


def test_node_that_reads_itself() -> None:
    expected = "node 'y' (Add): the nodes form a cycle: 'y' <- 'y'"
    assert refusal(model([node("Add", "x y", "y")], X, ["y"])) == expected


def test_undefined_input() -> None:
    expected = "node 'n' (Add): input 'w' is not produced by any node, input or initializer"
    assert refusal(one("Add", X, order=["x", "w"])) == expected


def test_undefined_output() -> None:
    expected = "graph 'test': output 'z' is not produced by any node"
    assert refusal(model([node("Relu", "x", "y")], X, ["z"])) == expected


def test_output_produced_twice() -> None:
    nodes = [node("Relu", "x", "y", "first"), node("Neg", "x", "y", "second")]
    expected = "node 'second' (Neg): output 'y' is already the name of another value"
    assert refusal(model(nodes, X, ["y"])) == expected


def test_output_that_has_an_inputs_name() -> None:
    expected = "node 'x' (Relu): output 'x' is already the name of another value"
    assert refusal(model([node("Relu", "x", "x")], X, ["x"])) == expected


def test_no_outputs() -> None:
    assert refusal(model([node("Relu", "x", "y")], X, [])) == "graph 'test': the model has no outputs"


def test_output_and_initializer_listed_twice() -> None:
    twice = model([node("Relu", "x", "y")], X, ["y"])
    twice.graph.output.append(twice.graph.output[0])
    assert refusal(twice) == "graph 'test': input or output 'y' is listed twice"
    again = one("Add", X, {"w": np.zeros(3, np.float32)})
    again.graph.initializer.append(again.graph.initializer[0])
    assert refusal(again) == "graph 'test': initializer 'w' is given twice"


def test_input_without_type() -> None:
    proto = one("Relu", X)
    proto.graph.input[0].ClearField("type")
    assert refusal(proto) == "input 'x': the model declares no type"


@pytest.mark.parametrize(
    "name", ["a*/ int evil(void){} /*", "int", "free", "\U0001f600", "n" * 10_000, "../../x", "a.b", "%s%n"]
)
def test_odd_names_are_only_names(name: str) -> None:
    proto = model([helper.make_node("Relu", ["x"], [name], name=name)], X, [name])
    graph = read(proto)
    assert graph.outputs == [name] and graph.nodes[0].name == name


def test_names_with_control_characters_or_broken_utf8() -> None:
    proto = model([node("Relu", "x", "y")], X, ["y"])
    proto.graph.node[0].name = "a\nb"
    assert refusal(proto) == "graph 'test': a name has control characters or is not UTF-8"
    broken = proto.SerializeToString().replace(b"a\nb", b"a\xffb")
    assert (
        refusal(onnx.ModelProto.FromString(broken))
        == "graph 'test': a name has control characters or is not UTF-8"
    )


# Operators and versions


def test_opset_too_new() -> None:
    expected = f"opset 999 is not supported, it must be one of 1 to {NEWEST}"
    assert refusal(one("Relu", X, opset=999)) == expected


def test_opset_missing() -> None:
    expected = f"the model imports no version of the default operator domain, it must be one of 1 to {NEWEST}"
    assert refusal(model([node("Relu", "x", "y")], X, ["y"], opset=None)) == expected


def test_two_opsets_of_one_domain() -> None:
    proto = model([node("Relu", "x", "y")], X, ["y"], opsets=[helper.make_opsetid("ai.onnx", 13)])
    assert refusal(proto) == "the model imports opsets [13, 21] of the default domain at once"


def test_unknown_domain() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["y"], domain="my.own", name="n")]
    expected = r"node 'n' \(Foo\): operator domain 'my.own' is not supported, only 'ai.onnx', .*soft' are"
    with pytest.raises(UnsupportedError, match=expected):
        graph_from_proto(model(nodes, X, ["y"], opsets=[helper.make_opsetid("my.own", 1)]))


def momentum(**attrs: object) -> onnx.ModelProto:
    domain = "ai.onnx.preview.training"
    inputs = {"r": (F32, []), "t": ("int64", []), **{n: (F32, [2]) for n in "xgv"}}
    attrs = {"alpha": 0.9, "beta": 0.1, "mode": "standard", "norm_coefficient": 0.0} | attrs
    made = helper.make_node("Momentum", list("rtxgv"), ["y", "w"], domain=domain, **attrs)
    return model([made], inputs, ["y"], opsets=[helper.make_opsetid(domain, 1)])


def test_nodes_of_a_known_domain_are_checked_and_typed() -> None:
    assert read(momentum()).types["y"] == TensorType("float32", (2,))
    assert "unknown attribute 'nesterov'; allowed are alpha, beta" in refusal(momentum(nesterov=1))
    assert refusal(momentum(beta=1)) == "node 'y' (Momentum): attribute 'beta' must be of type FLOAT"


def test_unused_foreign_opsets_do_no_harm() -> None:
    proto = model([node("Relu", "x", "y")], X, ["y"], opsets=[helper.make_opsetid("ai.onnx.ml", 3)])
    assert read(proto).opset == 21


def test_microsofts_operators_pass() -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")]
    proto = model(nodes, X, {"y": (F32, [2, 3])}, opsets=[helper.make_opsetid("com.microsoft", 1)])
    graph = read(proto)
    assert graph.nodes[0].domain == "com.microsoft"
    assert graph.types["y"] == TensorType(F32, (2, 3))


def test_long_name_of_the_default_domain() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")], X, ["y"])
    assert read(proto).nodes[0].domain == ""


def test_operator_without_a_type() -> None:
    assert refusal(model([node("", "x", "y")], X, ["y"])) == "node 'y' (): the node has no operator"


# Constants


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"value": numpy_helper.from_array(np.array([1, 2], np.uint8))}, np.array([1, 2], np.uint8)),
        ({"value_float": 1.5}, np.array(1.5, np.float32)),
        ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2], np.float32)),
        ({"value_int": 7}, np.array(7, np.int64)),
        ({"value_ints": [7, 8]}, np.array([7, 8], np.int64)),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
    ],
)
def test_forms_of_constants(attrs: dict[str, object], expected: np.ndarray) -> None:
    graph = read(model([helper.make_node("Constant", [], ["y"], **attrs)], {}, {"y": (F32, None)}))
    found = graph.constants["y"]
    assert graph.nodes == [] and (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


def test_sparse_constant_and_initializer() -> None:
    values = numpy_helper.from_array(np.array([5.0], np.float32), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([2])), [4])
    proto = model(
        [helper.make_node("Constant", [], ["c"], sparse_value=sparse), node("Add", "c s", "y")], {}, ["y"]
    )
    proto.graph.sparse_initializer.append(sparse)
    graph = read(proto)
    assert graph.constants["c"].tolist() == graph.constants["s"].tolist() == [0, 0, 5, 0]


def test_constant_without_or_with_two_values() -> None:
    expected = "node 'y' (Constant): a constant has one output and exactly one value"
    assert refusal(model([helper.make_node("Constant", [], ["y"])], {}, ["y"])) == expected
    assert (
        refusal(model([helper.make_node("Constant", [], ["y"], value_int=1, value_float=1.0)], {}, ["y"]))
        == expected
    )
    wrong = helper.make_node("Constant", [], ["y"], value=1)
    assert (
        refusal(model([wrong], {}, ["y"]))
        == "node 'y' (Constant): attribute 'value' is no value of a constant"
    )


def test_initializers_among_the_inputs_are_constants() -> None:
    proto = one("Add", {**X, "w": (F32, [3])})
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    graph = read(proto)
    assert graph.inputs == ["x"] and list(graph.constants) == ["w"]


# Attributes


def test_attributes_become_plain_values() -> None:
    attrs = dict(axes=[1], mode="linear", cubic_coeff_a=-0.5, antialias=1)
    graph = read(one("Resize", X, {"s": np.ones(1, np.float32)}, ["x", "", "s"], **attrs))
    assert graph.nodes[0].attrs == attrs
    assert [type(graph.nodes[0].attrs[key]) for key in attrs] == [list, str, float, int]


def test_attribute_twice_untyped_or_foreign() -> None:
    proto = one("Softmax", X, axis=1)
    proto.graph.node[0].attribute.append(proto.graph.node[0].attribute[0])
    assert refusal(proto) == "node 'n' (Softmax): attribute 'axis' is given twice"
    untyped = one("Softmax", X)
    untyped.graph.node[0].attribute.append(AttributeProto(name="axis", i=1))
    expected = (
        "node 'n' (Softmax) attribute 'axis': the attribute has no type or refers to one outside a function"
    )
    assert refusal(untyped) == expected
    tensors = one("Softmax", X)
    tensors.graph.node[0].attribute.append(AttributeProto(name="axis", type=AttributeProto.TENSORS))
    assert (
        refusal(tensors)
        == "node 'n' (Softmax) attribute 'axis': attributes of type TENSORS are not supported"
    )


def test_metadata_of_nodes_is_kept() -> None:
    proto = one("Relu", X)
    proto.graph.node[0].metadata_props.add(key="from", value="line 1\nline 2")
    assert read(proto).nodes[0].metadata == {"from": "line 1\nline 2"}


# Subgraphs


def branch(name: str, op: str = "Relu", reads: str = "x") -> onnx.GraphProto:
    return helper.make_graph([node(op, reads, name)], f"branch_{name}", [], [value(name, F32, None)])


def if_model(then: onnx.GraphProto, other: onnx.GraphProto, **more: object) -> onnx.ModelProto:
    choice = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model([choice], {"c": ("bool", []), **X}, ["y"], **more)


def test_subgraphs_are_graphs_with_types() -> None:
    graph = read(if_model(branch("a"), branch("b", "Neg")))
    then = graph.nodes[0].attrs["then_branch"]
    assert [n.op for n in then.nodes] == ["Relu"]
    assert then.types["a"] == TensorType(F32, (2, 3))
    assert graph.types["y"] == TensorType(F32, (2, 3))


def test_inner_name_that_hides_an_outer_one() -> None:
    hiding = helper.make_graph([node("Relu", "x", "c")], "g", [], [value("c", F32, None)])
    expected = "node 'c' (Relu): output 'c' is already the name of another value"
    assert refusal(if_model(hiding, branch("b"))) == expected
    weight = branch("a", "Add", "x w")
    weight.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    outer = if_model(weight, branch("b"))
    outer.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    assert refusal(outer) == "graph 'branch_a': 'w' is already the name of a value outside this subgraph"


def test_undefined_value_in_a_subgraph() -> None:
    expected = "node 'a' (Relu): input 'nowhere' is not produced by any node, input or initializer"
    assert refusal(if_model(branch("a", reads="nowhere"), branch("b"))) == expected


def test_subgraph_that_reads_its_own_nodes_result() -> None:
    assert refusal(if_model(branch("a", reads="y"), branch("b"))).startswith(
        "node 'y' (If): the nodes form a cycle"
    )


# Local functions


def function(name: str, nodes: list[onnx.NodeProto], opset: int = 21) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["p"], ["q"], nodes, opsets)


def call(name: str, reads: str, makes: str) -> onnx.NodeProto:
    return helper.make_node(name, [reads], [makes], domain="f")


def test_functions_are_inlined() -> None:
    twice = function("Twice", [node("Add", "p p", "q")])
    four = function("Four", [call("Twice", "p", "t"), call("Twice", "t", "q")])
    proto = model(
        [call("Four", "x", "y")], X, ["y"], opsets=[helper.make_opsetid("f", 1)], functions=[four, twice]
    )
    graph = read(proto)
    assert [n.op for n in graph.nodes] == ["Add", "Add"]
    assert graph.types["y"] == TensorType(F32, (2, 3))


def test_functions_that_call_each_other() -> None:
    functions = [function("A", [call("B", "p", "q")]), function("B", [call("A", "p", "q")])]
    proto = model([call("A", "x", "y")], X, ["y"], opsets=[helper.make_opsetid("f", 1)], functions=functions)
    assert refusal(proto).startswith("local functions call each other in a circle: ")


def test_functions_that_would_explode() -> None:
    """Thirty functions that each call the next one twice: 2**30 nodes from a file of a few kB."""
    levels = [
        function(f"F{i}", [call(f"F{i + 1}", "p", "t"), call(f"F{i + 1}", "t", "q")]) for i in range(30)
    ]
    levels.append(function("F30", [node("Relu", "p", "q")]))
    proto = model([call("F0", "x", "y")], X, ["y"], opsets=[helper.make_opsetid("f", 1)], functions=levels)
    assert refusal(proto) == "the model has more than 100000 nodes once its local functions are expanded"


# Aliases


def test_identities_and_dropouts_are_renamed_away() -> None:
    nodes = [
        node("Identity", "x", "a"),
        node("Relu", "a", "b"),
        node("Dropout", "b", "d mask"),
        node("Identity", "d", "e"),
        node("Neg", "e", "f"),
        node("Identity", "f", "y"),
    ]
    graph = read(model(nodes, X, ["y"]))
    assert [(n.op, n.inputs, n.outputs) for n in graph.nodes] == [
        ("Relu", ["x"], ["b"]),
        ("Neg", ["b"], ["y"]),
    ]
    assert set(graph.types) == {"x", "b", "y"}


def test_identities_that_renaming_cannot_replace_stay() -> None:
    nodes = [node("Identity", "x", "y"), node("Relu", "x", "z"), node("Identity", "z", "w")]
    graph = read(model(nodes, X, ["y", "z", "w"]))
    assert [(n.op, n.outputs) for n in graph.nodes] == [
        ("Identity", ["y"]),
        ("Relu", ["z"]),
        ("Identity", ["w"]),
    ]


def test_dropout_in_training_or_with_a_read_mask_stays() -> None:
    constants = {"r": np.float32(0.5), "t": np.array(True)}
    assert [n.op for n in read(one("Dropout", X, constants)).nodes] == ["Dropout"]
    masked = model([node("Dropout", "x", "y m")], X, {"y": (F32, None), "m": ("bool", None)})
    assert [n.op for n in read(masked).nodes] == ["Dropout"]


def test_alias_read_inside_a_branch() -> None:
    proto = if_model(branch("a", reads="z"), branch("b"))
    proto.graph.node.insert(0, node("Identity", "x", "z"))
    graph = read(proto)
    assert [n.op for n in graph.nodes] == ["If"]
    assert graph.nodes[0].attrs["then_branch"].nodes[0].inputs == ["x"]


# Types


def test_element_types_that_are_not_there() -> None:
    proto = one("Relu", X)
    proto.graph.input[0].type.tensor_type.elem_type = 99
    assert refusal(proto) == "input 'x': unknown element type 99"
    undefined = one("Relu", X)
    undefined.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    assert refusal(undefined) == "input 'x': the model declares no type"


def test_onnxruntimes_operators_in_onnxs_domain() -> None:
    """Its optimizer writes SimplifiedLayerNormalization so; one that ONNX has stays ONNX's."""
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["z"], axis=-1, epsilon=1e-5),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    graph = read(model(nodes, {"x": (F32, [2, 3]), "s": (F32, [3])}, ["y"]))
    assert [(n.domain, n.op) for n in graph.nodes] == [
        ("com.microsoft", "SimplifiedLayerNormalization"),
        ("", "Relu"),
    ]


def flex_attention(kind: str) -> onnx.ModelProto:
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview")
    inputs = {name: (kind, [1, 2, 3, 4]) for name in "qkv"}
    return model(
        [node], inputs, {"y": (kind, None)}, opset=26, opsets=[helper.make_opsetid("ai.onnx.preview", 1)]
    )


def test_a_preview_operator_is_expanded() -> None:
    graph = read(flex_attention(F32))
    assert {n.domain for n in graph.nodes} == {""} and "Softmax" in {n.op for n in graph.nodes}
    assert graph.types["y"].shape == (1, 2, 3, 4)


def test_a_preview_operator_that_does_not_fit_is_refused() -> None:
    few, typed, unknown = flex_attention(F32), flex_attention(F32), flex_attention(F32)
    del few.graph.node[0].input[2]
    typed.graph.node[0].attribute.append(helper.make_attribute("scale", "x"))
    unknown.graph.node[0].op_type = "Foo"
    assert refusal(few) == "node 'y' (FlexAttention): 2 inputs are not allowed"
    assert refusal(typed) == "node 'y' (FlexAttention): attribute 'scale' of type STRING is not allowed"
    assert refusal(unknown).startswith("node 'y' (Foo): operator domain 'ai.onnx.preview' is not supported")


def test_stft_is_one_sided_by_default() -> None:
    """The specification's default; onnx's shape inference takes the other."""
    inputs, constants = {"x": (F32, [1, 128, 1])}, {"s": np.int64(8), "l": np.int64(16)}
    graph = read(one("STFT", inputs, constants, ["x", "s", "", "l"]))
    assert graph.types["y"].shape == (1, 15, 9, 2)
