"""Operators whose axes, shapes, positions, counts or scales only the run knows, with values for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from families import Family, f32, i64
from single import Array, node


def axes(op: str, x: Array, runs: Sequence[Array], wrong: Sequence[Array] = (), **attributes: Any) -> Family:
    return Family(
        [node(op, "x a", **attributes)], {"x": x}, [{"a": a} for a in runs], [{"a": a} for a in wrong]
    )


X = f32(2, 3, 4)
REDUCTIONS = (
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)

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
        "Reshape",
        X,
        [i64(4, 6), i64(-1, 2), i64(24, 1), i64(0, -1), i64(0, 12)],
        [i64(5, 5), i64(-1, 5), i64(-1, -1), i64(25, 1), i64(-2, 12), i64(3, 4), i64(1 << 62, 2)],
    ),
    "Reshape allowzero": Family(
        [node("Reshape", "x s", allowzero=1)],
        {"x": f32(0, 3)},
        [{"s": i64(0, 5)}, {"s": i64(7, 0)}, {"s": i64(0, 0)}],
        [{"s": i64(1, 1)}],
    ),
    "Reshape declared": Family(
        [node("Reshape", "x s")],
        {"x": X},
        [{"s": i64(4, 6)}, {"s": i64(-1, 6)}, {"s": i64(4, -1)}],
        [{"s": i64(6, 4)}, {"s": i64(2, 12)}],
        declared={"y": [4, 6]},
    ),
    "Squeeze": Family(
        [node("Squeeze", "x a")],
        {"x": f32(1, 3, 1, 2)},
        [{"a": i64(0)}, {"a": i64(2)}, {"a": i64(-2)}],
        [{"a": i64(1)}, {"a": i64(4)}, {"a": i64(-5)}],
    ),
    "Squeeze two": Family(
        [node("Squeeze", "x a")],
        {"x": f32(1, 3, 1, 1)},
        [{"a": i64(0, 2)}, {"a": i64(3, -4)}],
        [{"a": i64(0, 1)}, {"a": i64(0, 7)}, {"a": i64(2, 2)}],
    ),
    "Unsqueeze": axes("Unsqueeze", X, [i64(0), i64(3), i64(-1), i64(-4), i64(2)], [i64(4), i64(-5), i64(9)]),
    "Unsqueeze two": axes(
        "Unsqueeze", X, [i64(0, 1), i64(4, 0), i64(-1, 2)], [i64(0, 0), i64(1, -4), i64(0, 5)]
    ),
    "Expand": Family(
        [node("Expand", "x s")],
        {"x": f32(3, 1)},
        [{"s": i64(3, 4)}, {"s": i64(1, 5)}, {"s": i64(1, 1)}, {"s": i64(3, 0)}],
        [{"s": i64(2, 4)}, {"s": i64(3, -1)}, {"s": i64(0, 2)}, {"s": i64(3, 1 << 40)}],
    ),
    "Expand with rank": Family(
        [node("Expand", "x s")],
        {"x": f32(3, 1)},
        [{"s": i64(2, 3, 4)}, {"s": i64(0, 1, 1)}],
        [{"s": i64(2, 5, 4)}],
    ),
    "Tile": axes(
        "Tile", f32(2, 3), [i64(1, 1), i64(2, 3), i64(0, 2), i64(5, 0)], [i64(-1, 2), i64(1, 1 << 50)]
    ),
    "ConstantOfShape": Family(
        [node("ConstantOfShape", "s")],
        {},
        [{"s": i64(2, 3)}, {"s": i64(0, 3)}, {"s": i64(7, 1)}],
        [{"s": i64(-1, 2)}, {"s": i64(1 << 33, 1)}],
    ),
    "Split": Family(
        [node("Split", "x s", "p q", axis=1)],
        {"x": f32(2, 7)},
        [{"s": i64(3, 4)}, {"s": i64(0, 7)}, {"s": i64(7, 0)}],
        [{"s": i64(3, 3)}, {"s": i64(-1, 8)}, {"s": i64(8, -1)}, {"s": i64(4, 4)}],
        outputs=("p", "q"),
    ),
    "Slice": Family(
        [node("Slice", "x s e")],
        {"x": f32(6, 5)},
        [
            {"s": i64(*s), "e": i64(*e)}
            for s, e in [
                ((0, 0), (6, 5)),
                ((1, 2), (4, 3)),
                ((-3, -9), (9, -1)),
                ((4, 4), (1, 1)),
                ((5, 0), (1 << 62, 5)),
                ((-(1 << 62), 1), (3, 1 << 31)),
            ]
        ],
    ),
    "Slice axes and steps": Family(
        [node("Slice", "x s e a t")],
        {"x": f32(6, 5)},
        [
            {"s": i64(s), "e": i64(e), "a": i64(a), "t": i64(t)}
            for s, e, a, t in [
                (0, 6, 0, 2),
                (-1, -7, 1, -1),
                (4, 0, -1, -2),
                (5, -(1 << 62), 0, -3),
                (0, 5, -2, 7),
                (1 << 62, 0, 1, -1),
                (0, 9, 1, 1 << 40),
                (9, -9, 0, -(1 << 63)),
            ]
        ],
        [{"s": i64(0), "e": i64(5), "a": i64(a), "t": i64(t)} for a, t in [(2, 1), (-3, 1), (0, 0)]],
    ),
    "Pad": Family(
        [node("Pad", "x p")],
        {"x": f32(3, 2)},
        [{"p": i64(*p)} for p in [(0, 0, 0, 0), (1, 2, 3, 0), (-1, 0, 1, 1), (-1, 0, -1, 0)]],
        [{"p": i64(-2, 0, -2, 0)}, {"p": i64(1 << 40, 0, 0, 0)}, {"p": i64(0, -3, 0, 0)}],
    ),
    "Pad axes": Family(
        [node("Pad", "x p v a")],
        {"x": f32(3, 2), "v": np.array(9, np.float32)},
        [{"p": i64(1, 2), "a": i64(0)}, {"p": i64(0, 2), "a": i64(-1)}, {"p": i64(-1, 0), "a": i64(1)}],
        [{"p": i64(1, 1), "a": i64(2)}, {"p": i64(1, 1), "a": i64(-3)}],
    ),
    **{
        f"Pad {mode}": Family(
            [node("Pad", "x p", mode=mode)],
            {"x": f32(4, 3)},
            [{"p": i64(*p)} for p in [(0, 0, 0, 0), (1, 2, 3, 0), (0, 1, 1, 2)]],
            [{"p": i64(-5, 0, 0, 0)}, {"p": i64(1 << 40, 0, 0, 0)}],
        )
        for mode in ("edge", "reflect", "wrap")
    },
    "CenterCropPad": Family(
        [node("CenterCropPad", "x s")],
        {"x": f32(5, 4)},
        [{"s": i64(*s)} for s in [(5, 4), (3, 7), (8, 1), (2, 2)]],
        [{"s": i64(-1, 4)}],
        opset=18,
    ),
    "Range": Family(
        [node("Range", "s e d")],
        {},
        [
            {"s": np.array(s), "e": np.array(e), "d": np.array(d)}
            for s, e, d in [(0, 5, 1), (3, 3, 1), (9, -2, -3), (5, 1, 1), (-4, 4, 3)]
        ],
        [
            {"s": np.array(0), "e": np.array(1 << 40), "d": np.array(1)},
            {"s": np.array(0), "e": np.array(9), "d": np.array(0)},
            {"s": np.array(-(1 << 62)), "e": np.array(1 << 62), "d": np.array(1)},
            {"s": np.array(-(1 << 63)), "e": np.array((1 << 63) - 1), "d": np.array(1)},
        ],
    ),
    "Range float": Family(
        [node("Range", "s e d")],
        {},
        [
            {n: np.array(v, np.float32) for n, v in zip("sed", (s, e, d))}
            for s, e, d in [(0, 5, 1), (0, 1, 0.3), (2, -1, -0.5), (1, 0, 1)]
        ],
        [
            {n: np.array(v, np.float32) for n, v in zip("sed", (s, e, d))}
            for s, e, d in [(0, 1e30, 1), (0, 1, 0), (0, np.nan, 1), (0, np.inf, 1), (0, -np.inf, -1)]
        ],
    ),
    "OneHot": Family(
        [node("OneHot", "i d v", axis=0)],
        {"i": i64(0, 2, -1, 7), "v": np.float32([-1, 5])},
        [{"d": np.array(3)}, {"d": np.array(8)}, {"d": np.array(1)}],
        [{"d": np.array(-1)}, {"d": np.array(1 << 60)}],
    ),
    "OneHot vector depth": Family(
        [node("OneHot", "i d v")],
        {"i": np.array([[0, 2], [1, 1]]), "v": np.float32([0, 1])},
        [{"d": i64(3)}, {"d": i64(5)}],
    ),
    "TopK": Family(
        [node("TopK", "x k", "v i", axis=1)],
        {"x": f32(3, 6)},
        [{"k": i64(1)}, {"k": i64(6)}, {"k": i64(0)}, {"k": i64(4)}],
        [{"k": i64(7)}, {"k": i64(-1)}],
        outputs=("v", "i"),
    ),
    "Trilu": Family(
        [node("Trilu", "x k")],
        {"x": f32(4, 5)},
        [{"k": np.array(k)} for k in (0, 1, -2, 9, -9, 1 << 40)],
    ),
    **{
        f"{op}{suffix}": Family(
            [node(op, "x a", **attributes)],
            {"x": X},
            [{"a": np.array(a)} for a in (0, 1, 2, -1, -3)],
            [{"a": np.array(3)}, {"a": np.array(-4)}],
        )
        for op in ("CumSum",)
        for suffix, attributes in (("", {}), (" reverse", {"reverse": 1}), (" exclusive", {"exclusive": 1}))
    },
    "Resize sizes": Family(
        [
            node(
                "Resize",
                "x - - s",
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        {"x": f32(1, 2, 4, 5)},
        [{"s": i64(1, 2, 8, 5)}, {"s": i64(1, 2, 2, 3)}, {"s": i64(1, 2, 4, 5)}, {"s": i64(1, 2, 7, 11)}],
        [{"s": i64(1, 2, -1, 5)}, {"s": i64(1, 2, 1 << 40, 5)}, {"s": i64(1, 3, 4, 5)}],
        declared={"y": [1, 2, "h", "w"]},
    ),
    "Resize linear scales": Family(
        [node("Resize", "x - s", mode="linear")],
        {"x": f32(1, 2, 4, 5)},
        [{"s": np.float32(s)} for s in [(1, 1, 2, 2), (1, 1, 0.5, 1.5), (1, 1, 1, 1), (1, 1, 1.3, 0.6)]],
        [
            {"s": np.float32([1, 1, -1, 1])},
            {"s": np.float32([1, 1, np.nan, 1])},
            {"s": np.float32([1, 1, 1e30, 1])},
            {"s": np.float32([2, 1, 1, 1])},
        ],
        declared={"y": [1, 2, "h", "w"]},
    ),
    "DFT axis": Family(
        [node("DFT", "x - a")],
        {"x": f32(2, 5, 4, 1)},
        [{"a": np.array(a)} for a in (0, 1, 2, -2, -4)],
        [{"a": np.array(3)}, {"a": np.array(-5)}],
        opset=20,
    ),
    "DFT length": Family(
        [node("DFT", "x n", onesided=1)],
        {"x": f32(2, 6, 1)},
        [{"n": np.array(n)} for n in (6, 4, 9, 1)],
        [{"n": np.array(0)}, {"n": np.array(1 << 20)}],
        opset=20,
    ),
    "STFT step": Family(
        [node("STFT", "x s w")],
        {"x": f32(1, 16, 1), "w": f32(4)},
        [{"s": np.array(n)} for n in (1, 3, 12)],
        [{"s": np.array(0)}, {"s": np.array(-1)}],
        opset=17,
    ),
    "STFT length": Family(
        [node("STFT", "x s - l")],
        {"x": f32(1, 16, 1), "s": np.array(3)},
        [{"l": np.array(n)} for n in (4, 16, 7)],
        [{"l": np.array(0)}, {"l": np.array(17)}],
        opset=17,
    ),
    "MelWeightMatrix": Family(
        [node("MelWeightMatrix", "m d r lo hi")],
        {"r": np.array(8000), "lo": np.array(0, np.float32), "hi": np.array(4000, np.float32)},
        [{"m": np.array(8), "d": np.array(16)}, {"m": np.array(4), "d": np.array(32)}],
        [{"m": np.array(-1), "d": np.array(16)}],
    ),
    "AffineGrid": Family(
        [node("AffineGrid", "t s")],
        {"t": f32(2, 2, 3)},
        [{"s": i64(2, 3, 4, 5)}, {"s": i64(2, 1, 1, 2)}],
        [{"s": i64(2, 3, -4, 5)}],
        opset=20,
    ),
    "MaxUnpool": Family(
        [node("MaxUnpool", "x i s", kernel_shape=[2, 2], strides=[2, 2])],
        {"x": f32(1, 1, 2, 2), "i": i64(0, 3, 9, 14).reshape(1, 1, 2, 2)},
        [{"s": i64(1, 1, 4, 4)}],
        [{"s": i64(1, 1, 3, 4)}],
        declared={"y": [1, 1, 4, 4]},
    ),
    "Col2Im": Family(
        [node("Col2Im", "x s b")],
        {"x": f32(1, 4, 4), "b": i64(2, 2)},
        [{"s": i64(3, 3)}],
        [{"s": i64(4, 3)}, {"s": i64(0, 3)}],
        opset=18,
    ),
}
