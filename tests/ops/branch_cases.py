"""Ifs whose branches differ in size, or hold sizes that the data decide."""

from __future__ import annotations

import numpy as np
import onnx
from bodies import (
    FLOAT,
    START,
    TRIPS,
    TRUE,
    Kind,
    graph,
    recurrence,
)
from families import Family, f32, i64
from single import Array, node

Y: Kind = ("b", FLOAT, None)
FLAGS = [{"c": np.array(flag)} for flag in (True, False)]


def side(name: str, nodes: list[onnx.NodeProto], *ends: Kind, **constants: Array) -> onnx.GraphProto:
    """A branch whose nodes are called after it."""
    made = graph(nodes, [], ends, **constants)
    for n in made.node:
        n.name = f"{name}_{n.name}"
    return made


def choose(then: onnx.GraphProto, other: onnx.GraphProto, outputs: str = "y") -> onnx.NodeProto:
    return node("If", "c", outputs, then_branch=then, else_branch=other)


IFS: dict[str, Family] = {
    "branches of other sizes": Family(
        [
            choose(side("t", [node("Transpose", "x", "b")], Y), side("e", [node("Neg", "x", "b")], Y)),
            node("Exp", "y", "z"),
        ],
        {"x": f32(2, 3)},
        FLAGS,
        outputs=("y", "z"),
    ),
    "a branch of no elements": Family(
        [
            choose(
                side("t", [node("Slice", "x zero zero", "b")], Y, zero=i64(0)),
                side("e", [node("Neg", "x", "b")], Y),
            ),
            node("Exp", "y", "z"),
        ],
        {"x": f32(2, 3)},
        FLAGS,
        outputs=("y", "z"),
    ),
    "sizes from data within the branches": Family(
        [choose(side("t", [node("Reshape", "x s", "b")], Y), side("e", [node("Slice", "x s e", "b")], Y))],
        {"x": f32(4, 3)},
        [
            {"c": np.array(c), "s": i64(*s), "e": i64(*e)}
            for c, s, e in [
                (True, (2, 6), (0, 0)),
                (True, (12, 1), (0, 0)),
                (False, (1, 0), (4, 2)),
                (False, (5, 5), (0, 0)),
                (False, (-1, -1), (9, 9)),
            ]
        ],
        [{"c": TRUE, "s": i64(5, 5), "e": i64(0, 0)}],
    ),
    "what fails in the branch that is not taken": Family(
        [
            choose(
                side("t", [node("Squeeze", "x a", "b")], Y),
                side("e", [node("ReduceSum", "x a", "b", keepdims=0)], Y),
            ),
            node("Abs", "y", "z"),
        ],
        {"x": f32(1, 3)},
        [{"c": np.array(c), "a": i64(a)} for c, a in [(True, 0), (False, 0), (False, 1)]],
        [{"c": TRUE, "a": i64(1)}, {"c": np.array(False), "a": i64(2)}],
        outputs=("y", "z"),
    ),
    "a declared size": Family(
        [choose(side("t", [node("Slice", "x s e", "b")], Y), side("e", [node("Neg", "w", "b")], Y))],
        {"x": f32(9), "w": f32(4)},
        [
            {"c": np.array(c), "s": i64(s), "e": i64(e)}
            for c, s, e in [(True, 0, 4), (True, 5, 9), (False, 0, 9), (False, 8, 9)]
        ],
        [{"c": TRUE, "s": i64(0), "e": i64(5)}],
        declared={"y": [4]},
    ),
    "a Loop in a branch": Family(
        [
            choose(
                side(
                    "t",
                    [recurrence(node("Add", "s s", "t"), node("Neg", "s", "o"))],
                    ("y", FLOAT, None),
                    ("z", FLOAT, None),
                ),
                side(
                    "e",
                    [node("Neg", "x", "b"), node("Unsqueeze", "x zero", "u")],
                    Y,
                    ("u", FLOAT, None),
                    zero=i64(0),
                ),
                "p q",
            )
        ],
        {**START},
        [
            {"c": np.array(c), "n": np.array(n)}
            for c, n in [(True, 3), (False, 3), (True, 0), (False, 1 << 50)]
        ],
        [{"c": TRUE, "n": np.array(1 << 50)}],
        outputs=("p", "q"),
    ),
    "a TopK in a branch": Family(
        [choose(side("t", [node("TopK", "x k", "b i")], Y), side("e", [node("Neg", "x", "b")], Y))],
        {"x": f32(5)},
        [{"c": np.array(c), "k": i64(k)} for c, k in [(True, 2), (False, 2), (False, 9)]],
        [{"c": TRUE, "k": i64(9)}],
    ),
    "an If in a Loop": Family(
        [
            recurrence(
                node("Gather", "flags i", "c2"),
                node(
                    "If",
                    "c2",
                    "t",
                    then_branch=side("t", [node("Add", "s w", "b")], Y),
                    else_branch=side("e", [node("Mul", "s w", "b2")], ("b2", FLOAT, None)),
                ),
                node("Identity", "t", "o"),
            )
        ],
        {**START, "c": TRUE, "w": f32(2), "flags": np.array([True, False, False, True, True, False, True])},
        TRIPS,
        outputs=("y", "z"),
    ),
    "a branch that reads from a cut": Family(
        [
            choose(
                side(
                    "t",
                    [
                        node("Slice", "x zero n", "q"),
                        node("Gather", "q two", "g"),
                        node("Add", "q g", "a"),
                        node("Slice", "w zero n one", "u"),
                        node("MatMul", "u a", "m"),
                        node("Slice", "x zero m2 one", "r"),
                        node("Add", "r x", "rx"),
                        node("ReduceMax", "rx none", "t2"),
                        node("Add", "m t2", "b"),
                    ],
                    Y,
                    zero=i64(0),
                    one=i64(1),
                    two=np.array(2),
                    none=i64(0),
                ),
                side("e", [node("Neg", "x", "b")], Y),
            )
        ],
        {"x": f32(4, 3), "w": f32(2, 4)},
        [
            {"c": np.array(c), "n": i64(n), "m2": i64(m)}
            for c, n, m in [(True, 4, 3), (True, 3, 1), (False, 0, 0), (False, 9, 2)]
        ],
        [
            {"c": TRUE, "n": i64(0), "m2": i64(3)},
            {"c": TRUE, "n": i64(4), "m2": i64(2)},
        ],
    ),
}
