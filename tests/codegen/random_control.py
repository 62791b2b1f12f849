"""Random models with axes, sizes and positions that only the run knows, and with Loop and Scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from codegen.random_models import Dim, NoFit, RandomModel
from onnx import TensorProto, helper

Step = tuple[list[onnx.NodeProto], str]
"""Nodes of a body, and the value they end in."""

MOST = 3
"""Operators with run-time values in one model; each widens what the compiler must allow for."""


class RandomControl(RandomModel):
    """A random model in which about one operator in four takes a run-time value or is a loop."""

    _taken = 0

    def _candidates(self, x: str) -> list[Callable[[str], str | list[str]]]:
        more: list[Callable[[str], str | list[str]]] = [self.scan, self.scan, self.scan, self.loop, self.loop]
        if self._taken < MOST:
            more += [self.cut, self.cut, self.reduced, self.reshaped, self.tiled, self.padded, self.largest]
        return [*super()._candidates(x), *more]

    def _given(self, *values: int, scalar: bool = False) -> str:
        """An input of the model with the given numbers."""
        name = f"n{len(self._numbers)}"
        self._numbers[name] = np.array(values[0] if scalar else values, np.int64)
        self._taken += 1
        return name

    # --- run-time values ---

    def cut(self, x: str) -> str:
        s, axis = self.shapes[x], self._known_axis(x, 2)
        size = self._size(s[axis])
        start = self._int(0, size - 1)
        stop = self._int(start + 1, size)
        shape = [*s[:axis], stop - start, *s[axis + 1 :]]
        ends = self._given(start - size if self._chance(0.3) else start), self._given(stop)
        return self._op("Slice", [x, *ends, self._i64(axis)], shape)

    def reduced(self, x: str) -> str:
        s = self.shapes[x]
        axis, keep = self._int(0, len(s) - 1), self._int(0, 1)
        if len(s) == 1 and not keep:
            raise NoFit
        shape = [1 if i == axis else d for i, d in enumerate(s) if keep or i != axis]
        kind = self._pick(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"])
        given = self._given(axis - len(s) if self._chance(0.3) else axis)
        return self._op(kind, [x, given], shape, keepdims=keep)

    def reshaped(self, x: str) -> str:
        total = math.prod(self._known_shape(x))
        if total > 2000:
            raise NoFit
        rows = self._pick([n for n in range(1, total + 1) if total % n == 0])
        columns = -1 if self._chance(0.5) else total // rows
        return self._op("Reshape", [x, self._given(rows, columns)], [rows, total // rows])

    def tiled(self, x: str) -> str:
        known, axis = self._known_shape(x), self._int(0, len(self.shapes[x]) - 1)
        if math.prod(known) > 300:
            raise NoFit
        times = self._int(1, 3)
        repeats = [
            self._i64(times if i == axis else 1) if i != axis else self._given(times)
            for i in range(len(known))
        ]
        counts = self._op("Concat", repeats, [len(known)], axis=0)
        return self._op("Tile", [x, counts], [n * times if i == axis else n for i, n in enumerate(known)])

    def padded(self, x: str) -> str:
        s, axis = self.shapes[x], self._known_axis(x)
        low, high = self._int(0, 2), self._int(0, 2)
        shape = [*s[:axis], self._size(s[axis]) + low + high, *s[axis + 1 :]]
        mode = self._pick(["constant", "edge"])
        return self._op("Pad", [x, self._given(low, high), "", self._i64(axis)], shape, mode=mode)

    def largest(self, x: str) -> str:
        s, axis = self.shapes[x], self._known_axis(x, 2)
        k = self._int(1, self._size(s[axis]))
        shape = [*s[:axis], k, *s[axis + 1 :]]
        return self._ops("TopK", [x, self._given(k)], shape, shape, axis=axis)[0]

    # --- loops ---

    def _step(self, h: str, v: str, s: Sequence[Dim]) -> Step:
        """Nodes that make a new state [s] of a state `h` and what comes in, `v`, both [s]."""
        made: list[onnx.NodeProto] = []

        def op(kind: str, *inputs: str, **attributes: object) -> str:
            name = f"b{len(self.shapes)}_{len(self._nodes)}_{len(made)}"
            made.append(helper.make_node(kind, inputs, [name], name=f"in_{name}", **attributes))
            return name

        y = op("Add", op("Mul", h, self._f32(0.6)), v)
        last = s[-1] if s else "none"
        kind = self._pick(["tanh", "mean", "softmax", "matmul", "relu", "swap"])
        if kind == "mean" and s:
            mean = op("ReduceMean", y, self._i64(-1), keepdims=1)
            y = op("Sub", y, op("Mul", mean, self._f32(0.5)))  # the whole mean leaves nothing but rounding
        elif kind == "softmax" and s:
            y = op("Softmax", y, axis=-1)
        elif kind == "matmul" and len(s) > 1 and isinstance(last, int) and last <= 40:
            y = op("MatMul", y, self._normal(last, last, scale=last**-0.5))
        elif kind == "swap" and s:
            y = op("Mul", y, op("Sigmoid", h))
        return made, op(self._pick(["Tanh", "Relu", "Sigmoid"]) if kind != "relu" else "Relu", y)

    def scan(self, x: str) -> str:
        s = self.shapes[x]
        if len(s) < 2:
            raise NoFit
        axis = self._int(0, len(s) - 1)
        rest = [*s[:axis], *s[axis + 1 :]]
        start = self._op("ReduceMax", [x, self._i64(axis)], rest, keepdims=0)
        name = f"{len(self._nodes)}"
        nodes, new = self._step(f"h{name}", f"v{name}", rest)
        nodes.append(helper.make_node("Identity", [new], [f"o{name}"], name=f"copy{name}"))
        kinds = [helper.make_tensor_value_info(n + name, TensorProto.FLOAT, rest) for n in "hv"]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, rest) for n in (new, f"o{name}")]
        body = helper.make_graph(nodes, "body", kinds, results)
        place = self._int(0, len(rest))
        return self._pick(
            self._ops(
                "Scan",
                [start, x],
                rest,
                [*rest[:place], s[axis], *rest[place:]],
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[axis],
                scan_input_directions=[self._int(0, 1)],
                scan_output_axes=[place],
                scan_output_directions=[self._int(0, 1)],
            )
        )

    def loop(self, x: str) -> str:
        s, trips = self.shapes[x], self._int(1, 4)
        steps = trips
        by_run = self._taken < MOST and self._chance(0.6)
        count = self._given(trips, scalar=True) if by_run else self._constant(np.int64(trips))
        name = f"{len(self._nodes)}"
        nodes, new = self._step(f"h{name}", x, s)
        if self._chance(0.4):
            limit = self._int(1, 5)
            steps = min(trips, limit)
            nodes.append(
                helper.make_node(
                    "Less",
                    [f"i{name}", self._constant(np.int64(limit - 1))],
                    [f"go{name}"],
                    name=f"less{name}",
                )
            )
        else:
            nodes.append(helper.make_node("Identity", [f"going{name}"], [f"go{name}"], name=f"pass{name}"))
        nodes.append(
            helper.make_node("ReduceMean", [new, self._i64(-1)], [f"o{name}"], name=f"mean{name}", keepdims=0)
        )
        kinds = [
            helper.make_tensor_value_info(f"i{name}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"going{name}", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"h{name}", TensorProto.FLOAT, s),
        ]
        results = [
            helper.make_tensor_value_info(f"go{name}", TensorProto.BOOL, []),
            helper.make_tensor_value_info(new, TensorProto.FLOAT, s),
            helper.make_tensor_value_info(f"o{name}", TensorProto.FLOAT, s[:-1]),
        ]
        body = helper.make_graph(nodes, "body", kinds, results)
        true = self._constant(np.array(True))
        made = self._ops("Loop", [count, true, self._like("Neg", x)], s, [steps, *s[:-1]], body=body)
        return self._pick(made)
