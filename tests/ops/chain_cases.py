"""Sizes that the data decide, on their way through other operators."""

from __future__ import annotations

import numpy as np
import onnx
from families import Family, f32, i64
from single import Array, node


def cut(x: str, result: str, start: str = "zero", end: str = "n", axis: str = "") -> onnx.NodeProto:
    """`x` from `start` to `end` along the axis in constant `axis` (the first by default)."""
    return node("Slice", f"{x} {start} {end}" + (f" {axis}" if axis else ""), result, name=f"cut_{result}")


NUMBERS = {"zero": i64(0), "one": i64(1), "two": i64(2), "minus": i64(-1)}


def cuts(*values: int) -> list[dict[str, Array]]:
    return [{"n": i64(v)} for v in values]


CHAINS: dict[str, Family] = {
    "Reshape feeds MatMul": Family(
        [node("Reshape", "x s", "a"), node("Reshape", "w t", "b"), node("MatMul", "a b")],
        {"x": f32(24), "w": f32(4, 6)},
        [{"s": i64(*s), "t": i64(*t)} for s, t in [((4, 6), (6, 4)), ((-1, 8), (8, 3)), ((1, 24), (24, 1))]],
        [{"s": i64(4, 6), "t": i64(8, 3)}],
    ),
    "MatMul of a cut batch with weights": Family(
        [cut("x", "a"), node("MatMul", "a w", "b"), node("Add", "b c", "d"), node("Relu", "d")],
        {"x": f32(9, 16)},
        cuts(0, 1, 4, 9, 33),
        constants={**NUMBERS, "w": f32(16, 33), "c": f32(33)},
    ),
    "Gemm over a cut inner axis": Family(
        [cut("x", "a", axis="one"), cut("w", "b"), node("Gemm", "a b c", alpha=0.5)],
        {"x": f32(5, 20), "w": f32(20, 17), "c": f32(17)},
        cuts(0, 1, 7, 20),
        constants=NUMBERS,
    ),
    "Softmax of a cut axis": Family(
        [cut("x", "a", axis="one"), node("Softmax", "a", axis=1)],
        {"x": f32(3, 40)},
        cuts(1, 5, 17, 40, -3),
        constants=NUMBERS,
    ),
    "normalization of a cut axis": Family(
        [
            cut("x", "a", axis="two"),
            node("ReduceMean", "a two", "m"),
            node("Sub", "a m", "d"),
            node("Mul", "d d", "q"),
            node("ReduceMean", "q two", "v"),
            node("Sqrt", "v", "r"),
            node("Div", "d r"),
        ],
        {"x": f32(2, 3, 20)},
        cuts(2, 9, 20),
        constants=NUMBERS,
    ),
    "Slice, Concat, Conv": Family(
        [
            cut("x", "a", axis="two"),
            node("Concat", "a k", "b", axis=2),
            node("Conv", "b w c", pads=[1, 1], strides=[2]),
        ],
        {"x": f32(1, 3, 16)},
        cuts(0, 1, 8, 16),
        constants={**NUMBERS, "k": f32(1, 3, 4), "w": f32(8, 3, 3), "c": f32(8)},
    ),
    "Conv in two cut axes": Family(
        [
            cut("x", "a", end="m", axis="two"),
            cut("a", "b", axis="three"),
            node("Conv", "b w c", "d", pads=[1, 1, 1, 1]),
            node("Relu", "d", "e"),
            node("MaxPool", "e", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        ],
        {"x": f32(1, 4, 12, 10)},
        [{"m": i64(m), "n": i64(n)} for m, n in [(12, 10), (2, 5), (7, 3)]],
        constants={**NUMBERS, "three": i64(3), "w": f32(8, 4, 3, 3), "c": f32(8)},
    ),
    "attention over a cut length": Family(
        [
            cut("x", "a", axis="one"),
            node("Transpose", "a", "t", perm=[0, 2, 1]),
            node("MatMul", "a t", "s"),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p a"),
        ],
        {"x": f32(2, 11, 8)},
        cuts(1, 6, 11),
        constants=NUMBERS,
    ),
    "positions from both ends of a cut axis": Family(
        [cut("x", "a"), node("Slice", "a minusfive three", "b"), node("Neg", "b")],
        {"x": f32(20, 3)},
        cuts(0, 1, 3, 4, 5, 7, 20),
        constants={**NUMBERS, "minusfive": i64(-5), "three": i64(3)},
    ),
    "every second of a cut axis backwards": Family(
        [cut("x", "a"), node("Slice", "a minus far zero step", "b"), node("Exp", "b")],
        {"x": f32(9, 3)},
        cuts(0, 1, 2, 5, 9),
        constants={**NUMBERS, "far": i64(-(1 << 62)), "step": i64(-2)},
    ),
    "Range feeds Gather": Family(
        [node("Range", "o n i", "r"), node("Gather", "x r", "g"), node("ReduceSum", "g zero")],
        {"x": f32(9, 4), "o": np.array(0), "i": np.array(2)},
        [{"n": np.array(n)} for n in (0, 1, 5, 9)],
        constants=NUMBERS,
    ),
    "the size of a cut as data": Family(
        [
            cut("x", "a"),
            node("Shape", "a", "s", end=1),
            node("Concat", "s two", "t", axis=0),
            node("Expand", "v t", "e"),
            node("Cast", "s", "f", to=1),
            node("Div", "e f"),
        ],
        {"x": f32(7, 2), "v": f32(1, 1)},
        cuts(1, 3, 7),
        constants=NUMBERS,
    ),
    "ConstantOfShape and broadcast": Family(
        [node("ConstantOfShape", "s", "z"), node("Add", "z x")],
        {"x": f32(1, 4)},
        [{"s": i64(3, 4)}, {"s": i64(1, 1)}, {"s": i64(5, 1)}, {"s": i64(0, 4)}],
        [{"s": i64(3, 2)}, {"s": i64(2, 0)}],
    ),
    "two cuts that must agree": Family(
        [cut("x", "a"), cut("x", "b", end="m"), node("Add", "a b")],
        {"x": f32(6, 2)},
        [
            {"n": i64(3), "m": i64(3)},
            {"n": i64(1), "m": i64(5)},
            {"n": i64(5), "m": i64(1)},
            {"n": i64(0), "m": i64(0)},
        ],
        [{"n": i64(3), "m": i64(4)}],
        constants=NUMBERS,
    ),
    "joined cuts that must agree": Family(
        [cut("x", "a", axis="one"), cut("x", "b", end="m", axis="one"), node("Concat", "a b", axis=0)],
        {"x": f32(3, 6)},
        [{"n": i64(3), "m": i64(3)}],
        [{"n": i64(3), "m": i64(4)}],
        constants=NUMBERS,
    ),
    "cut pieces joined again": Family(
        [
            node("Split", "x s", "p q", axis=1),
            node("Neg", "p", "pn"),
            node("Exp", "q", "qe"),
            node("Concat", "qe pn", "c", axis=1),
            node("ReduceMax", "c one", "m", keepdims=0),
        ],
        {"x": f32(3, 9)},
        [{"s": i64(4, 5)}, {"s": i64(0, 9)}, {"s": i64(9, 0)}],
        constants=NUMBERS,
        outputs=("c", "m"),
    ),
    "TopK, Gather": Family(
        [node("TopK", "x k", "v i", axis=0), node("Gather", "w i", "g"), node("MatMul", "v g")],
        {"x": f32(9), "w": f32(9, 5)},
        [{"k": i64(1)}, {"k": i64(9)}, {"k": i64(4)}],
        [{"k": i64(10)}],
    ),
    "symbolic and cut": Family(
        [
            cut("x", "a"),
            node("Softmax", "a", "b", axis=0),
            node("Transpose", "b", "t", perm=[1, 0]),
            node("MatMul", "t a"),
        ],
        {},
        [{"x": f32(r, c), "n": i64(n)} for r, c, n in [(5, 3, 2), (8, 2, 8), (3, 7, 1), (4, 4, 9)]],
        constants=NUMBERS,
        dims={"x": ["r", "c"]},
    ),
    "symbolic Tile and Reshape": Family(
        [node("Tile", "x k", "t"), node("Reshape", "t s", "r"), node("ReduceSum", "r one", keepdims=0)],
        {},
        [
            {"x": f32(r, 3), "k": i64(*k), "s": i64(*s)}
            for r, k, s in [(2, (2, 1), (-1, 2)), (4, (1, 2), (3, 8)), (1, (3, 3), (27, -1))]
        ],
        [{"x": f32(2, 3), "k": i64(2, 1), "s": i64(5, -1)}],
        constants=NUMBERS,
        dims={"x": ["r", 3]},
    ),
    "a cut sequence through an LSTM": Family(
        [cut("x", "a"), node("LSTM", "a w r", "y h", hidden_size=4)],
        {"x": f32(6, 2, 3)},
        cuts(1, 4, 6),
        outputs=("y", "h"),
        constants={**NUMBERS, "w": f32(1, 16, 3), "r": f32(1, 16, 4)},
    ),
    "a running sum of a cut": Family(
        [cut("x", "a"), node("CumSum", "a ax", "c", reverse=1), node("ArgMax", "c", axis=0)],
        {"x": f32(9, 2)},
        cuts(1, 5, 9),
        constants={**NUMBERS, "ax": np.array(0)},
    ),
    "a reduction over chosen axes, expanded back": Family(
        [
            node("ReduceMean", "x a", "m"),
            node("Sub", "x m", "d"),
            node("Mul", "d d", "q"),
            node("ReduceSum", "q a", keepdims=0),
        ],
        {"x": f32(2, 3, 4)},
        [{"a": i64(0)}, {"a": i64(1)}, {"a": i64(-1)}],
    ),
    "Resize of a cut": Family(
        [cut("x", "a", axis="two"), node("Resize", "a - f", mode="linear")],
        {"x": f32(1, 2, 8, 3)},
        cuts(1, 5, 8),
        constants={**NUMBERS, "f": np.float32([1, 1, 2, 1.5])},
    ),
    "Pad, AveragePool": Family(
        [node("Pad", "x p - ax", "a"), node("AveragePool", "a", kernel_shape=[3])],
        {"x": f32(1, 2, 5)},
        [{"p": i64(1, 1)}, {"p": i64(-1, 4)}],
        constants={"ax": i64(-1)},
    ),
    "Einsum of cuts": Family(
        [cut("x", "a", axis="one"), node("Einsum", "a a", equation="bi,ci->bc")],
        {"x": f32(4, 12)},
        cuts(1, 5, 12),
        constants=NUMBERS,
    ),
    "Where with a size from data": Family(
        [node("Range", "o n i", "r"), node("Less", "r half", "c"), node("Where", "c r half")],
        {"o": np.array(0), "i": np.array(1), "half": np.array(3)},
        [{"n": np.array(n)} for n in (0, 2, 7)],
    ),
    "OneHot of a cut": Family(
        [cut("x", "a"), node("OneHot", "a d v", "h"), node("ReduceSum", "h zero", keepdims=0)],
        {"x": i64(3, 1, 0, 1), "v": np.float32([0, 1])},
        [{"n": i64(n), "d": np.array(d)} for n, d in [(4, 4), (2, 2), (1, 6)]],
        constants=NUMBERS,
    ),
    "Gather from a cut": Family(
        [cut("x", "a"), node("Gather", "a i")],
        {"x": f32(5, 2), "i": i64(0, -1)},
        cuts(1, 3),
        cuts(0),
        constants=NUMBERS,
    ),
    "a convolution of cut channels": Family(
        [cut("x", "a", axis="one"), node("Conv", "a w", "d"), node("ConvTranspose", "a u", "e")],
        {"x": f32(1, 5, 6), "w": f32(2, 3, 3), "u": f32(3, 2, 2)},
        cuts(3, -2),
        cuts(2, 4, 0, 5),
        outputs=("d", "e"),
        constants=NUMBERS,
    ),
    "a window over a cut axis": Family(
        [cut("x", "a", axis="two"), node("MaxPool", "a", kernel_shape=[3], strides=[2])],
        {"x": f32(1, 2, 9)},
        cuts(3, 4, 9),
        cuts(0, 2),
        constants=NUMBERS,
    ),
    "normalization of cut channels": Family(
        [
            cut("x", "a", axis="one"),
            node("BatchNormalization", "a s t m v", "b"),
            node("InstanceNormalization", "a s t", "c"),
            node("LayerNormalization", "a w", "d", axis=1),
        ],
        {"x": f32(2, 5, 3), "w": f32(4, 3)},
        cuts(4),
        cuts(3, 5),
        outputs=("b", "c", "d"),
        constants={**NUMBERS, "s": f32(4), "t": f32(4), "m": f32(4), "v": np.abs(f32(4))},
    ),
}
