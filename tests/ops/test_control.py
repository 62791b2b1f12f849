"""If against onnxruntime: both branches computed and selected, or one where the condition is known."""

from __future__ import annotations

import native
import numpy as np
import onnx
import pytest
from bodies import FLOAT, START, TRIPS, TRUE, Kind, graph, recurrence
from families import BAD_VALUE, Family, Outcome, assert_agrees, f32, i64, outcomes
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


Y: Kind = ("b", FLOAT, None)
FLAGS = [{"c": np.array(flag)} for flag in (True, False)]


def side(name: str, nodes: list[onnx.NodeProto], *ends: Kind, **constants: Array) -> onnx.GraphProto:
    """A branch whose nodes are called after it."""
    made = graph(nodes, [], ends, **constants)
    for n in made.node:
        n.name = f"{name}_{n.name}"
    return made


def choose(then: onnx.GraphProto, other: onnx.GraphProto, outputs: str = "y") -> onnx.NodeProto:
    return choice("c", then, other, outputs)


IFS: dict[str, Family] = {
    "branches of other sizes": Family(
        [choose(side("t", [node("Transpose", "x", "b")], Y), side("e", [node("Neg", "x", "b")], Y)), node("Exp", "y", "z")], {"x": f32(2, 3)}, FLAGS, outputs=("y", "z"),
    ),
    "a branch of no elements": Family(
        [choose(side("t", [node("Slice", "x zero zero", "b")], Y, zero=i64(0)), side("e", [node("Neg", "x", "b")], Y)), node("Exp", "y", "z")], {"x": f32(2, 3)}, FLAGS, outputs=("y", "z"),
    ),
    "sizes from data within the branches": Family(
        [choose(side("t", [node("Reshape", "x s", "b")], Y), side("e", [node("Slice", "x s e", "b")], Y))], {"x": f32(4, 3)},
        [{"c": np.array(c), "s": i64(*s), "e": i64(*e)} for c, s, e in [(True, (2, 6), (0, 0)), (True, (12, 1), (0, 0)), (False, (1, 0), (4, 2)), (False, (5, 5), (0, 0)), (False, (-1, -1), (9, 9))]],
        [{"c": TRUE, "s": i64(5, 5), "e": i64(0, 0)}],
    ),
    "what fails in the branch that is not taken": Family(
        [choose(side("t", [node("Squeeze", "x a", "b")], Y), side("e", [node("ReduceSum", "x a", "b", keepdims=0)], Y)), node("Abs", "y", "z")], {"x": f32(1, 3)},
        [{"c": np.array(c), "a": i64(a)} for c, a in [(True, 0), (False, 0), (False, 1)]], [{"c": TRUE, "a": i64(1)}, {"c": np.array(False), "a": i64(2)}], outputs=("y", "z"),
    ),
    "a declared size": Family(
        [choose(side("t", [node("Slice", "x s e", "b")], Y), side("e", [node("Neg", "w", "b")], Y))], {"x": f32(9), "w": f32(4)},
        [{"c": np.array(c), "s": i64(s), "e": i64(e)} for c, s, e in [(True, 0, 4), (True, 5, 9), (False, 0, 9), (False, 8, 9)]], [{"c": TRUE, "s": i64(0), "e": i64(5)}], declared={"y": [4]},
    ),
    "a Loop in a branch": Family(
        [choose(side("t", [recurrence(node("Add", "s s", "t"), node("Neg", "s", "o"))], ("y", FLOAT, None), ("z", FLOAT, None)),
                side("e", [node("Neg", "x", "b"), node("Unsqueeze", "x zero", "u")], Y, ("u", FLOAT, None), zero=i64(0)), "p q")],
        {**START}, [{"c": np.array(c), "n": np.array(n)} for c, n in [(True, 3), (False, 3), (True, 0), (False, 1 << 50)]], [{"c": TRUE, "n": np.array(1 << 50)}], outputs=("p", "q"),
    ),
    "a TopK in a branch": Family(
        [choose(side("t", [node("TopK", "x k", "b i")], Y), side("e", [node("Neg", "x", "b")], Y))], {"x": f32(5)},
        [{"c": np.array(c), "k": i64(k)} for c, k in [(True, 2), (False, 2), (False, 9)]], [{"c": TRUE, "k": i64(9)}],
    ),
    "an If in a Loop": Family(
        [recurrence(node("Gather", "flags i", "c2"), node("If", "c2", "t", then_branch=side("t", [node("Add", "s w", "b")], Y), else_branch=side("e", [node("Mul", "s w", "b2")], ("b2", FLOAT, None))), node("Identity", "t", "o"))],
        {**START, "c": TRUE, "w": f32(2), "flags": np.array([True, False, False, True, True, False, True])}, TRIPS, outputs=("y", "z"),
    ),
}  # fmt: skip


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
