"""Axes, shapes, positions, counts and scales that only the run knows, against onnxruntime.

Each model is compiled once and run on several values; its outputs come back with the size that the data gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import native
import numpy as np
import onnx
import pytest
from families import BAD_VALUE, Family, Outcome, assert_agrees, f32, i64, outcomes
from single import Array, node

import cuvil
from cuvil.errors import ModelError


def axes(op: str, x: Array, runs: Sequence[Array], wrong: Sequence[Array] = (), **attributes: Any) -> Family:
    return Family(
        [node(op, "x a", **attributes)], {"x": x}, [{"a": a} for a in runs], [{"a": a} for a in wrong]
    )


X = f32(2, 3, 4)
REDUCTIONS = (
    "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    **{
        f"{op} {'keep' if keep else 'drop'}": axes(
            op, np.abs(X), [i64(0), i64(1), i64(-1)], [i64(3), i64(-4)], keepdims=keep
        )
        for op in REDUCTIONS
        for keep in (0, 1)
    },
    "ReduceSum two axes": axes(
        "ReduceSum", X, [i64(0, 2), i64(2, 0), i64(-1, 1)], [i64(1, 1), i64(0, -3), i64(0, 3)], keepdims=0
    ),
    "ReduceMax all axes": axes("ReduceMax", X, [i64(0, 2, 1)], keepdims=1),
    "ReduceMean symbolic": Family(
        [node("ReduceMean", "x a", keepdims=0)],
        {},
        [{"x": f32(n, 3), "a": i64(a)} for n in (1, 5) for a in (0, 1, -1)],
        [{"x": f32(2, 3), "a": i64(2)}],
        dims={"x": ["n", 3]},
    ),
    "Reshape": axes(
        "Reshape", X, [i64(4, 6), i64(-1, 2), i64(24, 1), i64(0, -1), i64(0, 12)],
        [i64(5, 5), i64(-1, 5), i64(-1, -1), i64(25, 1), i64(-2, 12), i64(3, 4), i64(1 << 62, 2)],
    ),
    "Reshape allowzero": Family(
        [node("Reshape", "x s", allowzero=1)],
        {"x": f32(0, 3)},
        [{"s": i64(0, 5)}, {"s": i64(7, 0)}, {"s": i64(0, 0)}],
        [{"s": i64(1, 1)}],
    ),
    "Reshape declared": Family(
        [node("Reshape", "x s")], {"x": X}, [{"s": i64(4, 6)}, {"s": i64(-1, 6)}, {"s": i64(4, -1)}],
        [{"s": i64(6, 4)}, {"s": i64(2, 12)}], declared={"y": [4, 6]},
    ),
    "Squeeze": Family(
        [node("Squeeze", "x a")], {"x": f32(1, 3, 1, 2)}, [{"a": i64(0)}, {"a": i64(2)}, {"a": i64(-2)}],
        [{"a": i64(1)}, {"a": i64(4)}, {"a": i64(-5)}],
    ),
    "Squeeze two": Family(
        [node("Squeeze", "x a")], {"x": f32(1, 3, 1, 1)}, [{"a": i64(0, 2)}, {"a": i64(3, -4)}],
        [{"a": i64(0, 1)}, {"a": i64(0, 7)}, {"a": i64(2, 2)}],
    ),
    "Unsqueeze": axes("Unsqueeze", X, [i64(0), i64(3), i64(-1), i64(-4), i64(2)], [i64(4), i64(-5), i64(9)]),
    "Unsqueeze two": axes("Unsqueeze", X, [i64(0, 1), i64(4, 0), i64(-1, 2)], [i64(0, 0), i64(1, -4), i64(0, 5)]),
    "Expand": Family(
        [node("Expand", "x s")], {"x": f32(3, 1)}, [{"s": i64(3, 4)}, {"s": i64(1, 5)}, {"s": i64(1, 1)}, {"s": i64(3, 0)}],
        [{"s": i64(2, 4)}, {"s": i64(3, -1)}, {"s": i64(0, 2)}, {"s": i64(3, 1 << 40)}],
    ),
    "Expand with rank": Family(
        [node("Expand", "x s")], {"x": f32(3, 1)}, [{"s": i64(2, 3, 4)}, {"s": i64(0, 1, 1)}], [{"s": i64(2, 5, 4)}],
    ),
    "Tile": axes("Tile", f32(2, 3), [i64(1, 1), i64(2, 3), i64(0, 2), i64(5, 0)], [i64(-1, 2), i64(1, 1 << 50)]),
    "ConstantOfShape": Family(
        [node("ConstantOfShape", "s")], {}, [{"s": i64(2, 3)}, {"s": i64(0, 3)}, {"s": i64(7, 1)}],
        [{"s": i64(-1, 2)}, {"s": i64(1 << 33, 1)}],
    ),
    "Split": Family(
        [node("Split", "x s", "p q", axis=1)], {"x": f32(2, 7)}, [{"s": i64(3, 4)}, {"s": i64(0, 7)}, {"s": i64(7, 0)}],
        [{"s": i64(3, 3)}, {"s": i64(-1, 8)}, {"s": i64(8, -1)}, {"s": i64(4, 4)}], outputs=("p", "q"),
    ),
    "Slice": Family(
        [node("Slice", "x s e")], {"x": f32(6, 5)},
        [
            {"s": i64(*s), "e": i64(*e)}
            for s, e in [((0, 0), (6, 5)), ((1, 2), (4, 3)), ((-3, -9), (9, -1)), ((4, 4), (1, 1)), ((5, 0), (1 << 62, 5)), ((-(1 << 62), 1), (3, 1 << 31))]
        ],
    ),
    "Slice axes and steps": Family(
        [node("Slice", "x s e a t")], {"x": f32(6, 5)},
        [
            {"s": i64(s), "e": i64(e), "a": i64(a), "t": i64(t)}
            for s, e, a, t in [(0, 6, 0, 2), (-1, -7, 1, -1), (4, 0, -1, -2), (5, -(1 << 62), 0, -3), (0, 5, -2, 7), (1 << 62, 0, 1, -1), (0, 9, 1, 1 << 40), (9, -9, 0, -(1 << 63))]
        ],
        [{"s": i64(0), "e": i64(5), "a": i64(a), "t": i64(t)} for a, t in [(2, 1), (-3, 1), (0, 0)]],
    ),
    "Pad": Family(
        [node("Pad", "x p")], {"x": f32(3, 2)}, [{"p": i64(*p)} for p in [(0, 0, 0, 0), (1, 2, 3, 0), (-1, 0, 1, 1), (-1, 0, -1, 0)]],
        [{"p": i64(-2, 0, -2, 0)}, {"p": i64(1 << 40, 0, 0, 0)}, {"p": i64(0, -3, 0, 0)}],
    ),
    "Pad axes": Family(
        [node("Pad", "x p v a")], {"x": f32(3, 2), "v": np.array(9, np.float32)},
        [{"p": i64(1, 2), "a": i64(0)}, {"p": i64(0, 2), "a": i64(-1)}, {"p": i64(-1, 0), "a": i64(1)}],
        [{"p": i64(1, 1), "a": i64(2)}, {"p": i64(1, 1), "a": i64(-3)}],
    ),
    **{
        f"Pad {mode}": Family(
            [node("Pad", "x p", mode=mode)], {"x": f32(4, 3)}, [{"p": i64(*p)} for p in [(0, 0, 0, 0), (1, 2, 3, 0), (0, 1, 1, 2)]],
            [{"p": i64(-5, 0, 0, 0)}, {"p": i64(1 << 40, 0, 0, 0)}],
        )
        for mode in ("edge", "reflect", "wrap")
    },
    "CenterCropPad": Family(
        [node("CenterCropPad", "x s")], {"x": f32(5, 4)}, [{"s": i64(*s)} for s in [(5, 4), (3, 7), (8, 1), (2, 2)]],
        [{"s": i64(-1, 4)}], opset=18,
    ),
    "Range": Family(
        [node("Range", "s e d")], {},
        [{"s": np.array(s), "e": np.array(e), "d": np.array(d)} for s, e, d in [(0, 5, 1), (3, 3, 1), (9, -2, -3), (5, 1, 1), (-4, 4, 3)]],
        [{"s": np.array(0), "e": np.array(1 << 40), "d": np.array(1)}, {"s": np.array(0), "e": np.array(9), "d": np.array(0)}, {"s": np.array(-(1 << 62)), "e": np.array(1 << 62), "d": np.array(1)}, {"s": np.array(-(1 << 63)), "e": np.array((1 << 63) - 1), "d": np.array(1)}],
    ),
    "Range float": Family(
        [node("Range", "s e d")], {},
        [{n: np.array(v, np.float32) for n, v in zip("sed", (s, e, d))} for s, e, d in [(0, 5, 1), (0, 1, 0.3), (2, -1, -0.5), (1, 0, 1)]],
        [{n: np.array(v, np.float32) for n, v in zip("sed", (s, e, d))} for s, e, d in [(0, 1e30, 1), (0, 1, 0), (0, np.nan, 1), (0, np.inf, 1), (0, -np.inf, -1)]],
    ),
    "OneHot": Family(
        [node("OneHot", "i d v", axis=0)], {"i": i64(0, 2, -1, 7), "v": np.float32([-1, 5])}, [{"d": np.array(3)}, {"d": np.array(8)}, {"d": np.array(1)}],
        [{"d": np.array(-1)}, {"d": np.array(1 << 60)}],
    ),
    "OneHot vector depth": Family(
        [node("OneHot", "i d v")], {"i": np.array([[0, 2], [1, 1]]), "v": np.float32([0, 1])}, [{"d": i64(3)}, {"d": i64(5)}],
    ),
    "TopK": Family(
        [node("TopK", "x k", "v i", axis=1)], {"x": f32(3, 6)}, [{"k": i64(1)}, {"k": i64(6)}, {"k": i64(0)}, {"k": i64(4)}],
        [{"k": i64(7)}, {"k": i64(-1)}], outputs=("v", "i"),
    ),
    "Trilu": Family(
        [node("Trilu", "x k")], {"x": f32(4, 5)}, [{"k": np.array(k)} for k in (0, 1, -2, 9, -9, 1 << 40)],
    ),
    **{
        f"{op}{suffix}": Family(
            [node(op, "x a", **attributes)], {"x": X}, [{"a": np.array(a)} for a in (0, 1, 2, -1, -3)], [{"a": np.array(3)}, {"a": np.array(-4)}],
        )
        for op in ("CumSum",)
        for suffix, attributes in (("", {}), (" reverse", {"reverse": 1}), (" exclusive", {"exclusive": 1}))
    },
    "Resize sizes": Family(
        [node("Resize", "x - - s", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"x": f32(1, 2, 4, 5)}, [{"s": i64(1, 2, 8, 5)}, {"s": i64(1, 2, 2, 3)}, {"s": i64(1, 2, 4, 5)}, {"s": i64(1, 2, 7, 11)}],
        [{"s": i64(1, 2, -1, 5)}, {"s": i64(1, 2, 1 << 40, 5)}, {"s": i64(1, 3, 4, 5)}], declared={"y": [1, 2, "h", "w"]},
    ),
    "Resize linear scales": Family(
        [node("Resize", "x - s", mode="linear")], {"x": f32(1, 2, 4, 5)},
        [{"s": np.float32(s)} for s in [(1, 1, 2, 2), (1, 1, 0.5, 1.5), (1, 1, 1, 1), (1, 1, 1.3, 0.6)]],
        [{"s": np.float32([1, 1, -1, 1])}, {"s": np.float32([1, 1, np.nan, 1])}, {"s": np.float32([1, 1, 1e30, 1])}, {"s": np.float32([2, 1, 1, 1])}],
        declared={"y": [1, 2, "h", "w"]},
    ),
    "DFT axis": Family(
        [node("DFT", "x - a")], {"x": f32(2, 5, 4, 1)}, [{"a": np.array(a)} for a in (0, 1, 2, -2, -4)],
        [{"a": np.array(3)}, {"a": np.array(-5)}], opset=20,
    ),
    "DFT length": Family(
        [node("DFT", "x n", onesided=1)], {"x": f32(2, 6, 1)}, [{"n": np.array(n)} for n in (6, 4, 9, 1)],
        [{"n": np.array(0)}, {"n": np.array(1 << 20)}], opset=20,
    ),
    "STFT step": Family(
        [node("STFT", "x s w")], {"x": f32(1, 16, 1), "w": f32(4)}, [{"s": np.array(n)} for n in (1, 3, 12)],
        [{"s": np.array(0)}, {"s": np.array(-1)}], opset=17,
    ),
    "STFT length": Family(
        [node("STFT", "x s - l")], {"x": f32(1, 16, 1), "s": np.array(3)}, [{"l": np.array(n)} for n in (4, 16, 7)],
        [{"l": np.array(0)}, {"l": np.array(17)}], opset=17,
    ),
    "MelWeightMatrix": Family(
        [node("MelWeightMatrix", "m d r lo hi")], {"r": np.array(8000), "lo": np.array(0, np.float32), "hi": np.array(4000, np.float32)},
        [{"m": np.array(8), "d": np.array(16)}, {"m": np.array(4), "d": np.array(32)}], [{"m": np.array(-1), "d": np.array(16)}],
    ),
    "AffineGrid": Family(
        [node("AffineGrid", "t s")], {"t": f32(2, 2, 3)}, [{"s": i64(2, 3, 4, 5)}, {"s": i64(2, 1, 1, 2)}], [{"s": i64(2, 3, -4, 5)}], opset=20,
    ),
    "MaxUnpool": Family(
        [node("MaxUnpool", "x i s", kernel_shape=[2, 2], strides=[2, 2])],
        {"x": f32(1, 1, 2, 2), "i": i64(0, 3, 9, 14).reshape(1, 1, 2, 2)}, [{"s": i64(1, 1, 4, 4)}],
        [{"s": i64(1, 1, 3, 4)}], declared={"y": [1, 1, 4, 4]},
    ),
    "Col2Im": Family(
        [node("Col2Im", "x s b")], {"x": f32(1, 4, 4), "b": i64(2, 2)}, [{"s": i64(3, 3)}], [{"s": i64(4, 3)}, {"s": i64(0, 3)}], opset=18,
    ),
}  # fmt: skip


def cut(x: str, result: str, start: str = "zero", end: str = "n", axis: str = "") -> onnx.NodeProto:
    """`x` from `start` to `end` along the axis in constant `axis` (the first by default)."""
    return node("Slice", f"{x} {start} {end}" + (f" {axis}" if axis else ""), result, name=f"cut_{result}")


NUMBERS = {"zero": i64(0), "one": i64(1), "two": i64(2), "minus": i64(-1)}


def cuts(*values: int) -> list[dict[str, Array]]:
    return [{"n": i64(v)} for v in values]


CHAINS: dict[str, Family] = {
    "Reshape feeds MatMul": Family(
        [node("Reshape", "x s", "a"), node("Reshape", "w t", "b"), node("MatMul", "a b")],
        {"x": f32(24), "w": f32(4, 6)}, [{"s": i64(*s), "t": i64(*t)} for s, t in [((4, 6), (6, 4)), ((-1, 8), (8, 3)), ((1, 24), (24, 1))]],
        [{"s": i64(4, 6), "t": i64(8, 3)}],
    ),
    "MatMul of a cut batch with weights": Family(
        [cut("x", "a"), node("MatMul", "a w", "b"), node("Add", "b c", "d"), node("Relu", "d")], {"x": f32(9, 16)}, cuts(0, 1, 4, 9, 33),
        constants={**NUMBERS, "w": f32(16, 33), "c": f32(33)},
    ),
    "Gemm over a cut inner axis": Family(
        [cut("x", "a", axis="one"), cut("w", "b"), node("Gemm", "a b c", alpha=0.5)], {"x": f32(5, 20), "w": f32(20, 17), "c": f32(17)}, cuts(0, 1, 7, 20),
        constants=NUMBERS,
    ),
    "Softmax of a cut axis": Family(
        [cut("x", "a", axis="one"), node("Softmax", "a", axis=1)], {"x": f32(3, 40)}, cuts(1, 5, 17, 40, -3), constants=NUMBERS,
    ),
    "normalization of a cut axis": Family(
        [cut("x", "a", axis="two"), node("ReduceMean", "a two", "m"), node("Sub", "a m", "d"), node("Mul", "d d", "q"), node("ReduceMean", "q two", "v"), node("Sqrt", "v", "r"), node("Div", "d r")],
        {"x": f32(2, 3, 20)}, cuts(2, 9, 20), constants=NUMBERS,
    ),
    "Slice, Concat, Conv": Family(
        [cut("x", "a", axis="two"), node("Concat", "a k", "b", axis=2), node("Conv", "b w c", pads=[1, 1], strides=[2])], {"x": f32(1, 3, 16)}, cuts(0, 1, 8, 16),
        constants={**NUMBERS, "k": f32(1, 3, 4), "w": f32(8, 3, 3), "c": f32(8)},
    ),
    "Conv in two cut axes": Family(
        [cut("x", "a", end="m", axis="two"), cut("a", "b", axis="three"), node("Conv", "b w c", "d", pads=[1, 1, 1, 1]), node("Relu", "d", "e"), node("MaxPool", "e", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
        {"x": f32(1, 4, 12, 10)}, [{"m": i64(m), "n": i64(n)} for m, n in [(12, 10), (2, 5), (7, 3)]],
        constants={**NUMBERS, "three": i64(3), "w": f32(8, 4, 3, 3), "c": f32(8)},
    ),
    "attention over a cut length": Family(
        [cut("x", "a", axis="one"), node("Transpose", "a", "t", perm=[0, 2, 1]), node("MatMul", "a t", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p a")],
        {"x": f32(2, 11, 8)}, cuts(1, 6, 11), constants=NUMBERS,
    ),
    "positions from both ends of a cut axis": Family(
        [cut("x", "a"), node("Slice", "a minusfive three", "b"), node("Neg", "b")], {"x": f32(20, 3)}, cuts(0, 1, 3, 4, 5, 7, 20),
        constants={**NUMBERS, "minusfive": i64(-5), "three": i64(3)},
    ),
    "every second of a cut axis backwards": Family(
        [cut("x", "a"), node("Slice", "a minus far zero step", "b"), node("Exp", "b")], {"x": f32(9, 3)}, cuts(0, 1, 2, 5, 9),
        constants={**NUMBERS, "far": i64(-(1 << 62)), "step": i64(-2)},
    ),
    "Range feeds Gather": Family(
        [node("Range", "o n i", "r"), node("Gather", "x r", "g"), node("ReduceSum", "g zero")], {"x": f32(9, 4), "o": np.array(0), "i": np.array(2)},
        [{"n": np.array(n)} for n in (0, 1, 5, 9)], constants=NUMBERS,
    ),
    "the size of a cut as data": Family(
        [cut("x", "a"), node("Shape", "a", "s", end=1), node("Concat", "s two", "t", axis=0), node("Expand", "v t", "e"), node("Cast", "s", "f", to=1), node("Div", "e f")],
        {"x": f32(7, 2), "v": f32(1, 1)}, cuts(1, 3, 7), constants=NUMBERS,
    ),
    "ConstantOfShape and broadcast": Family(
        [node("ConstantOfShape", "s", "z"), node("Add", "z x")], {"x": f32(1, 4)}, [{"s": i64(3, 4)}, {"s": i64(1, 1)}, {"s": i64(5, 1)}, {"s": i64(0, 4)}],
        [{"s": i64(3, 2)}, {"s": i64(2, 0)}],
    ),
    "two cuts that must agree": Family(
        [cut("x", "a"), cut("x", "b", end="m"), node("Add", "a b")], {"x": f32(6, 2)}, [{"n": i64(3), "m": i64(3)}, {"n": i64(1), "m": i64(5)}, {"n": i64(5), "m": i64(1)}, {"n": i64(0), "m": i64(0)}],
        [{"n": i64(3), "m": i64(4)}], constants=NUMBERS,
    ),
    "joined cuts that must agree": Family(
        [cut("x", "a", axis="one"), cut("x", "b", end="m", axis="one"), node("Concat", "a b", axis=0)], {"x": f32(3, 6)}, [{"n": i64(3), "m": i64(3)}],
        [{"n": i64(3), "m": i64(4)}], constants=NUMBERS,
    ),
    "cut pieces joined again": Family(
        [node("Split", "x s", "p q", axis=1), node("Neg", "p", "pn"), node("Exp", "q", "qe"), node("Concat", "qe pn", "c", axis=1), node("ReduceMax", "c one", "m", keepdims=0)],
        {"x": f32(3, 9)}, [{"s": i64(4, 5)}, {"s": i64(0, 9)}, {"s": i64(9, 0)}], constants=NUMBERS, outputs=("c", "m"),
    ),
    "TopK, Gather": Family(
        [node("TopK", "x k", "v i", axis=0), node("Gather", "w i", "g"), node("MatMul", "v g")], {"x": f32(9), "w": f32(9, 5)}, [{"k": i64(1)}, {"k": i64(9)}, {"k": i64(4)}],
        [{"k": i64(10)}],
    ),
    "symbolic and cut": Family(
        [cut("x", "a"), node("Softmax", "a", "b", axis=0), node("Transpose", "b", "t", perm=[1, 0]), node("MatMul", "t a")], {},
        [{"x": f32(r, c), "n": i64(n)} for r, c, n in [(5, 3, 2), (8, 2, 8), (3, 7, 1), (4, 4, 9)]], constants=NUMBERS, dims={"x": ["r", "c"]},
    ),
    "symbolic Tile and Reshape": Family(
        [node("Tile", "x k", "t"), node("Reshape", "t s", "r"), node("ReduceSum", "r one", keepdims=0)], {},
        [{"x": f32(r, 3), "k": i64(*k), "s": i64(*s)} for r, k, s in [(2, (2, 1), (-1, 2)), (4, (1, 2), (3, 8)), (1, (3, 3), (27, -1))]],
        [{"x": f32(2, 3), "k": i64(2, 1), "s": i64(5, -1)}], constants=NUMBERS, dims={"x": ["r", 3]},
    ),
    "a cut sequence through an LSTM": Family(
        [cut("x", "a"), node("LSTM", "a w r", "y h", hidden_size=4)], {"x": f32(6, 2, 3)}, cuts(1, 4, 6), outputs=("y", "h"),
        constants={**NUMBERS, "w": f32(1, 16, 3), "r": f32(1, 16, 4)},
    ),
    "a running sum of a cut": Family(
        [cut("x", "a"), node("CumSum", "a ax", "c", reverse=1), node("ArgMax", "c", axis=0)], {"x": f32(9, 2)}, cuts(1, 5, 9), constants={**NUMBERS, "ax": np.array(0)},
    ),
    "a reduction over chosen axes, expanded back": Family(
        [node("ReduceMean", "x a", "m"), node("Sub", "x m", "d"), node("Mul", "d d", "q"), node("ReduceSum", "q a", keepdims=0)], {"x": X}, [{"a": i64(0)}, {"a": i64(1)}, {"a": i64(-1)}],
    ),
    "Resize of a cut": Family(
        [cut("x", "a", axis="two"), node("Resize", "a - f", mode="linear")], {"x": f32(1, 2, 8, 3)}, cuts(1, 5, 8), constants={**NUMBERS, "f": np.float32([1, 1, 2, 1.5])},
    ),
    "Pad, AveragePool": Family(
        [node("Pad", "x p - ax", "a"), node("AveragePool", "a", kernel_shape=[3])], {"x": f32(1, 2, 5)}, [{"p": i64(1, 1)}, {"p": i64(-1, 4)}],
        constants={"ax": i64(-1)},
    ),
    "Einsum of cuts": Family(
        [cut("x", "a", axis="one"), node("Einsum", "a a", equation="bi,ci->bc")], {"x": f32(4, 12)}, cuts(1, 5, 12), constants=NUMBERS,
    ),
    "Where with a size from data": Family(
        [node("Range", "o n i", "r"), node("Less", "r half", "c"), node("Where", "c r half")], {"o": np.array(0), "i": np.array(1), "half": np.array(3)}, [{"n": np.array(n)} for n in (0, 2, 7)],
    ),
    "OneHot of a cut": Family(
        [cut("x", "a"), node("OneHot", "a d v", "h"), node("ReduceSum", "h zero", keepdims=0)], {"x": i64(3, 1, 0, 1), "v": np.float32([0, 1])}, [{"n": i64(n), "d": np.array(d)} for n, d in [(4, 4), (2, 2), (1, 6)]], constants=NUMBERS,
    ),
    "Gather from a cut": Family(
        [cut("x", "a"), node("Gather", "a i")], {"x": f32(5, 2), "i": i64(0, -1)}, cuts(1, 3), cuts(0), constants=NUMBERS,
    ),
}  # fmt: skip


ALL = {**FAMILIES, **CHAINS}

Found = dict[str, tuple[list[Outcome], list[Outcome]]]


@pytest.fixture(scope="module")
def plain() -> Found:
    return outcomes(ALL)


@pytest.fixture(scope="module")
def tuned() -> Found:
    return outcomes(CHAINS, native.WIDE)


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_onnxruntime(name: str, plain: Found) -> None:
    assert_agrees(ALL[name], plain[name][0])


@pytest.mark.parametrize("name", CHAINS)
def test_tuned_kernels_agree_with_onnxruntime(name: str, tuned: Found) -> None:
    assert_agrees(CHAINS[name], tuned[name][0])


@pytest.mark.parametrize("name", [n for n, f in ALL.items() if f.wrong])
def test_values_outside_of_their_limits_end_the_run(name: str, plain: Found) -> None:
    assert dict(enumerate(plain[name][1])) == dict.fromkeys(range(len(ALL[name].wrong)), BAD_VALUE)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> cuvil.Session:
    """Two cuts of one tensor: `y` as the data say, `z` of a declared size."""
    family = Family(
        [cut("x", "y"), cut("x", "z", end="m", axis="one")], {"x": X[0]}, [{"n": i64(2), "m": i64(3)}], outputs=("y", "z"), constants=NUMBERS, declared={"z": [3, 3]}
    )  # fmt: skip
    path = tmp_path_factory.mktemp("cut") / "cut.onnx"
    onnx.save(family.model, path)
    return cuvil.compile(path)


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_a_session_gives_outputs_their_actual_size(size: int, session: cuvil.Session) -> None:
    y, z = session.run(None, {"x": X[0], "n": i64(size), "m": i64(3)})
    np.testing.assert_array_equal(y, X[0][:size])
    np.testing.assert_array_equal(z, X[0][:, :3])


def test_a_session_checks_a_declared_size(session: cuvil.Session) -> None:
    with pytest.raises(cuvil.CuvilError, match="CUVIL_BAD_VALUE"):
        session.run(None, {"x": X[0], "n": i64(1), "m": i64(2)})


def test_a_session_names_the_axes_that_the_data_decide(session: cuvil.Session) -> None:
    y, z = session.get_outputs()
    assert (len(y.shape), isinstance(y.shape[0], str), y.shape[1]) == (2, True, 4)
    assert z.shape == [3, 3]


def test_a_result_that_may_be_huge_is_refused() -> None:
    family = Family([node("ConstantOfShape", "s")], {}, [{"s": i64(1, 2, 3)}])
    with pytest.raises(
        ModelError, match="tensor 'y': its size depends on the data and may be up to 1073741824"
    ):
        native.prepare(family.model)
