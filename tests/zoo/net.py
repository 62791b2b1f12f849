"""A small writer of ONNX graphs, on which the builders stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Value = str | npt.NDArray[Any]
"""The name of a value of the graph, or an array that becomes an initializer."""

Dims = Sequence[int | str]


def i64(*values: int) -> npt.NDArray[np.int64]:
    """A vector of int64, as axes and shapes want it."""
    return np.array(values, np.int64)


def f32(*values: float) -> npt.NDArray[np.float32]:
    """One value: a float32 scalar of rank 0; several: a vector."""
    return np.array(values if len(values) > 1 else values[0], np.float32)


class Net:
    """An ONNX graph under construction.

    Methods that add nodes take names (or arrays, which become initializers) and return names.
    Weights come from one generator with a fixed seed, in the order of the calls, scaled so that
    activations keep a standard deviation near one through any depth.

    Args:
        name: the graph's name.
        seed: of the weights.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    # -- the graph's frame ---------------------------------------------------------------

    def input(self, name: str, shape: Dims, dtype: int = TensorProto.FLOAT) -> str:
        """Declare a graph input of element type `dtype` (a `TensorProto` code)."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, shape: Dims, dtype: int = TensorProto.FLOAT) -> None:
        """Declare the node output `value` a graph output and rename it to `name`."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for position, used in enumerate(names):
                    if used == value:
                        names[position] = name
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def model(self, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
        """The finished model; IR version 8 is the one that goes with opset 17."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=ir_version,
            producer_name="zoo",
        )

    def __len__(self) -> int:
        """The number of nodes so far."""
        return len(self._nodes)

    # -- nodes ---------------------------------------------------------------------------

    def const(self, array: npt.NDArray[Any]) -> str:
        """Add `array` as an initializer."""
        name = f"const_{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ops(self, kind: str, inputs: Sequence[Value], outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs; an empty string among `inputs` omits that input."""
        names = [value if isinstance(value, str) else self.const(value) for value in inputs]
        label = f"{kind}_{len(self._nodes)}"
        results = [label if k == 0 else f"{label}_{k}" for k in range(outputs)]
        self._nodes.append(helper.make_node(kind, names, results, name=label, **attributes))
        return results

    def op(self, kind: str, *inputs: Value, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.ops(kind, inputs, 1, **attributes)[0]

    def dim(self, x: str, axis: int) -> str:
        """The size of `axis` of `x` as an int64 vector of one, the way exporters write it."""
        return self.op("Unsqueeze", self.op("Gather", self.op("Shape", x), np.array(axis, np.int64)), i64(0))

    def reshape(self, x: str, *sizes: int | str) -> str:
        """Reshape to `sizes`: integers, and names of int64 vectors of one that `dim` returned."""
        parts: list[Value] = [size if isinstance(size, str) else i64(size) for size in sizes]
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0))

    # -- layers --------------------------------------------------------------------------

    def weight(self, *shape: int, fan_in: int, gain: float = 2.0) -> npt.NDArray[np.float32]:
        """Normal weights of variance ``gain / fan_in`` (He et al. 2015, with gain 2 before a ReLU)."""
        return (self.rng.standard_normal(shape) * math.sqrt(gain / fan_in)).astype(np.float32)

    def bias(self, size: int) -> npt.NDArray[np.float32]:
        """A small normal bias, [size]."""
        return (0.1 * self.rng.standard_normal(size)).astype(np.float32)

    def conv(
        self,
        x: str,
        c_in: int,
        c_out: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        pad: bool = True,
        gain: float = 2.0,
    ) -> str:
        """Convolution of [N, c_in, H, W], unless `pad` is false with zeros around it that keep H and W at
        stride 1."""
        ky, kx = (kernel, kernel) if isinstance(kernel, int) else kernel
        sy, sx = (stride, stride) if isinstance(stride, int) else stride
        weight = self.weight(c_out, c_in // groups, ky, kx, fan_in=c_in // groups * ky * kx, gain=gain)
        pads = [(ky - 1) // 2, (kx - 1) // 2, ky // 2, kx // 2] if pad else [0, 0, 0, 0]
        inputs: list[Value] = [x, weight, self.bias(c_out)] if bias else [x, weight]
        attributes = {"kernel_shape": [ky, kx], "strides": [sy, sx], "pads": pads, "group": groups}
        return self.op("Conv", *inputs, **attributes)

    def scale(self, size: int) -> npt.NDArray[np.float32]:
        """The scale of a normalization, uniform in [0.7, 1.3], [size]."""
        return self.rng.uniform(0.7, 1.3, size).astype(np.float32)

    def batch_norm(self, x: str, channels: int, scale: float = 1.0, epsilon: float = 1e-5) -> str:
        """Inference batch normalization with a scale in `scale` * [0.7, 1.3] and uneven statistics."""
        gamma = (scale * self.rng.uniform(0.7, 1.3, channels)).astype(np.float32)
        mean, variance = self.bias(channels), self.rng.uniform(0.6, 1.4, channels).astype(np.float32)
        return self.op("BatchNormalization", x, gamma, self.bias(channels), mean, variance, epsilon=epsilon)

    def gemm(self, x: str, n_in: int, n_out: int, gain: float = 2.0) -> str:
        """A dense layer on [N, n_in] as a Gemm with the weights transposed, as torch exports it."""
        weight = self.weight(n_out, n_in, fan_in=n_in, gain=gain)
        return self.op("Gemm", x, weight, self.bias(n_out), transB=1)

    def linear(self, x: str, n_in: int, n_out: int, *, bias: bool = True, gain: float = 1.0) -> str:
        """A dense layer on [..., n_in] as MatMul and Add, as torch exports it from rank 3 on."""
        y = self.op("MatMul", x, self.weight(n_in, n_out, fan_in=n_in, gain=gain))
        return self.op("Add", self.bias(n_out), y) if bias else y

    def layer_norm(self, x: str, size: int, epsilon: float = 1e-12) -> str:
        """LayerNormalization over the last axis, of `size`."""
        return self.op("LayerNormalization", x, self.scale(size), self.bias(size), axis=-1, epsilon=epsilon)

    def rms_norm(self, x: str, size: int) -> str:
        """Root-mean-square normalization over the last axis, of `size`, in its parts."""
        scale = self.scale(size)
        mean = self.op("ReduceMean", self.op("Pow", x, f32(2.0)), axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, f32(1e-6)))
        return self.op("Mul", self.op("Div", x, root), scale)

    def gelu(self, x: str) -> str:
        """The exact GELU, ``x / 2 * (1 + erf(x / sqrt(2)))``, in its parts."""
        erf = self.op("Erf", self.op("Div", x, f32(math.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, f32(1.0))), f32(0.5))

    def silu(self, x: str) -> str:
        """The SiLU, ``x * sigmoid(x)``, in its parts."""
        return self.op("Mul", x, self.op("Sigmoid", x))
