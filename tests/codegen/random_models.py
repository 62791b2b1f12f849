"""Random models, the same for the same seed.

Every model is valid: operators are drawn one after the other and get inputs whose shapes fit.  Two of the
sizes may be symbolic (``N``, ``S``).  Only functions that are continuous where they are used appear, so that
rounding in another order moves the outputs little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Dim = int | str
T = TypeVar("T")

MAX_ELEMENTS = 20_000
"""Values larger than this are not built upon."""


class NoFit(Exception):
    """The operator drawn has no form for the value drawn."""


class RandomModel:
    """A model of about `steps` operators.

    Attributes:
        model: the model.
        feeds: an array for every input.
    """

    def __init__(self, seed: int, steps: int = 10) -> None:
        self.rng = np.random.default_rng([seed, 5])
        self.sizes = {"N": self._int(1, 3), "S": self._pick([1, 2, 3, 5, 7, 16, 17, 33])}
        self.shapes: dict[str, list[Dim]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[str] = []
        self._numbers: dict[str, Array] = {}
        self.live = [self._input() for _ in range(self._int(1, 2))]
        for _ in range(steps):
            x = self._pick(self.live[-4:] if self._chance(0.8) else self.live)
            try:
                made = self._pick(self._candidates(x))(x)
            except NoFit:
                continue
            for y in made if isinstance(made, list) else [made]:
                if math.prod(self._size(d) for d in self.shapes[y]) <= MAX_ELEMENTS:
                    self.live.append(y)
        computed = [v for v in self.live if v not in self._inputs] or [self._like("Relu", self.live[0])]
        outputs = [computed[-1], *(v for v in computed[:-1] if self._chance(0.12))]
        numbers = self._numbers.items()
        graph = helper.make_graph(
            self._nodes,
            f"random{seed}",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in self._inputs]
            + [helper.make_tensor_value_info(n, TensorProto.INT64, a.shape) for n, a in numbers],
            [onnx.ValueInfoProto(name=n) for n in dict.fromkeys(outputs)],
            self._constants,
        )
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        self.feeds: dict[str, Array] = {
            n: self.rng.standard_normal([self._size(d) for d in self.shapes[n]]).astype(np.float32)
            for n in self._inputs
        } | self._numbers

    # --- draws ---

    def _int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def _chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def _size(self, d: Dim) -> int:
        return self.sizes[d] if isinstance(d, str) else d

    def _known_axis(self, x: str, least: int = 1) -> int:
        """An axis of known size, at least `least`."""
        axes = [i for i, d in enumerate(self.shapes[x]) if isinstance(d, int) and d >= least]
        if not axes:
            raise NoFit
        return self._pick(axes)

    def _known_shape(self, x: str) -> list[int]:
        if any(isinstance(d, str) for d in self.shapes[x]):
            raise NoFit
        return [self._size(d) for d in self.shapes[x]]

    # --- pieces ---

    def _input(self) -> str:
        batch: Dim = "N" if self._chance(0.5) else self._int(1, 3)
        image: list[Dim] = [
            batch,
            self._pick([1, 3, 4, 8, 10, 16, 17, 24, 32, 33, 48, 64]),
            self._int(1, 13),
            self._int(1, 13),
        ]
        length: Dim = "S" if self._chance(0.6) else self._pick([1, 2, 5, 8, 17])
        kinds: list[list[Dim]] = [
            image, image, image,
            [batch, length, self._pick([1, 4, 7, 8, 16, 24, 33])],
            [batch, self._pick([1, 2, 7, 16, 40, 64])],
            [self._pick([1, 5, 32, 100])],
            [batch, self._pick([2, 8, 16]), self._int(1, 4), self._int(1, 5), self._int(1, 5)],
        ]  # fmt: skip
        name = f"in{len(self._inputs)}"
        self._inputs.append(name)
        self.shapes[name] = self._pick(kinds)
        return name

    def _constant(self, array: Any) -> str:
        name = f"c{len(self._constants)}"
        array = np.asarray(array)
        self._constants.append(numpy_helper.from_array(array, name))
        self.shapes[name] = list(array.shape)
        return name

    def _f32(self, value: float) -> str:
        return self._constant(np.float32(value))

    def _i64(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _normal(self, *shape: int, scale: float = 1.0) -> str:
        return self._constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def _ops(self, kind: str, inputs: Sequence[str], *shapes: Sequence[Dim], **attributes: Any) -> list[str]:
        names = [f"t{len(self.shapes)}_{k}" for k in range(len(shapes))]
        self._nodes.append(
            helper.make_node(kind, inputs, names, name=f"{kind}_{len(self._nodes)}", **attributes)
        )
        self.shapes.update((n, list(s)) for n, s in zip(names, shapes))
        return names

    def _op(self, kind: str, inputs: Sequence[str], shape: Sequence[Dim], **attributes: Any) -> str:
        return self._ops(kind, inputs, shape, **attributes)[0]

    def _like(self, kind: str, x: str, *more: str, **attributes: Any) -> str:
        return self._op(kind, [x, *more], self.shapes[x], **attributes)

    def _partner(self, x: str) -> str:
        """A value that broadcasts with `x`, perhaps `x` itself."""
        s = self.shapes[x]
        same_rank = [v for v in self.live if len(self.shapes[v]) == len(s)]
        fits = [v for v in same_rank if all(a == b or 1 in (a, b) for a, b in zip(self.shapes[v], s))]
        return self._pick(fits or [x])

    def _together(self, x: str, y: str) -> list[Dim]:
        return [b if a == 1 else a for a, b in zip(self.shapes[x], self.shapes[y])]

    # --- operators ---

    def _candidates(self, x: str) -> list[Callable[[str], str | list[str]]]:
        s = self.shapes[x]
        found: list[Callable[[str], str | list[str]]] = [
            self.unary, self.unary, self.binary, self.binary, self.with_constant, self.with_constant,
            self.with_transposed, self.transpose, self.reshape, self.concat, self.pad, self.slice,
            self.reduce, self.softmax, self.matmul, self.matmul, self.norm, self.gather, self.where,
            self.split, self.other,
        ]  # fmt: skip
        if len(s) in (3, 4, 5) and all(isinstance(d, int) for d in s[1:]):
            found += [self.conv] * 6 + [self.pool] * 2 + [self.conv_transpose, self.resize]
        return found

    def unary(self, x: str) -> str:
        kind = self._pick(
            [
                "Relu",
                "Sigmoid",
                "Tanh",
                "Abs",
                "Neg",
                "LeakyRelu",
                "Erf",
                "HardSwish",
                "Softplus",
                "Clip",
                "Exp",
                "Sqrt",
                "Identity",
                "Sin",
            ]
        )
        if kind == "Clip":
            return self._like("Clip", x, self._f32(-0.5), self._f32(2))
        if kind == "Exp":
            x = self._like("Tanh", x)
        if kind == "Sqrt":
            x = self._like("Add", self._like("Abs", x), self._f32(0.1))
        return self._like(kind, x)

    def binary(self, x: str) -> str:
        y = self._partner(x)
        return self._op(self._pick(["Add", "Sub", "Mul", "Max", "Min", "Add"]), [x, y], self._together(x, y))

    def with_constant(self, x: str) -> str:
        shape = [d if isinstance(d, int) and self._chance(0.5) else 1 for d in self.shapes[x]]
        while shape and shape[0] == 1 and self._chance(0.5):
            shape = shape[1:]
        kind = self._pick(["Add", "Mul", "Sub", "Div"])
        if kind == "Div":
            return self._like("Div", x, self._constant((0.5 + self.rng.random(shape)).astype(np.float32)))
        constant = self._normal(*shape)
        inputs = [x, constant] if self._chance(0.7) else [constant, x]
        return self._op(kind, inputs, self.shapes[x])

    def with_transposed(self, x: str) -> str:
        s = self.shapes[x]
        equal = [(i, j) for i in range(len(s)) for j in range(i) if s[i] == s[j]]
        if not equal:
            raise NoFit
        i, j = self._pick(equal)
        perm = list(range(len(s)))
        perm[i], perm[j] = j, i
        return self._like(self._pick(["Add", "Mul", "Sub"]), x, self._like("Transpose", x, perm=perm))

    def transpose(self, x: str) -> str:
        perm = self.rng.permutation(len(self.shapes[x])).tolist()
        return self._op("Transpose", [x], [self.shapes[x][i] for i in perm], perm=perm)

    def reshape(self, x: str) -> str:
        s = self.shapes[x]
        kind = self._pick(["flat", "split", "merge", "unsqueeze", "squeeze", "flatten"])
        if kind == "flat":
            return self._op("Reshape", [x, self._i64(-1)], [math.prod(self._known_shape(x))])
        if kind == "flatten":
            if len(s) < 2 or any(isinstance(d, str) for d in s[1:]):
                raise NoFit
            return self._op("Flatten", [x], [s[0], math.prod(self._size(d) for d in s[1:])], axis=1)
        if kind == "unsqueeze" and len(s) < 5:
            axis = self._int(0, len(s))
            return self._op("Unsqueeze", [x, self._i64(axis)], [*s[:axis], 1, *s[axis:]])
        ones = [i for i, d in enumerate(s) if d == 1]
        if kind == "squeeze" and ones and len(s) > 1:
            axis = self._pick(ones)
            return self._op("Squeeze", [x, self._i64(axis)], s[:axis] + s[axis + 1 :])
        pairs = [i for i in range(len(s) - 1) if isinstance(s[i], int) and isinstance(s[i + 1], int)]
        splits = [
            (i, f)
            for i, d in enumerate(s)
            if isinstance(d, int)
            for f in (2, 3, 4, 8)
            if d % f == 0 and d > f
        ]
        if kind == "merge" and pairs:
            i = self._pick(pairs)
            shape = [*s[:i], self._size(s[i]) * self._size(s[i + 1]), *s[i + 2 :]]
        elif kind == "split" and splits and len(s) < 5:
            i, f = self._pick(splits)
            whole = self._size(s[i])
            f = self._pick([f, whole // f])
            shape = [*s[:i], f, whole // f, *s[i + 1 :]]
        else:
            raise NoFit
        if sum(isinstance(d, str) for d in shape) > 1:
            raise NoFit
        return self._op("Reshape", [x, self._i64(*(-1 if isinstance(d, str) else d for d in shape))], shape)

    def concat(self, x: str) -> str:
        s, axis = self.shapes[x], self._known_axis(x)
        fits = [
            v for v in self.live
            if len(self.shapes[v]) == len(s) and isinstance(self.shapes[v][axis], int)
            and all(i == axis or self.shapes[v][i] == s[i] for i in range(len(s)))
        ]  # fmt: skip
        parts = [x, *(self._pick(fits or [x]) for _ in range(self._int(1, 2)))]
        if self._chance(0.2) and all(isinstance(d, int) for d in s):
            parts.append(self._normal(*(self._size(d) for d in s)))
        parts = [parts[i] for i in self.rng.permutation(len(parts))]
        shape = list(s)
        shape[axis] = sum(self._size(self.shapes[p][axis]) for p in parts)
        return self._op("Concat", parts, shape, axis=axis)

    def pad(self, x: str) -> str:
        s = self.shapes[x]
        mode = self._pick(["constant", "constant", "edge", "reflect"])
        before, after = [0] * len(s), [0] * len(s)
        for i, d in enumerate(s):
            if isinstance(d, int) and self._chance(0.5) and (mode != "reflect" or d >= 4):
                before[i], after[i] = self._int(0, 2), self._int(0, 2)
                if mode == "constant" and d > 3 and self._chance(0.1):
                    before[i] = -1
        inputs = [x, self._i64(*before, *after)]
        if mode == "constant" and self._chance(0.4):
            inputs.append(self._f32(1.5))
        shape = [d if isinstance(d, str) else d + a + b for d, a, b in zip(s, before, after)]
        return self._op("Pad", inputs, shape, mode=mode)

    def slice(self, x: str) -> str:
        s, axis = self.shapes[x], self._known_axis(x, 2)
        size = self._size(s[axis])
        step = self._pick([1, 1, 1, 2, 3, -1, -2])
        start, stop = sorted(self.rng.integers(0, size + 1, 2).tolist())
        if start == stop:
            start, stop = 0, size
        shape = list(s)
        shape[axis] = -(-(stop - start) // abs(step))
        if step < 0:
            start, stop = stop - 1, (start - 1 if start else -(1 << 62))
        return self._op("Slice", [x, *(self._i64(v) for v in (start, stop, axis, step))], shape)

    def reduce(self, x: str) -> str:
        s = self.shapes[x]
        axes = [i for i in range(len(s)) if self._chance(0.4)] or [len(s) - 1]
        keep = self._chance(0.7) or len(axes) == len(s)
        shape = [1 if i in axes else d for i, d in enumerate(s) if keep or i not in axes]
        kind = self._pick(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1"])
        y = self._op(kind, [x, self._i64(*axes)], shape, keepdims=int(keep))
        return self._like(self._pick(["Sub", "Add", "Mul"]), x, y) if keep and self._chance(0.6) else y

    def softmax(self, x: str) -> str:
        return self._like(
            self._pick(["Softmax", "Softmax", "LogSoftmax"]), x, axis=self._int(0, len(self.shapes[x]) - 1)
        )

    def matmul(self, x: str) -> str:
        s = self.shapes[x]
        if len(s) < 2:
            raise NoFit
        if isinstance(s[-1], int) and self._chance(0.6):
            columns = self._pick([1, 2, 3, 8, 10, 16, 33, 48, 64])
            w = self._normal(s[-1], columns, scale=s[-1] ** -0.5)
            y = self._op("MatMul", [x, w], [*s[:-1], columns])
            return self._like("Add", y, self._normal(columns)) if self._chance(0.6) else y
        perm = [*range(len(s) - 2), len(s) - 1, len(s) - 2]
        turned = self._op("Transpose", [x], [s[i] for i in perm], perm=perm)
        if self._chance(0.5):
            return self._op("MatMul", [x, turned], [*s[:-1], s[-2]])
        return self._op("MatMul", [turned, x], [*s[:-2], s[-1], s[-1]])

    def norm(self, x: str) -> str:
        s = self.shapes[x]
        if self._chance(0.4):
            last = s[-1]
            if isinstance(last, str) or last < 3:
                raise NoFit
            return self._like(
                "LayerNormalization", x, self._normal(last), self._normal(last), axis=-1, epsilon=0.01
            )
        if len(s) < 3 or isinstance(s[1], str):
            raise NoFit
        scale, bias, mean = (self._normal(s[1]) for _ in range(3))
        variance = self._constant((0.5 + self.rng.random(s[1])).astype(np.float32))
        return self._like("BatchNormalization", x, scale, bias, mean, variance)

    def gather(self, x: str) -> str:
        s, axis = self.shapes[x], self._known_axis(x)
        shape = self._pick([(), (3,), (1,), (2, 2)])
        if not 1 <= len(s) - 1 + len(shape) <= 5:
            raise NoFit
        size = self._size(s[axis])
        indices = self._constant(self.rng.integers(-size, size, shape).astype(np.int64))
        return self._op("Gather", [x, indices], [*s[:axis], *shape, *s[axis + 1 :]], axis=axis)

    def where(self, x: str) -> str:
        """``x > 0 ? y * x : 0``, continuous in x."""
        y = self._partner(x)
        shape = self._together(x, y)
        product = self._op("Mul", [y, self._like("Relu", x)], shape)
        return self._op("Where", [self._like("Greater", x, self._f32(0)), product, self._f32(0)], shape)

    def split(self, x: str) -> list[str]:
        s, axis = self.shapes[x], self._known_axis(x, 2)
        size = self._size(s[axis])
        first = self._int(1, size - 1)
        sizes = (first, size - first)
        shapes = [[*s[:axis], n, *s[axis + 1 :]] for n in sizes]
        return self._ops("Split", [x, self._i64(*sizes)], *shapes, axis=axis)

    def other(self, x: str) -> str:
        s = self.shapes[x]
        kind = self._pick(["Tile", "CumSum", "Expand", "ScatterElements", "GatherElements", "Cast"])
        if kind == "Tile":
            repeats = [self._int(1, 2) if isinstance(d, int) else 1 for d in s]
            shape = [d if isinstance(d, str) else d * n for d, n in zip(s, repeats)]
            return self._op("Tile", [x, self._i64(*repeats)], shape)
        if kind == "CumSum":
            flags = {"reverse": int(self._chance(0.5)), "exclusive": int(self._chance(0.3))}
            return self._like("CumSum", x, self._constant(np.int64(self._int(0, len(s) - 1))), **flags)
        if kind == "Cast":
            wide = self._like("Cast", x, to=TensorProto.DOUBLE)
            return self._like(
                "Cast", self._like("Mul", wide, self._constant(np.float64(1.25))), to=TensorProto.FLOAT
            )
        known, axis = self._known_shape(x), self._int(0, len(s) - 1)
        if kind == "Expand":
            if len(s) == 5:
                raise NoFit
            return self._op("Expand", [x, self._i64(2, *known)], [2, *s])
        if kind == "GatherElements":
            shape = [*known[:axis], 3, *known[axis + 1 :]]
            indices = self._constant(self.rng.integers(0, known[axis], shape).astype(np.int64))
            return self._op("GatherElements", [x, indices], shape, axis=axis)
        count = min(2, known[axis])
        rest = [max(1, d - 1) for i, d in enumerate(known) if i != axis]
        rows = [self.rng.permutation(known[axis])[:count] for _ in range(math.prod(rest))]
        places = np.moveaxis(np.reshape(rows, [*rest, count]), -1, axis).astype(np.int64)
        return self._like(kind, x, self._constant(places), self._normal(*places.shape), axis=axis)

    # --- windows ---

    def _window(self, x: str, dilated: bool) -> tuple[dict[str, list[int]], list[int]]:
        """Attributes of a window over the spatial axes, and the sizes that result."""
        kernel, strides, dilations, before, after, result = ([] for _ in range(6))
        for d in self.shapes[x][2:]:
            size, k = self._size(d), self._pick([1, 1, 2, 3, 3, 5])
            dilation = self._pick([1, 1, 1, 2]) if dilated else 1
            stride = self._pick([1, 1, 2, 3])
            low = self._int(0, k - 1) if self._chance(0.6) else k // 2
            high = self._int(0, k - 1) if self._chance(0.3) else low
            if size + low + high < (k - 1) * dilation + 1:
                k, dilation, low, high = 1, 1, 0, 0
            for values, value in zip(
                (kernel, strides, dilations, before, after), (k, stride, dilation, low, high)
            ):
                values.append(value)
            result.append((size + low + high - (k - 1) * dilation - 1) // stride + 1)
        window = {"kernel_shape": kernel, "strides": strides, "pads": before + after}
        return window | ({"dilations": dilations} if dilated else {}), result

    def conv(self, x: str) -> str:
        s = self.shapes[x]
        channels = self._size(s[1])
        window, spatial = self._window(x, dilated=True)
        groups = self._pick([1, 1, 1, channels, *(k for k in (2, 3, 4, 8) if channels % k == 0)])
        made = (
            groups * self._pick([1, 1, 2, 3, 4, 8, 12, 16, 32])
            if groups > 1
            else self._pick([1, 2, 5, 8, 10, 16, 17, 24, 32, 48])
        )
        if made > 96:
            raise NoFit
        taps = channels // groups * math.prod(window["kernel_shape"])
        inputs = [x, self._normal(made, channels // groups, *window["kernel_shape"], scale=taps**-0.5)]
        if self._chance(0.6):
            inputs.append(self._normal(made))
        y = self._op("Conv", inputs, [s[0], made, *spatial], group=groups, **window)
        return self._like(self._pick(["Relu", "LeakyRelu", "HardSwish"]), y) if self._chance(0.5) else y

    def conv_transpose(self, x: str) -> str:
        s = self.shapes[x]
        channels = self._size(s[1])
        kernel = [self._int(1, 4) for _ in s[2:]]
        strides = [self._pick([1, 2, 2, 3]) for _ in s[2:]]
        pads = [self._int(0, (k - 1) // 2) for k in kernel]
        spatial = [(self._size(d) - 1) * t + k - 2 * p for d, t, k, p in zip(s[2:], strides, kernel, pads)]
        if min(spatial) < 1:
            raise NoFit
        groups = self._pick([1, 1, channels if channels <= 16 else 1])
        made = self._pick([1, 3, 8, 16])
        w = self._normal(channels, made, *kernel, scale=(channels * math.prod(kernel)) ** -0.5)
        window = {"kernel_shape": kernel, "strides": strides, "pads": pads + pads}
        inputs = [x, w, self._normal(made * groups)]
        return self._op("ConvTranspose", inputs, [s[0], made * groups, *spatial], group=groups, **window)

    def pool(self, x: str) -> str:
        s = self.shapes[x]
        kind = self._pick(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
        if kind.startswith("Global"):
            return self._op(kind, [x], [*s[:2], *(1 for _ in s[2:])])
        window, spatial = self._window(x, dilated=False)
        more = {"count_include_pad": int(self._chance(0.5))} if kind == "AveragePool" else {}
        return self._op(kind, [x], [*s[:2], *spatial], **window, **more)

    def resize(self, x: str) -> str:
        s = self.shapes[x]
        if len(s) != 4:
            raise NoFit
        factors = [self._pick([1, 2, 2, 3]) for _ in s[2:]]
        linear = self._chance(0.5)
        modes = ["half_pixel", "asymmetric", "align_corners"] if linear else ["asymmetric", "half_pixel"]
        attributes = {"mode": "linear"} if linear else {"mode": "nearest", "nearest_mode": "floor"}
        scales = self._constant(np.array([1, 1, *factors], np.float32))
        shape = [*s[:2], *(self._size(d) * f for d, f in zip(s[2:], factors))]
        return self._op(
            "Resize", [x, "", scales], shape, coordinate_transformation_mode=self._pick(modes), **attributes
        )
