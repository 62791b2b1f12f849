"""Scans: states, axes, directions, lengths; recurrent networks written as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from bodies import (
    FLOAT,
    INT,
    Kind,
    graph,
)
from families import Family, f32, i64
from single import node


def scan(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Kind],
    results: Sequence[Kind],
    ins: str,
    outs: str,
    count: int,
    **attributes: Any,
) -> onnx.NodeProto:
    return node("Scan", ins, outs, body=graph(nodes, inputs, results), num_scan_inputs=count, **attributes)


RNN = [
    node("MatMul", "v w", "a"),
    node("MatMul", "h r", "b"),
    node("Add", "a b", "ab"),
    node("Tanh", "ab", "hn"),
]
GRU = [
    node("Concat", "v h", "vh", axis=1),
    node("MatMul", "vh wz", "z0"),
    node("Sigmoid", "z0", "z1"),
    node("MatMul", "vh wr", "r0"),
    node("Sigmoid", "r0", "r1"),
    node("Mul", "r1 h", "rh"),
    node("Concat", "v rh", "vr", axis=1),
    node("MatMul", "vr wh", "g0"),
    node("Tanh", "g0", "g"),
    node("Sub", "h g", "d"),
    node("Mul", "z1 d", "zd"),
    node("Add", "g zd", "hn"),
]
H: Kind = ("h", FLOAT, [2, 4])
HN: Kind = ("hn", FLOAT, [2, 4])
V: Kind = ("v", FLOAT, [2, 3])
WEIGHTS = {"w": f32(3, 4), "r": f32(4, 4), "wz": f32(7, 4), "wr": f32(7, 4), "wh": f32(7, 4)}
SEQUENCES = [{"x": f32(n, 2, 3), "h0": f32(2, 4)} for n in (1, 2, 6)]

SCANS: dict[str, Family] = {
    "RNN": Family(
        [scan(RNN, [H, V], [HN, HN], "h0 x", "y z", 1)],
        {},
        SEQUENCES,
        outputs=("y", "z"),
        constants=WEIGHTS,
        dims={"x": ["t", 2, 3]},
    ),
    "RNN of a known length": Family(
        [scan(RNN, [H, V], [HN, HN], "h0 x", "y z", 1)],
        {},
        SEQUENCES[-1:],
        outputs=("y", "z"),
        constants=WEIGHTS,
    ),
    "GRU": Family(
        [scan(GRU, [H, V], [HN, HN], "h0 x", "y z", 1)],
        {},
        SEQUENCES,
        outputs=("y", "z"),
        constants=WEIGHTS,
        dims={"x": ["t", 2, 3]},
    ),
    "backwards": Family(
        [
            scan(
                RNN, [H, V], [HN, HN], "h0 x", "y z", 1, scan_input_directions=[1], scan_output_directions=[1]
            )
        ],
        {},
        SEQUENCES,
        outputs=("y", "z"),
        constants=WEIGHTS,
        dims={"x": ["t", 2, 3]},
    ),
    "other axes": Family(
        [
            scan(
                RNN,
                [H, V],
                [HN, HN],
                "h0 x",
                "y z",
                1,
                scan_input_axes=[1],
                scan_output_axes=[-1],
                scan_output_directions=[1],
            )
        ],
        {},
        [{"x": f32(2, n, 3), "h0": f32(2, 4)} for n in (1, 5)],
        outputs=("y", "z"),
        constants=WEIGHTS,
        dims={"x": [2, "t", 3]},
    ),
    "two states, two inputs": Family(
        [
            scan(
                [
                    node("Add", "p a", "pn"),
                    node("Mul", "q b", "qm"),
                    node("Add", "qm pn", "qn"),
                    node("Sub", "pn b", "o"),
                ],
                [("p", FLOAT, [3]), ("q", FLOAT, [3]), ("a", FLOAT, [3]), ("b", FLOAT, [3])],
                [("pn", FLOAT, [3]), ("qn", FLOAT, [3]), ("o", FLOAT, [3]), ("b", FLOAT, [3])],
                "p0 q0 u v",
                "y z o2 b2",
                2,
                scan_input_directions=[0, 1],
                scan_input_axes=[0, 1],
                scan_output_axes=[1, 0],
            )
        ],
        {"p0": f32(3), "q0": f32(3)},
        [{"u": f32(n, 3), "v": f32(3, n)} for n in (1, 4)],
        outputs=("y", "z", "o2", "b2"),
        dims={"u": ["t", 3], "v": [3, "t"]},
    ),
    "no state": Family(
        [scan([node("ReduceSum", "v", "o", keepdims=0)], [V], [("o", FLOAT, [])], "x", "z", 1)],
        {},
        [{"x": f32(n, 2, 3)} for n in (1, 5)],
        outputs=("z",),
        dims={"x": ["t", 2, 3]},
    ),
    "a length from data": Family(
        [node("Slice", "x zero n", "xs"), scan(RNN, [H, V], [HN, HN], "h0 xs", "y z", 1)],
        SEQUENCES[-1],
        [{"n": i64(n)} for n in (1, 3, 6)],
        outputs=("y", "z"),
        constants={**WEIGHTS, "zero": i64(0)},
    ),
    "written out": Family(
        [
            scan(
                [
                    node("TopK", "v two", "tv ti", axis=1),
                    node("ReduceSum", "tv", "r", keepdims=0),
                    node("Add", "h r", "hn"),
                ],
                [H, V],
                [HN, ("ti", INT, [2, 2])],
                "h0 x",
                "y z",
                1,
                scan_output_axes=[1],
            )
        ],
        {},
        SEQUENCES[-1:],
        outputs=("y", "z"),
        constants={"two": i64(2)},
    ),
}
