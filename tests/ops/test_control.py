"""If against onnxruntime: both branches computed and selected, or one where the condition is known."""

from __future__ import annotations

import native
import numpy as np
import onnx
import pytest
from branch_cases import IFS
from families import BAD_VALUE, Outcome, assert_agrees, outcomes
from onnx import TensorProto, helper
from single import Array, model, node, reference

from cuvil.errors import UnsupportedError

Case = tuple[onnx.ModelProto, dict[str, Array]]


def branch(name: str, nodes: list[onnx.NodeProto], *outputs: str) -> onnx.GraphProto:
    values = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    return helper.make_graph(nodes, name, [], values)


def choice(
    condition: str, then: onnx.GraphProto, other: onnx.GraphProto, outputs: str = "y"
) -> onnx.NodeProto:
    return node("If", condition, outputs, then_branch=then, else_branch=other)


def plain(flag: bool) -> Case:
    """The branches read values from around them, one of them a constant."""
    feeds = {"c": np.array(flag), "x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    then = branch("t", [node("Mul", "x two", "a"), node("Add", "a x", "b")], "b", "a")
    other = branch("e", [node("Neg", "x", "p"), node("Exp", "x", "q")], "p", "q")
    return model(
        [choice("c", then, other, "y z")], feeds, ["y", "z"], {"two": np.float32([2])}, {"x": ["n", 3]}
    ), feeds


def nested(outer: bool, inner: bool) -> Case:
    feeds = {"c": np.array([outer]), "d": np.array(inner), "x": np.float32([1, -2])}
    deep = choice(
        "d", branch("dt", [node("Abs", "x", "u")], "u"), branch("de", [node("Exp", "x", "v")], "v"), "w"
    )
    then = branch("t", [deep], "w")
    other = branch("e", [node("Identity", "x", "o")], "o")
    return model([choice("c", then, other)], feeds, ["y"]), feeds


def by_size(length: int) -> Case:
    """The condition is a comparison of sizes; the branches have other shapes."""
    feeds = {"x": np.arange(length * 2, dtype=np.float32).reshape(length, 2)}
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Squeeze", "s", "n"),
        node("Equal", "n one", "c"),
        choice(
            "c", branch("t", [node("Squeeze", "x axes", "a")], "a"), branch("e", [node("Neg", "x", "b")], "b")
        ),
    ]
    return model(nodes, feeds, ["y"], {"one": np.array(1), "axes": np.array([0])}), feeds


CASES = {
    "true": plain(True),
    "false": plain(False),
    **{f"nested {a} {b}": nested(a, b) for a in (True, False) for b in (True, False)},
}
SIZES = {"one row": 1, "three rows": 3}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**CASES, **{name: by_size(n) for name, n in SIZES.items()}})


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    for got, want in zip(results[name], reference(*CASES[name]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", SIZES)
def test_a_condition_on_sizes_takes_one_branch(name: str, results: dict[str, list[Array]]) -> None:
    x = by_size(SIZES[name])[1]["x"]
    np.testing.assert_array_equal(results[name][0], x[0] if len(x) == 1 else -x)


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[list[Outcome], list[Outcome]]]:
    return outcomes(IFS)


@pytest.mark.parametrize("name", IFS)
def test_sizes_of_the_branch_that_is_taken(
    name: str, found: dict[str, tuple[list[Outcome], list[Outcome]]]
) -> None:
    assert_agrees(IFS[name], found[name][0])
    assert dict(enumerate(found[name][1])) == dict.fromkeys(range(len(IFS[name].wrong)), BAD_VALUE)


def test_ranks_that_differ_are_refused() -> None:
    feeds = {"c": np.array(True), "x": np.zeros((1, 3), np.float32)}
    then = branch("t", [node("Squeeze", "x", "a")], "a")
    other = branch("e", [node("Neg", "x", "b")], "b")
    message = r"node 'If' \(If\): the branches give output 0 the types float32\[3\] and float32\[1, 3\]"
    with pytest.raises(UnsupportedError, match=message):
        native.prepare(model([choice("c", then, other)], feeds, ["y"]))
