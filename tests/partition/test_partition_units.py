from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from placed_nets import DIGITS, branches, graph, reshaped, residual, slice_of
from zoo.net import Net, f32

from cuvil.cost.estimate import estimate
from cuvil.frontend.onnx_reader import read_model
from cuvil.ir.graph import Graph
from cuvil.partition.segments import segments
from cuvil.partition.units import Units, units

DEVICES = ["socket0", "socket1"]


def made(net: Graph, **bindings: int) -> Units:
    return units(net, slice_of("xeon-2s"), DEVICES, bindings)


def unit_of(net: Graph, found: Units, name: str) -> int:
    """The unit of the node that makes a value, or of the node of that name."""
    for i, node in enumerate(net.nodes):
        if name == node.name or name in node.outputs:
            return found.unit[i]
    raise KeyError(name)


def test_fusion_groups_are_the_units() -> None:
    """Convolution and activation together, a residual sum with the convolution before it."""
    net = graph(residual)
    found = made(net)
    operators: dict[int, list[str]] = {}
    for node, unit in zip(net.nodes, found.unit):
        operators.setdefault(unit, []).append(node.op)
    assert list(operators.values())[:3] == [["Conv", "Relu"], ["Conv", "Relu"], ["Conv", "Add", "Relu"]]
    assert found.problem.nodes == len(operators) == max(found.unit) + 1
    assert all(a < b for a, b in found.problem.edges())


def test_costs_are_those_of_the_kernels() -> None:
    net = graph(residual)
    found = made(net)
    whole = estimate(net, slice_of("xeon-2s")).latency
    for column in found.problem.cost.T:
        assert whole < column.sum() < 3 * whole, "the expected time and some weight on the quantile"
    assert found.problem.cost[:, 0] == pytest.approx(found.problem.cost[:, 1])


def test_a_tensor_with_two_readers_is_one_tensor() -> None:
    net = graph(residual)
    found = made(net)
    stem = unit_of(net, found, "Relu_1")
    (tensor,) = (t for t in found.problem.tensors if t.producer == stem)
    assert len(tensor.consumers) == 2
    assert tensor.enter[0, 1] == pytest.approx(5e-6 + 277e-9 + 16 * 24 * 24 * 4 / 67.2e9)


def test_weights_and_activations_take_memory() -> None:
    net = graph(residual)
    found = made(net)
    assert found.problem.size[:, 0].sum() == sum(a.nbytes for a in net.constants.values())
    room = 128 * 2**30 - found.problem.capacity
    assert (room > 16 * 24 * 24 * 4).all() and (room < 1e6).all()
    assert (found.memories, found.problem.memory_of) == (["node0", "node1"], (0, 1))


def test_prepared_weights_take_memory() -> None:
    """Winograd's, which a library of ``footprint: file`` has beside the 3x3 weights."""

    def convolution(net: Net) -> None:
        x = net.conv(net.input("x", [1, 64, 24, 24]), 64, 64, 1)
        net.output(net.conv(net.conv(x, 64, 64, 3), 64, 64, 1), "y", [1, 64, 24, 24])

    room = []
    for footprint in ("default", "file"):
        target = slice_of("xeon-2s")
        for device in target["devices"].values():
            device["footprint"] = footprint
        room.append(units(graph(convolution), target, DEVICES, {}).problem.capacity)
    assert (room[0] - room[1] == 36 * 64 * 64 * 4).all()


def test_sequences_do_not_travel() -> None:
    """What makes a sequence and what reads it run on one device."""

    def build(net: Net) -> None:
        x = net.input("x", [8, 8])
        listed = net.op("SequenceConstruct", net.linear(x, 8, 8), net.linear(x, 8, 8))
        first = net.linear(net.op("SequenceAt", listed, np.array(0)), 8, 8)
        net.output(net.op("Add", first, net.op("SequenceAt", listed, np.array(1))), "y", [8, 8])

    net = graph(build)
    found = made(net)
    names = [node.name for node in net.nodes if node.op.startswith("Sequence")]
    assert len(names) == 3 and len({unit_of(net, found, name) for name in names}) == 1


def test_nodes_without_a_kernel_go_with_their_reader() -> None:
    def build(net: Net) -> None:
        x = net.input("x", [4, 8, 8])
        y = net.op("Transpose", x, perm=[0, 2, 1])
        y = net.linear(net.op("Relu", net.linear(y, 8, 24)), 24, 8)
        net.output(net.op("Softmax", net.op("Mul", y, f32(3.0)), axis=-1), "y", [4, 8, 8])

    net = graph(build)
    found = made(net)
    assert unit_of(net, found, "Transpose_0") == unit_of(net, found, "MatMul_1")


def test_branches_can_part() -> None:
    net = graph(branches)
    found = made(net)
    assert found.problem.nodes >= 4
    assert unit_of(net, found, "Conv_0") != unit_of(net, found, "Conv_4")


def test_sizes_stay_with_what_they_shape() -> None:
    """No cut between the computation of a shape and its use; elsewhere there may be one."""
    net = graph(reshaped)
    found = made(net, N=4)
    reshape = next(node for node in net.nodes if node.op == "Reshape")
    shape_makers = {
        i for i, node in enumerate(net.nodes) if node.op in ("Shape", "Gather", "Concat", "Unsqueeze")
    }
    assert shape_makers, "the sizes are symbolic, so that they are computed"
    together = {found.unit[i] for i in shape_makers} | {unit_of(net, found, reshape.outputs[0])}
    assert len(together) == 1


def test_shapes_unknown_to_the_inputs_do_not_travel() -> None:
    net = graph(reshaped)
    found = made(net)
    unknown = {
        name
        for name, kind in net.types.items()
        if kind.shape is None or any(isinstance(n, str) and n != "N" for n in kind.shape)
    }
    for node in net.nodes:
        for name in node.outputs:
            readers = [i for i, other in enumerate(net.nodes) if name in other.inputs]
            if name in unknown:
                assert {found.unit[i] for i in readers} <= {unit_of(net, found, name)}


def test_symbolic_batch() -> None:
    net = read_model(DIGITS)
    one, many = made(net), made(net, N=64)
    assert one.unit == many.unit and one.problem.nodes >= 6
    assert many.problem.cost.sum() > 20 * one.problem.cost.sum()


def test_a_cut_is_as_dear_as_it_turned_out_to_be() -> None:
    """A unit that became slower because its result is cut: the excess goes to that tensor, once."""
    net = graph(residual)
    found = made(net)
    placement = [0] + [1] * (found.problem.nodes - 1)
    cost = estimate(net, slice_of("xeon-2s"), segments=segments(net, found.placed(placement)))
    slower = replace(cost.kernels[0], latency=float(found.expected[0, 0]) + 1e-3)
    rest = tuple(replace(k, latency=0.0) for k in cost.kernels[1:])
    learned = found.corrected(placement, replace(cost, kernels=(slower, *rest)))
    (before,), (after,) = ([t for t in u.problem.tensors if t.producer == 0] for u in (found, learned))
    assert (after.leave - before.leave)[0] == pytest.approx(1e-3, rel=1e-6)
    assert np.array_equal(after.enter, before.enter)
    again = learned.corrected(placement, replace(cost, kernels=(slower, *rest)))
    assert again.problem.tensors[0].leave == pytest.approx(learned.problem.tensors[0].leave)
    assert found.problem.loads(placement)[0] < learned.problem.loads(placement)[0]
    others = [t for t in learned.problem.tensors if t.producer != 0]
    assert all(not t.leave.any() for t in others)
