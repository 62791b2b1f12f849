"""Quantized graphs in integer arithmetic: what the rules make of them, and that it gives the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.ir import evaluate
from cuvil.ir.graph import Graph
from cuvil.ir.primitives import Input, definition_loads
from cuvil.partition.segments import SEGMENT_KEY
from cuvil.rewrite import integer
from cuvil.schedule.fuse import fuse, is_contraction
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import schedule

Array = npt.NDArray[Any]
Feeds = dict[str, Array]


class Net:
    """A small model under construction; methods return value names."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.feeds: Feeds = {}
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, array: Array | float | int) -> str:
        name = self.name("c")
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def input(self, array: Array) -> str:
        name = self.name("x")
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
        self.feeds[name] = array
        return name

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = self.name(op)
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attrs))
        return name

    def output(self, name: str, kind: int = TensorProto.FLOAT) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, kind, None))
        return name

    def parameters(self, scale: Any, zero: Any) -> list[str]:
        return [self.constant(np.asarray(scale, np.float32)), self.constant(zero)]

    def quantize(self, x: str, scale: float, zero: Any) -> str:
        return self.node("QuantizeLinear", x, *self.parameters(scale, zero))

    def through(self, x: str, scale: float, zero: Any) -> str:
        """`x` through 8 bits."""
        both = self.parameters(scale, zero)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *both), *both)

    def weights(self, array: Array, scale: Any, zero: Any, axis: int = 0) -> str:
        return self.node("DequantizeLinear", self.constant(array), *self.parameters(scale, zero), axis=axis)

    def normal(self, *shape: int) -> Array:
        return self.rng.normal(0, 1, shape).astype(np.float32)

    def bytes(self, *shape: int, low: int = -127, dtype: Any = np.int8) -> Array:
        return self.rng.integers(low, low + 255, shape).astype(dtype)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        return model


def imported(model: onnx.ModelProto) -> Graph:
    graph = graph_from_proto(model)
    canonicalize(graph)
    return graph


def evaluated(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs by evaluating its fused primitives with numpy."""
    program = lower(graph)
    fuse(program)
    arrays: dict[Any, Array] = {}
    for v in program.values:
        given = isinstance(v.definition, Input)
        arrays[v] = feeds[v.name] if given else evaluate.value(v, arrays.__getitem__)
    return [arrays[v] for v in program.outputs]


def contractions(graph: Graph) -> list[tuple[str, list[str]]]:
    """Of every sum of products the accumulator's type and the types of what it multiplies."""
    program = lower(graph)
    fuse(program)
    found = []
    for v in program.values:
        if is_contraction(v):
            body: Any = v.definition
            found.append((body.body.dtype, [e.attr.dtype for e in definition_loads(v)]))
    return found


def exact(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def agree(got: Array, want: Array) -> None:
    """Bytes differ by one step at most, and seldom; floats in rounding."""
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))
    else:
        difference = np.abs(got.astype(int) - want.astype(int))
        assert difference.max(initial=0) <= 1 and (difference > 0).mean() < 0.01
        assert len(np.unique(want)) > 1, "the case says nothing"


def check(net: Net, expected: Sequence[tuple[str, list[str]]]) -> tuple[Graph, dict[str, int]]:
    """The rewritten graph computes what onnxruntime says, with the `expected` contractions."""
    model = net.model()
    graph = imported(model)
    counts = integer.rewrite(graph)
    for got, want in zip(evaluated(graph, net.feeds), exact(model, net.feeds), strict=True):
        agree(got, want)
    assert contractions(graph) == list(expected)
    return graph, counts


BYTES = ("int32", ["uint8", "int8"])


ZERO = np.uint8(77)


def conv_case(
    shape: Sequence[int], weights: Sequence[int], zero: Any = ZERO, per_channel: bool = True,
    bias: str = "whole", w_zero: int | None = None, end: str = "Relu", **attrs: Any,
) -> Net:  # fmt: skip
    """Quantize -> convolution of bytes -> `end` -> quantize."""
    net, channels = Net(), weights[0]
    scale = net.rng.uniform(0.002, 0.01, channels).astype(np.float32) if per_channel else np.float32(0.005)
    if w_zero is None:
        w = net.weights(net.bytes(*weights), scale, np.zeros(scale.shape, np.int8))
    else:
        values = net.bytes(*weights, low=0, dtype=np.uint8)
        w = net.weights(values, scale, np.full(scale.shape, w_zero, np.uint8))
    inputs = [net.through(net.input(net.normal(*shape)), 0.03, zero), w]
    if bias == "whole":
        b_scale = (np.float32(0.03) * scale).astype(np.float32)
        values = net.rng.integers(-3000, 3000, channels).astype(np.int32)
        inputs.append(net.weights(values, b_scale, np.zeros(b_scale.shape, np.int32)))
    elif bias == "float":
        inputs.append(net.constant(net.normal(channels)))
    y = net.node("Conv", *inputs, **attrs)
    if end == "Clip":
        y = net.node("Clip", y, net.constant(np.float32(-0.7)), net.constant(np.float32(1.5)))
    elif end:
        y = net.node(end, y)
    net.output(net.quantize(y, 0.05, np.uint8(3)), TensorProto.UINT8)
    return net


CONVOLUTIONS: dict[str, tuple[Net, tuple[str, list[str]]]] = {
    "padded with the zero point": (conv_case([2, 5, 9, 8], [6, 5, 3, 3], pads=[1, 0, 2, 1]), BYTES),
    "zero point 0": (conv_case([1, 4, 7, 7], [8, 4, 3, 3], np.uint8(0), pads=[1, 1, 1, 1]), BYTES),
    "no padding, no bias": (conv_case([1, 4, 7, 7], [8, 4, 1, 1], bias="", end=""), BYTES),
    "float bias": (conv_case([1, 4, 7, 7], [8, 4, 3, 3], bias="float", end="Clip"), BYTES),
    "one scale": (conv_case([1, 4, 7, 7], [8, 4, 3, 3], per_channel=False, strides=[2, 2]), BYTES),
    "same upper": (conv_case([1, 4, 8, 7], [8, 4, 3, 2], auto_pad="SAME_UPPER", strides=[2, 2]), BYTES),
    "depthwise": (conv_case([1, 6, 9, 9], [6, 1, 3, 3], group=6, pads=[1] * 4, end="HardSwish"), BYTES),
    "groups, dilated": (conv_case([1, 6, 9, 9], [4, 3, 3, 3], group=2, dilations=[2, 2]), BYTES),
    "one axis": (conv_case([2, 3, 40], [5, 3, 7], pads=[3, 3]), BYTES),
    "signed activations": (conv_case([1, 4, 7, 7], [8, 4, 3, 3], np.int8(-20), pads=[1] * 4), BYTES),
    "unsigned weights": (conv_case([1, 4, 7, 7], [8, 4, 3, 3], w_zero=128, pads=[1] * 4), BYTES),
    "weights that need 9 bits": (
        conv_case([1, 4, 7, 7], [8, 4, 3, 3], w_zero=90, pads=[1] * 4), ("int32", ["uint8", "int32"])
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_of_bytes_is_summed_in_int32(case: str) -> None:
    net, expected = CONVOLUTIONS[case]
    graph, _ = check(net, [expected])
    assert "Conv" not in {n.op for n in graph.nodes}
    kernels = schedule(lower(graph)).kernels
    (kernel,) = [k for k in kernels if k.tag == "contraction"]
    assert [v.dtype for v in kernel.writes] == ["uint8"], "requantization belongs to the kernel of the sum"


def test_zero_point_and_bias_are_one_constant_and_the_scales_one_factor() -> None:
    graph, counts = check(conv_case([1, 4, 7, 7], [8, 4, 3, 3], pads=[1] * 4, end=""), [BYTES])
    assert counts == {"integer-conv": 1, "reciprocal": 1, "merge-scales": 1}
    assert [n.op for n in graph.nodes][1:] == ["Pad", "ConvInteger", "Add", "Cast", "Mul", "QuantizeLinear"]
    assert graph.constants[graph.nodes[-1].inputs[1]] == 1, "nothing is divided any more"


def test_relu_that_saturation_performs_disappears() -> None:
    net = Net()
    w = net.weights(net.bytes(8, 4, 3, 3), 0.01, np.int8(0))
    y = net.node("Conv", net.through(net.input(net.normal(1, 4, 7, 7)), 0.03, np.uint8(9)), w)
    net.output(net.quantize(net.node("Relu", y), 0.05, np.uint8(0)), TensorProto.UINT8)
    six = net.node("Clip", y, net.constant(np.float32(0)), net.constant(np.float32(6)))
    net.output(net.quantize(six, 6 / 255, np.uint8(0)), TensorProto.UINT8)
    graph, counts = check(net, [BYTES])
    assert counts["saturating"] == 2 and not {"Relu", "Clip"} & {n.op for n in graph.nodes}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", ["", "row", "matrix"])
def test_gemm(transposed: bool, bias: str) -> None:
    net = Net()
    shape, axis = ([7, 20], 0) if transposed else ([20, 7], 1)
    scale = net.rng.uniform(0.002, 0.01, 7).astype(np.float32)
    a = net.through(net.input(net.normal(20, 5)), 0.03, np.uint8(77))
    inputs = [a, net.weights(net.bytes(*shape), scale, np.zeros(7, np.int8), axis)]
    if bias:
        inputs.append(net.constant(net.normal(*([7] if bias == "row" else [5, 7]))))
    net.output(net.node("Gemm", *inputs, transA=1, transB=int(transposed), alpha=0.5, beta=2.0))
    check(net, [BYTES])


def test_gemm_adds_a_whole_bias_before_it_scales() -> None:
    net = Net()
    scale = net.rng.uniform(0.002, 0.01, 7).astype(np.float32)
    a = net.through(net.input(net.normal(5, 20)), 0.03, np.uint8(77))
    b = net.weights(net.bytes(20, 7), scale, np.zeros(7, np.int8), 1)
    b_scale = (np.float32(0.03) * scale).astype(np.float32)
    bias = net.weights(net.rng.integers(-9000, 9000, 7).astype(np.int32), b_scale, np.zeros(7, np.int32))
    net.output(net.node("Gemm", a, b, bias))
    graph, _ = check(net, [BYTES])
    assert [n.op for n in graph.nodes] == ["QuantizeLinear", "MatMulInteger", "Add", "Cast", "Mul"]


def test_matmul_of_stacked_rows() -> None:
    net = Net()
    a = net.through(net.input(net.normal(2, 3, 5, 20)), 0.03, np.int8(-5))
    net.output(net.node("MatMul", a, net.weights(net.bytes(20, 7), 0.01, np.int8(0), 1)))
    check(net, [BYTES])


def test_matmul_of_two_activations_keeps_zero_points_out_of_the_sum() -> None:
    net = Net()
    a = net.through(net.input(net.normal(2, 3, 5, 20)), 0.03, np.uint8(120))
    b = net.through(net.input(net.normal(2, 1, 20, 6)), 0.02, np.int8(11))
    net.output(net.quantize(net.node("MatMul", a, b), 0.1, np.uint8(128)), TensorProto.UINT8)
    _, counts = check(net, [("int32", ["uint8", "uint8"])])
    assert counts["integer-product"] == 1


def test_dynamically_quantized_product() -> None:
    net = Net()
    x = net.input(net.normal(5, 20))
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], ["q", "s", "z"]))
    y = net.node("MatMulInteger", "q", net.constant(net.bytes(20, 7)), "z", net.constant(np.int8(0)))
    net.output(y, TensorProto.INT32)
    fixed = net.node("MatMulInteger", "q", net.constant(net.bytes(20, 7)), net.constant(np.uint8(3)))
    net.output(fixed, TensorProto.INT32)
    model = net.model()
    graph = imported(model)
    assert integer.rewrite(graph) == {"zero-point-out": 2}
    assert contractions(graph) == [BYTES, BYTES]
    for got, want in zip(evaluated(graph, net.feeds), exact(model, net.feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_values_that_are_only_moved_stay_bytes() -> None:
    """convolution -> MaxPool -> Transpose -> Concat -> Reshape -> Gemm, with QuantizeLinear and
    DequantizeLinear of the same parameters round each."""
    net = Net()
    same = (0.05, np.uint8(100))
    x = net.through(net.input(net.normal(1, 3, 8, 8)), 0.03, np.uint8(128))
    y = net.node("Conv", x, net.weights(net.bytes(4, 3, 3, 3), 0.01, np.int8(0)))
    y = net.through(y, *same)
    y = net.through(net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), *same)
    y = net.through(net.node("Transpose", y, perm=[0, 2, 3, 1]), *same)
    y = net.through(net.node("Concat", y, y, axis=3), *same)
    y = net.through(net.node("Reshape", y, net.constant(np.array([1, -1], np.int64))), *same)
    net.output(net.node("Gemm", y, net.weights(net.bytes(72, 5), 0.01, np.int8(0), 1)))
    graph, counts = check(net, [BYTES, BYTES])
    assert counts["cancel"] == 4
    moved = ("MaxPool", "Transpose", "Concat", "Reshape")
    assert [graph.types[n.outputs[0]].dtype for n in graph.nodes if n.op in moved] == ["uint8"] * 4
    assert "DequantizeLinear" not in {n.op for n in graph.nodes}


def test_different_parameters_do_not_cancel() -> None:
    net = Net()
    y = net.through(net.through(net.input(net.normal(4, 5)), 0.05, np.uint8(100)), 0.04, np.uint8(100))
    net.output(y)
    model = net.model()
    graph = imported(model)
    assert integer.rewrite(graph) == {}
    agree(evaluated(graph, net.feeds)[0], exact(model, net.feeds)[0])


def test_residual_sum_is_in_the_kernel_of_the_second_convolution() -> None:
    net = Net()
    x = net.through(net.input(net.normal(1, 4, 6, 6)), 0.03, np.uint8(128))
    y = net.node("Conv", x, net.weights(net.bytes(4, 4, 3, 3), 0.01, np.int8(0)), pads=[1] * 4)
    y = net.node("Relu", net.node("Add", x, y))
    net.output(net.quantize(y, 0.1, np.uint8(0)), TensorProto.UINT8)
    graph, _ = check(net, [BYTES])
    (kernel,) = [k for k in schedule(lower(graph)).kernels if k.tag == "contraction"]
    assert [v.dtype for v in kernel.writes] == ["uint8"]


def test_sixteen_bits_and_blocks_are_left_alone() -> None:
    net = Net()
    x = net.through(net.input(net.normal(4, 20)), 0.001, np.uint16(30000))
    net.output(net.node("MatMul", x, net.weights(net.bytes(20, 7), 0.01, np.int8(0), 1)))
    scales = net.constant(np.full((2, 7), 0.01, np.float32))
    blocked = net.node("DequantizeLinear", net.constant(net.bytes(20, 7)), scales, axis=0, block_size=10)
    net.output(net.node("MatMul", net.through(net.input(net.normal(4, 20)), 0.03, np.uint8(99)), blocked))
    graph = imported(net.model())
    assert integer.rewrite(graph) == {}
    assert [kind for kind, _ in contractions(graph)] == ["float32", "float32"]


def test_sums_that_may_leave_int32_stay_float() -> None:
    for size, integral in ((66_300, True), (66_400, False)):  # 255 * 127 * 66313 is 2**31
        net = Net()
        x = net.through(net.input(np.ones((1, size), np.float32)), 0.03, np.uint8(0))
        net.output(net.node("MatMul", x, net.weights(np.full((size, 1), 127, np.int8), 0.01, np.int8(0), 1)))
        assert ("integer-matmul" in integer.rewrite(imported(net.model()))) == integral


def test_nodes_that_other_graphs_share_are_not_changed() -> None:
    graph = imported(conv_case([1, 4, 7, 7], [8, 4, 3, 3], np.int8(-20), pads=[1] * 4).model())
    before = [(n.op, list(n.inputs), list(n.outputs), dict(n.attrs)) for n in graph.nodes]
    constants, types = dict(graph.constants), dict(graph.types)
    other = Graph("other", graph.inputs, graph.outputs, list(graph.nodes), constants, types, graph.opset)
    integer.rewrite(other)
    assert [(n.op, n.inputs, n.outputs, n.attrs) for n in graph.nodes] == before


def test_new_nodes_belong_to_the_segment_of_the_old_one() -> None:
    graph = imported(conv_case([1, 4, 7, 7], [8, 4, 3, 3], pads=[1] * 4).model())
    for node in graph.nodes:
        node.metadata[SEGMENT_KEY] = "3"
    integer.rewrite(graph)
    assert {n.metadata.get(SEGMENT_KEY) for n in graph.nodes} == {"3"}


def test_qlinear_operators_become_sums_of_bytes() -> None:
    net = Net()
    x, scale = net.input(net.bytes(1, 4, 7, 7, low=0, dtype=np.uint8)), net.rng.uniform(0.002, 0.01, 8)
    w = [net.constant(net.bytes(8, 4, 3, 3)), *net.parameters(scale, np.zeros(8, np.int8))]
    bias = net.constant(net.rng.integers(-3000, 3000, 8).astype(np.int32))
    ends = net.parameters(0.05, np.uint8(100))
    net.output(
        net.node("QLinearConv", x, *net.parameters(0.03, np.uint8(77)), *w, *ends, bias, pads=[1] * 4),
        TensorProto.UINT8,
    )
    a = net.input(net.bytes(5, 20))
    b = [net.constant(net.bytes(20, 7)), *net.parameters(0.01, np.int8(0))]
    before, after = net.parameters(0.03, np.int8(-7)), net.parameters(0.1, np.int8(4))
    net.output(net.node("QLinearMatMul", a, *before, *b, *after), TensorProto.INT8)
    check(net, [BYTES, ("int32", ["int8", "int8"])])


def test_published_cases_in_generated_code(tmp_path: Path) -> None:
    """u8 x s8 beyond int16; QLinearMatMul that saturates; a convolution, a residual block and a product in
    one library, as onnxruntime has them."""
    net = Net()
    row = net.input(np.array([[210, 198, 234]], np.uint8))
    column = net.constant(np.array([[-81], [-80], [127]], np.int8))
    first = net.node("MatMulInteger", row, column)
    net.output(first, TensorProto.INT32)
    a = net.input(np.array([[-128, -128]], np.int8))
    one, zero = net.parameters(1.0, np.int8(0))
    big = net.constant(np.array([[127], [127]], np.int8))
    net.output(net.node("QLinearMatMul", a, one, zero, big, one, zero, one, zero), TensorProto.INT8)
    x = net.through(net.input(net.normal(2, 3, 12, 12)), 0.03, np.uint8(128))
    scale = net.rng.uniform(0.002, 0.01, 16).astype(np.float32)
    y = net.node("Conv", x, net.weights(net.bytes(16, 3, 3, 3), scale, np.zeros(16, np.int8)), pads=[1] * 4)
    y = net.through(net.node("Relu", y), 0.02, np.uint8(0))
    z = net.node("Conv", y, net.weights(net.bytes(16, 16, 3, 3), scale, np.zeros(16, np.int8)), pads=[1] * 4)
    z = net.quantize(net.node("Relu", net.node("Add", y, z)), 0.06, np.uint8(0))
    net.output(z, TensorProto.UINT8)
    p = net.through(net.input(net.normal(3, 5, 24)), 0.03, np.int8(3))
    q = net.through(net.input(net.normal(3, 24, 17)), 0.03, np.uint8(140))
    net.output(net.quantize(net.node("MatMul", p, q), 0.1, np.uint8(128)), TensorProto.UINT8)
    onnx.save(net.model(), tmp_path / "cases.onnx")
    got = cuvil.compile(tmp_path / "cases.onnx").run(None, net.feeds)
    assert got[0].tolist() == [[-3132]] and got[1].tolist() == [[-128]]
    for mine, theirs in zip(got, exact(net.model(), net.feeds), strict=True):
        if mine.size > 1:
            agree(mine, theirs)
        else:
            np.testing.assert_array_equal(mine, theirs)
