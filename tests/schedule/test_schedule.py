"""What small graphs become: kernels, views that cost nothing, results in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from codegen.random_models import RandomModel
from codegen.sandbox import Isa, isa, schedule_of
from onnx import TensorProto, helper, numpy_helper
from zoo.net import Net, f32, i64

from cuvil.ir.primitives import static
from cuvil.schedule import verify
from cuvil.schedule.fuse import MAX_NESTING, nesting
from cuvil.schedule.plan import Schedule

PLAIN = Isa(None)
TUNED = Isa({"arch": "x86_64", "vector_bits": 256, "vector_registers": 16, "dot_i8": False})

BOTH = pytest.mark.parametrize("chosen", [PLAIN, TUNED], ids=["plain", "tuned"])


def scheduled(net: Net, chosen: Isa = PLAIN) -> Schedule:
    s = schedule_of(net.model(), chosen)
    verify.schedule(s)
    return s


def raw(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
    constants: dict[str, Any] | None = None,
    chosen: Isa = PLAIN,
) -> Schedule:
    """A schedule of float32 nodes written out."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    s = schedule_of(model, chosen)
    verify.schedule(s)
    return s


def work(s: Schedule) -> list[str]:
    """The kinds of the kernels, without those that only fill a border."""
    return [k.tag for k in s.kernels if k.tag != "border"]


def arena(s: Schedule) -> int:
    size = static(s.arena_bytes)
    assert size is not None
    return size


# --- fusion ---------------------------------------------------------------------------------------------


@BOTH
def test_convolution_norm_and_relu_are_one_kernel(chosen: Isa) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 8, 10, 10])
    y = net.op("Relu", net.batch_norm(net.conv(x, 8, 16, 1, bias=False), 16))
    net.output(y, "y", [1, 16, 10, 10])
    s = scheduled(net, chosen)
    assert len(s.kernels) == 1
    assert s.kernels[0].tag == ("contraction" if chosen is PLAIN else "conv") or s.kernels[0].tag == "gemm"
    assert arena(s) == 0


@BOTH
def test_residual_is_added_in_the_epilogue(chosen: Isa) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 16, 10, 10])
    y = net.op("Relu", net.op("Add", net.conv(x, 16, 16, 1), x))
    net.output(y, "y", [1, 16, 10, 10])
    s = scheduled(net, chosen)
    assert len(s.kernels) == 1 and arena(s) == 0


@BOTH
def test_gemm_with_activation_is_one_kernel(chosen: Isa) -> None:
    net = Net("n", 1)
    x = net.input("x", ["N", 33])
    net.output(net.op("Tanh", net.gemm(x, 33, 20)), "y", ["N", 20])
    assert len(scheduled(net, chosen).kernels) == 1


def test_softmax_is_one_kernel_over_rows() -> None:
    net = Net("n", 1)
    x = net.input("x", ["N", 50])
    net.output(net.op("Softmax", net.op("Mul", x, f32(2.0)), axis=-1), "y", ["N", 50])
    s = scheduled(net)
    assert work(s) == ["rows"] and arena(s) == 0


def test_layer_norm_is_one_kernel_over_rows() -> None:
    net = Net("n", 1)
    x = net.input("x", ["N", "S", 48])
    net.output(net.op("Relu", net.layer_norm(x, 48)), "y", ["N", "S", 48])
    s = scheduled(net)
    assert work(s) == ["rows"] and arena(s) == 0


def test_element_wise_chain_is_one_kernel() -> None:
    net = Net("n", 1)
    x = net.input("x", ["N", 7])
    y = x
    for kind in ("Relu", "Tanh", "Neg", "Exp", "Sigmoid"):
        y = net.op(kind, y)
    net.output(net.op("Add", y, x), "y", ["N", 7])
    s = scheduled(net)
    assert work(s) == ["map"] and arena(s) == 0


# --- views ----------------------------------------------------------------------------------------------


@BOTH
def test_padding_costs_no_copy(chosen: Isa) -> None:
    """The producer writes into the padded tensor; only the border is filled."""
    net = Net("n", 1)
    x = net.input("x", [1, 4, 9, 9])
    y = net.op("Relu", net.conv(x, 4, 8, 1))
    net.output(net.conv(y, 8, 8, 3), "y", [1, 8, 9, 9])
    s = scheduled(net, chosen)
    assert len(work(s)) == 2
    assert [k.tag for k in s.kernels].count("border") == 1
    assert arena(s) <= 16 * 11 * 11 * 4  # one padded tensor, in blocks of 16 channels


@BOTH
def test_concatenation_of_convolutions_costs_no_copy(chosen: Isa) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 4, 9, 9])
    parts = [net.op("Relu", net.conv(x, 4, 16, 1)) for _ in range(2)]
    joined = net.op("Concat", *parts, axis=1)
    net.output(net.op("GlobalAveragePool", joined), "y", [1, 32, 1, 1])
    s = scheduled(net, chosen)
    assert "copy" not in work(s) and len(work(s)) == 3
    assert arena(s) == 32 * 81 * 4


def test_concatenation_as_output_is_written_directly() -> None:
    net = Net("n", 1)
    x = net.input("x", [2, 6])
    joined = net.op("Concat", net.op("Exp", x), net.op("Softmax", x), axis=1)
    net.output(joined, "y", [2, 12])
    s = scheduled(net)
    assert arena(s) == 0 and "copy" not in work(s)


def test_reshape_and_transpose_fold_into_their_reader() -> None:
    net = Net("n", 1)
    x = net.input("x", [2, 3, 8])
    y = net.op("Transpose", net.op("Reshape", x, i64(2, 3, 4, 2)), perm=[0, 2, 1, 3])
    y = net.op("Reshape", y, i64(8, 6))
    net.output(net.op("Relu", y), "y", [8, 6])
    s = scheduled(net)
    assert work(s) == ["map"] and arena(s) == 0


@BOTH
def test_attention_folds_its_transposes(chosen: Isa) -> None:
    """Splitting heads before the scores costs no kernel of its own."""
    net = Net("n", 1)
    x = net.input("x", [1, 16, 32])

    def heads(value: str, perm: list[int]) -> str:
        return net.op("Transpose", net.op("Reshape", value, i64(1, 16, 4, 8)), perm=perm)

    q, k = heads(net.linear(x, 32, 32), [0, 2, 1, 3]), heads(net.linear(x, 32, 32), [0, 2, 3, 1])
    net.output(net.op("Softmax", net.op("MatMul", q, k)), "y", [1, 4, 16, 16])
    s = scheduled(net, chosen)
    limit = 4 if chosen is PLAIN else 5  # the second operand is packed
    assert len(work(s)) <= limit


def test_slice_split_and_gather_fold() -> None:
    net = Net("n", 1)
    x = net.input("x", [6, 10])
    a, b = net.ops("Split", [x, i64(4, 6)], 2, axis=1)
    y = net.op(
        "Add", net.op("Slice", b, i64(1), i64(5), i64(1)), net.op("Gather", a, i64(3, 0, 0, 1), axis=1)
    )
    net.output(y, "y", [6, 4])
    s = scheduled(net)
    assert work(s) == ["map"] and arena(s) == 0


# --- in place -------------------------------------------------------------------------------------------


def chain(net: Net, x: str, last: str) -> str:
    """A value in the workspace, and the outer sum of it to keep it there until `last` is computed."""
    return net.op("CumSum", net.op(last, x), np.array(0, np.int64))


def test_element_wise_results_replace_their_operand() -> None:
    """The recurrence's result dies where the next one starts."""
    net = Net("n", 1)
    x = net.input("x", [64, 64])
    a = net.op("CumSum", x, np.array(0, np.int64))
    b = net.op("Softmax", net.op("CumSum", net.op("Relu", a), np.array(1, np.int64)))
    net.output(b, "y", [64, 64])
    s = scheduled(net)
    assert arena(s) <= 2 * 64 * 64 * 4


def test_sum_with_its_transpose_is_not_in_place() -> None:
    net = Net("n", 1)
    x = net.input("x", [64, 64])
    a = net.op("CumSum", x, np.array(0, np.int64))
    b = net.op("Add", a, net.op("Transpose", a, perm=[1, 0]))
    net.output(net.op("CumSum", b, np.array(1, np.int64)), "y", [64, 64])
    s = scheduled(net)
    assert not any(v.name == b or s.storage.root(v).name == b for v in s.aliases)


@pytest.mark.parametrize("view", ["reverse", "shift", "broadcast"])
def test_moved_reads_are_not_in_place(view: str) -> None:
    net = Net("n", 1)
    x = net.input("x", [32, 32])
    a = net.op("CumSum", x, np.array(0, np.int64))
    if view == "reverse":
        moved = net.op("Slice", a, i64(-1), i64(-(2**31)), i64(0), i64(-1))
    elif view == "shift":
        moved = net.op("Pad", net.op("Slice", a, i64(1), i64(32), i64(1)), i64(0, 0, 0, 1))
    else:
        moved = net.op("Slice", a, i64(0), i64(1), i64(0))
    b = net.op("Add", net.op("Exp", a), moved)
    net.output(net.op("CumSum", b, np.array(1, np.int64)), "y", [32, 32])
    s = scheduled(net)
    names = {(t.name, source.name) for t, source in s.aliases.items()}
    assert (b, a) not in names


def test_value_that_is_read_later_is_not_replaced() -> None:
    net = Net("n", 1)
    x = net.input("x", [32, 32])
    a = net.op("CumSum", x, np.array(0, np.int64))
    b = net.op("CumSum", net.op("Exp", a), np.array(1, np.int64))
    c = net.op("CumSum", net.op("MatMul", b, a), np.array(1, np.int64))
    net.output(c, "y", [32, 32])
    scheduled(net)  # the verifier finds an overlap


# --- outputs --------------------------------------------------------------------------------------------


@BOTH
def test_input_passed_through(chosen: Isa) -> None:
    s = raw([helper.make_node("Identity", ["x"], ["y"])], {"x": [3]}, {"y": [3]}, chosen=chosen)
    assert work(s) == ["map"] and [v.name for v in s.program.outputs] == ["y"]


@BOTH
def test_constant_as_output(chosen: Isa) -> None:
    s = raw(
        [helper.make_node("Relu", ["x"], ["y"])],
        {"x": [3]},
        {"y": [3], "c": [2]},
        {"c": f32(1.0, 2.0)},
        chosen,
    )
    assert [v.name for v in s.program.outputs] == ["y", "c"] and len(s.kernels) == 2


@BOTH
def test_one_value_as_two_outputs(chosen: Isa) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"])]
    s = raw(nodes, {"x": [3]}, {"y": [3], "z": [3]}, chosen=chosen)
    assert [v.name for v in s.program.outputs] == ["y", "z"]


@BOTH
def test_output_that_is_also_read(chosen: Isa) -> None:
    net = Net("n", 1)
    x = net.input("x", [1, 8, 6, 6])
    a = net.conv(x, 8, 16, 3)
    b = net.op("Softmax", net.conv(a, 16, 8, 3), axis=1)
    net.output(a, "a", [1, 16, 6, 6])
    net.output(b, "b", [1, 8, 6, 6])
    s = scheduled(net, chosen)
    assert {s.storage.root(v) for v in s.program.outputs} == set(s.program.outputs)


@BOTH
def test_reshaped_output_and_its_source(chosen: Isa) -> None:
    net = Net("n", 1)
    x = net.input("x", ["N", 12])
    a = net.op("Softmax", x)
    net.output(net.op("Reshape", a, i64(-1, 3, 4)), "b", ["N", 3, 4])
    net.output(a, "a", ["N", 12])
    s = scheduled(net, chosen)
    assert [v.name for v in s.program.outputs] == ["b", "a"]


# --- odd shapes -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("shape", [[], [0], [0, 5], [3, 0, 2], [1], [1, 1, 1]], ids=str)
def test_empty_and_scalar_tensors(chosen: Isa, shape: list[int]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("ReduceMax", ["b"], ["c"], keepdims=0) if 0 not in shape else
        helper.make_node("ReduceSum", ["b"], ["c"], keepdims=0),
    ]  # fmt: skip
    raw(nodes, {"x": shape}, {"b": shape, "c": []}, chosen=chosen)


# --- everything holds, on random graphs ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "x86-64-v3", "host"])
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_graphs_are_consistent(name: str, first: int) -> None:
    chosen = isa(name)
    for seed in range(5000 + first, 5000 + first + 20):
        s = schedule_of(RandomModel(seed, 14).model, chosen)
        verify.schedule(s)


def test_schedules_are_the_same_each_time() -> None:
    model = RandomModel(7, 20).model
    one, two = (schedule_of(model, TUNED) for _ in range(2))
    assert [k.name for k in one.kernels] == [k.name for k in two.kernels]
    assert one.weights == two.weights
    assert [v.name for v in one.arena] == [v.name for v in two.arena]


def test_long_chains_are_cut_into_statements() -> None:
    """Expressions stay within what compilers take: 256 nested brackets."""
    net = Net("n", 1)
    y = net.input("x", [4])
    for n in range(400):
        y = net.op(("Tanh", "Neg", "Sigmoid")[n % 3], y)
    net.output(y, "y", [4])
    s = scheduled(net)
    assert work(s) == ["map"] and arena(s) == 0
    assert max(map(nesting, s.program.values)) <= MAX_NESTING


def test_layer_norm_in_its_parts_is_one_kernel_too() -> None:
    net = Net("n", 1)
    x = net.input("x", [6, 32])
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
    variance = net.op("ReduceMean", net.op("Mul", centred, centred), axes=[-1])
    y = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, f32(1e-5))))
    net.output(net.op("Mul", y, net.bias(32)), "y", [6, 32])
    s = scheduled(net)
    assert work(s) == ["rows"] and arena(s) == 0
