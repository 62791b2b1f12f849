"""Sizes for symbolic and unknown dimensions of inputs (row 3), and values for inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_models import F32, model, one, read
from onnx import helper

from cuvil.errors import ModelError
from cuvil.ir.graph import Graph


def pair(left: list[Any], right: list[Any], output: list[Any] | None = None) -> Any:
    return one("Add", {"x": (F32, left), "w": (F32, right)}, outputs={"y": (F32, output)})


def shapes(graph: Graph) -> dict[str, Any]:
    return {name: graph.types[name].shape for name in ("x", "w", "y")}


def refusal(proto: Any, **bindings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(proto, shapes=bindings)
    return str(caught.value)


def test_symbols_stay_and_unnamed_dimensions_get_names() -> None:
    graph = read(pair(["N", None, 4], ["N", 1, 4]))
    assert shapes(graph) == {"x": ("N", "x_d1", 4), "w": ("N", 1, 4), "y": ("N", "x_d1", 4)}


@pytest.mark.parametrize("name", ["?", "None", "-1", "unk__3"])
def test_names_that_name_nothing(name: str) -> None:
    """Exporters write ``?`` for every unknown dimension: two of them are not the same size."""
    graph = read(one("MatMul", {"x": (F32, [name, 4]), "w": (F32, [4, name])}))
    assert shapes(graph) == {"x": ("x_d0", 4), "w": (4, "w_d1"), "y": ("x_d0", "w_d1")}


def test_fresh_name_avoids_one_that_is_taken() -> None:
    assert shapes(read(pair(["N", None], ["x_d1", 1])))["x"] == ("N", "x_d1_1")


def test_binding_a_symbol_reaches_every_use() -> None:
    graph = read(pair(["N", 4], ["N", 4], ["N", 4]), shapes={"x": [3, 4]})
    assert shapes(graph) == {"x": (3, 4), "w": (3, 4), "y": (3, 4)}


def test_binding_a_symbol_reaches_a_subgraph() -> None:
    value = helper.make_tensor_value_info("a", 1, ["N", 4])
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [out])], out, [], [helper.make_tensor_value_info(out, 1, None)]
        )
        for op, out in (("Relu", "a"), ("Neg", "b"))
    ]
    branches[0].output[0].CopyFrom(value)
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    proto = model([choice], {"c": ("bool", []), "x": (F32, ["N", 4])}, ["y"])
    graph = read(proto, shapes={"x": [7, 4]})
    assert graph.nodes[0].attrs["then_branch"].types["a"].shape == (7, 4)


def test_binding_unnamed_dimensions_and_unknown_ranks() -> None:
    assert shapes(read(pair([None, 4], [1, 4]), shapes={"x": [5, 4]}))["y"] == (5, 4)
    unranked = one("Relu", {"x": (F32, None)})
    assert read(unranked).types["x"].shape is None
    assert read(unranked, shapes={"x": (2, 3)}).types["y"].shape == (2, 3)


def test_binding_renames_symbols_and_takes_numpy_integers() -> None:
    assert shapes(read(pair(["N", 4], ["N", 4]), shapes={"x": ["batch", np.int64(4)]}))["y"] == ("batch", 4)


def test_binding_what_the_model_fixes_must_agree() -> None:
    proto = pair([2, 4], [2, 4])
    assert shapes(read(proto, shapes={"x": [2, 4]}))["y"] == (2, 4)
    assert refusal(proto, x=[3, 4]) == "input 'x': dimension 0 is bound to 3, the model fixes it at 2"
    assert refusal(proto, x=["N", 4]) == "input 'x': dimension 0 is bound to N, the model fixes it at 2"
    assert refusal(proto, x=[2, 4, 1]) == "input 'x': bound to 3 dimensions, the model declares 2"


def test_binding_no_input() -> None:
    assert refusal(pair([2], [2]), z=[2]) == "the model has no input 'z' to bind; its inputs are x, w"


def test_binding_one_symbol_to_two_sizes() -> None:
    assert refusal(pair(["N"], ["N"]), x=[2], w=[3]) == "input 'w': dimension 'N' is bound to 2 and to 3"
    assert refusal(pair(["N", "N"], [1]), x=[2, 3]) == "input 'x': dimension 'N' is bound to 2 and to 3"


@pytest.mark.parametrize("size", [-1, 1.5, None, "", True])
def test_what_is_no_size(size: Any) -> None:
    assert (
        refusal(pair(["N"], [1]), x=[size])
        == f"input 'x': {size!r} is not a dimension, only sizes from 0 and names are"
    )


def test_negative_dimension_asks_for_a_binding() -> None:
    proto = pair([-2, 4], [1, 4])
    expected = "input 'x': dimension -2 is negative; bind the shape of the input to one that is possible"
    assert refusal(proto) == expected
    assert shapes(read(proto, shapes={"x": [2, 4]}))["y"] == (2, 4)


def test_overflowing_dimensions_ask_for_a_binding() -> None:
    expected = (
        f"input 'x': shape [{1 << 62}, 4] has more than {1 << 40} elements; "
        "bind the shape of the input to one that is possible"
    )
    assert refusal(one("Relu", {"x": (F32, [1 << 62, 4])})) == expected
    assert refusal(one("Relu", {"x": (F32, ["N", 4])}), x=[1 << 62, 4]) == expected


def test_too_many_dimensions() -> None:
    refused = refusal(one("Relu", {"x": (F32, [1] * 33)}))
    assert refused.startswith("input 'x': 33 dimensions, at most 32 are allowed; bind the shape")


def scaled(kind: str, shape: list[Any] | None) -> Any:
    """y = x * Cast(s): an input `s` of the type asked for beside a float one."""
    nodes = [
        helper.make_node("Cast", ["s"], ["f"], to=1),
        helper.make_node("Mul", ["x", "f"], ["y"]),
    ]
    return model(nodes, {"x": (F32, ["N"]), "s": (kind, shape)}, ["y"])


@pytest.mark.parametrize(
    ("kind", "shape", "given"),
    [
        ("int64", [], 16000),
        ("int64", [], np.int64(16000)),
        ("uint8", [3], [1, 2, 255]),
        ("float32", [], 3),
        ("float32", [2, 1], [[0.5], [2]]),
        ("bool", [], True),
        ("int32", [0], []),
        ("int32", None, [4, 5]),
    ],
)
def test_bound_values_are_constants(kind: str, shape: list[Any] | None, given: Any) -> None:
    graph = read(scaled(kind, shape), values={"s": given})
    assert graph.inputs == ["x"]
    array = graph.constants["s"]
    assert array.dtype == kind and np.array_equal(array, given)


def test_value_binds_the_symbols_of_its_shape() -> None:
    graph = read(pair(["N", 4], ["N", 1]), values={"w": [[1.0], [2.0], [3.0]]})
    assert graph.types["x"].shape == (3, 4)


@pytest.mark.parametrize(
    ("kind", "shape", "given", "message"),
    [
        ("int64", [], 0.5, "the value 0.5 is not of type int64"),
        ("int64", [], True, "the value True is not of type int64"),
        ("int64", [], "16000", "the value 16000 is not of type int64"),
        ("int64", [], 1 << 70, "the value 1180591620717411303424 is not of type int64"),
        ("uint8", [2], [-1, 256], "the value [-1, 256] is not of type uint8"),
        ("bool", [], 1, "the value 1 is not of type bool"),
        ("float32", [], "fast", "the value fast is not of type float32"),
        ("int64", [], [1], "bound to 1 dimensions, the model declares 0"),
        ("int64", [2], [1, 2, 3], "dimension 0 is bound to 3, the model fixes it at 2"),
        ("int64", [2, 2], [[1, 2], [3]], "the value [[1, 2], [3]] is no array: its rows differ in length"),
        ("int64", [30], [*range(29), 0.5],
         "the value [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1... is not of type int64"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(kind: str, shape: list[Any], given: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(scaled(kind, shape), values={"s": given})
    assert str(caught.value) == f"input 's': {message}"


def test_values_of_no_input_or_beside_a_shape() -> None:
    with pytest.raises(ModelError, match=r"^the model has no input 'r' to bind; its inputs are x, s$"):
        read(scaled("int64", []), values={"r": 1})
    with pytest.raises(ModelError, match=r"^input 's': bound to a shape and to a value; the value alone"):
        read(scaled("int64", [1]), shapes={"s": [1]}, values={"s": [1]})
