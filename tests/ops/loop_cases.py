"""Loops: as recurrences, written out, ending early, nested."""

from __future__ import annotations

import numpy as np
import onnx
from bodies import (
    BOOL,
    FLOAT,
    GOES_ON,
    INT,
    START,
    TRIPS,
    TRUE,
    S,
    T,
    loop,
    onward,
    recurrence,
    while_less,
)
from families import Family, f32, i64
from single import node

LIMITS = [{"limit": np.array(v, np.float32)} for v in (-1, 0.5, 9, 30)]

LOOPS: dict[str, Family] = {
    "trip count from data": Family(
        [recurrence(node("Add", "s one", "t"), node("Mul", "t s", "o"), one=np.float32([1]))],
        {**START, "c": TRUE},
        TRIPS,
        outputs=("y", "z"),
    ),
    "condition from data": Family(
        [recurrence(node("Add", "s one", "t"), node("Mul", "t s", "o"), one=np.float32([1]))],
        {**START},
        [{"c": np.array(c), "n": np.array(3)} for c in (True, False)],
        outputs=("y", "z"),
    ),
    "constant trip count": Family(
        [recurrence(node("Add", "s s", "t"), node("Identity", "s", "o"))],
        {},
        [START],
        outputs=("y", "z"),
        constants={"n": np.array(5), "c": TRUE},
    ),
    "negative trip count": Family(
        [recurrence(node("Add", "s s", "t"), node("Identity", "s", "o"))],
        {**START, "c": TRUE},
        [{"n": np.array(-3)}],
        outputs=("y", "z"),
    ),
    "many steps": Family(
        [
            loop(
                onward(node("Mul", "s f", "t")),
                [S],
                [GOES_ON, T],
                "n c x",
                "y",
                f=np.float32([0.9999, 1.00001]),
            )
        ],
        {**START, "c": TRUE},
        [{"n": np.array(n)} for n in (3, 1000)],
    ),
    "ends early": Family(
        [loop(while_less(node("Add", "s s", "t")), [S], [GOES_ON, T, ("t", FLOAT, None)], "n c x", "y z")],
        {**START, "n": np.array(6), "c": TRUE},
        LIMITS,
        outputs=("y", "z"),
    ),
    "ends early, trip count and start from data": Family(
        [loop(while_less(node("Add", "s s", "t")), [S], [GOES_ON, T, ("t", FLOAT, None)], "n c x", "y z")],
        START,
        [
            {"n": np.array(n), "c": np.array(c), "limit": np.array(v, np.float32)}
            for n, c, v in [(9, True, 5), (9, False, 5), (2, True, 50), (0, True, 5)]
        ],
        outputs=("y", "z"),
    ),
    "no trip count": Family(
        [loop(while_less(node("Add", "s s", "t")), [S], [GOES_ON, T, ("t", FLOAT, None)], "- c x", "y z")],
        {**START, "c": TRUE},
        LIMITS,
        outputs=("y", "z"),
    ),
    "no trip count, no condition": Family(
        [loop(while_less(node("Add", "s s", "t")), [S], [GOES_ON, T], "- - x", "y")],
        START,
        LIMITS,
    ),
    "a trip count that is no limit": Family(
        [loop(while_less(node("Add", "s s", "t")), [S], [GOES_ON, T], "n c x", "y")],
        START,
        LIMITS,
        constants={"n": np.array((1 << 63) - 1), "c": TRUE},
    ),
    **{
        f"never ends, {name}": Family(
            [
                loop(
                    while_less(node("Mul", "s half", "t")),
                    [S],
                    [GOES_ON, T, *kinds],
                    inputs,
                    outputs,
                    half=np.float32([0.5]),
                )
            ],
            START,
            LIMITS[:1],
            LIMITS[2:],
            constants={"n": np.array((1 << 63) - 1), "c": TRUE},
            outputs=outputs.split(),
        )
        for name, inputs, outputs, kinds in [
            ("nothing given", "- - x", "y", []),
            ("a condition", "- c x", "y", []),
            ("a large trip count", "n c x", "y", []),
            ("collecting", "- c x", "y z", [("t", FLOAT, None)]),
        ]
    },
    "passes its condition on, without a trip count": Family(
        [loop(onward(node("Add", "s s", "t")), [S], [GOES_ON, T], "- c x", "y")],
        START,
        [{"c": np.array(False)}],
        [{"c": TRUE}],
    ),
    "states that swap": Family(
        [
            loop(
                onward(node("Neg", "s", "ns"), node("Add", "v one", "av")),
                [S, ("v", FLOAT, [2])],
                [GOES_ON, ("av", FLOAT, [2]), ("ns", FLOAT, [2]), ("s", FLOAT, [2])],
                "n c x w",
                "y z o",
                one=np.float32([1]),
            )
        ],
        {**START, "w": np.float32([3, 4]), "c": TRUE},
        TRIPS,
        outputs=("y", "z", "o"),
    ),
    "plain swap": Family(
        [
            loop(
                onward(),
                [S, ("v", FLOAT, [2])],
                [GOES_ON, ("v", FLOAT, [2]), ("s", FLOAT, [2])],
                "n c x w",
                "y z",
            )
        ],
        {**START, "w": np.float32([3, 4]), "c": TRUE},
        TRIPS,
        outputs=("y", "z"),
    ),
    "Fibonacci": Family(
        [
            loop(
                onward(node("Add", "s v", "t")),
                [("s", INT, []), ("v", INT, [])],
                [GOES_ON, ("v", INT, []), ("t", INT, []), ("s", INT, [])],
                "n c x w",
                "y z o",
            )
        ],
        {"x": np.array(0), "w": np.array(1), "c": TRUE},
        [{"n": np.array(n)} for n in (0, 1, 2, 40)],
        outputs=("y", "z", "o"),
    ),
    "captures from outside": Family(
        [
            node("Exp", "w", "e"),
            recurrence(node("MatMul", "e s", "m"), node("Tanh", "m", "t"), node("Add", "t k", "o")),
        ],
        {**START, "c": TRUE, "w": f32(2, 2)},
        TRIPS,
        outputs=("y", "z"),
        constants={"k": np.float32([[1], [2], [3]])},
    ),
    "the number of the step": Family(
        [
            recurrence(
                node("Gather", "w i", "g"),
                node("Add", "s g", "t"),
                node("Cast", "i", "f", to=1),
                node("Mul", "t f", "o"),
            )
        ],
        {**START, "c": TRUE, "w": f32(7, 2)},
        TRIPS,
        outputs=("y", "z"),
    ),
    "a slice by the number of the step": Family(
        [
            recurrence(
                node("Unsqueeze", "i zero", "a"),
                node("Add", "a two", "b"),
                node("Slice", "w a b", "p"),
                node("ReduceSum", "p zero", "o", keepdims=0),
                node("Add", "s o", "t"),
                zero=i64(0),
                two=i64(2),
            )
        ],
        {"w": f32(9, 2)},
        [START],
        outputs=("y", "z"),
        constants={"n": np.array(9), "c": TRUE},
    ),
    "reductions and products inside": Family(
        [
            recurrence(
                node("MatMul", "s w", "m"),
                node("ReduceMax", "m", "r", keepdims=1),
                node("Sub", "m r", "d"),
                node("Softmax", "d", "t", axis=-1),
                node("ReduceMean", "t", "o", keepdims=0),
            )
        ],
        {**START, "c": TRUE, "w": f32(2, 2)},
        TRIPS,
        outputs=("y", "z"),
    ),
    "what is collected is an input or a constant": Family(
        [
            loop(
                onward(node("Identity", "w", "u")),
                [S],
                [GOES_ON, S, ("s", FLOAT, None), ("u", FLOAT, None), ("k", FLOAT, None), ("i", INT, None)],
                "n c x",
                "y a b d e",
                k=np.float32([7]),
            )
        ],
        {**START, "w": f32(3), "c": TRUE},
        TRIPS,
        outputs=("y", "a", "b", "d", "e"),
    ),
    "a state that becomes a constant": Family(
        [
            loop(
                onward(node("Identity", "k", "t"), node("Neg", "s", "o")),
                [S],
                [GOES_ON, T, ("o", FLOAT, None)],
                "n c x",
                "y z",
                k=np.float32([7, 8]),
            )
        ],
        {**START, "c": TRUE},
        TRIPS,
        outputs=("y", "z"),
    ),
    "TopK inside": Family(
        [
            recurrence(
                node("TopK", "s two", "v p"),
                node("Gather", "w p", "g"),
                node("Add", "v g", "t"),
                node("Identity", "v", "o"),
                two=i64(2),
            )
        ],
        {"w": f32(2), "c": TRUE},
        [START],
        outputs=("y", "z"),
        constants={"n": np.array(4), "c": TRUE},
    ),
    "TopK inside, cut by data": Family(
        [
            recurrence(
                node("TopK", "s two", "v p"),
                node("Slice", "w zero m", "q"),
                node("ReduceSum", "q", "g", keepdims=1),
                node("Add", "v g", "t"),
                node("Identity", "q", "o"),
                two=i64(2),
                zero=i64(0),
            )
        ],
        {**START, "w": f32(5), "c": TRUE},
        [{"m": i64(m)} for m in (0, 2, 5)],
        outputs=("y", "z"),
        constants={"n": np.array(3), "c": TRUE},
    ),
    "ScatterND inside": Family(
        [
            recurrence(
                node("Reshape", "i shape", "p"),
                node("ReduceSum", "s", "u", keepdims=1),
                node("ScatterND", "s p u", "t"),
                node("Neg", "t", "o"),
                shape=i64(1, 1),
            )
        ],
        {},
        [START],
        outputs=("y", "z"),
        constants={"n": np.array(2), "c": TRUE},
    ),
    "a body written out, without a step": Family(
        [recurrence(node("TopK", "s two", "t p"), node("Identity", "t", "o"), two=i64(2))],
        {},
        [START],
        outputs=("y", "z"),
        constants={"n": np.array(0), "c": TRUE},
    ),
    "a size from data inside": Family(
        [
            recurrence(
                node("Slice", "w zero m", "q"),
                node("ReduceSum", "q", "g", keepdims=1),
                node("Add", "s g", "t"),
                node("Mul", "q g", "o"),
                zero=i64(0),
            )
        ],
        {**START, "w": f32(5), "c": TRUE},
        [{"m": i64(m), "n": np.array(n)} for m, n in ((0, 2), (2, 3), (5, 1))],
        outputs=("y", "z"),
    ),
    "a number that a step takes too far": Family(
        [
            recurrence(
                node("Gather", "ks i", "k"),
                node("Unsqueeze", "k zero", "a"),
                node("Slice", "w a far", "q"),
                node("Gather", "q none", "g"),
                node("Add", "s g", "t"),
                node("Identity", "g", "o"),
                zero=i64(0),
                far=i64(99),
                none=np.array(0),
            )
        ],
        {**START, "c": TRUE, "w": f32(4)},
        [{"ks": i64(0, 3, -1, 4), "n": np.array(3)}],
        [{"ks": i64(0, 3, -1, 4), "n": np.array(4)}, {"ks": i64(4, 3, -1, 1), "n": np.array(3)}],
        outputs=("y", "z"),
    ),
    "a number too far only behind the end": Family(
        [
            loop(
                while_less(
                    node("Gather", "ks i", "k"),
                    node("Unsqueeze", "k zero", "a"),
                    node("Slice", "w a far", "q"),
                    node("Gather", "q none", "g"),
                    node("Add", "s g", "t"),
                ),
                [S],
                [GOES_ON, T],
                "n c x",
                "y",
                zero=i64(0),
                far=i64(99),
                none=np.array(0),
            )
        ],
        {**START, "c": TRUE, "w": np.float32([1, 2, 3, 4]), "n": np.array(4), "ks": i64(0, 3, 4, 4)},
        [{"limit": np.array(v, np.float32)} for v in (2, 3)],
        [{"limit": np.array(99, np.float32)}],
    ),
    "a trip count beyond the limit": Family(
        [recurrence(node("Add", "s s", "t"), node("Identity", "s", "o"))],
        {**START, "c": TRUE},
        [{"n": np.array(3)}],
        [{"n": np.array(1 << 40)}, {"n": np.array((1 << 63) - 1)}],
        outputs=("y", "z"),
    ),
    "symbolic state": Family(
        [
            loop(
                onward(node("Add", "s w", "t")),
                [("s", FLOAT, ["a"])],
                [GOES_ON, ("t", FLOAT, ["a"]), ("t", FLOAT, None)],
                "n c x",
                "y z",
            )
        ],
        {"c": TRUE, "n": np.array(3)},
        [{"x": f32(k), "w": f32(1)} for k in (1, 4)],
        outputs=("y", "z"),
        dims={"x": ["a"]},
    ),
}


def nested() -> onnx.NodeProto:
    inner = loop(
        onward(node("Mul", "p half", "q")),
        [("p", FLOAT, [2])],
        [("going_on", BOOL, []), ("q", FLOAT, [2])],
        "m c s",
        "r",
        half=np.float32([0.5]),
    )
    inner.attribute[0].g.input[0].name, inner.attribute[0].g.input[1].name = "j", "inner_going"
    inner.attribute[0].g.node[0].input[0] = "inner_going"
    inner.attribute[0].g.node[0].output[0] = inner.attribute[0].g.output[0].name = "inner_on"
    return recurrence(
        inner, node("Add", "r one", "t"), node("Identity", "r", "o"), m=np.array(2), one=np.float32([1])
    )


NESTED: dict[str, Family] = {
    "Loop in a Loop": Family(
        [nested()], {}, [START], outputs=("y", "z"), constants={"n": np.array(3), "c": TRUE}
    ),
}
